"""An Iceberg table with one row for each key, in parts by key, of which a commit replaces those that have changed.

pyiceberg cannot write deletes that readers apply, and its own upsert passes every row through the driver. So Spark
writes the parts anew that a batch touches, and one commit puts them in place of the old ones, together with how far the
changelog is applied. The catalog takes a commit only if nobody else has committed since we looked.

The directory of a batch's files begins with the snapshot that they are to replace: once the table has another one,
nobody can commit them any more, and they are removed (table_upkeep).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import In
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, NestedField, StringType, TimestamptzType
from pyiceberg.types import IntegerType as IcebergInteger
from pyiceberg.types import LongType as IcebergLong
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType as SparkBinaryType
from pyspark.sql.types import DataType, IntegerType, LongType, StructField, StructType, TimestampType

from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines.archived import NOTHING, from_text, to_text
from penstock.spark.pipelines.changelog import BUCKET, KEY, OFFSET, PARTITION, TIMESTAMP
from penstock.spark.pipelines.data_files import rows_of
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.iceberg_catalog import NAMESPACE, open_catalog
from penstock.spark.pipelines.table_home import HOME_ID, SPARK_SCHEMA, TableHome, load, spark_schema
from penstock.spark.pipelines.table_schema import extended
from penstock.spark.pipelines.table_upkeep import Upkeep

_APPLIED = "penstock.applied"
_BUCKETS = "penstock.buckets"
_COMMITTED_BY = "penstock.batch"
_BUCKET_ID = 5
_READERS = 8
_PROPERTIES = {
    # Whether a commit that fails may be tried again is for us to say: somebody else may have applied the same changes.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}


def row_schema(key: DataType, columns: StructType) -> StructType:
    ours = [(PARTITION, IntegerType()), (OFFSET, LongType()), (TIMESTAMP, TimestampType()), (BUCKET, IntegerType())]
    return StructType([StructField(KEY, key), *columns.fields, *(StructField(name, kind) for name, kind in ours)])


class KeyedTable:
    def __init__(self, spark: SparkSession, files: Files, table: Table, upkeep: Upkeep) -> None:
        self._spark = spark
        self._files = files
        self._table = table
        self._upkeep = upkeep

    @property
    def applied(self) -> StreamOffsets:
        return applied_to(self._table)

    @property
    def buckets(self) -> int:
        return int(self._table.properties[_BUCKETS])

    @property
    def schema(self) -> StructType:
        return spark_schema(self._table)

    @property
    def _name(self) -> str:
        return ".".join(self._table.name())

    def evolve(self, wanted: StructType) -> None:
        """Raises PipelineError unless only columns are added."""
        schema = extended(self.schema, wanted)
        if schema == self.schema:
            return
        try:
            with self._table.transaction() as transaction:
                with transaction.update_schema() as update:
                    update.union_by_name(to_arrow_schema(schema, timezone="UTC"))
                transaction.set_properties({SPARK_SCHEMA: schema.json()})
        except (TypeError, ValueError, NotImplementedError) as error:
            raise PipelineError(f"--schema: a table cannot have such columns: {error}") from None

    # Batches

    def files_of(self, buckets: Sequence[int]) -> list[DataFile]:
        if self._table.current_snapshot() is None or not buckets:
            return []
        touched = In(BUCKET, buckets)  # type: ignore[arg-type, call-arg]
        return [task.file for task in self._table.scan(row_filter=touched).plan_files()]

    def rows_of(self, files: Sequence[DataFile]) -> DataFrame:
        return rows_of(self._spark, [file.file_path for file in files], self.schema)

    def write(self, rows: DataFrame) -> str:
        """One file or more for each bucket, in a directory that is not part of the table yet."""
        directory = self._upkeep.new_directory(self._table)
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # what Iceberg asks for
        parts = rows.repartitionById(self.buckets, BUCKET).sortWithinPartitions(KEY)
        parts.write.mode("errorifexists").option("compression", "zstd").parquet(directory)
        return directory

    def commit(self, replaced: Sequence[DataFile], directory: str | None, applied: StreamOffsets, batch: str) -> bool:
        """False when somebody else has committed since the batch began. Raises PipelineError when it was one of us."""
        based_on = self.applied
        added = [] if directory is None else self._written(directory)
        try:
            with self._table.transaction() as transaction:
                # Also where no file changes: what is asked of the catalog is that the snapshot has not.
                with transaction.update_snapshot(snapshot_properties={_COMMITTED_BY: batch}).overwrite() as replace:
                    for old in replaced:
                        replace.delete_data_file(old)
                    for new in added:
                        replace.append_data_file(new)
                transaction.set_properties({_APPLIED: to_text(applied), _COMMITTED_BY: batch})
        except CommitFailedException:
            if directory is not None:
                self._files.delete(directory)
            self._table.refresh()
            if self.applied != based_on:
                raise PipelineError(f"another query writes to the table {self._name}: one at a time") from None
            return False
        self._upkeep.tidy(self._table)
        return True

    def _written(self, directory: str) -> list[DataFile]:
        paths = [entry.path for entry in self._files.list(directory) if entry.name.endswith(".parquet")]
        metadata = self._table.metadata
        with ThreadPoolExecutor(_READERS) as readers:
            found = readers.map(lambda path: parquet_file_to_data_file(self._table.io, metadata, path), paths)
            return [file for file in found if file.record_count]


def create(spark: SparkSession, home: TableHome, key: DataType, buckets: int, catalog: Mapping[str, str]) -> Table:
    """Without columns for values, which `evolve` adds; or what somebody else has created meanwhile."""
    files = Files(spark)
    opened = open_catalog(files, home.path, catalog, is_to_be_made=True)
    assert opened is not None
    columns = _columns(BinaryType() if isinstance(key, SparkBinaryType) else StringType())
    ours = {
        HOME_ID: home.id,
        SPARK_SCHEMA: row_schema(key, StructType([])).json(),
        _BUCKETS: str(buckets),
        "schema.name-mapping.default": columns.name_mapping.model_dump_json(),
    }
    opened.create_namespace_if_not_exists(NAMESPACE)
    with suppress(TableAlreadyExistsError):
        opened.create_table(
            home.identifier,
            columns,
            location=home.location,
            partition_spec=PartitionSpec(PartitionField(_BUCKET_ID, 1000, IdentityTransform(), BUCKET)),
            properties={**_PROPERTIES, **ours},
        )
    found = load(files, home, catalog)
    assert found is not None
    return found


def _columns(key: BinaryType | StringType) -> Schema:
    return Schema(
        NestedField(1, KEY, key, required=False),
        NestedField(2, PARTITION, IcebergInteger(), required=False),
        NestedField(3, OFFSET, IcebergLong(), required=False),
        NestedField(4, TIMESTAMP, TimestamptzType(), required=False),
        NestedField(_BUCKET_ID, BUCKET, IcebergInteger(), required=False),
    )


def applied_to(table: Table) -> StreamOffsets:
    text = table.properties.get(_APPLIED)
    return NOTHING if text is None else from_text(text, f"{'.'.join(table.name())}: {_APPLIED}")


def buckets_of(table: Table) -> int:
    return int(table.properties[_BUCKETS])
