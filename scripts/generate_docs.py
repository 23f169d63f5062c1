"""Writes docs/configuration.md and docs/api-versions.md from the broker's own tables, docs/files.md from its modules.

With --check nothing is written: the exit code is 1 when a committed file is not what would be written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from penstock.core.config import environment_name
from penstock.core.config_keys import BROKER_KEY_GROUPS
from penstock.core.config_values import Key, to_text
from penstock.core.log_keys import TOPIC_KEYS
from penstock.handlers.registry import APIS, Api

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = Path(__file__).parents[1] / "src" / "penstock"
GENERATED = "<!-- Written by scripts/generate_docs.py from the broker's own tables; `make docs` writes it anew. -->"

CONFIGURATION = """\
# Configuration

A broker's keys have Kafka's names and, where nothing else is said, Kafka's defaults; those that Kafka does not have
begin with `penstock.`. A key comes from the first of these that has it:

1. a dynamic change (`AlterConfigs`, `IncrementalAlterConfigs`), for the keys marked *dynamic*;
2. a flag of `penstock serve`, such as `--data-dir` or `--port`;
3. `--set KEY=VALUE`;
4. the environment: `PENSTOCK_` and the key in upper case, dots as underscores (`{variable}`);
5. the TOML file of `--config`, where `segment.bytes = 1048576` in the table `[log]` and
   `"log.segment.bytes" = 1048576` say the same;
6. the default.

A key that does not exist, or a value that is not allowed, is refused by name, with its origin and the nearest valid
key. Keys marked *no effect yet* are accepted and shown, and change nothing in this version.
"""

TOPICS = """\
## Keys of topics

Set when a topic is created, or later: `penstock topic alter orders --config retention.ms=86400000`. A topic without a
key of its own has the broker's; where several broker keys are named, the first that is set counts.
"""

API_VERSIONS = """\
# API versions

What the broker answers to ApiVersions: the requests it serves, and in which versions. The version ranges are those of
Apache Kafka 4.2. Each API has one file in `src/penstock/handlers`, whose first lines tell what its versions changed.
"""


FILES = """\
# Files

What each file of `src/penstock` is for, in the words it begins with. How they work together stands in
[ARCHITECTURE.md](../ARCHITECTURE.md).
"""
# As they build on each other, from the bottom up; what nothing else stands on comes last.
PACKAGES = (
    ("core", "Names, errors, configuration, counters: everybody's words."),
    ("runtime", "The event loop's surroundings: clock, threads, tasks, log lines."),
    ("protocol", "Kafka's formats, without a socket or a file."),
    ("net", "Sockets: frames in, answers out."),
    ("storage", "The log of one partition, on disk."),
    ("metadata", "What the cluster knows: the store, and the image that everybody reads."),
    ("replication", "Partitions as this broker leads them."),
    ("controller", "Decisions about topics, brokers and configuration."),
    ("coordinators", "Decisions about groups, on the log itself."),
    ("handlers", "One file for each API."),
    ("server", "The broker put together, its HTTP port, and the supervisor of several."),
    ("wire", "A small synchronous client of any cluster: for the tools, and for Spark's readers."),
    ("cli", "The command `penstock`."),
    ("spark", "Spark's data source, sink and pipelines. Know the broker only on the wire."),
    ("sdk", "The Python SDK. Knows the broker only through confluent-kafka."),
)


def configuration() -> str:
    parts = [GENERATED, "", CONFIGURATION.format(variable=environment_name("log.segment.bytes"))]
    for group, keys in BROKER_KEY_GROUPS.items():
        header = ("Key", "Type", "Default", "Allowed", "Meaning")
        parts += [f"## {group}", "", *_rows(header, map(_broker_row, keys)), ""]
    header = ("Key", "Type", "Default from", "Allowed", "Meaning")
    return "\n".join([*parts, TOPICS, *_rows(header, map(_topic_row, TOPIC_KEYS.values())), ""])


def _rows(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    titles = list(header)
    return [_row(titles), _row(["---"] * len(titles)), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _broker_row(key: Key) -> list[str]:
    default = _code(to_text(key.default))
    if key.kafka_default is not None:
        default += f" (Kafka: {_code(key.kafka_default)})"
    return _key_row(key, default, ["dynamic"] if key.dynamic else [])


def _topic_row(key: Key) -> list[str]:
    origin = ", ".join(_code(default.name) for default in key.broker_defaults)
    return _key_row(key, origin or _code(to_text(key.default)), [])


def _key_row(key: Key, default: str, marks: list[str]) -> list[str]:
    marks = [*marks, *([] if key.in_effect else ["no effect yet"])]
    meaning = key.doc + "".join(f" *{mark}*" for mark in marks)
    return [_code(key.name), key.type.name.lower(), default, _allowed(key), meaning]


def _allowed(key: Key) -> str:
    if key.choices:
        return ", ".join(_code(choice) for choice in key.choices)
    if key.at_least is None and key.at_most is None:
        return ""
    return f"at least {key.at_least}" if key.at_most is None else f"{key.at_least} to {key.at_most}"


def _code(text: str | None) -> str:
    return "none" if text is None else f"`{text}`" if text else "empty"


def api_versions() -> str:
    rows = []
    for key, api in sorted(APIS.items()):
        versions = f"{api.min_version} to {api.max_version}"
        if api.served_since != api.min_version:
            versions += f" (served from {api.served_since})"
        rows.append([str(key), api.name, versions, _purpose(api)])
    return "\n".join([GENERATED, "", API_VERSIONS, *_rows(("Key", "API", "Versions", "What it is for"), rows), ""])


def _purpose(api: Api) -> str:
    """The first line of the handler's file, which begins with the API's name."""
    purpose = api.notes.partition("\n")[0].removeprefix(api.name).lstrip(":. ")
    return purpose[:1].upper() + purpose[1:]


def files() -> str:
    parts = [GENERATED, "", FILES]
    for package, purpose in PACKAGES:
        modules = sorted(path for path in (SOURCE / package).rglob("*.py*") if path.suffix in (".py", ".pyx"))
        modules = [path for path in modules if path.stat().st_size]
        rows = [[_code(str(path.relative_to(SOURCE / package))), _first_sentence(path)] for path in modules]
        parts += [f"## {package}", "", purpose, "", *_rows(("File", "What it is for"), rows), ""]
    return "\n".join(parts)


def _first_sentence(path: Path) -> str:
    """Of its docstring, which a Cython file has behind some comments."""
    docstring = re.match(r'(?:#[^\n]*\n|\s)*"""(.*?)"""', path.read_text(), re.DOTALL)
    paragraph = docstring[1].partition("\n\n")[0] if docstring is not None else ""
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(".:") + "."


def main(arguments: list[str]) -> int:
    pages = {
        DOCS / "configuration.md": configuration(),
        DOCS / "api-versions.md": api_versions(),
        DOCS / "files.md": files(),
    }
    if arguments == ["--check"]:
        stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
        for path in stale:
            print(f"{path.name} is not what scripts/generate_docs.py writes", file=sys.stderr)
        return 1 if stale else 0
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
