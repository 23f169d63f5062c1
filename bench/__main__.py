"""The command `python -m bench`: prints a row as soon as it is measured, and at the end which promises were kept."""

import argparse
import fnmatch
import os
import platform
import shlex
import signal
import sys
from pathlib import Path

from bench import brokers, suite
from bench.report import Row, write_docs, write_json
from bench.targets import verdicts

BUSY_LOAD_AVERAGE = 0.5
DOCS = brokers.ROOT / "docs" / "performance.md"


def main() -> int:
    arguments = _parser().parse_args()
    # So that no broker and no data outlive the run when it is stopped.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    wanted = _matching(arguments.scenarios)
    load_average = os.getloadavg()[0]
    if load_average > BUSY_LOAD_AVERAGE:
        print(f"this machine is busy with other work (load average {load_average:.1f}): the figures will be too low\n")
    rows: list[Row] = []
    for row in suite.rows(wanted, arguments.against, arguments.repeat, arguments.data_root):
        rows.append(row)
        print(row.line(), flush=True)
    found = verdicts(rows)
    if found:
        print("\nwhat was promised, at the speed of this machine's loopback")
    for verdict in found:
        print(verdict.line())
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    write_json(arguments.json, command, rows, found)
    if arguments.write_docs:
        write_docs(DOCS, command, _this_machine(), rows, found)
    return 0 if all(verdict.passed for verdict in found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench", description="Measures a broker next to the limits of this machine."
    )
    names = ", ".join(suite.NAMES)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"names or patterns; all by default: {names}")
    parser.add_argument(
        "--against", nargs="+", choices=list(brokers.SYSTEMS), default=["penstock"], help="the brokers to measure"
    )
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each scenario; the median is reported")
    parser.add_argument(
        "--data-root", type=Path, default=brokers.DATA_ROOT, help="where data directories are made: the disk to measure"
    )
    parser.add_argument(
        "--json", type=Path, default=brokers.DATA_ROOT / "results.json", help="where the figures go as JSON"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help=f"put the figures into {DOCS.relative_to(brokers.ROOT)}"
    )
    return parser


def _matching(patterns: list[str]) -> list[str]:
    if not patterns:
        return list(suite.NAMES)
    for pattern in patterns:
        if not fnmatch.filter(suite.NAMES, pattern):
            raise SystemExit(f"no scenario is called {pattern}; there are {', '.join(suite.NAMES)}")
    return [name for name in suite.NAMES if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def _this_machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    python = f"Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory_gib:.0f} GiB of memory, {platform.system()} {platform.release()}, {python}"


if __name__ == "__main__":
    sys.exit(main())
