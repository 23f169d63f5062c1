"""What all workers share: their options, their history, how they are told to end, and how patient they are."""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import msgspec

from tests.history.events import Isolation
from tests.history.recording import HistoryFile, Recorder


class Options(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    directory: str
    name: str
    seed: int
    topic: str
    partitions: int
    # How long any request may be without an answer before another broker is tried.
    socket_timeout_ms: int = 5_000
    # Of several brokers a client forgets those that are away, and must not end up with one that dies ("rebootstrap").
    recovery: Literal["none", "rebootstrap"] = "none"
    # Producers
    kind: Literal["plain", "idempotent", "transactional"] = "idempotent"
    transactional_id: str | None = None
    transaction_timeout_ms: int = 10_000
    transaction_records: int = 20
    abort_ratio: float = 0.2
    output: str = ""
    # Consumers
    group: str | None = None
    isolation: Isolation = "read_uncommitted"
    session_ms: int = 3_000


class Stop:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.is_asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True


def client_settings(options: Options) -> dict[str, Any]:
    """Brokers are away for a second or two: librdkafka is to come back at once, and not to talk about it."""
    return {
        "bootstrap.servers": options.bootstrap,
        "client.id": options.name,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 20,
        "socket.timeout.ms": options.socket_timeout_ms,
        # With "rebootstrap" librdkafka 2.16 throws away a broker that is down for long enough, and a coordinator with
        # it; then send_offsets_to_transaction waits for it for ever, whatever its timeout (its issues 5456 and 5511).
        "metadata.recovery.strategy": options.recovery,
        "log_level": 0,
    }


def run(work: Callable[[Options, Recorder, random.Random, Stop], None], *, writes: bool = False) -> None:
    """The main function of a worker. `writes` says that it has a producer."""
    options = msgspec.json.decode(sys.argv[1], type=Options)
    stop = Stop()
    faulthandler.register(signal.SIGUSR1)
    file = HistoryFile(Path(options.directory), options.name)
    recorder = Recorder(
        options.name,
        file.append,
        isolation=options.isolation,
        group=options.group,
        transactional_id=options.transactional_id,
        is_idempotent=writes and options.kind != "plain",
    )
    work(options, recorder, random.Random(options.seed), stop)
    file.close()
