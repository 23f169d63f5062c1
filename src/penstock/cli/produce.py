"""`penstock produce`: lines from a file or a pipe into a topic.

Every line is accounted for: it is delivered, or named with the reason it was not, and then the exit code is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from penstock.cli.client import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientConfig,
    Timeout,
    fail,
    pairs,
    producer,
    reason,
)
from penstock.cli.produce_input import BadLine, Headers, InputRecord, LineParser, json_line, keyed_line, value_line
from penstock.cli.terminal import ProgressBar, counted

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_NAMED_FAILURES = 10

# What confluent-kafka takes for "choose one" and for "the present".
_ANY_PARTITION = -1
_NOW = 0
_ANY_SIZE = 1_000_000_000  # how large a message may be is the broker's decision, not librdkafka's


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Standard input when not given.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Lines are KEY, this text, VALUE.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Lines are objects with value, and optionally key, headers, partition, timestamp."),
    ] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="A header for every record.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="The partition for every record.")] = None,
    compression: Annotated[Compression, typer.Option("--compression", "-z")] = Compression.NONE,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Whose word counts: nobody's, the leader's, all replicas'.")
    ] = Acks.ALL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Write records to a topic, one for each line of a file or of standard input."""
    if json and key_separator is not None:
        fail("--json has the key in each line: leave --key-separator out", 2)
    if key_separator == "":
        fail("--key-separator is empty", 2)
    parse = json_line if json else keyed_line(key_separator.encode()) if key_separator else value_line
    defaults = _Defaults([(name, value.encode()) for name, value in pairs("--header", header).items()], partition)
    settings: dict[str, str | int | float | bool] = {
        "acks": acks.value,
        "enable.idempotence": acks is Acks.ALL,
        "compression.type": compression.value,
        "message.max.bytes": _ANY_SIZE,
        "message.timeout.ms": int(timeout * 1_000),
        "linger.ms": 5,
    }
    with _opened(file) as (lines, total_bytes):
        verb = "sent" if acks is Acks.NONE else "delivered"  # without acknowledgements nobody knows
        delivery = _Delivery(producer(bootstrap, client_config, settings), topic, defaults, verb)
        delivery.produce_all(lines, parse, total_bytes)
    delivery.report()


@contextmanager
def _opened(path: Path | None) -> Iterator[tuple[BinaryIO, int | None]]:
    if path is None:
        yield sys.stdin.buffer, None
        return
    try:
        file = path.open("rb")
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    with file:
        yield file, path.stat().st_size


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What every record gets unless its line says otherwise."""

    headers: Headers
    partition: int | None


class _Delivery:
    """Counts what became of every line."""

    def __init__(self, client: Producer, topic: str, defaults: _Defaults, verb: str) -> None:
        self._client = client
        self._topic = topic
        self._defaults = defaults
        self._verb = verb
        self._delivered = 0
        self._failures: list[tuple[int, str]] = []
        self._lines = 0

    def produce_all(self, lines: BinaryIO, parse: LineParser, total_bytes: int | None) -> None:
        read_bytes = 0
        with ProgressBar(f"to {self._topic}", total_bytes) as progress:
            try:
                for number, line in enumerate(lines, start=1):
                    self._lines = number
                    read_bytes += len(line)
                    self._produce(number, line.rstrip(b"\n").removesuffix(b"\r"), parse)
                    progress.update(read_bytes, self._delivered)
                self._client.flush()
            except KeyboardInterrupt:
                self._client.flush()
                self._failures.append((self._lines + 1, "interrupted here"))

    def _produce(self, number: int, line: bytes, parse: LineParser) -> None:
        try:
            record = parse(line)
            self._enqueue(number, record)
        except BadLine as refused:
            self._failures.append((number, str(refused)))
        self._client.poll(0)

    def _enqueue(self, number: int, record: InputRecord) -> None:
        from confluent_kafka import KafkaException

        partition = self._defaults.partition if record.partition is None else record.partition
        while True:
            try:
                self._client.produce(
                    self._topic,
                    record.value,
                    record.key,
                    partition=_ANY_PARTITION if partition is None else partition,
                    on_delivery=partial(self._settled, number),
                    timestamp=record.timestamp_ms or _NOW,
                    headers=[*self._defaults.headers, *(record.headers or ())],
                )
                return
            except BufferError:
                self._client.poll(0.1)  # the queue is full: wait for the broker to take some
            except KafkaException as refused:
                raise BadLine(reason(refused.args[0])) from None

    def _settled(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._delivered += 1
        else:
            self._failures.append((number, reason(error)))

    def report(self) -> None:
        print(f"{counted(self._delivered, 'record')} {self._verb} to {self._topic}", file=sys.stderr)
        if not self._failures:
            return
        self._failures.sort()
        for number, why in self._failures[:_NAMED_FAILURES]:
            print(f"penstock: line {number}: {why}", file=sys.stderr)
        unnamed = len(self._failures) - _NAMED_FAILURES
        fail(
            f"{len(self._failures)} of {counted(self._lines, 'line')} failed"
            + (f", {unnamed} of them not shown" if unnamed > 0 else "")
        )
