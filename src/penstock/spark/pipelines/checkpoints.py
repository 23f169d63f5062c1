"""Whose a checkpoint is.

A checkpoint says how far a query has come, in offsets: with another query, another target or other brokers it would
leave records out or send them twice, and Spark does not notice. So each has a file of ours with what it is for, and is
refused to everybody else before anything runs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined, read_json

_MARKER = "penstock.json"


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
