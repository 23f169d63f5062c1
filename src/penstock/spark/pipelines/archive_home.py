"""The directory of an archive: what is in it, and whether it is ours.

<to>/_penstock/archive.json       what it is: format, table, and an id that its checkpoints know it by
<to>/_penstock/values.json        how values were taken apart by the last run
<to>/_penstock/read.json          up to where topics were read by the last run: see behind.py
<to>/_penstock/checkpoint         Spark's, unless another place was named
<to>/catalog.db                   Iceberg's catalog, unless another one was named
<to>/records                      the table
<to>/records_quarantine           records whose values cannot be read, if values are taken apart
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined, read_json

DEFAULT_TABLE = "records"
_VERSION = 1
_OURS = "_penstock"
_MARKER = "archive.json"
_TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Format(StrEnum):
    ICEBERG = "iceberg"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class ArchiveHome:
    path: str
    format: Format
    table: str
    id: str

    @property
    def checkpoint(self) -> str:
        return joined(self.path, _OURS, "checkpoint")

    @property
    def values(self) -> str:
        return joined(self.path, _OURS, "values.json")

    @property
    def read(self) -> str:
        return joined(self.path, _OURS, "read.json")

    @property
    def replays(self) -> str:
        return joined(self.path, _OURS, "replays")

    @property
    def quarantine(self) -> str:
        return f"{self.table}_quarantine"

    def location(self, table: str) -> str:
        return joined(self.path, table)


def find(files: Files, path: str) -> ArchiveHome | None:
    """None where nothing is yet. Raises PipelineError when something is there that is no archive."""
    path = files.qualified(path)
    found = read_json(files, joined(path, _OURS, _MARKER))
    if found is not None:
        return _parsed(path, found)
    # Whoever was killed while the marker was written leaves an empty directory of ours.
    others = [entry.name for entry in files.list(path) if entry.name != _OURS and not entry.name.startswith(".")]
    if others:
        raise PipelineError(
            f"{path} is not an archive: it has {', '.join(others[:3])}{' and more' if len(others) > 3 else ''}, and no "
            f"{_OURS}/{_MARKER}; an archive takes a directory of its own"
        )
    return None


def existing(files: Files, path: str) -> ArchiveHome:
    home = find(files, path)
    if home is None:
        raise PipelineError(f"{files.qualified(path)} is not an archive: there is nothing in it")
    return home


def planned(files: Files, path: str, format: str, table: str) -> ArchiveHome:
    """The archive that is there or would be made. Raises PipelineError when it is another one."""
    if format not in list(Format):
        raise PipelineError(f'format takes {" or ".join(Format)}, not "{format}"')
    if not _TABLE_NAME.fullmatch(table):
        raise PipelineError(f'table takes letters, digits and underscores, not "{table}"')
    home = find(files, path)
    if home is None:
        return ArchiveHome(files.qualified(path), Format(format), table, uuid4().hex)
    if home.format != format:
        raise PipelineError(f"{home.path} is an archive in {home.format}, not in {format}")
    if home.table != table:
        raise PipelineError(f'the table of the archive {home.path} is "{home.table}", not "{table}"')
    return home


def made(files: Files, home: ArchiveHome) -> ArchiveHome:
    """As planned, or as somebody else has made it meanwhile."""
    document = {"what": "archive", "version": _VERSION, "format": home.format, "table": home.table, "id": home.id}
    files.make_directory(joined(home.path, _OURS))
    files.create(joined(home.path, _OURS, _MARKER), json.dumps(document, indent=2))
    return planned(files, home.path, home.format, home.table)


def _parsed(path: str, found: dict[str, object]) -> ArchiveHome:
    try:
        format, table, id, version = (found[key] for key in ("format", "table", "id", "version"))
        home = ArchiveHome(path, Format(str(format)), str(table), str(id))
    except (KeyError, ValueError) as error:
        raise PipelineError(f"{joined(path, _OURS, _MARKER)} is damaged: {error}") from None
    if version != _VERSION:
        raise PipelineError(f"{path} is an archive of version {version}: this program knows version {_VERSION}")
    return home
