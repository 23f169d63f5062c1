"""Whatever members do, whenever the coordinator dies: what must always hold of a classic group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.machines.group.classic_dialogue import GROUP, Dialogue, Join, Protocols, Sync, replayed

from penstock.coordinators.group.classic_state import ClassicGroup, State
from penstock.coordinators.group.records import GroupMetadataRecord, decode
from penstock.coordinators.group.state import GroupConfig

INSTANCES = (None, None, None, "rack-1", "rack-2")
"""Of each client; a few are static."""

CLIENTS = st.integers(0, len(INSTANCES) - 1)
PROTOCOLS: tuple[Protocols, ...] = (
    (("range", b"1"),),
    (("range", b"2"),),
    (("sticky", b"3"), ("range", b"1")),
    (("sticky", b"3"),),
)
TOO_LARGE = bytes(2_000)


@dataclass
class Client:
    """Believes what it was last told."""

    instance: str | None
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    told_of: list[str] = field(default_factory=list)
    protocol: str = "range"
    joins: list[Join] = field(default_factory=list)

    def hear(self) -> None:
        for join in [each for each in self.joins if not each.waits]:
            self.joins.remove(join)
            if join.error in ("ok", "MEMBER_ID_REQUIRED"):
                self.member_id, self.generation = join.member_id, join.generation
                self.leads = join.leads and not join.response.skip_assignment
                self.told_of = join.told_of
                self.protocol = join.response.protocol_name or "range"
            elif join.error in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED"):
                self.member_id = ""


class ClassicGroupLife(RuleBasedStateMachine):
    @initialize(group_max_size=st.sampled_from([2, 4, 100]), delay_ms=st.sampled_from([0, 3_000]))
    def begin(self, group_max_size: int, delay_ms: int) -> None:
        self.talk = Dialogue(
            GroupConfig(
                group_max_size=group_max_size, group_initial_rebalance_delay_ms=delay_ms, max_record_bytes=1_500
            )
        )
        self.clients = [Client(instance) for instance in INSTANCES]
        self.planned: dict[int, dict[str, bytes]] = {}
        """By generation, what its leader planned, if the plan was accepted."""

        self.syncs: list[tuple[int, str, Sync]] = []
        self.history: list[tuple[str, str | None, int]] = [("nobody", None, 1)]
        """Memberships that clients ever believed in."""

        self.highest_generation = 0

    # Members

    @rule(
        who=CLIENTS,
        protocols=st.sampled_from(PROTOCOLS),
        version=st.sampled_from([3, 8, 9, 9, 9]),
        session_ms=st.sampled_from([6_000, 10_000]),
        rebalance_ms=st.sampled_from([5_000, 20_000]),
    )
    def join(self, who: int, protocols: Protocols, version: int, session_ms: int, rebalance_ms: int) -> None:
        client = self.clients[who]
        joined = self.talk.join(
            client.member_id,
            instance=client.instance,
            protocols=protocols,
            version=version,
            session_ms=session_ms,
            rebalance_ms=rebalance_ms,
        )
        client.joins.append(joined)
        self._hear()

    @rule(who=CLIENTS)
    def forget_who_it_is(self, who: int) -> None:
        """It restarts. A static member comes back with its instance id, another one as a new member."""
        self.clients[who].member_id = ""

    @rule(who=CLIENTS, plan=st.lists(st.sampled_from([b"", b"a", b"b", b"c"]), max_size=5), is_too_large=st.booleans())
    def sync(self, who: int, plan: list[bytes], is_too_large: bool) -> None:
        client = self.clients[who]
        assignments = dict(zip(client.told_of, plan, strict=False)) if client.leads else {}
        if is_too_large and assignments:
            assignments[next(iter(assignments))] = TOO_LARGE
        synced = self.talk.sync(
            client.member_id,
            client.generation,
            assignments,
            instance=client.instance,
            protocol_name=client.protocol,
        )
        generation = client.generation
        if client.leads and not synced.waits and synced.error == "ok":
            self.planned.setdefault(generation, assignments)
        self.syncs.append((generation, client.member_id, synced))
        self._hear()

    @rule(who=st.sets(CLIENTS, min_size=1))
    def do_as_they_should(self, who: set[int]) -> None:
        """What clients do of themselves: join until they are told a generation, then ask for what is theirs."""
        for each in sorted(who):
            client = self.clients[each]
            if client.joins or any(
                synced.waits for _, member_id, synced in self.syncs if member_id == client.member_id
            ):
                continue
            if self.talk.heartbeat(client.member_id, client.generation, instance=client.instance) == "ok":
                self.sync(each, [b"a", b"b", b"c"], is_too_large=False)
            else:
                self.join(each, PROTOCOLS[0], version=9, session_ms=10_000, rebalance_ms=20_000)
                self.each_member_gets_what_the_leader_of_its_generation_planned()

    @rule(who=st.sets(CLIENTS, min_size=1), rounds=st.integers(1, 8))
    def settle(self, who: set[int], rounds: int) -> None:
        for _ in range(rounds):
            self.do_as_they_should(who)
            self.each_member_gets_what_the_leader_of_its_generation_planned()
            self.talk.pass_ms(1_500)
            self._hear()

    @rule(who=st.sampled_from([3, 4]), version=st.sampled_from([8, 9]), protocols=st.sampled_from(PROTOCOLS))
    def restart_a_static_member(self, who: int, version: int, protocols: Protocols) -> None:
        self.forget_who_it_is(who)
        self.join(who, protocols, version, session_ms=6_000, rebalance_ms=20_000)

    @rule(who=CLIENTS)
    def heartbeat(self, who: int) -> None:
        client = self.clients[who]
        self.talk.heartbeat(client.member_id, client.generation, instance=client.instance)

    @rule(who=CLIENTS, by_instance=st.booleans())
    def leave(self, who: int, by_instance: bool) -> None:
        client = self.clients[who]
        if by_instance and client.instance is not None:
            self.talk.leave(("", client.instance))
        else:
            self.talk.leave(client.member_id)
        client.member_id = ""
        self._hear()

    @rule(data=st.data())
    @precondition(lambda self: self.talk.group is not None)
    def commit(self, data: Any) -> None:
        """By anybody who was ever a member, and with any generation."""
        member_id, instance, generation = data.draw(st.sampled_from(self.history))
        generation += data.draw(st.sampled_from([0, 0, 0, -1, 1]))
        answer = self.talk.commit(member_id, generation, instance=instance)
        if answer == "ok" and generation >= 0:
            assert generation == self.talk.classic.generation
            assert generation >= self._written_generation(), "of an old generation"
            assert member_id in self.talk.classic.members
            assert self.talk.state != "CompletingRebalance"
        if answer == "ok" and generation < 0:
            assert not self.talk.classic.members

    # The world

    @rule(duration_ms=st.sampled_from([1, 1, 3_000, 6_000, 20_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.talk.pass_ms(duration_ms)
        self._hear()

    @rule(duration_ms=st.sampled_from([3_000, 6_000, 12_000]))
    def time_passes_with_heartbeats(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 3_000):
            for client in self.clients:
                self.talk.heartbeat(client.member_id, client.generation, instance=client.instance)
            self.talk.pass_ms(3_000)
        self._hear()

    @rule()
    def coordinator_dies(self) -> None:
        self._hear()
        self.talk.crash()
        self.syncs = []
        for client in self.clients:
            client.joins = []
        self.highest_generation = self._written_generation()

    def teardown(self) -> None:
        """Everybody falls silent: all that waits is answered, and nothing remains but what is written."""
        if not hasattr(self, "talk"):
            return
        self.talk.pass_ms(60 * 60 * 1000)
        self._hear()
        assert all(not said.waits for said in self.talk.said.values())
        assert not self.talk.timers()
        group = self.talk.group
        if group is not None:
            assert group.classic is not None
            assert (group.classic.state, group.classic.members) == (State.EMPTY, {})
            assert not group.classic.pending_members and not group.classic.unsynced
        self.replay_finds_what_was_written()

    def _hear(self) -> None:
        for client in self.clients:
            client.hear()
            if client.member_id and client.generation >= 0:
                self.history.append((client.member_id, client.instance, client.generation))

    def _written_generation(self) -> int:
        stored = None if self.talk.group is None else self.talk.classic.stored
        return 0 if stored is None else stored.generation

    # What must hold

    @invariant()
    def replay_finds_what_was_written(self) -> None:
        found = replayed(self.talk.config, self.talk.log).groups.get(GROUP)
        live = self.talk.group
        written = None if live is None or live.classic is None else live.classic.stored
        assert written == (None if found is None or found.classic is None else found.classic.stored)

    @invariant()
    def a_group_at_rest_is_what_was_written(self) -> None:
        if self.talk.group is None:
            return
        classic = self.talk.classic
        if classic.state in (State.STABLE, State.EMPTY) and classic.stored is not None:
            assert _durable_part(ClassicGroup.restored(classic.stored)) == _durable_part(classic)

    @invariant()
    def each_member_gets_what_the_leader_of_its_generation_planned(self) -> None:
        for generation, member_id, synced in self.syncs:
            if not synced.waits and synced.error == "ok":
                assert synced.assignment == self._planned_for(member_id, generation)
        self.syncs = [each for each in self.syncs if each[2].waits]

    def _planned_for(self, member_id: str, generation: int) -> bytes:
        plan = self.planned[generation]
        if member_id in plan or not member_id.startswith("rack-"):
            return plan.get(member_id, b"")
        # A static member that came back under another id inherits.
        instance = member_id.rpartition("-")[0]
        return next((each for heir, each in plan.items() if heir.rpartition("-")[0] == instance), b"")

    @invariant()
    def a_written_generation_has_one_membership(self) -> None:
        """But for static members, which are replaced by themselves; and it is never written after a later one."""
        memberships: dict[int, list[str]] = {}
        last = 0
        for each in self.talk.log:
            record = decode(each)
            assert isinstance(record, GroupMetadataRecord)
            assert record.generation >= last
            last = record.generation
            who = sorted(member.group_instance_id or member.member_id for member in record.members)
            assert memberships.setdefault(last, who) == who

    @invariant()
    def generations_do_not_go_back(self) -> None:
        if self.talk.group is not None:
            assert self.talk.classic.generation >= max(self.highest_generation, self._written_generation())
            self.highest_generation = self.talk.classic.generation
        elif self.talk.log:
            raise AssertionError("a written group is not forgotten")
        else:
            self.highest_generation = 0

    @invariant()
    def whoever_waits_is_remembered_by_a_member(self) -> None:
        members = [] if self.talk.group is None else list(self.talk.classic.members.values())
        held = [ticket for member in members for ticket in (member.join_ticket, member.sync_ticket) if ticket]
        assert sorted(held) == sorted(ticket for ticket, said in self.talk.said.items() if said.waits)

    @invariant()
    def whoever_is_waited_for_has_a_deadline_and_nobody_else(self) -> None:
        timers = self.talk.timers()
        if self.talk.group is None:
            assert not timers
            return
        classic = self.talk.classic
        sessions = {key[2] for key in timers if key[0] == "classic-session"}
        assert sessions <= set(classic.members) | classic.pending_members
        assert classic.pending_members <= sessions
        assert {each.member_id for each in classic.members.values() if not each.is_excused_from_heartbeats} <= sessions
        assert (("classic-join", GROUP) in timers) == (classic.state is State.PREPARING_REBALANCE)
        assert (("classic-sync", GROUP) in timers) == bool(classic.unsynced)
        assert bool(classic.unsynced) or classic.state is not State.COMPLETING_REBALANCE

    @invariant()
    def counts_and_indexes_are_true(self) -> None:
        if self.talk.group is None:
            return
        classic = self.talk.classic
        members = classic.members.values()
        assert classic.joins_waiting == sum(member.join_ticket is not None for member in members)
        assert classic.static_members == {
            each.group_instance_id: each.member_id for each in members if each.group_instance_id is not None
        }
        support: dict[str, int] = {}
        for member in members:
            for name, _ in member.protocols:
                support[name] = support.get(name, 0) + 1
        assert classic._support == support
        assert (classic.leader in classic.members) if classic.members else classic.leader is None
        assert classic.unsynced <= set(classic.members)
        assert not classic.pending_members & set(classic.members)


def _durable_part(classic: ClassicGroup) -> tuple[Any, ...]:
    return (
        classic.state,
        classic.generation,
        classic.protocol_type,
        classic.protocol,
        classic.leader,
        {
            each.member_id: (
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                each.metadata(classic.protocol),
                each.assignment,
            )
            for each in classic.members.values()
        },
        classic.current_state_timestamp if classic.state is State.EMPTY else None,
    )


TestClassicGroupLife = ClassicGroupLife.TestCase
TestClassicGroupLife.settings = settings(max_examples=150, stateful_step_count=80, deadline=None)

pytestmark = pytest.mark.timeout(600)
"""When it fails, finding the shortest way there takes minutes."""
