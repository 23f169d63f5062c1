"""An Iceberg table that results are added to, batch by batch, each once.

Which batch was added last stands in the table and changes in the commit that adds it. Another checkpoint would compute
the same windows again, under other numbers: it is refused. So is a state of the same checkpoint that is older than the
table: its next batches have numbers that were given already, to other windows. Of the last number, the rows tell. And
so is one that is newer, beside a table from a backup: batches without rows are counted too, so what is missing shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.pipelines.checkpoints import Batch
from penstock.spark.pipelines.data_files import rows_of
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.iceberg_catalog import NAMESPACE, open_catalog
from penstock.spark.pipelines.table_home import HOME_ID, SPARK_SCHEMA, TableHome, load, spark_schema
from penstock.spark.pipelines.table_upkeep import Upkeep

_QUERY = "penstock.query"
_BATCH = "penstock.batch"  # the last one that had rows
_DONE = "penstock.done"  # the last one; tables of earlier versions do not say it
_BATCH_ROWS = "penstock.batch-rows"
_MASK = (1 << 64) - 1
_SMALL_BYTES = 16 << 20
_SMALL_FILES = 16
_PROPERTIES = {
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}


@dataclass(frozen=True, slots=True)
class ResultTable:
    """`order` is the columns that rows of a file are sorted by."""

    spark: SparkSession
    files: Files
    table: Table
    upkeep: Upkeep
    order: tuple[str, ...]

    def add(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        """How many were added, which is none when they are there. All of `rows` is computed, once, either way."""
        _check_same_query(self.table, query_id)
        last = int(self.table.properties.get(_BATCH, -1))
        if last > batch_id:
            raise self._is_older(f"batch {batch_id} is to be added, and batch {last} is there")
        if last == batch_id:
            self._check_same(rows, batch_id)
            return 0
        seen = Observation()
        added = self._written(rows, seen)
        done = {_QUERY: query_id, _DONE: str(batch_id)}
        if not added:
            self._commit([], [], done)
            return 0
        self._commit([], added, {**done, _BATCH: str(batch_id), _BATCH_ROWS: _told_of(seen.get)})
        self._merge_small()
        self.upkeep.tidy(self.table)
        return sum(file.record_count for file in added)

    def _check_same(self, rows: DataFrame, batch_id: int) -> None:
        """Tables of earlier versions do not say what was in their last batch."""
        found = rows.agg(*self._measures()).first()
        assert found is not None
        there, now = self.table.properties.get(_BATCH_ROWS), _told_of(found.asDict())
        if there not in (None, now):
            raise self._is_older(f"batch {batch_id} is there with other windows ({there}) than it has now ({now})")

    def _measures(self) -> list[Column]:
        """Of which windows there are, in any order: sums in them may differ in their last digits when done again."""
        return [F.count(F.lit(1)).alias("rows"), F.bit_xor(F.xxhash64(*self.order)).alias("checksum")]

    def _is_older(self, what: str) -> PipelineError:
        return PipelineError(
            f"the checkpoint is older than the table {'.'.join(self.table.name())}: {what}. To go on would leave "
            "windows out. Go back to the checkpoint that wrote it, or make the table anew: --to takes another directory"
        )

    def _written(self, rows: DataFrame, seen: Observation | None = None) -> list[DataFile]:
        directory = self.upkeep.new_directory(self.table)
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # what Iceberg asks for
        one = rows.repartition(1).sortWithinPartitions(*self.order)
        if seen is not None:
            one = one.observe(seen, *self._measures())
        one.write.mode("errorifexists").option("compression", "zstd").parquet(directory)
        paths = [entry.path for entry in self.files.list(directory) if entry.name.endswith(".parquet")]
        found = [parquet_file_to_data_file(self.table.io, self.table.metadata, path) for path in paths]
        return [file for file in found if file.record_count]

    def _commit(self, old: list[DataFile], new: list[DataFile], properties: Mapping[str, str]) -> None:
        try:
            with self.table.transaction() as transaction:
                if old or new:
                    with transaction.update_snapshot().overwrite() as replace:
                        for file in old:
                            replace.delete_data_file(file)
                        for file in new:
                            replace.append_data_file(file)
                if properties:
                    transaction.set_properties(dict(properties))
        except CommitFailedException:
            self.table.refresh()
            raise PipelineError(
                f"somebody else has committed to the table {'.'.join(self.table.name())}: one at a time"
            ) from None

    def _merge_small(self) -> None:
        """Every batch adds a file, and windows are few."""
        small = [task.file for task in self.table.scan().plan_files() if task.file.file_size_in_bytes < _SMALL_BYTES]
        if len(small) < _SMALL_FILES:
            return
        rows = rows_of(self.spark, [file.file_path for file in small], spark_schema(self.table))
        merged = self._written(rows)
        assert sum(file.record_count for file in merged) == sum(file.record_count for file in small)
        with suppress(PipelineError):  # another time, then
            self._commit(small, merged, {})


def open_result_table(
    spark: SparkSession, home: TableHome, schema: StructType, order: tuple[str, ...], catalog: Mapping[str, str]
) -> ResultTable:
    """Made if it is not there. Raises PipelineError when it has other columns."""
    files = Files(spark)
    opened = open_catalog(files, home.path, catalog, is_to_be_made=True)
    assert opened is not None
    columns = to_arrow_schema(schema, timezone="UTC")
    opened.create_namespace_if_not_exists(NAMESPACE)
    properties = {**_PROPERTIES, HOME_ID: home.id, SPARK_SCHEMA: schema.json(), _DONE: "-1"}
    with suppress(TableAlreadyExistsError):
        made = opened.create_table(home.identifier, columns, location=home.location, properties=properties)
        with made.transaction() as transaction:
            mapping = made.schema().name_mapping.model_dump_json()
            transaction.set_properties({"schema.name-mapping.default": mapping})
    table = load(files, home, catalog)
    assert table is not None
    check_columns(table, schema)
    return ResultTable(spark, files, table, Upkeep(files), order)


def check_columns(table: Table, schema: StructType) -> None:
    there = spark_schema(table)
    if there != schema:
        raise PipelineError(
            f"the table {'.'.join(table.name())} has other columns: {_told(there)} there, and {_told(schema)} now; "
            "--to takes another directory"
        )


def check_reached(table: Table | None, read: Batch | None, checkpoint: str) -> None:
    """`read` is the last batch that is done by the checkpoint. Raises PipelineError when the table lacks some."""
    if table is not None:
        _check_same_query(table, None if read is None else read.query_id)
        if _DONE not in table.properties:
            return
    if read is None:
        return
    is_ours = table is not None and table.properties.get(_QUERY) == read.query_id
    done = int(table.properties[_DONE]) if table is not None and is_ours else -1
    if done < read.number:
        there = f"batch {done} is the last one in it" if done >= 0 else "no batch is in it"
        raise PipelineError(
            f"the table is behind its checkpoint {checkpoint}, as one from a backup is: {there}, and batch "
            f"{read.number} is done. Windows would be left out. Go back to the checkpoint of that time, or make the "
            "table anew: --to takes another directory"
        )


def _check_same_query(table: Table, query_id: str | None) -> None:
    """None begins anew, which any may do while there are no rows."""
    if _BATCH in table.properties and table.properties.get(_QUERY) != query_id:
        raise PipelineError(
            f"the table {'.'.join(table.name())} was written with another checkpoint: with this one its windows would "
            "be there twice; --to takes another directory"
        )


def _told_of(measures: Mapping[str, int | None]) -> str:
    return f"{measures['rows']} of checksum {(measures['checksum'] or 0) & _MASK:016x}"


def _told(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
