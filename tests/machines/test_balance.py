"""Plans for a cluster that grows or shrinks: what every plan keeps to, and that none does more than it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.balance import Layout, Move, Replicas, grown, healed, rebalanced, vacated
from penstock.controller.placement import Candidate, place
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition


def brokers_on_machines(*hosts: str, racks: Collection[str | None] = ()) -> dict[BrokerId, Candidate]:
    """Numbered from 1 on."""
    zones = list(racks) or [None] * len(hosts)
    return {
        BrokerId(number): Candidate(BrokerId(number), host, rack)
        for number, (host, rack) in enumerate(zip(hosts, zones, strict=True), 1)
    }


def a_layout(brokers: dict[BrokerId, Candidate], *partitions: Iterable[int], topic: str = "orders") -> Layout:
    return Layout(
        brokers,
        frozenset(brokers),
        {TopicPartition(topic, index): tuple(map(BrokerId, each)) for index, each in enumerate(partitions)},
    )


@st.composite
def layouts(draw: st.DrawFn, racked: bool | None = None, max_away: int = 2) -> Layout:
    """Topics of any replication factor, placed in any way, on brokers of which a few may not be given anything."""
    racked = draw(st.booleans()) if racked is None else racked
    count = draw(st.integers(1, 7))
    hosts = [f"machine-{draw(st.integers(0, 3))}" if racked else f"machine-{number}" for number in range(count)]
    racks = {host: f"rack-{draw(st.integers(0, 2))}" for host in hosts}
    brokers = brokers_on_machines(*hosts, racks=[racks[host] if racked else None for host in hosts])
    partitions: dict[TopicPartition, Replicas] = {}
    for topic in range(draw(st.integers(0, 3))):
        factor = draw(st.integers(1, min(4, count)))
        for index in range(draw(st.integers(1, 8))):
            chosen = draw(st.permutations(sorted(brokers)))[:factor]
            partitions[TopicPartition(f"topic-{topic}", index)] = tuple(chosen)
    away = draw(st.sets(st.sampled_from(sorted(brokers)), max_size=min(max_away, count - 1)))
    return Layout(brokers, frozenset(brokers) - away, partitions)


def after(layout: Layout, moves: Iterable[Move]) -> Layout:
    """The layout with the plan carried out; each move must begin where the partition is."""
    partitions = dict(layout.partitions)
    for move in moves:
        assert partitions[move.topic_partition] == move.before != move.after
        partitions[move.topic_partition] = move.after
    return replace(layout, partitions=partitions)


def loads(layout: Layout) -> list[int]:
    counts = Counter(replica for replicas in layout.partitions.values() for replica in replicas)
    return [counts[broker] for broker in layout.available]


def leaderships(layout: Layout) -> list[int]:
    counts = Counter(replicas[0] for replicas in layout.partitions.values())
    return [counts[broker] for broker in layout.available]


def spread_of(layout: Layout, replicas: Replicas) -> tuple[int, int]:
    """How many machines and racks."""
    found = [layout.brokers[replica] for replica in replicas]
    return len({one.host for one in found}), len({one.rack for one in found})


def best_spread(layout: Layout, factor: int) -> tuple[int, int]:
    able = [layout.brokers[broker] for broker in layout.available]
    return min(factor, len({one.host for one in able})), min(factor, len({one.rack for one in able}))


def copies(moves: Iterable[Move]) -> int:
    return sum(len(move.added) for move in moves)


@given(layouts())
def test_given_any_cluster_when_rebalanced_then_each_partition_keeps_its_factor_and_what_is_away_stays(
    layout: Layout,
) -> None:
    moves = rebalanced(layout)

    for move in moves:
        assert len(set(move.after)) == len(move.after) == len(move.before)
        assert set(move.added) <= layout.available
        assert set(move.removed) <= layout.available


@given(layouts(racked=False, max_away=0))
def test_given_brokers_on_machines_of_their_own_when_rebalanced_then_replicas_and_leaders_differ_by_one_at_most(
    layout: Layout,
) -> None:
    balanced = after(layout, rebalanced(layout))

    assert max(loads(balanced)) - min(loads(balanced)) <= 1
    assert max(leaderships(balanced)) - min(leaderships(balanced)) <= 1


@given(layouts(racked=True, max_away=0))
def test_given_machines_and_racks_when_rebalanced_then_every_partition_is_on_as_many_as_it_can_be(
    layout: Layout,
) -> None:
    balanced = after(layout, rebalanced(layout))

    for replicas in balanced.partitions.values():
        assert spread_of(balanced, replicas) == best_spread(balanced, len(replicas))


@given(layouts())
def test_given_a_balanced_cluster_when_rebalanced_again_then_there_is_nothing_to_do(layout: Layout) -> None:
    balanced = after(layout, rebalanced(layout))

    assert rebalanced(balanced) == ()


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 60), st.integers(1, 3), st.integers(0, 1 << 32))
@settings(max_examples=60)
def test_given_new_brokers_in_a_balanced_cluster_when_rebalanced_then_only_what_they_get_is_copied(
    count: int, factor: int, partition_count: int, joining: int, seed: int
) -> None:
    factor = min(factor, count)
    brokers = brokers_on_machines(*(f"machine-{number}" for number in range(count + joining)))
    old = [one for one in brokers.values() if one.broker_id <= count]
    layout = a_layout(brokers, *place(old, partition_count, factor, seed))

    moves = rebalanced(layout)

    share = partition_count * factor / (count + joining)
    assert copies(moves) <= joining * -(-share // 1)
    assert {broker for move in moves for broker in move.added} <= {BrokerId(count + 1 + n) for n in range(joining)}


@given(st.lists(st.integers(0, 20), min_size=2, max_size=5))
def test_given_single_replicas_when_rebalanced_then_no_plan_could_copy_less(counts: list[int]) -> None:
    brokers = brokers_on_machines(*(f"machine-{number}" for number in range(len(counts))))
    layout = a_layout(brokers, *([broker] for broker, count in zip(brokers, counts, strict=True) for _ in range(count)))
    low, high = sum(counts) // len(counts), -(-sum(counts) // len(counts))

    moves = rebalanced(layout)

    too_many, too_few = sum(max(0, n - high) for n in counts), sum(max(0, low - n) for n in counts)
    assert copies(moves) == max(too_many, too_few)


def test_given_brokers_on_one_machine_when_rebalanced_then_no_partition_is_twice_on_one_of_them() -> None:
    layout = a_layout(brokers_on_machines("one", "one", "one"), (1, 2), (1, 3), (1,), (1,), (2, 1))

    balanced = after(layout, rebalanced(layout))

    assert all(len(set(replicas)) == len(replicas) for replicas in balanced.partitions.values())
    assert max(loads(balanced)) - min(loads(balanced)) <= 1


def test_given_a_topic_on_one_broker_when_another_joins_then_it_gets_half_of_that_topic_not_any_half() -> None:
    brokers = brokers_on_machines("one", "two", "three")
    spread = {TopicPartition("even", index): (BrokerId(1 + index % 2),) for index in range(4)}
    layout = Layout(
        brokers, frozenset(brokers), {**spread, **{TopicPartition("hot", n): (BrokerId(1),) for n in range(4)}}
    )

    balanced = after(layout, rebalanced(layout))

    hot = Counter(replicas[0] for each, replicas in balanced.partitions.items() if each.topic == "hot")
    assert max(hot.values()) <= 2


def test_given_replicas_that_are_even_and_leaders_that_are_not_when_rebalanced_then_only_their_order_changes() -> None:
    layout = a_layout(brokers_on_machines("one", "two", "three"), *([(1, 2, 3)] * 6))

    moves = rebalanced(layout)

    assert copies(moves) == 0
    assert leaderships(after(layout, moves)) == [2, 2, 2]


@given(layouts(), st.data())
def test_given_any_broker_when_drained_then_it_is_empty_and_nothing_else_moves(
    layout: Layout, data: st.DataObject
) -> None:
    leaving = data.draw(st.sampled_from(sorted(layout.brokers)))

    try:
        moves = vacated(layout, {leaving})
    except BrokerError as refused:
        assert refused.code is ErrorCode.INVALID_REPLICATION_FACTOR
        others = layout.available - {leaving}
        assert any(leaving in each and others <= set(each) for each in layout.partitions.values())
        return

    drained = after(layout, moves)
    for each, before in layout.partitions.items():
        replicas = drained.partitions[each]
        assert leaving not in replicas
        assert len(set(replicas)) == len(replicas) == len(before)
        assert len(set(replicas) - set(before)) == (leaving in before)


@given(st.integers(3, 6), st.integers(1, 2), st.integers(1, 40), st.integers(0, 1 << 32))
@settings(max_examples=60)
def test_given_a_balanced_cluster_when_a_broker_is_drained_then_the_others_share_what_it_had(
    count: int, factor: int, partition_count: int, seed: int
) -> None:
    brokers = brokers_on_machines(*(f"machine-{number}" for number in range(count)))
    layout = a_layout(brokers, *place(list(brokers.values()), partition_count, factor, seed))
    leaving = BrokerId(1)

    drained = after(replace(layout, available=layout.available - {leaving}), vacated(layout, {leaving}))

    share = -(-partition_count * factor // (count - 1))
    assert max(loads(drained)) <= share + 1


@given(layouts(racked=True, max_away=0), st.data())
def test_given_partitions_that_are_spread_when_a_broker_is_drained_then_they_are_on_as_many_racks_as_there_are(
    layout: Layout, data: st.DataObject
) -> None:
    layout = after(layout, rebalanced(layout))
    leaving = data.draw(st.sampled_from(sorted(layout.brokers)))
    remaining = replace(layout, available=layout.available - {leaving})

    try:
        drained = after(remaining, vacated(layout, {leaving}))
    except BrokerError:
        return

    for each, replicas in drained.partitions.items():
        if leaving in layout.partitions[each]:
            kept = [replica for replica in layout.partitions[each] if replica != leaving]
            machines, racks = spread_of(drained, tuple(kept))
            able = [drained.brokers[broker] for broker in drained.available if broker not in kept]
            more_machines = any(one.host not in {drained.brokers[k].host for k in kept} for one in able)
            assert spread_of(drained, replicas)[0] == machines + more_machines
            assert spread_of(drained, replicas)[1] >= racks


def test_given_too_few_brokers_when_one_is_drained_then_the_topic_is_named() -> None:
    layout = a_layout(brokers_on_machines("one", "two", "three"), (1, 2, 3))

    with pytest.raises(BrokerError, match=r"2 other brokers .* orders .*3") as refused:
        vacated(layout, {BrokerId(3)})

    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_given_too_few_brokers_for_a_topic_that_may_shrink_when_one_is_drained_then_it_has_a_replica_less() -> None:
    layout = a_layout(brokers_on_machines("one", "two", "three"), (3, 1, 2), (1, 2, 3), (2, 3, 1))

    drained = after(layout, vacated(layout, {BrokerId(3)}, shrinkable={"orders"}))

    assert [set(each) for each in drained.partitions.values()] == [{1, 2}] * 3
    assert sorted(leaderships(drained)) == [0, 1, 2]


def test_given_the_last_replica_when_its_broker_is_drained_then_it_is_not_dropped_even_if_it_may_shrink() -> None:
    layout = replace(a_layout(brokers_on_machines("one", "two"), (1,)), available=frozenset({BrokerId(1)}))

    with pytest.raises(BrokerError):
        vacated(layout, {BrokerId(1)}, shrinkable={"orders"})


@given(layouts(max_away=0), st.data())
def test_given_brokers_that_are_gone_when_healed_then_what_can_be_copied_is_and_nothing_else_changes(
    layout: Layout, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(layout.brokers)), min_size=1))
    led = data.draw(st.sets(st.sampled_from(sorted(layout.partitions)))) if layout.partitions else set()
    layout = replace(layout, available=layout.available - gone)

    cured = after(layout, healed(layout, gone, led))

    for each, before in layout.partitions.items():
        replicas = cured.partitions[each]
        assert len(set(replicas)) == len(replicas) == len(before)
        assert set(before) - gone <= set(replicas)
        if each not in led:
            assert replicas == before
        elif gone & set(replicas):
            assert layout.available <= set(replicas)


@given(layouts(), st.integers(1, 4))
def test_given_topics_to_grow_when_brokers_are_there_then_they_have_that_many_replicas_and_keep_those_they_had(
    layout: Layout, factor: int
) -> None:
    moves = grown(layout, {"topic-0": factor})

    bigger = after(layout, moves)
    for each, before in layout.partitions.items():
        replicas = bigger.partitions[each]
        assert set(before) <= set(replicas)
        if each.topic == "topic-0":
            assert len(replicas) == max(len(before), min(factor, len(set(before) | layout.available)))
        else:
            assert replicas == before


def test_given_a_topic_of_one_broker_when_it_grows_to_three_then_each_broker_leads_a_part() -> None:
    layout = a_layout(brokers_on_machines("one", "two", "three"), *([(1,)] * 7))

    bigger = after(layout, grown(layout, {"orders": 3}))

    assert all(set(replicas) == {1, 2, 3} for replicas in bigger.partitions.values())
    assert sorted(leaderships(bigger)) == [2, 2, 3]
    assert grown(bigger, {"orders": 3}) == ()


def test_given_thousands_of_partitions_when_a_broker_joins_then_the_plan_takes_seconds() -> None:
    hosts = [f"machine-{number}" for number in range(12)]
    brokers = brokers_on_machines(*hosts, racks=[f"rack-{number % 3}" for number in range(12)])
    old = [one for one in brokers.values() if one.broker_id < 12]
    layout = a_layout(brokers, *place(old, 10_000, 3, seed=1))

    balanced = after(layout, rebalanced(layout))

    assert min(loads(balanced)) >= 2_000
    assert max(leaderships(balanced)) - min(leaderships(balanced)) <= 1
