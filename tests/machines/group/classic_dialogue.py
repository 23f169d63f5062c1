"""A dialogue with the coordinator of one classic group: members speak, time passes, answers come now or later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now
from penstock.coordinators.group import classic
from penstock.coordinators.group.classic_state import ClassicGroup
from penstock.coordinators.group.machine import GroupMachine
from penstock.coordinators.group.records import GroupMetadataRecord, decode
from penstock.coordinators.group.state import Group, GroupConfig
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.group_offsets import OffsetCommitRequest
from penstock.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from penstock.protocol.schema import Struct

GROUP = "readers"
SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000
WALL_MS = 1_700_000_000_000
RANGE = (("range", b"range-metadata"),)

Protocols = tuple[tuple[str, bytes], ...]


@dataclass
class Said:
    """A request that was made. It waits until somebody answers it, and nobody may answer it twice."""

    ticket: int
    answer: Struct | None = None

    @property
    def waits(self) -> bool:
        return self.answer is None

    @property
    def error(self) -> str:
        """The error's name, or what stands for none: "waits" or "ok"."""
        if self.answer is None:
            return "waits"
        code = ErrorCode(self.answer.error_code)  # type: ignore[attr-defined]
        return code.name if code else "ok"


class Join(Said):
    @property
    def response(self) -> JoinGroupResponse:
        assert isinstance(self.answer, JoinGroupResponse), "waits"
        return self.answer

    @property
    def member_id(self) -> str:
        return self.response.member_id

    @property
    def generation(self) -> int:
        return self.response.generation_id

    @property
    def leads(self) -> bool:
        return self.response.leader == self.response.member_id != ""

    @property
    def told_of(self) -> list[str]:
        return [member.member_id for member in self.response.members]


class Sync(Said):
    @property
    def assignment(self) -> bytes:
        assert isinstance(self.answer, SyncGroupResponse), "waits"
        assert not self.answer.error_code, self.error
        return self.answer.assignment


class Heartbeat(Said):
    pass


class Leave(Said):
    @property
    def members(self) -> list[tuple[str, str | None, str]]:
        assert isinstance(self.answer, LeaveGroupResponse)
        return [
            (each.member_id, each.group_instance_id, ErrorCode(each.error_code).name) for each in self.answer.members
        ]


@dataclass
class Dialogue:
    config: GroupConfig = field(default_factory=GroupConfig)
    log: list[LogRecord] = field(default_factory=list)
    said: dict[int, Said] = field(default_factory=dict)
    now: Now = field(default_factory=lambda: Now(WALL_MS, 0))
    requests: int = 0

    def __post_init__(self) -> None:
        self.machine = GroupMachine(self.config, {})

    # Members speak

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Protocols = RANGE,
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client: str = "client",
        group: str = GROUP,
    ) -> Join:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        )
        said, caller, decision = self._ask(Join, version, client)
        classic.join(self.machine, request, caller, self.now, decision)
        self._carry_out(decision)
        return cast(Join, said)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
        version: int = 5,
        group: str = GROUP,
    ) -> Sync:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=each, assignment=assignment)
                for each, assignment in (assignments or {}).items()
            ],
        )
        said, caller, decision = self._ask(Sync, version, "client")
        classic.sync(self.machine, request, caller, self.now, decision)
        self._carry_out(decision)
        return cast(Sync, said)

    def heartbeat(self, member_id: str, generation: int, *, instance: str | None = None, group: str = GROUP) -> str:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        said, caller, decision = self._ask(Heartbeat, 4, "client")
        classic.heartbeat(self.machine, request, caller, self.now, decision)
        self._carry_out(decision)
        assert isinstance(said.answer, HeartbeatResponse)
        return said.error

    def leave(self, *who: str | tuple[str, str], version: int = 5, group: str = GROUP) -> Leave:
        """Each a member id, or a member id and an instance id."""
        pairs = [(each, None) if isinstance(each, str) else each for each in who]
        request = LeaveGroupRequest(
            group_id=group,
            member_id=pairs[0][0] if version < 3 else "",
            members=[MemberIdentity(member_id=each, group_instance_id=instance) for each, instance in pairs],
        )
        said, caller, decision = self._ask(Leave, version, "client")
        classic.leave(self.machine, request, caller, self.now, decision)
        self._carry_out(decision)
        return cast(Leave, said)

    def commit(self, member_id: str = "", generation: int = -1, *, instance: str | None = None) -> str:
        group = self.group
        assert group is not None
        request = OffsetCommitRequest(
            group_id=GROUP,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            group_instance_id=instance,
        )
        code = classic.check_commit(self.machine, group, request, self._caller(9, "client"), self.now)
        return code.name if code else "ok"

    # Time passes

    def pass_ms(self, duration_ms: int) -> None:
        """Every deadline on the way is met when it is due."""
        until = self.now.monotonic_ms + duration_ms
        timers = self.machine.timers
        while (deadline := timers.next_ms()) is not None and deadline <= until:
            self._set_clock(max(deadline, self.now.monotonic_ms))
            key = timers.pop_due(deadline)
            if key is not None:
                decision = Decision()
                classic.due(self.machine, key, self.now, decision)
                self._carry_out(decision)
        self._set_clock(until)

    def pass_ms_while_all_live(self, duration_ms: int, generation: int, *member_ids: str) -> None:
        """They send heartbeats meanwhile."""
        for _ in range(duration_ms // 1_000):
            for member_id in member_ids:
                self.heartbeat(member_id, generation)
            self.pass_ms(1_000)

    def crash(self) -> None:
        """Another coordinator takes over with the log; whoever waits is never answered by it."""
        self.machine = replayed(self.config, self.log)
        self.said.clear()
        for group in list(self.machine.groups.values()):
            classic.loaded(self.machine, group, self.now)

    # What is seen from outside

    @property
    def group(self) -> Group | None:
        return self.machine.groups.get(GROUP)

    @property
    def classic(self) -> ClassicGroup:
        assert self.group is not None and self.group.classic is not None
        return self.group.classic

    @property
    def state(self) -> str:
        return self.classic.state.value

    @property
    def last_record(self) -> GroupMetadataRecord:
        record = decode(self.log[-1])
        assert isinstance(record, GroupMetadataRecord)
        return record

    def timers(self) -> set[tuple[str, ...]]:
        return set(self.machine.timers._deadlines)

    # How

    def _ask(self, kind: type[Said], version: int, client: str) -> tuple[Said, Caller, Decision]:
        caller = self._caller(version, client)
        said = self.said[caller.ticket] = kind(caller.ticket)
        return said, caller, Decision()

    def _caller(self, version: int, client: str) -> Caller:
        self.requests += 1
        number = self.requests
        return Caller(number, version, client, f"/{client}.example", lambda: f"u{number}")

    def _carry_out(self, decision: Decision) -> None:
        self.log += decision.records
        for record in decision.records:
            self.machine.apply(record)
        for ticket, answer in decision.answers:
            said = self.said[ticket]
            assert said.answer is None, f"answered twice: {said} {answer}"
            said.answer = answer

    def _set_clock(self, monotonic_ms: int) -> None:
        self.now = Now(WALL_MS + monotonic_ms, monotonic_ms)


def replayed(config: GroupConfig, log: list[LogRecord]) -> GroupMachine:
    machine = GroupMachine(config, {})
    for record in log:
        machine.apply(LogRecord(record.key, record.value))
    return machine


# Scenes that many dialogues begin with


def new_member(talk: Dialogue, *, protocols: Protocols = RANGE, client: str = "client") -> Join:
    """A dynamic member as of v4: asks for its id, and joins with it."""
    asked = talk.join(protocols=protocols, client=client)
    assert asked.error == "MEMBER_ID_REQUIRED"
    return talk.join(asked.member_id, protocols=protocols, client=client)


def assignment_of(member_id: str, generation: int) -> bytes:
    return f"{member_id}@{generation}".encode()


def all_sync(talk: Dialogue, joins: list[Join]) -> list[Sync]:
    """The leader plans for all; each gets what is for it."""
    generation = joins[0].generation
    plan = {join.member_id: assignment_of(join.member_id, generation) for join in joins}
    syncs = [
        talk.sync(join.member_id, generation, plan if join.leads else None, protocol_name=join.response.protocol_name)
        for join in joins
    ]
    for join, sync in zip(joins, syncs, strict=True):
        assert sync.assignment == plan[join.member_id]
    return syncs


def stable_group(talk: Dialogue, *clients: str) -> list[str]:
    """The member ids, leader first, of generation 1."""
    joins = [new_member(talk, client=client) for client in clients]
    talk.pass_ms(DELAY_MS * (len(clients) + 1))
    joins.sort(key=lambda join: not join.leads)
    all_sync(talk, joins)
    assert (talk.state, talk.classic.generation) == ("Stable", 1)
    return [join.member_id for join in joins]


def stable_static_group(talk: Dialogue, *instances: str, version: int = 9) -> list[str]:
    joins = [talk.join(instance=instance, version=version) for instance in instances]
    talk.pass_ms(DELAY_MS * (len(instances) + 1))
    joins.sort(key=lambda join: not join.leads)
    all_sync(talk, joins)
    assert (talk.state, talk.classic.generation) == ("Stable", 1)
    return [join.member_id for join in joins]
