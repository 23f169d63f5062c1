"""Where an archive's Iceberg tables are known: a SQLite file in the archive, or any catalog that pyiceberg has.

A table is made once, in the name of its archive; one of the same name that is somebody else's is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType as SparkStruct

from penstock.spark.pipelines.archive_home import ArchiveHome
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, local_path
from penstock.spark.pipelines.iceberg_table import ARCHIVE_ID, IcebergTable

NAMESPACE = "penstock"
_CATALOG = "penstock"
_TIMESTAMP_ID = 7
_HADOOP_IO = "penstock.spark.pipelines.hadoop_io.HadoopFileIO"

_RECORD = Schema(
    NestedField(1, "topic", StringType(), required=False),
    NestedField(2, "partition", IntegerType(), required=False),
    NestedField(3, "offset", LongType(), required=False),
    NestedField(4, "key", BinaryType(), required=False),
    NestedField(5, "value", BinaryType(), required=False),
    NestedField(
        6,
        "headers",
        ListType(
            9,
            StructType(
                NestedField(10, "key", StringType(), required=False),
                NestedField(11, "value", BinaryType(), required=False),
            ),
            element_required=False,
        ),
        required=False,
    ),
    NestedField(_TIMESTAMP_ID, "timestamp", TimestamptzType(), required=False),
    NestedField(8, "timestamp_type", IntegerType(), required=False),
)
_BY_DAY = PartitionSpec(PartitionField(_TIMESTAMP_ID, 1000, DayTransform(), "day"))
_PROPERTIES = {
    # Whether a commit that fails may be tried again is for us to say: somebody else may have archived the same records.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.metrics.column.key": "counts",
    "write.parquet.compression-codec": "zstd",
}


def open_iceberg_table(
    spark: SparkSession,
    files: Files,
    home: ArchiveHome,
    name: str,
    schema: SparkStruct | None,
    properties: Mapping[str, str],
) -> IcebergTable | None:
    """As `archive_table.open_table`."""
    catalog = open_catalog(files, home.path, properties, is_to_be_made=schema is not None)
    if catalog is None:
        return None
    identifier = (NAMESPACE, name)
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError:
        if schema is None:
            return None
        table = _created(catalog, identifier, home)
    if table.properties.get(ARCHIVE_ID) != home.id:
        raise PipelineError(
            f"there is a table {NAMESPACE}.{name} in the catalog that is not of the archive {home.path}: --table takes "
            "another name"
        )
    found = IcebergTable(spark, files, table)
    if schema is not None:
        found.evolve(schema)
    return found


def _created(catalog: Catalog, identifier: tuple[str, str], home: ArchiveHome) -> Table:
    catalog.create_namespace_if_not_exists(NAMESPACE)
    try:
        return catalog.create_table(
            identifier,
            _RECORD,
            location=home.location(identifier[1]),
            partition_spec=_BY_DAY,
            properties={**_PROPERTIES, ARCHIVE_ID: home.id},
        )
    except TableAlreadyExistsError:  # by somebody who begins at the same time
        return catalog.load_table(identifier)


def open_catalog(files: Files, directory: str, given: Mapping[str, str], is_to_be_made: bool) -> Catalog | None:
    """None where the directory's own does not exist yet."""
    if "#" in directory or "?" in directory:
        raise PipelineError(
            f"{directory}: there can be no Iceberg table below a name with # or ?, which pyiceberg takes for parts of "
            "a URL: name another directory"
        )
    properties = {"warehouse": directory, **given}
    local = local_path(directory)
    if local is None:
        # Where Spark writes the data, its file systems reach the metadata too.
        properties.setdefault("py-io-impl", _HADOOP_IO)
    if not any(key in given for key in ("uri", "type", "catalog-impl")):
        if local is None:
            raise PipelineError(
                f"{directory} is not on a local disk, where a SQLite catalog could be: name a catalog, for example "
                "--catalog-property type=rest --catalog-property uri=http://host:8181, or a SQLite file on one, "
                "--catalog-property uri=sqlite:////catalogs/orders.db; an archive with --format parquet takes none"
            )
        if not is_to_be_made and not files.exists(f"{directory}/catalog.db"):
            return None
        files.make_directory(directory)
        properties |= {"type": "sql", "uri": f"sqlite:///{quote(local)}/catalog.db"}
    try:
        return load_catalog(_CATALOG, **properties)
    except Exception as error:  # whatever a catalog's own client raises
        raise PipelineError(f"the Iceberg catalog cannot be opened: {error}") from error
