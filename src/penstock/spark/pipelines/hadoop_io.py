"""Files of Hadoop's file systems as pyarrow and pyiceberg want them: footers and Iceberg's metadata, not records.

Wherever Spark can write a table, the driver can then commit to it, without a second client and a second configuration
for the same store. Local files are opened as such.
"""

from __future__ import annotations

import io
from typing import IO, Any, cast

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, local_path

_CHUNK_BYTES = 1 << 20


def opened(files: Files, path: str) -> IO[bytes]:
    local = local_path(path)
    if local is not None:
        return open(local, "rb")  # noqa: PTH123
    return cast(IO[bytes], io.BufferedReader(HadoopInput(files, path), _CHUNK_BYTES))


class HadoopInput(io.RawIOBase):
    """A file that is read, with seeks: each read is a call of the JVM, so put a buffer around it."""

    def __init__(self, files: Files, path: str) -> None:
        self._stream: Any = files.open(path)
        self._size = files.size(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self.tell())
        if wanted <= 0:
            return 0
        data = bytes(self._stream.readNBytes(wanted))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        self._stream.seek(base + offset)
        return base + offset

    def tell(self) -> int:
        return int(self._stream.getPos())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class HadoopOutput(io.RawIOBase):
    """A file that is there, whole, once it is closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytearray(data))
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class HadoopFileIO(FileIO):
    """For pyiceberg, as `py-io-impl`. Needs a Spark session in this process."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        self._files = Files(spark)

    def new_input(self, location: str) -> InputFile:
        return _HadoopInputFile(self._files, location)

    def new_output(self, location: str) -> OutputFile:
        return _HadoopOutputFile(self._files, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._files.delete(location if isinstance(location, str) else location.location)


class _HadoopInputFile(InputFile):
    def __init__(self, files: Files, location: str) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return self._files.size(self.location)

    def exists(self) -> bool:
        return self._files.exists(self.location)

    def open(self, seekable: bool = True) -> InputStream:
        if not self.exists():
            raise FileNotFoundError(self.location)
        return cast(InputStream, io.BufferedReader(HadoopInput(self._files, self.location), _CHUNK_BYTES))


class _HadoopOutputFile(OutputFile):
    def __init__(self, files: Files, location: str) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return self._files.size(self.location)

    def exists(self) -> bool:
        return self._files.exists(self.location)

    def to_input_file(self) -> InputFile:
        return _HadoopInputFile(self._files, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        try:
            return cast(OutputStream, HadoopOutput(self._files.create_stream(self.location)))
        except PipelineError as error:
            raise OSError(str(error)) from None
