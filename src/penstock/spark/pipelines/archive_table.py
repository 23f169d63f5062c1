"""A table of an archive, in either format: what it promises, and how it is opened.

A batch is written into a directory that only its attempt knows, and then committed: its files, and how far the archive
has come, in one step. Whoever reads sees all of a batch or nothing. Two that write one table find out at the commit: it
fails for one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines.archive_home import ArchiveHome, Format
from penstock.spark.pipelines.data_files import DataFile, rows_of
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.merging import FileSizes


class ArchiveTable(Protocol):
    @property
    def archived(self) -> StreamOffsets:
        """As of the last commit."""

    @property
    def schema(self) -> StructType: ...

    def begin(self) -> None:
        """What the run that came before has left undone is done. Only for those who write."""

    def attempt(self, name: str) -> str:
        """A new directory, for the files of a batch."""

    def commit(self, directory: str, files: Sequence[DataFile], archived: StreamOffsets) -> None:
        """Raises PipelineError when somebody else has written meanwhile."""

    def give_up(self, directory: str) -> None:
        """Nothing was written."""

    def tidy(self, sizes: FileSizes, is_last: bool) -> None:
        """Merges small files where it is time to; `is_last` says that nothing follows for now."""

    def files(self) -> list[str]:
        """All that are in the table now."""


def open_table(
    spark: SparkSession, home: ArchiveHome, table: str, schema: StructType | None, catalog: Mapping[str, str]
) -> ArchiveTable | None:
    """None where there is none and no schema to make one with. With one, the table has it afterwards.

    Raises PipelineError when the table has another schema, or is not of this archive.
    """
    if home.format is Format.PARQUET:
        from penstock.spark.pipelines.parquet_table import open_parquet_table

        return open_parquet_table(spark, Files(spark), home.location(table), schema)
    from penstock.spark.pipelines.iceberg_catalog import open_iceberg_table

    return open_iceberg_table(spark, Files(spark), home, table, schema, catalog)


def read_table(spark: SparkSession, table: ArchiveTable) -> DataFrame:
    return rows_of(spark, table.files(), table.schema)
