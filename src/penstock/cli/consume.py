"""`penstock consume`: records of a topic, from where one says to where the topic ended when one asked, or on and on.

Partitions are assigned, never subscribed to: no group is joined and nothing is committed, so looking changes nothing.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.client import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientConfig,
    Timeout,
    consumer,
    fail,
    topic_metadata,
)
from penstock.cli.consume_format import BadFormat, Formatter, OutputRecord, formatter
from penstock.cli.consume_range import Range, Reader, Start, StartKind, find_range

if TYPE_CHECKING:
    from confluent_kafka import Consumer


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the first record; the default, but for --follow.")
    ] = False,
    offset: Annotated[int | None, typer.Option("--offset", "-o", min=0, help="From this offset.")] = None,
    from_timestamp: Annotated[
        str | None,
        typer.Option(
            "--from-timestamp", metavar="TIME", help="From this time: epoch milliseconds, or 2026-01-31T12:00:00Z."
        ),
    ] = None,
    last: Annotated[int | None, typer.Option("--last", "-l", min=1, help="Only the last N records there are.")] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only this one; may be repeated.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after N records.")] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="value, key-value (with a tab between), json, or a text like '{partition}:{offset} {key} {value}'.",
        ),
    ] = "value",
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Go on with new records, until Ctrl-C.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print records of a topic. Stops at the end of the topic, unless told to --follow."""
    start = _start(from_beginning, offset, from_timestamp, last, follow)
    try:
        write = formatter(format)
    except BadFormat as refused:
        fail(f"--format: {refused}", 2)
    client = consumer(bootstrap, client_config, {"enable.partition.eof": True, "auto.offset.reset": "error"})
    try:
        ranges = _ranges(client, topic, partition, start, timeout)
        _print(Reader(client, topic, timeout), ranges, start, write, count, follow)
    except KeyboardInterrupt:
        pass
    finally:
        client.close()


def _start(
    from_beginning: bool, offset: int | None, from_timestamp: str | None, last: int | None, follow: bool
) -> Start:
    starts = [Start(StartKind.BEGINNING)] if from_beginning else []
    if offset is not None:
        starts.append(Start(StartKind.OFFSET, offset))
    if from_timestamp is not None:
        starts.append(Start(StartKind.TIMESTAMP, _timestamp_ms(from_timestamp)))
    if last is not None:
        starts.append(Start(StartKind.LAST, last))
    if len(starts) > 1:
        fail("--from-beginning, --offset, --from-timestamp and --last exclude each other", 2)
    return starts[0] if starts else Start(StartKind.END if follow else StartKind.BEGINNING)


def _timestamp_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except ValueError:
        fail(f'--from-timestamp "{text}": expected epoch milliseconds or a time like 2026-01-31T12:00:00Z', 2)


def _ranges(client: Consumer, topic: str, partitions: list[int] | None, start: Start, timeout: float) -> list[Range]:
    there = sorted(topic_metadata(client, topic, timeout).partitions)
    for partition in partitions or ():
        if partition not in there:
            fail(f'topic "{topic}" has no partition {partition}: it has {len(there)}, from 0')
    return [find_range(client, topic, partition, start, timeout) for partition in sorted(set(partitions or there))]


def _print(
    reader: Reader, ranges: list[Range], start: Start, write: Formatter, count: int | None, follow: bool
) -> None:
    printer = _Printer(write, count)
    if start.kind is StartKind.LAST:
        printer.print(reader.last(ranges, start.number))
    if follow:
        ranges = [replace(wanted, end=None) for wanted in ranges]
    elif start.kind is StartKind.LAST:
        return
    for records in reader.read(ranges):
        printer.print(records)
        if printer.is_done:
            return


class _Printer:
    """Writes records to standard output, and knows when it was enough."""

    def __init__(self, write: Formatter, count: int | None) -> None:
        self._write = write
        self._left = count

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def print(self, records: list[OutputRecord]) -> None:
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        if records:
            sys.stdout.buffer.write(b"".join([self._write(record) + b"\n" for record in records]))
            sys.stdout.buffer.flush()
