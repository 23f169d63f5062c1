"""Measures Penstock beside Apache Kafka and others: prints each row when it is done, and then which goals are met."""

import argparse
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench import brokers
from bench.page import write_page
from bench.side_by_side import choosing, compare, peers, result, text
from bench.side_by_side.effort import EFFORTS, Effort
from bench.side_by_side.judging import OTHER_PEERS
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.rows import KAFKA, PENSTOCK, Scenario
from bench.side_by_side.runner import measured_rows
from bench.side_by_side.table import scenarios

BUSY_LOAD_AVERAGE = 0.5
SYSTEMS = (PENSTOCK, KAFKA, *OTHER_PEERS)


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.compare:
        return _compare(*arguments.compare)
    if arguments.list:
        return _list()
    if arguments.only_write:
        _write(arguments, result.load(arguments.output or result.LATEST))
        return 0
    # So that no broker and no data outlive the run when it is stopped.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return _measure(arguments)


def _measure(arguments: argparse.Namespace) -> int:
    chosen = choosing.QUICK if arguments.quick else arguments.rows or ["*"]
    effort = EFFORTS["small" if arguments.quick else arguments.effort]
    everything = scenarios(effort)
    order = [row.name for scenario in everything for row in scenario.rows]
    is_partial = arguments.quick or arguments.rows or arguments.systems or arguments.effort != "full"
    path = arguments.output or (result.PARTIAL if is_partial else result.LATEST)
    command = shlex.join(["python", "-m", "bench.side_by_side", *sys.argv[1:]])
    versions = {**result.versions(), **peers.versions()}
    print("\n".join(f"{name}: {version}" for name, version in versions.items()))
    if os.getloadavg()[0] > BUSY_LOAD_AVERAGE:
        print(
            f"this machine is busy with other work (load average {os.getloadavg()[0]:.1f}): the figures will be wrong"
        )
    kept = result.Result.begin(path, command, versions, order, resume=arguments.resume)
    _run(choosing.wanted(everything, chosen), arguments, effort, kept)
    rows = kept.document["rows"]
    print("\n".join(["", text.table(rows), "", text.missing_text(rows), "", text.goals_text(rows), f"\n{path}"]))
    _write(arguments, kept.document)
    return 0


def _run(wanted: list[Scenario], arguments: argparse.Namespace, effort: Effort, kept: result.Result) -> None:
    left_out = [system for system in SYSTEMS if arguments.systems and system not in arguments.systems]
    missing = {**peers.missing(), **dict.fromkeys(left_out, "it was left out by --systems")}
    with brokers.scratch(arguments.data_root) as directory, Laboratory(directory, pin=arguments.pin) as laboratory:
        for scenario in wanted:
            if {row.name for row in scenario.rows} <= kept.measured:
                continue
            started = time.monotonic()
            rows = measured_rows(peers.with_peers(scenario, effort), laboratory, arguments.repeat, missing)
            kept.add(rows)
            print("\n".join(text.line(row) for row in rows), f" [{time.monotonic() - started:.0f} s]", flush=True)


def _write(arguments: argparse.Namespace, document: Any) -> None:
    if arguments.write_docs:
        text.write_docs(text.DOCS, document)
    if arguments.page:
        write_page(document, arguments.page)


def _compare(old_path: Path, new_path: Path) -> int:
    """Fails when something got slower beyond the noise."""
    old, new = result.load(old_path), result.load(new_path)
    changes, gone = compare.slower(old, new), compare.missing(old, new)
    if old["machine"] != new["machine"]:
        print("the two results are of different machines")
    for change in changes:
        print(change.line())
    for name in gone:
        print(f"{name:<34} has no figure any more")
    print(f"{len(changes)} rows are slower beyond the noise, {len(gone)} are missing")
    return 1 if changes or gone else 0


def _list() -> int:
    for scenario in scenarios():
        for row in scenario.rows:
            print(f"{row.name:<34} {row.durability:<10} {row.unit:<16} {row.goal.text() if row.goal else ''}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench.side_by_side", description=__doc__)
    add = parser.add_argument
    add("--rows", nargs="+", metavar="PATTERN", help="only scenarios with such a row, as produce-raw-*")
    add("--systems", nargs="+", choices=SYSTEMS, help="only these; all by default")
    add("--list", action="store_true", help="name all rows and their goals")
    add("--quick", action="store_true", help="the main rows, with half the effort")
    add("--resume", action="store_true", help="keep the rows that the output has already")
    add("--repeat", type=int, default=5, help="repetitions of each scenario on each system; the median is reported")
    add("--effort", choices=list(EFFORTS), default="full", help="how much is sent in one repetition")
    add("--no-pin", dest="pin", action="store_false", help="let brokers and clients share all cores")
    add("--output", type=Path, help=f"{_short(result.LATEST)} for all rows, otherwise {_short(result.PARTIAL)}")
    add(
        "--data-root", type=Path, default=brokers.DATA_ROOT, help="where data directories are made: the disk to measure"
    )
    add("--write-docs", action="store_true", help=f"put the result into {_short(text.DOCS)}")
    add("--page", type=Path, help="write the result as an HTML page to this file")
    add("--only-write", action="store_true", help="measure nothing: --write-docs and --page from the output as it is")
    add("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="say what is slower in NEW, beyond the noise")
    return parser


def _short(path: Path) -> str:
    return str(path.relative_to(brokers.ROOT))


if __name__ == "__main__":
    sys.exit(main())
