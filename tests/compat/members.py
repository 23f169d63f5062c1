"""Groups whose members are processes of real clients, and what must have been true of them all along.

What is checked afterwards, from what the members said themselves (see clients/group_member.py) and from the broker's
own log of commits: every record was processed, no partition had two owners at a time nor in one generation, and no
position of the group ever went back, which is what a commit accepted of a fenced member would do.
"""

import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.testkit import BrokerProcess, KafkaBroker, broker_under_test, eventually
from tests.testkit.java import CLASS_PATH, PROJECT, java_command

PARTITIONS = 12
SESSION_MS = 3_000
HEARTBEAT_MS = 200
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 4

Partition = tuple[str, int]
Event = Mapping[str, Any]

_OWNERSHIP = ("assigned", "revoked", "lost")
_NUMBERS = itertools.count(1)


def group_settings(**others: Any) -> dict[str, Any]:
    """A broker whose groups notice a death in a second instead of in 45."""
    settings: dict[str, Any] = {
        "group.min.session.timeout.ms": 500,
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.session.timeout.ms": SESSION_MS,
        "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
        "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    }
    if broker_under_test() is KafkaBroker:  # which has limits for its own settings
        settings |= {"group.consumer.min.session.timeout.ms": 500, "group.consumer.min.heartbeat.interval.ms": 100}
    return settings | others


@dataclass(frozen=True, slots=True)
class Kind:
    """A client as a member of a group."""

    client: str
    protocol: str = "classic"
    assignors: tuple[str, ...] = ("range",)

    def __str__(self) -> str:
        return "-".join((self.client, self.protocol, *self.assignors))


def _time_of(event: Event) -> float:
    return float(event["at"])


def _owned(history: Iterable[Event]) -> set[Partition]:
    owned: set[Partition] = set()
    before_the_stop: set[Partition] = set()
    for event in history:
        if event["event"] in _OWNERSHIP:
            owned = {(topic, partition) for topic, partition in event["owned"]}
        elif event["event"] == "continued":
            owned = before_the_stop  # unless its session is over, of which it will tell
        elif event["event"] in ("killed", "stopped", "left"):
            owned, before_the_stop = set(), owned
    return owned


class Member:
    """One process. Its number tells members apart that follow each other under one name."""

    def __init__(self, kind: Kind, options: Mapping[str, Any], directory: Path) -> None:
        self.kind = kind
        self.name = f"{kind}#{next(_NUMBERS)}"
        self._said_path = directory / f"{self.name}.events"
        self.log_path = directory / f"{self.name}.log"
        self._done_to_it: list[Event] = []
        self._events_read: list[Event] = []
        self._read_bytes = 0
        with self._said_path.open("wb") as said, self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(json.dumps(options)),
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=log,
                cwd=PROJECT,
                env={**os.environ, "PYTHONPATH": str(PROJECT)},
            )

    def _command(self, options: str) -> list[str]:
        if self.kind.client == "java":
            return [*java_command("-Xmx128m", "-Dtest.log.level=WARN"), "-cp", CLASS_PATH, "GroupMember", options]
        return [sys.executable, "-m", "tests.compat.clients.group_member", options]

    # What it did, and what was done to it

    def events(self) -> list[Event]:
        return sorted([*self._said(), *self._done_to_it], key=_time_of)

    def _said(self) -> list[Event]:
        """Reads on where it left off: it is asked many times a second."""
        with self._said_path.open("rb") as said:
            said.seek(self._read_bytes)
            news = said.read()
        whole = news[: news.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self._events_read += map(json.loads, whole.splitlines())
        return self._events_read

    def histories(self) -> dict[str, list[Event]]:
        """The events of each member that lives in this process; what was done to the process was done to each."""
        histories: dict[str, list[Event]] = {}
        for event in self._said():
            histories.setdefault(f"{self.name}/{event.get('member', '')}", []).append(event)
        return {name: sorted([*said, *self._done_to_it], key=_time_of) for name, said in histories.items()}

    def said(self, kind: str) -> list[Event]:
        return [event for event in self.events() if event["event"] == kind]

    def owned(self) -> set[Partition]:
        """What it owns by its own account; nothing while it is stopped or dead."""
        return set().union(*map(_owned, self.histories().values()))

    def generation(self) -> int:
        return int(self.said("assigned")[-1]["generation"])

    def committed(self) -> dict[Partition, int]:
        return {
            (topic, partition): offset
            for event in self.said("committed")
            for topic, partition, offset in event["offsets"]
        }

    def processed(self) -> set[tuple[str, int, int]]:
        return {tuple(record) for event in self.said("processed") for record in event["records"]}

    def log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        said = [str(event)[:160] for event in self.events()]
        return "\n".join([f"--- {self.name}:", *lines[-15:], *said[-15:]])

    # What is done to it

    def hold(self) -> None:
        """Returns when it has processed records that it has not committed."""
        self._tell("hold")
        eventually(lambda: self.said("holding"), 20, f"{self.name} does not hold")

    def go(self) -> None:
        self._tell("go")

    def leave(self) -> None:
        """It closes its consumer, as an application does that ends."""
        self._tell("leave")
        assert self._process.wait(20) == 0, self.log_tail()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._note("killed")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self._note("stopped")

    def resume(self) -> None:
        self._note("continued")
        self._process.send_signal(signal.SIGCONT)

    def ended_with(self) -> str:
        """The error that ended it."""
        self._process.wait(20)
        return str(self.said("failed")[-1]["error"])

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        if self.is_running:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def _note(self, event: str) -> None:
        self._done_to_it.append({"event": event, "at": time.monotonic()})


class Group:
    """The members of one group. On failure what they said last is in the message; none of them outlives the block."""

    def __init__(
        self,
        broker: BrokerProcess,
        group_id: str,
        topics: Sequence[str],
        directory: Path,
        *,
        partitions: int = PARTITIONS,
    ) -> None:
        self.broker = broker
        self.partitions = partitions
        self.group_id = group_id
        self.topics = list(topics)
        self.members: list[Member] = []
        self._directory = directory

    def join(
        self,
        kind: Kind,
        *,
        instance: str | None = None,
        session_ms: int = SESSION_MS,
        topics: Sequence[str] | None = None,
        **others: object,
    ) -> Member:
        options = {
            "client": kind.client,
            "bootstrap": self.broker.bootstrap,
            "group": self.group_id,
            "topics": list(topics or self.topics),
            "protocol": kind.protocol,
            "assignors": list(kind.assignors),
            "session_ms": session_ms,
            "heartbeat_ms": HEARTBEAT_MS,
            "instance": instance,
            **others,
        }
        member = Member(kind, options, self._directory)
        self.members.append(member)
        return member

    def all_partitions(self) -> set[Partition]:
        return {(topic, partition) for topic in self.topics for partition in range(self.partitions)}

    def is_shared_by(self, *members: Member) -> bool:
        """Whether these own everything, nobody more than his part."""
        owned = [member.owned() for member in members]
        assert set().union(*owned) == self.all_partitions(), {
            m.name: len(o) for m, o in zip(members, owned, strict=True)
        }
        sizes = sorted(len(each) for each in owned)
        assert sum(sizes) == len(self.all_partitions()), f"not one owner each: {sizes}"
        assert sizes[-1] - sizes[0] <= len(self.topics), f"unfair: {sizes}"
        return True

    def wait_until_shared_by(self, *members: Member) -> None:
        names = [member.name for member in members]
        eventually(lambda: self.is_shared_by(*members), 20, f"{self.group_id} is not shared by {names}")

    def processed(self) -> set[tuple[str, int, int]]:
        return set().union(*(member.processed() for member in self.members))

    def committed(self) -> dict[Partition, int]:
        """How far it has come, by what its members say."""
        reached: dict[Partition, int] = {}
        for partition, offset in itertools.chain(*(member.committed().items() for member in self.members)):
            reached[partition] = max(offset, reached.get(partition, 0))
        return reached

    def wait_until_processed(self, sent: Iterable[tuple[str, int, int]]) -> None:
        def missing() -> list[tuple[str, int, int]]:
            return sorted(set(sent) - self.processed())

        eventually(lambda: not missing(), 20, f"records of {self.group_id} were never processed")

    # What must have been true all along

    def check(self) -> None:
        self.check_one_owner_per_generation()
        self.check_one_owner_at_a_time()
        self.check_positions_never_went_back()

    def check_one_owner_per_generation(self) -> None:
        """Only the classic protocol has generations; in the other every member has an epoch of its own."""
        owners: dict[tuple[int, Partition], set[str]] = {}
        for member in self.members:
            if member.kind.protocol != "classic":
                continue
            for event in member.said("assigned"):
                for topic, partition in event["owned"]:
                    owners.setdefault((event["generation"], (topic, partition)), set()).add(event["id"])
        assert not (shared := {key: ids for key, ids in owners.items() if len(ids) > 1}), shared

    def check_one_owner_at_a_time(self) -> None:
        claims: dict[Partition, list[Claim]] = {}
        histories = itertools.chain(*(member.histories().items() for member in self.members))
        for claim in itertools.chain(*(claims_of(name, history) for name, history in histories)):
            if claim.until > claim.since:  # else it was told of something that was over by then
                claims.setdefault(claim.partition, []).append(claim)
        for of_partition in claims.values():
            in_order = sorted(of_partition, key=lambda claim: claim.since)
            for before, after in itertools.pairwise(in_order):
                assert before.until <= after.since or before.member == after.member, f"{before} and {after}"

    def check_positions_never_went_back(self) -> None:
        reached: dict[Partition, int] = {}
        for partition, offset in commits_of(self.broker, self.group_id):
            assert offset >= reached.get(partition, 0), f"{partition} went back from {reached[partition]} to {offset}"
            reached[partition] = offset
        assert reached, "the group never committed anything"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.end()
            if error is not None:
                error.add_note(member.log_tail())


@dataclass(frozen=True, slots=True)
class Claim:
    member: str
    partition: Partition
    since: float
    until: float


def claims_of(name: str, history: Iterable[Event]) -> Iterator[Claim]:
    """When it owned what. Who was thrown out learns of it late: his claim ends with the last proof that it held.

    Proof is to be given something, and a commit that is accepted. Who was stopped may believe for a while what is long
    over, and has no claim before he gave proof again: by a commit that he sent afterwards, or by joining anew.
    """
    since: dict[Partition, float] = {}
    believed: set[Partition] = set()
    was_stopped = False
    proven = commit_began = stopped_at = 0.0
    for event in history:
        kind, at = event["event"], _time_of(event)
        if kind in _OWNERSHIP:
            believed = {(topic, partition) for topic, partition in event["owned"]}
            was_thrown_out = kind == "lost" or event["generation"] < 0
            for partition in set(since) - believed:
                yield Claim(name, partition, since.pop(partition), proven if was_thrown_out else at)
            was_stopped = was_stopped and bool(believed)
            if not was_stopped and believed - set(since):
                since |= dict.fromkeys(believed - set(since), at)
                proven = at
        elif kind == "processed":
            commit_began = at
        elif kind == "committed" and commit_began > stopped_at:
            since |= dict.fromkeys(believed - set(since), commit_began)
            was_stopped, proven = False, commit_began
        elif kind in ("killed", "stopped", "left"):
            was_stopped, stopped_at = True, at
            for partition in list(since):
                yield Claim(name, partition, since.pop(partition), at)
    for partition, start in since.items():
        yield Claim(name, partition, start, proven)


# The broker's own account


def commits_of(broker: BrokerProcess, group_id: str) -> Iterator[tuple[Partition, int]]:
    """Every commit that was accepted, in order; read from __consumer_offsets by Kafka's layout of keys and values."""
    for key, value in offsets_records(broker):
        if key is None or value is None or struct.unpack_from(">h", key)[0] > 1:
            continue
        committed_by, topic, position = *_texts(key, 2, count=2), len(key) - 4
        if committed_by == group_id:
            yield (topic, struct.unpack_from(">i", key, position)[0]), struct.unpack_from(">q", value, 2)[0]


def _texts(data: bytes, position: int, *, count: int) -> list[str]:
    texts = []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data, position)
        texts.append(data[position + 2 : position + 2 + length].decode())
        position += 2 + length
    return texts


def offsets_records(broker: BrokerProcess) -> Iterator[tuple[bytes | None, bytes | None]]:
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "never-joined",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,
    }
    with closing(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(OFFSETS_TOPIC, partition, 0) for partition in range(OFFSETS_PARTITIONS)])
        ended = 0
        deadline = time.monotonic() + 30
        while ended < OFFSETS_PARTITIONS:
            assert time.monotonic() < deadline, f"the end of {OFFSETS_TOPIC} was not reached"
            for message in consumer.consume(500, 0.1):
                if (error := message.error()) is None:
                    yield message.key(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1


# Records to process


@dataclass
class Feeder:
    """Writes to every partition of its topics until it is told to stop, and remembers what was acknowledged."""

    bootstrap: str
    topics: Sequence[str]
    partitions: int = PARTITIONS
    interval_s: float = 0.02
    sent: set[tuple[str, int, int]] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(self.interval_s):
            self.write()

    def write(self) -> None:
        """One record to every partition."""
        for topic in self.topics:
            for partition in range(self.partitions):
                self._producer.produce(topic, b"work", partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: Any, record: Any) -> None:
        assert error is None, error
        self.sent.add((record.topic(), record.partition(), record.offset()))

    def stop(self) -> set[tuple[str, int, int]]:
        """Everything that was sent, all of it acknowledged."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(20) == 0
        return self.sent

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()
