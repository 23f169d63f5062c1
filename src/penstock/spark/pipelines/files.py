"""Small files on whatever file system Spark can reach: Hadoop's FileSystem, through the session's JVM.

A path is a local path or a URL. What is written here is markers and state of a few kilobytes. `create` is how two
that begin at the same moment find out that they are two: the file appears whole, and for one of them only. File
systems do that by a rename, stores that have none worth the name by a condition on the upload itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from urllib.parse import urlparse
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError

# What Hadoop's clients of object stores are asked for: the upload fails, at its end, when there is something by now.
_CONDITIONAL = "fs.option.create.conditional.overwrite"
# pyspark has classes of its own for some of Java's exceptions.
_RAISED_BY_JAVA = (Py4JJavaError, IllegalArgumentException)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Entry(NamedTuple):
    path: str
    name: str
    is_directory: bool
    size_bytes: int


def local_path(path: str) -> str | None:
    """None for what is not on a local disk."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return None if urlparse(path).scheme else path


def joined(directory: str, *names: str) -> str:
    return "/".join((directory.rstrip("/"), *names))


def _told(
    method: Callable[Concatenate[Files, str, Arguments], Result],
) -> Callable[Concatenate[Files, str, Arguments], Result]:
    """What Java says goes wrong with a path becomes one sentence."""

    @wraps(method)
    def call(self: Files, path: str, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return method(self, path, *arguments, **named)
        except _RAISED_BY_JAVA as error:
            raise PipelineError(f"{path}: {_first_line(error)}") from None

    return call


class Files:
    def __init__(self, spark: SparkSession) -> None:
        # By their whole names: asked package by package, Java looks for a class of each package's name in every jar.
        self._class = partial(getattr, spark._jvm)
        self._path_class: Any = self._class("org.apache.hadoop.fs.Path")
        self._configuration: Any = spark._jsc.hadoopConfiguration()

    def qualified(self, path: str) -> str:
        """With scheme and host, so that everybody means the same place, wherever they run."""
        _, there = self._at(path)
        return _url(there)

    @_told
    def exists(self, path: str) -> bool:
        system, there = self._at(path)
        return bool(system.exists(there))

    @_told
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

    @_told
    def size(self, path: str) -> int:
        system, there = self._at(path)
        return int(system.getFileStatus(there).getLen())

    @_told
    def open(self, path: str) -> Any:
        """A stream of Hadoop's."""
        system, there = self._at(path)
        return system.open(there)

    @_told
    def create_stream(self, path: str) -> Any:
        """In place of what is there."""
        system, there = self._at(path)
        return system.create(there, True)

    @_told
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

    @_told
    def create(self, path: str, text: str) -> bool:
        """False when there is one already, whoever made it. Raises PipelineError when there is none after it."""
        system, there = self._at(path)
        if system.exists(there):
            return False
        is_mine, why = False, "the file system did not rename its draft"
        try:
            if system.hasPathCapability(there, _CONDITIONAL):
                _written(system.createFile(there).opt(_CONDITIONAL, True).build(), text)
                is_mine = True
            else:
                is_mine = self._renamed(path, text)
        except OSError as error:
            why = str(error)
        except _RAISED_BY_JAVA as error:
            why = _first_line(error)
        # They differ in how they say that the target is there, so it is looked at.
        if not is_mine and not system.exists(there):
            raise PipelineError(f"{path} cannot be made: {why}")
        return is_mine

    @_told
    def write(self, path: str, text: str) -> None:
        """In place of what is there. Readers see the old text or the new one."""
        system, there = self._at(path)
        if system.hasPathCapability(there, _CONDITIONAL):
            # A rename would be a copy, with nothing there for a moment; what is uploaded appears in one step.
            _written(system.create(there, True), text)
            return
        draft = self._draft(path, text)
        overwrite = self._class("org.apache.hadoop.fs.Options$Rename").OVERWRITE
        options = self._class("java.lang.reflect.Array").newInstance(overwrite.getClass(), 1)
        options[0] = overwrite
        contexts = self._class("org.apache.hadoop.fs.FileContext")
        context = contexts.getFileContext(system.getUri(), self._configuration)
        context.rename(draft, there, options)

    @_told
    def make_directory(self, path: str) -> None:
        system, there = self._at(path)
        system.mkdirs(there)

    @_told
    def rename(self, path: str, new_path: str) -> None:
        system, there = self._at(path)
        if not system.rename(there, self._path(new_path)):
            raise PipelineError(f"{path} cannot be renamed to {new_path}")

    @_told
    def delete(self, path: str) -> None:
        """With everything in it; nothing happens where there is nothing."""
        system, there = self._at(path)
        system.delete(there, True)

    def _renamed(self, path: str, text: str) -> bool:
        """Whether a draft could take the name."""
        system, there = self._at(path)
        draft, local = self._draft(path, text), local_path(_url(there))
        is_renamed = False
        try:
            if local is not None:
                # A rename would replace what somebody else has just made; a link does not.
                Path(local).hardlink_to(local_path(_url(draft)) or "")
                return True
            is_renamed = bool(system.rename(draft, there))
            return is_renamed
        finally:
            if not is_renamed:
                system.delete(draft, False)

    def _draft(self, path: str, text: str) -> Any:
        """The text in a file beside the one it is for; names that begin with a dot are not data to Spark."""
        system, there = self._at(path)
        draft = self._path(joined(str(there.getParent().toString()), f".{there.getName()}.{uuid4().hex}"))
        _written(system.create(draft, True), text)
        return draft

    def _at(self, path: str) -> tuple[Any, Any]:
        there = self._path(path)
        try:
            system = there.getFileSystem(self._configuration)
            return system, system.makeQualified(there)
        except _RAISED_BY_JAVA as error:
            raise PipelineError(f"{path} cannot be reached: {_first_line(error)}") from None

    def _path(self, path: str) -> Any:
        try:
            return self._path_class(path)
        except _RAISED_BY_JAVA as error:
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


def _written(stream: Any, text: str) -> None:
    try:
        stream.write(bytearray(text.encode()))
        if stream.hasCapability("hsync"):
            stream.hsync()
    finally:
        stream.close()


def _url(path: Any) -> str:
    """Hadoop writes file:/x where others write file:///x."""
    text = str(path.toString())
    return text.replace("file:/", "file:///", 1) if text.startswith("file:/") and text[6:7] != "/" else text


def _first_line(error: Py4JJavaError | IllegalArgumentException) -> str:
    text = str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)
    return text.splitlines()[0]
