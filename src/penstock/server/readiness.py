"""What is said when clients can connect: to scripts by a file, to people by three commands that they can try."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TypedDict

HINTS = """Try it from another terminal (Ctrl-C stops {what}):
  {penstock} topic create orders --partitions 3{where}
  echo "hello world" | {penstock} produce orders{where}
  {penstock} consume orders --from-beginning{where}"""
TOOLS_LOOK_AT = "127.0.0.1:9092"


class ReadyBroker(TypedDict):
    """`kafka` and `http` are host:port."""

    node_id: int
    pid: int
    kafka: str
    http: str


def write_ready_file(path: Path, facts: ReadyBroker | list[ReadyBroker]) -> None:
    """In one step: a file that is there is whole."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(facts) + "\n")
    unfinished.replace(path)


def read_ready_file(path: Path) -> ReadyBroker | None:
    """That of one broker; None while it is not there."""
    try:
        facts: ReadyBroker = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return facts


def commands_to_try(kafka: str, what: str) -> str:
    """Three commands that work as they are printed, from the directory where the broker was started."""
    installed = str(Path(sys.executable).with_name("penstock"))
    where = "" if kafka == TOOLS_LOOK_AT else f" --bootstrap-server {kafka}"
    return HINTS.format(penstock=min(installed, os.path.relpath(installed), key=len), where=where, what=what)
