"""Small files on whatever file system Spark can reach: Hadoop's FileSystem, through the session's JVM.

A path is a local path or a URL. What is written here is markers and state of a few kilobytes. `create` is how two
that begin at the same moment find out that they are two: the file appears whole, and for one of them only.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError


class Entry(NamedTuple):
    path: str
    name: str
    is_directory: bool
    size_bytes: int


def joined(directory: str, *names: str) -> str:
    return "/".join((directory.rstrip("/"), *names))


class Files:
    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._configuration: Any = spark._jsc.hadoopConfiguration()

    def qualified(self, path: str) -> str:
        """With scheme and host, so that everybody means the same place, wherever they run."""
        _, there = self._at(path)
        return _url(there)

    def exists(self, path: str) -> bool:
        system, there = self._at(path)
        return bool(system.exists(there))

    def list(self, path: str) -> list[Entry]:
        """What is in a directory, by name; nothing where there is none."""
        system, there = self._at(path)
        if not system.exists(there):
            return []
        found = [
            Entry(_url(each.getPath()), str(each.getPath().getName()), each.isDirectory(), int(each.getLen()))
            for each in system.listStatus(there)
        ]
        return sorted(found, key=lambda entry: entry.name)

    def size(self, path: str) -> int:
        system, there = self._at(path)
        return int(system.getFileStatus(there).getLen())

    def open(self, path: str) -> Any:
        """A stream of Hadoop's."""
        system, there = self._at(path)
        return system.open(there)

    def create_stream(self, path: str) -> Any:
        """In place of what is there."""
        system, there = self._at(path)
        return system.create(there, True)

    def read(self, path: str) -> str | None:
        """None where there is no such file."""
        system, there = self._at(path)
        if not system.exists(there):
            return None
        stream = self.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def create(self, path: str, text: str) -> bool:
        """False when there is one already, whoever made it."""
        system, there = self._at(path)
        if system.exists(there):
            return False
        draft = self._draft(path, text)
        try:
            # A rename onto a file that is there fails on HDFS; local ones replace it, so those have been asked above.
            is_mine = bool(system.rename(draft, there))
        except Py4JJavaError:
            is_mine = False
        if not is_mine:
            system.delete(draft, False)
        return is_mine

    def write(self, path: str, text: str) -> None:
        """In place of what is there. Readers see the old text or the new one."""
        system, there = self._at(path)
        draft = self._draft(path, text)
        overwrite = self._jvm.org.apache.hadoop.fs.Options.Rename.OVERWRITE
        options = self._jvm.java.lang.reflect.Array.newInstance(overwrite.getClass(), 1)
        options[0] = overwrite
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(system.getUri(), self._configuration)
        context.rename(draft, there, options)

    def make_directory(self, path: str) -> None:
        system, there = self._at(path)
        system.mkdirs(there)

    def rename(self, path: str, new_path: str) -> None:
        system, there = self._at(path)
        if not system.rename(there, self._path(new_path)):
            raise PipelineError(f"{path} cannot be renamed to {new_path}")

    def delete(self, path: str) -> None:
        """With everything in it; nothing happens where there is nothing."""
        system, there = self._at(path)
        system.delete(there, True)

    def _draft(self, path: str, text: str) -> Any:
        """The text in a file beside the one it is for; names that begin with a dot are not data to Spark."""
        system, there = self._at(path)
        draft = self._path(joined(str(there.getParent().toString()), f".{there.getName()}.{uuid4().hex}"))
        stream = system.create(draft, True)
        try:
            stream.write(bytearray(text.encode()))
            if stream.hasCapability("hsync"):
                stream.hsync()
        finally:
            stream.close()
        return draft

    def _at(self, path: str) -> tuple[Any, Any]:
        there = self._path(path)
        try:
            system = there.getFileSystem(self._configuration)
            return system, system.makeQualified(there)
        except Py4JJavaError as error:
            raise PipelineError(f"{path} cannot be reached: {_first_line(error)}") from None

    def _path(self, path: str) -> Any:
        try:
            return self._jvm.org.apache.hadoop.fs.Path(path)
        except Py4JJavaError as error:
            raise PipelineError(f'"{path}" is no path: {_first_line(error)}') from None


def read_json(files: Files, path: str) -> dict[str, Any] | None:
    """None where there is no such file. Raises PipelineError when it is not JSON."""
    text = files.read(path)
    if text is None:
        return None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"{path} is damaged: {error}") from None
    if not isinstance(document, dict):
        raise PipelineError(f"{path} is damaged: it is not an object")
    return document


def _url(path: Any) -> str:
    """Hadoop writes file:/x where others write file:///x."""
    text = str(path.toString())
    return text.replace("file:/", "file:///", 1) if text.startswith("file:/") and text[6:7] != "/" else text


def _first_line(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString()).splitlines()[0]
