"""A group machine with its log and a clock, and members of the new protocol to talk to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now
from penstock.coordinators.group import consumer
from penstock.coordinators.group.consumer_state import ConsumerGroup
from penstock.coordinators.group.machine import GroupMachine
from penstock.coordinators.group.records import Record, decode
from penstock.coordinators.group.state import GroupConfig, TopicFacts
from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicId
from penstock.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

GROUP = "readers"
Partitions = dict[str, set[int]]


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


class World:
    def __init__(self, config: GroupConfig | None = None, **partitions: int) -> None:
        self.config = config or GroupConfig()
        self.topics: dict[str, TopicFacts] = {}
        self.log: list[LogRecord] = []
        self.now_ms = 1_000_000
        self.tickets = 0
        self.ids: dict[str, TopicId] = {}
        """By name; of a topic that was made anew under its name, by name and #2 and so on."""
        self.answers: dict[int, object] = {}
        self.machine = GroupMachine(self.config, self.topics)
        for name, count in partitions.items():
            self.create_topic(name, count)

    @property
    def now(self) -> Now:
        return Now(wall_ms=1_700_000_000_000 + self.now_ms, monotonic_ms=self.now_ms)

    @property
    def group(self) -> ConsumerGroup:
        found = self.machine.groups[GROUP].consumer
        assert found is not None
        return found

    def caller(self, version: int = 1, client_id: str = "client") -> Caller:
        self.tickets += 1
        number = self.tickets
        return Caller(number, version, client_id, "/127.0.0.1", lambda: f"unique-{number}")

    def carry_out(self, decision: Decision) -> list[Record]:
        """As the shell does: append, apply, answer."""
        self.log += [record._replace(timestamp=self.now.wall_ms) for record in decision.records]
        for record in decision.records:
            self.machine.apply(record)
        self.answers.update(decision.answers)
        return [found for record in decision.records if (found := decode(record)) is not None]

    def send(self, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> ConsumerGroupHeartbeatResponse:
        decision, caller = Decision(), self.caller(version)
        consumer.heartbeat(self.machine, request, caller, self.now, decision)
        self.written = self.carry_out(decision)
        answer = self.answers[caller.ticket]
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def wait(self, milliseconds: int) -> None:
        until_ms = self.now_ms + milliseconds
        while (deadline_ms := self.machine.next_deadline_ms()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            decision = Decision()
            self.machine.due(self.now, decision)
            self.carry_out(decision)
        self.now_ms = until_ms

    def crash(self) -> None:
        self.machine = replayed(self.log, self.config, self.topics)
        decision = Decision()
        self.machine.loaded(self.now, decision)
        self.carry_out(decision)

    def create_topic(self, name: str, partitions: int) -> None:
        times = sum(label.split("#")[0] == name for label in self.ids) + 1
        label = name if times == 1 else f"{name}#{times}"
        self.ids[label] = topic_id(len(self.ids) + 1)
        self.set_topic(name, TopicFacts(self.ids[label], partitions))

    def add_partitions(self, name: str, partitions: int) -> None:
        self.set_topic(name, self.topics[name]._replace(partitions_count=partitions))

    def set_topic(self, name: str, facts: TopicFacts | None) -> None:
        if facts is None:
            del self.topics[name]
        else:
            self.topics[name] = facts
        decision = Decision()
        self.machine.topics_changed([name], self.now, decision, deleted=True)
        self.carry_out(decision)

    def wire(self, partitions: Partitions) -> list[TopicPartitions]:
        return [
            TopicPartitions(topic_id=self.ids[name], partitions=sorted(each))
            for name, each in sorted(partitions.items())
            if each
        ]

    def named(self, topics: list[TopicPartitions]) -> Partitions:
        labels = {topic_id: label for label, topic_id in self.ids.items()}
        return {labels[each.topic_id]: set(each.partitions) for each in topics}

    def member(self, name: str, *topics: str, **settings: Any) -> Client:
        return Client(self, name, frozenset(topics), **settings)


def replayed(log: list[LogRecord], config: GroupConfig, topics: dict[str, TopicFacts]) -> GroupMachine:
    machine = GroupMachine(config, topics)
    for record in log:
        machine.apply(LogRecord(record.key, record.value, timestamp=record.timestamp))
    return machine


@dataclass
class Client:
    """A member that does what it is told: at once, unless the test tells it to keep what it has."""

    world: World
    name: str
    topics: frozenset[str] | None
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = 30_000
    epoch: int = 0
    owned: Partitions = field(default_factory=dict)
    told: Partitions = field(default_factory=dict)
    """The last assignment it was given."""

    def join(self, version: int = 1) -> ConsumerGroupHeartbeatResponse:
        self.epoch, self.owned = 0, {}
        return self.beat(full=True, version=version)

    def beat(
        self, *, full: bool = False, version: int = 1, obey: bool = True, lose_answer: bool = False, **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        request = self.request(full=full)
        for name, value in fields.items():
            setattr(request, name, value)
        answer = self.world.send(request, version)
        if not lose_answer and not answer.error_code:
            self.hear(answer)
            if obey:
                self.obey()
        return answer

    def request(self, *, full: bool = False) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            topic_partitions=self.world.wire(self.owned),
        )
        if full:
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
            request.subscribed_topic_names = None if self.topics is None else sorted(self.topics)
            request.subscribed_topic_regex = self.regex
            request.server_assignor = self.assignor
        return request

    def hear(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = answer.member_epoch
        if answer.member_id:
            self.name = answer.member_id
        if answer.assignment is not None:
            self.told = self.world.named(answer.assignment.topic_partitions)

    def obey(self) -> None:
        self.owned = {name: set(partitions) for name, partitions in self.told.items()}

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self.name, member_epoch=epoch, instance_id=self.instance_id
        )
        return self.world.send(request)


def settle(*clients: Client, rounds: int = 12) -> None:
    """Everybody heartbeats until nothing changes any more."""
    for _ in range(rounds):
        for client in clients:
            answer = client.beat()
            assert answer.error_code == ErrorCode.NONE, answer
    assert not any(client.world.written for client in clients)
