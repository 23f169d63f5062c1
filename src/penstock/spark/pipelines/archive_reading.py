"""What an archive has, as rows: its records and those in quarantine, which are records too.

The table is opened each time: what it is made of changes when files are merged, what it says does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines import archive_home
from penstock.spark.pipelines.archive_home import ArchiveHome
from penstock.spark.pipelines.archive_table import open_table, read_table
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.table_schema import REASON


def read_archive(spark: SparkSession, path: str, catalog: Mapping[str, str] | None = None) -> DataFrame:
    """All records of an archive, for notebooks. Raises PipelineError."""
    return Archive.at(spark, path, catalog or {}).records()


@dataclass(frozen=True, slots=True)
class Archive:
    spark: SparkSession
    home: ArchiveHome
    catalog: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, spark: SparkSession, path: str, catalog: Mapping[str, str]) -> Archive:
        """Raises PipelineError when there is no archive."""
        return cls(spark, archive_home.existing(Files(spark), path), catalog)

    def records(self) -> DataFrame:
        table = open_table(self.spark, self.home, self.home.table, None, self.catalog)
        if table is None:
            raise PipelineError(f"the archive {self.home.path} has no table {self.home.table} yet")
        records = read_table(self.spark, table)
        quarantine = open_table(self.spark, self.home, self.home.quarantine, None, self.catalog)
        if quarantine is None or not quarantine.files():
            return records
        return records.unionByName(read_table(self.spark, quarantine).drop(REASON), allowMissingColumns=True)

    def archived(self) -> StreamOffsets:
        """How far it has come."""
        table = open_table(self.spark, self.home, self.home.table, None, self.catalog)
        return StreamOffsets({}) if table is None else table.archived

    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.archived().offsets})

    def topic(self, wanted: str | None) -> str:
        """The one that is meant. Raises PipelineError when that is not clear."""
        known = self.topics()
        if not known:
            raise PipelineError(f"the archive {self.home.path} is empty")
        if wanted is not None and wanted not in known:
            raise PipelineError(f'the archive has no topic "{wanted}", only {", ".join(known)}')
        if wanted is None and len(known) > 1:
            raise PipelineError(f"the archive has several topics, say which: {', '.join(known)}")
        return wanted or known[0]
