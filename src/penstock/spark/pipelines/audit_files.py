"""Where the page and the JSON of an audit go, on whatever file system Spark can reach.

An audit takes long, and what it has found is not to be lost on a path: places are tried before it begins.
"""

from __future__ import annotations

from uuid import uuid4

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined


class AuditFile:
    """Raises PipelineError where nothing can be written."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._directory, _, self._name = files.qualified(path).rpartition("/")

    def check(self) -> None:
        """Leaves at most an empty directory, which is the one that it goes to."""
        beside = self._files.list(self._directory)
        if any(each.is_directory and each.name == self._name for each in beside):
            raise PipelineError(f"{self._path} is a directory")
        draft = joined(self._directory, f".{self._name}.{uuid4().hex}")
        try:
            self._files.write(draft, "")
            self._files.delete(draft)
        except PipelineError as error:
            raise PipelineError(f"{self._path} cannot be written: {error}") from None

    def write(self, text: str) -> None:
        self._files.write(self._path, text)
        # Hadoop's checksum of a local file: people would wonder, and find it wrong when they have edited the file.
        self._files.delete(joined(self._directory, f".{self._name}.crc"))
