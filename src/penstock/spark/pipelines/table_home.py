"""The directory of a table that a pipeline keeps: what is in it, and whether it is ours.

<to>/_penstock/table.json         what it is: which pipeline's, its name, and an id that its checkpoints know it by
<to>/_penstock/read.json          up to where the topic was read by the last run, where it is a changelog: see behind.py
<to>/_penstock/checkpoint         Spark's, unless another place was named
<to>/catalog.db                   Iceberg's catalog, unless another one was named
<to>/<table>                      the table
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark.pipelines.data_files import rows_of
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined, read_json
from penstock.spark.pipelines.iceberg_catalog import NAMESPACE, open_catalog

HOME_ID = "penstock.table"
SPARK_SCHEMA = "penstock.schema"
_VERSION = 1
_OURS = "_penstock"
_MARKER = "table.json"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class TableHome:
    path: str
    pipeline: str
    table: str
    id: str

    @property
    def checkpoint(self) -> str:
        return joined(self.path, _OURS, "checkpoint")

    @property
    def read(self) -> str:
        return joined(self.path, _OURS, "read.json")

    @property
    def location(self) -> str:
        return joined(self.path, self.table)

    @property
    def identifier(self) -> tuple[str, str]:
        return (NAMESPACE, self.table)


def planned(files: Files, path: str, pipeline: str, table: str) -> TableHome:
    """The one that is there or would be made. Raises PipelineError when something else is there."""
    if not _NAME.fullmatch(table):
        raise PipelineError(f'--table takes letters, digits and underscores, not "{table}"')
    path = files.qualified(path)
    home = _found(files, path)
    if home is None:
        return TableHome(path, pipeline, table, uuid4().hex)
    if home.pipeline != pipeline:
        raise PipelineError(f"{path} has a table of the pipeline {home.pipeline}: --to takes another directory")
    if home.table != table:
        raise PipelineError(f'the table in {path} is "{home.table}", not "{table}"')
    return home


def made(files: Files, home: TableHome) -> TableHome:
    """As planned, or as somebody else has made it meanwhile."""
    document = {"what": home.pipeline, "version": _VERSION, "table": home.table, "id": home.id}
    files.make_directory(joined(home.path, _OURS))
    files.create(joined(home.path, _OURS, _MARKER), json.dumps(document, indent=2))
    return planned(files, home.path, home.pipeline, home.table)


def load(files: Files, home: TableHome, catalog: Mapping[str, str]) -> Table | None:
    """None where it is not made yet. Raises PipelineError when a table of that name is somebody else's."""
    opened = open_catalog(files, home.path, catalog, is_to_be_made=False)
    if opened is None:
        return None
    try:
        table = opened.load_table(home.identifier)
    except NoSuchTableError:
        return None
    if table.properties.get(HOME_ID) != home.id:
        name = ".".join(home.identifier)
        raise PipelineError(
            f"there is a table {name} in the catalog that is not of {home.path}: --table takes another name"
        )
    return table


def read_table(spark: SparkSession, to: str, *, catalog: Mapping[str, str] | None = None) -> DataFrame:
    """The table in a directory as it is now, without Iceberg's jar. Raises PipelineError where there is none."""
    files = Files(spark)
    home = _found(files, files.qualified(to))
    table = None if home is None else load(files, home, catalog or {})
    if table is None:
        raise PipelineError(f"there is no table in {files.qualified(to)}")
    schema = spark_schema(table)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    return rows_of(spark, paths, schema)


def spark_schema(table: Table) -> StructType:
    return StructType.fromJson(json.loads(table.properties[SPARK_SCHEMA]))


def _found(files: Files, path: str) -> TableHome | None:
    """None where nothing is yet. Raises PipelineError when something is there that is no table of ours."""
    found = read_json(files, joined(path, _OURS, _MARKER))
    if found is not None:
        return _parsed(path, found)
    others = [entry.name for entry in files.list(path) if entry.name != _OURS and not entry.name.startswith(".")]
    # Archives have a marker of their own in the same place.
    others += [entry.name for entry in files.list(joined(path, _OURS)) if not entry.name.startswith(".")]
    if others:
        raise PipelineError(
            f"{path} is not a table of a pipeline: it has {', '.join(others[:3])}{' and more' * (len(others) > 3)}, "
            f"and no {_OURS}/{_MARKER}; a table takes a directory of its own"
        )
    return None


def _parsed(path: str, found: Mapping[str, object]) -> TableHome:
    try:
        pipeline, table, id, version = (found[key] for key in ("what", "table", "id", "version"))
    except KeyError as missing:
        raise PipelineError(f"{joined(path, _OURS, _MARKER)} is damaged: it has no {missing}") from None
    if version != _VERSION:
        raise PipelineError(f"{path} has a table of version {version}: this program knows version {_VERSION}")
    return TableHome(path, str(pipeline), str(table), str(id))
