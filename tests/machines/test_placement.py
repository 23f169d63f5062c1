"""Placement: spread over brokers, machines and racks, never two replicas on one broker, and only the seed decides."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.placement import Candidate, place
from penstock.core.ids import BrokerId


@st.composite
def clusters(draw: st.DrawFn) -> list[Candidate]:
    """Brokers on machines, machines in racks (or all without a rack)."""
    racked = draw(st.booleans())
    candidates: list[Candidate] = []
    for rack in range(draw(st.integers(1, 4))):
        for machine in range(draw(st.integers(1, 3))):
            for _ in range(draw(st.integers(1, 3))):
                host = f"machine-{rack}-{machine}"
                candidates.append(Candidate(BrokerId(len(candidates)), host, f"rack-{rack}" if racked else None))
    return draw(st.permutations(candidates))


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Candidate], int, list[tuple[BrokerId, ...]]]:
    candidates = draw(clusters())
    factor = draw(st.integers(1, min(5, len(candidates))))
    count = draw(st.integers(1, 40))
    return candidates, factor, place(candidates, count, factor, draw(st.integers(0, 2**64 - 1)))


@given(placements())
def test_given_any_cluster_when_placed_then_a_partition_has_all_its_replicas_on_different_brokers(
    placed: tuple[list[Candidate], int, list[tuple[BrokerId, ...]]],
) -> None:
    candidates, factor, partitions = placed

    for replicas in partitions:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= {candidate.broker_id for candidate in candidates}


@given(placements())
def test_given_any_cluster_when_placed_then_machines_and_racks_are_shared_only_when_all_are_used(
    placed: tuple[list[Candidate], int, list[tuple[BrokerId, ...]]],
) -> None:
    candidates, factor, partitions = placed
    host_of = {candidate.broker_id: candidate.host for candidate in candidates}
    rack_of = {candidate.broker_id: candidate.rack for candidate in candidates}

    for replicas in partitions:
        assert len({host_of[broker] for broker in replicas}) == min(factor, len(set(host_of.values())))
        assert len({rack_of[broker] for broker in replicas}) == min(factor, len(set(rack_of.values())))


@given(placements())
def test_given_any_cluster_when_placed_then_leaders_are_spread_evenly(
    placed: tuple[list[Candidate], int, list[tuple[BrokerId, ...]]],
) -> None:
    candidates, _, partitions = placed
    leaders = Counter(replicas[0] for replicas in partitions)

    counts = [leaders[candidate.broker_id] for candidate in candidates]

    assert max(counts) - min(counts) <= 1


@given(clusters(), st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_given_the_same_seed_when_placed_twice_in_any_order_then_the_placement_is_the_same(
    candidates: list[Candidate], seed: int
) -> None:
    factor = min(3, len(candidates))

    assert place(candidates, 10, factor, seed) == place(list(reversed(candidates)), 10, factor, seed)


def test_given_different_seeds_when_placed_then_placements_differ() -> None:
    candidates = [Candidate(BrokerId(number), f"machine-{number}") for number in range(6)]

    assert len({tuple(place(candidates, 5, 3, seed)) for seed in range(20)}) > 10


def test_given_equal_brokers_when_placed_then_replicas_are_even_and_a_brokers_followers_are_many() -> None:
    candidates = [Candidate(BrokerId(number), f"machine-{number}") for number in range(4)]

    partitions = place(candidates, 400, 2, seed=7)

    replicas = Counter(broker for partition in partitions for broker in partition)
    pairs = Counter(partitions)
    assert max(replicas.values()) - min(replicas.values()) <= 1
    assert len(pairs) == 12
    assert min(pairs.values()) > 400 / len(pairs) / 3


def test_given_thousands_of_partitions_when_placed_then_the_work_stays_small() -> None:
    candidates = [Candidate(BrokerId(number), f"machine-{number}", f"rack-{number % 3}") for number in range(12)]

    partitions = place(candidates, 10_000, 3, seed=1)

    assert len(partitions) == 10_000
