"""Members of the classic protocol beside those of the new one: what they send, and who of the coordinator gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.machines.group.consumer_world import GROUP, Partitions, World

from penstock.coordinators.decision import Decision
from penstock.coordinators.group import classic, consumer_classic
from penstock.coordinators.group.classic_state import ClassicGroup
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    TopicPartitions,
    decode_assignment,
)
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


class MixedWorld(World):
    def ask(self, request: Any, version: int) -> int:
        """Returns the ticket; the answer may be there already or come later."""
        decision, caller = Decision(), self.caller(version, client_id="old")
        group = self.machine.groups.get(GROUP)
        module = consumer_classic if group is not None and group.consumer is not None else classic
        name = type(request).__name__.removesuffix("Request").removesuffix("Group").lower()
        getattr(module, name)(self.machine, request, caller, self.now, decision)
        self.written = self.carry_out(decision)
        return caller.ticket

    @property
    def classic(self) -> ClassicGroup:
        group = self.machine.groups[GROUP]
        assert group.classic is not None and group.consumer is None
        return group.classic

    def old_member(self, *topics: str, **settings: Any) -> OldClient:
        return OldClient(self, frozenset(topics), **settings)


@dataclass
class OldClient:
    """A cooperative consumer of the classic protocol; of an eager one `owned` is empty whenever it joins."""

    world: MixedWorld
    topics: frozenset[str]
    instance_id: str | None = None
    protocols: tuple[str, ...] = ("range",)
    protocol_type: str = "consumer"
    is_eager: bool = False
    session_timeout_ms: int = 20_000
    rebalance_timeout_ms: int = 30_000
    member_id: str = ""
    generation: int = -1
    owned: Partitions = field(default_factory=dict)
    join_ticket: int = 0
    protocol: str = "range"

    def metadata(self) -> bytes:
        owned = [TopicPartitions(topic=name, partitions=sorted(each)) for name, each in self.owned.items() if each]
        subscription = ConsumerProtocolSubscription(
            topics=sorted(self.topics), owned_partitions=owned, generation_id=self.generation
        )
        return ConsumerProtocolSubscription.encode_fields_of(subscription, 2)

    def send_join(self, version: int = 7) -> None:
        if self.is_eager:
            self.owned = {}
        metadata = self.metadata()
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self.protocols],
        )
        self.join_ticket = self.world.ask(request, version)

    def joined(self) -> JoinGroupResponse:
        answer = self.world.answers[self.join_ticket]
        assert isinstance(answer, JoinGroupResponse)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif not answer.error_code:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.protocol = answer.protocol_name or ""
        return answer

    def ask_to_join(self) -> None:
        """Until the answer may have to wait for others."""
        self.send_join()
        if self.join_ticket in self.world.answers and self.joined().error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.send_join()

    def join(self) -> JoinGroupResponse:
        self.ask_to_join()
        return self.joined()

    def sync(self, plan: dict[str, bytes] | None = None) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=GROUP,
            member_id=self.member_id,
            generation_id=self.generation,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=self.protocol,
            assignments=[SyncGroupRequestAssignment(member_id=k, assignment=v) for k, v in (plan or {}).items()],
        )
        answer = self.world.answers[self.world.ask(request, 5)]
        assert isinstance(answer, SyncGroupResponse)
        if not answer.error_code:
            named = decode_assignment(answer.assignment).assigned_partitions
            self.owned = {each.topic: set(each.partitions) for each in named}
        return answer

    def rejoin(self) -> None:
        assert self.join().error_code == ErrorCode.NONE
        assert self.sync().error_code == ErrorCode.NONE

    def beat(self) -> int:
        request = HeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            generation_id=self.generation,
            group_instance_id=self.instance_id,
        )
        answer = self.world.answers[self.world.ask(request, 4)]
        assert isinstance(answer, HeartbeatResponse)
        return answer.error_code

    def live(self) -> None:
        """A heartbeat, and what it says is to be done."""
        if self.beat() == ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin()

    def leave(self) -> LeaveGroupResponse:
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        answer = self.world.answers[self.world.ask(LeaveGroupRequest(group_id=GROUP, members=[identity]), 5)]
        assert isinstance(answer, LeaveGroupResponse)
        return answer
