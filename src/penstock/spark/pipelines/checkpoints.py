"""Whose a checkpoint is.

A checkpoint says how far a query has come, in offsets: with another query, another target or other brokers it would
leave records out or send them twice, and Spark does not notice. So each has a file of ours with what it is for, and is
refused to everybody else before anything runs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.spark.errors import BadOffsets
from penstock.spark.offsets_json import StreamOffsets, parse_offsets
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined, read_json

_MARKER = "penstock.json"
_VERSION = "v1"
_NONE_YET = "-"


class Batch(NamedTuple):
    query_id: str
    number: int


def check(files: Files, checkpoint: str, purpose: Mapping[str, str], newer: Collection[str] = ()) -> bool:
    """Whether there is one already. Raises PipelineError when it is for something else.

    `newer` are keys of the purpose that a checkpoint of an earlier version may lack.
    """
    found = read_json(files, joined(checkpoint, _MARKER))
    if found is None:
        # Drafts of the marker are left behind by those who were killed while they wrote it.
        if any(not entry.name.startswith(".") for entry in files.list(checkpoint)):
            raise PipelineError(
                f"{checkpoint} is not a checkpoint of a pipeline: it has files, and no {_MARKER}; "
                "--checkpoint takes a directory of its own"
            )
        return False
    for key, value in purpose.items():
        if key in newer and key not in found:
            continue
        if found.get(key) != value:
            raise PipelineError(
                f"the checkpoint {checkpoint} is of another query: its {key} is {found.get(key)}, not {value}; "
                "--checkpoint takes another directory"
            )
    return True


def claim(files: Files, checkpoint: str, purpose: Mapping[str, str], newer: Collection[str] = ()) -> None:
    """As `check`, and it is ours from now on."""
    if check(files, checkpoint, purpose, newer):
        return
    files.make_directory(checkpoint)
    files.create(joined(checkpoint, _MARKER), json.dumps(dict(purpose), indent=2))
    if not check(files, checkpoint, purpose, newer):  # somebody else may have been first
        raise PipelineError(f"the checkpoint {checkpoint} cannot be claimed: its {_MARKER} is gone again")


def last_done(files: Files, checkpoint: str) -> Batch | None:
    """None where no query has begun; -1 where its first batch is not done."""
    query = read_json(files, joined(checkpoint, "metadata"))
    if query is None:
        return None
    number = _last_number(files, checkpoint)
    return Batch(str(query.get("id")), -1 if number is None else number)


def committed(files: Files, checkpoint: str) -> StreamOffsets | None:
    """Up to where a query with one source has read, by its last batch that is done; None where that is not known.

    Spark writes a version, facts about the batch, and a line for each source.
    """
    number = _last_number(files, checkpoint)
    path = joined(checkpoint, "offsets", str(number))
    lines = [] if number is None else (files.read(path) or "").splitlines()
    if len(lines) != 3 or lines[0] != _VERSION or lines[2] == _NONE_YET:
        return None
    try:
        return parse_offsets(lines[2], path)
    except BadOffsets as error:
        raise PipelineError(f"{path} is damaged: {error}") from None


def _last_number(files: Files, checkpoint: str) -> int | None:
    done = [int(entry.name) for entry in files.list(joined(checkpoint, "commits")) if entry.name.isdigit()]
    return max(done, default=None)
