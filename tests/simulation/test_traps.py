"""Scripted traps: nothing happens in the code as it is, and with the bug put in, the checker says so."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.replication.isr import UNKNOWN_BROKER_EPOCH, Isr
from penstock.replication.replicas import Replicas
from tests.simulation.checker import Violation
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.scenarios import (
    a_leader_stands_still_past_its_lease,
    a_replica_begins_anew_when_its_last_report_was_lost,
    a_replica_joins_and_the_leader_is_not_told,
    a_replica_loses_its_disk_cache_while_it_joins,
)

Script = Callable[[SimulatedCluster], Coroutine[Any, Any, None]]


def counts_the_committed_set_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A4: the high watermark does not wait for a replica whose joining is under way."""
    monkeypatch.setattr(Isr, "maximal", property(lambda self: self.members))
    monkeypatch.setattr(Isr, "_is_awaited", lambda *_: False)


def proposes_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A5: a proposal does not say which process of a replica has fetched."""
    monkeypatch.setattr(Isr, "_broker_epoch_of", lambda *_: UNKNOWN_BROKER_EPOCH)


def does_not_look_at_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A8: who was elected leads until told otherwise."""
    monkeypatch.setattr(Replicas, "is_overdue", False)


TRAPS = [
    pytest.param(a_replica_joins_and_the_leader_is_not_told, counts_the_committed_set_only, id="A4"),
    pytest.param(a_replica_loses_its_disk_cache_while_it_joins, proposes_any_process, id="A5"),
    pytest.param(a_leader_stands_still_past_its_lease, does_not_look_at_its_lease, id="A8"),
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("script", "put_in"), TRAPS)
def test_given_a_trap_when_it_is_set_then_nothing_is_lost(
    script: Script, put_in: Callable[[pytest.MonkeyPatch], None], seed: int
) -> None:
    SimulatedCluster(seed).run(script)


@pytest.mark.parametrize(("script", "put_in"), TRAPS)
def test_given_a_trap_when_the_bug_is_there_then_it_is_found(
    script: Script, put_in: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch)

    with pytest.raises(Violation, match=r"LeaderCandidateCompleteness|lost"):  # in one of the ways that it can go
        for seed in range(5):
            SimulatedCluster(seed).run(script)


@pytest.mark.parametrize("seed", range(3))
def test_given_a_replica_that_begins_anew_when_its_last_report_was_lost_then_that_counts_for_nothing(seed: int) -> None:
    """It copies one batch at a time, so that it lacks something for long enough."""
    settings = {"replica.fetch.response.max.bytes": "1"}

    SimulatedCluster(seed, settings=settings).run(a_replica_begins_anew_when_its_last_report_was_lost)
