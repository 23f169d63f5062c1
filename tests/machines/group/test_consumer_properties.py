"""Members of consumer groups come, change their minds, lose answers, revoke late, die and come back; topics change, the
coordinator crashes. Whatever they do, a partition has one owner, and when they calm down, everything has one.
"""

from __future__ import annotations

from collections import Counter
from re import fullmatch
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.machines.group.consumer_world import GROUP, Client, replayed
from tests.machines.group.mixed_world import MixedWorld, OldClient

from penstock.coordinators.group.consumer_state import ConsumerGroup, state_name, topics_of
from penstock.coordinators.group.state import GroupConfig
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse

TOPICS = ("orders", "bills", "users")
SUBSCRIPTIONS = st.sampled_from(
    [("orders",), ("orders", "bills"), ("orders", "bills"), ("orders", "bills"), ("users",), TOPICS, ()]
)
REGEXES = st.sampled_from(["", "", "", "o.*", ".*s", "none"])
WAYS = st.sampled_from(["obey", "obey", "keep", "say nothing", "lose the answer", "silent"])
FATAL = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class Consumer(Client):
    """Starts with what is new at once, and gives up what it is to lose when it gets round to it."""

    missed_something = True
    is_away = False

    def hear(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        super().hear(answer)
        for name, partitions in self.told.items():
            self.owned.setdefault(name, set()).update(partitions)
        self.missed_something = False

    def give_up(self) -> None:
        self.obey()

    def start_over(self) -> None:
        self.owned, self.told, self.epoch, self.missed_something = {}, {}, 0, True
        self.name += "'"

    def say(self, *, lost: bool = False, mute: bool = False) -> None:
        """`mute`: without naming what it owns, if it may."""
        full = self.missed_something or self.epoch == 0
        fields: dict[str, Any] = {"topic_partitions": None} if mute and not full else {}
        answer = self.beat(full=full, obey=False, lose_answer=lost, **fields)
        if lost:
            self.missed_something = True
        elif answer.error_code in FATAL:
            self.start_over()
        elif answer.error_code == ErrorCode.UNRELEASED_INSTANCE_ID:
            self.missed_something = True
        else:
            assert answer.error_code == ErrorCode.NONE, answer


class OldConsumer(OldClient):
    """Of the classic protocol, in the same group. An eager one gives up everything before it joins."""

    is_away = False
    regex = ""
    missed_something = False

    @property
    def name(self) -> str:
        return self.member_id

    def give_up(self) -> None:
        """It does so whenever it hears what it is to have."""

    def start_over(self) -> None:
        self.owned, self.generation, self.member_id = {}, -1, ""

    def say(self, *, lost: bool = False, mute: bool = False) -> None:
        group = self.world.machine.groups.get(GROUP)
        if group is None or group.consumer is None or not group.consumer.members:
            self.start_over()  # alone it would be a classic group, which is another story
        elif self.generation == -1 or self.missed_something:
            self.join_and_sync(lost)
        else:
            code = self.beat()
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self.join_and_sync(lost)
            elif code == ErrorCode.ILLEGAL_GENERATION:
                self.owned, self.generation = {}, -1
            elif code:
                self.start_over()

    def join_and_sync(self, lost: bool) -> None:
        generation, member_id = self.generation, self.member_id
        code = self.join().error_code
        if lost and not code:
            self.generation, self.member_id = generation, member_id or self.member_id
        elif code or self.sync().error_code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.start_over()
        else:
            self.missed_something = False


Anybody = Consumer | OldConsumer


class Groups(RuleBasedStateMachine):
    @initialize(assignor=st.sampled_from(["uniform", "range"]), members=st.integers(0, 3))
    def start(self, assignor: str, members: int) -> None:
        others = {"uniform", "range"} - {assignor}
        config = GroupConfig(consumer_assignors=(assignor, *others), consumer_migration_policy="disabled")
        self.world = MixedWorld(config, orders=3, bills=4)
        self.clients: list[Anybody] = []
        self.born = 0
        for _ in range(members):
            self.join(("orders", "bills"), "", False)

    def one(self, data: st.DataObject) -> Anybody:
        return data.draw(st.sampled_from(self.clients))

    @rule(topics=SUBSCRIPTIONS, regex=REGEXES, static=st.booleans())
    @precondition(lambda self: len(self.clients) < 5)
    def join(self, topics: tuple[str, ...], regex: str, static: bool) -> None:
        self.born += 1
        name = f"m{self.born}"
        client = Consumer(
            self.world,
            name,
            frozenset(topics),
            regex=regex,
            instance_id=f"i{self.born}" if static else None,
            rebalance_timeout_ms=15_000,
        )
        self.clients.append(client)
        client.say()

    @rule(topics=SUBSCRIPTIONS, is_eager=st.booleans(), static=st.booleans())
    @precondition(lambda self: len(self.clients) < 5)
    def join_with_the_classic_protocol(self, topics: tuple[str, ...], is_eager: bool, static: bool) -> None:
        self.born += 1
        instance_id = f"i{self.born}" if static else None
        client = OldConsumer(self.world, frozenset(topics), instance_id, is_eager=is_eager, rebalance_timeout_ms=15_000)
        self.clients.append(client)
        client.say()

    @rule(ways=st.lists(WAYS, min_size=5, max_size=5))
    @precondition(lambda self: self.clients)
    def everybody_heartbeats(self, ways: list[str]) -> None:
        for client, way in zip(list(self.clients), ways, strict=False):
            if way != "silent":
                client.is_away = False
                if way == "obey":
                    client.give_up()
                client.say(lost=way == "lose the answer", mute=way == "say nothing")
            self.a_partition_has_at_most_one_owner()

    @rule(data=st.data(), topics=SUBSCRIPTIONS, regex=REGEXES)
    @precondition(lambda self: self.clients)
    def subscribe_to_something_else(self, data: st.DataObject, topics: tuple[str, ...], regex: str) -> None:
        client = self.one(data)
        client.topics, client.missed_something = frozenset(topics), True
        if isinstance(client, Consumer):
            client.regex = regex
        client.say()

    @rule(data=st.data(), for_now=st.booleans())
    @precondition(lambda self: self.clients)
    def leave(self, data: st.DataObject, for_now: bool) -> None:
        client = self.one(data)
        for_now = for_now and client.instance_id is not None and isinstance(client, Consumer)
        if isinstance(client, Consumer):
            client.leave(-2 if for_now else -1)
        elif client.generation != -1:
            client.leave()
        client.start_over()
        client.is_away = True
        if not for_now:
            self.clients.remove(client)

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def die(self, data: st.DataObject) -> None:
        self.clients.remove(self.one(data))

    @rule(milliseconds=st.sampled_from([1_000, 10_000, 16_000, 46_000]))
    def wait(self, milliseconds: int) -> None:
        self.world.wait(milliseconds)

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 6))
    def change_topic(self, name: str, partitions: int) -> None:
        if name not in self.world.ids:  # and never under its old name again, by which classic members know it
            self.world.create_topic(name, partitions)
        elif name not in self.world.topics:
            return
        elif partitions == 1:
            self.world.set_topic(name, None)
        elif partitions > self.world.topics[name].partitions_count:
            self.world.add_partitions(name, partitions)

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @rule()
    @precondition(lambda self: self.clients)
    def calm_down(self) -> None:
        """The dead are gone, all others heartbeat as they should."""
        if not any(isinstance(client, Consumer) for client in self.clients):
            self.join(("orders",), "", False)
        for _ in range(25):
            self.world.wait(5_000)
            for client in self.clients:
                client.is_away = False
                client.give_up()
                client.say()
        group = self.world.group
        assert state_name(group) == "Stable"
        assert set(group.members) == {client.name for client in self.clients}
        self.check_everything_has_one_owner(group)
        self.check_balance(group)

    def check_everything_has_one_owner(self, group: ConsumerGroup) -> None:
        owners: Counter[tuple[str, int]] = Counter()
        wanted: set[tuple[str, int]] = set()
        for client in self.clients:
            topics = {
                name
                for name in self.world.topics
                if name in (client.topics or ()) or fullmatch(client.regex or "", name)
            }
            labels = {self.label(name) for name in topics}
            assert client.owned.keys() <= labels
            wanted |= {(self.label(t), p) for t in topics for p in range(self.world.topics[t].partitions_count)}
            owners.update((label, p) for label, partitions in client.owned.items() for p in partitions)
        assert owners == Counter(wanted)

    def label(self, name: str) -> str:
        return next(label for label, each in self.world.ids.items() if each == self.world.topics[name].topic_id)

    def check_balance(self, group: ConsumerGroup) -> None:
        members = group.members.values()
        subscriptions = {topics_of(each, group.regexes).intersection(self.world.topics) for each in members}
        if len(subscriptions) == 1 and self.world.config.consumer_assignors[0] == "uniform":
            sizes = [sum(map(len, client.owned.values())) for client in self.clients]
            assert max(sizes) - min(sizes) <= 1

    @invariant()
    def a_partition_has_at_most_one_owner(self) -> None:
        found = self.world.machine.groups.get(GROUP)
        if found is None or found.consumer is None:
            return
        members = found.consumer.members
        owners: dict[tuple[str, int], str] = {}
        for client in self.clients:
            if client.name in members and not client.is_away:
                for name, partitions in client.owned.items():
                    for partition in partitions:
                        other = owners.setdefault((name, partition), client.name)
                        assert other == client.name, f"{name}-{partition} is owned by {other} and {client.name}"

    @invariant()
    def replay_equals_live(self) -> None:
        live = self.world.machine.groups
        again = replayed(self.world.log, self.world.config, self.world.topics).groups
        assert again.keys() == live.keys()
        for group_id, group in live.items():
            assert durable(again[group_id].consumer) == durable(group.consumer)


def durable(group: ConsumerGroup | None) -> object:
    assert group is not None
    return (
        group.epoch,
        group.metadata_hash,
        group.target_epoch,
        group.members,
        group.static_members,
        group.targets,
        group.regexes,
        group.owners,
    )


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
