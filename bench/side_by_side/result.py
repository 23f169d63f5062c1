"""The result file: what was measured, where, of whom, when and by which command.

Every finished scenario is written at once, so a run that was stopped can go on. It goes on only with what it began
with: rows of two versions in one file would compare nothing.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import confluent_kafka

from bench import brokers
from bench.side_by_side.judging import FAILED
from penstock import __version__

LATEST = brokers.ROOT / "bench" / "results" / "latest.json"
PARTIAL = brokers.DATA_ROOT / "side-by-side.json"
NOTHING = "unknown"
_JARS = brokers.ROOT / ".jars" / "lib"


class Result:
    """Rows by name in the order of the table, and the file that has them."""

    def __init__(self, path: Path, document: dict[str, Any], order: Sequence[str]) -> None:
        self._path = path
        self._document = document
        self._order = {name: position for position, name in enumerate(order)}

    @classmethod
    def begin(
        cls, path: Path, command: str, versions: Mapping[str, str], order: Sequence[str], *, resume: bool
    ) -> "Result":
        document = new_document(command, versions)
        if resume and path.exists():
            document = continued(json.loads(path.read_text()), document, path)
        return cls(path, document, order)

    @property
    def document(self) -> Mapping[str, Any]:
        return self._document

    @property
    def measured(self) -> set[str]:
        """Rows that need not be measured again; those where somebody failed do."""
        return {row["row"] for row in self._document["rows"] if not _has_failed(row)}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Takes the place of older rows of these names, and is on the disk afterwards."""
        by_name = {row["row"]: row for row in (*self._document["rows"], *rows)}
        known = len(self._order)
        self._document["rows"] = sorted(by_name.values(), key=lambda row: self._order.get(row["row"], known))
        self._document["date"] = _now()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self._document, indent=1) + "\n")
        unfinished.replace(self._path)


def _has_failed(row: Mapping[str, Any]) -> bool:
    return any(reason.startswith(FAILED) for reason in row["reasons"].values())


def new_document(command: str, versions: Mapping[str, str]) -> dict[str, Any]:
    return {"machine": machine(), "versions": dict(versions), "date": _now(), "command": command, "rows": []}


def continued(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The old document with its rows; refuses one of another machine or of other versions."""
    for part in ("machine", "versions"):
        if old[part] != new[part]:
            differing = sorted(key for key in {**old[part], **new[part]} if old[part].get(key) != new[part].get(key))
            raise SystemExit(
                f"{path} is of another {part.rstrip('s')} ({', '.join(differing)} differ): "
                "leave --resume out to begin anew, or name another file with --output"
            )
    commands = list(dict.fromkeys([*old["command"].split("; "), new["command"]]))
    return {**old, "command": "; ".join(commands)}


def machine() -> dict[str, Any]:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(memory_gib, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Of everything that takes part, peers apart."""
    [server] = _JARS.glob("kafka-server-[0-9]*.jar") if _JARS.exists() else [None]
    return {
        "penstock": f"{__version__} ({_commit()})",
        "kafka": server.stem.removeprefix("kafka-server-") if server else "missing: run scripts/fetch_jars.sh",
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
        "confluent-kafka": metadata.version("confluent-kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """The last one that changed what is measured, with a mark where the files are not those of any commit."""
    git, broker = ["git", "-C", str(brokers.ROOT)], ["--", "src/penstock", ":!src/penstock/spark"]
    commit = _first_line([*git, "log", "-1", "--format=%h", *broker])
    return commit if _first_line([*git, "status", "--porcelain", *broker]) == NOTHING else f"{commit}, changed"


def _first_line(command: Sequence[str]) -> str:
    try:
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30).stdout
    except FileNotFoundError:
        return f"missing: {command[0]}"
    return said.splitlines()[0] if said else NOTHING


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def load(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise SystemExit(f"there is no result {path}: make one with python -m bench.side_by_side") from None
    except json.JSONDecodeError as error:
        raise SystemExit(f"{path} is not a result: {error}") from None
    missing = [part for part in ("machine", "versions", "date", "command", "rows") if part not in document]
    if missing:
        raise SystemExit(f"{path} is not a result: it has no {', '.join(missing)}")
    return document
