"""Is the simulation worth anything? Known bugs are put in, one at a time, and must be found within so many seeds.

Those that need more than luck are in test_traps.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock.controller import brokers, elections
from penstock.core.ids import BrokerId
from penstock.metadata.image import PartitionImage
from penstock.replication.isr import Isr
from penstock.replication.manager import ReplicaManager
from penstock.replication.partition import Partition
from penstock.replication.turned_away import TurnedAway
from penstock.storage import producers
from tests.simulation.checker import Violation
from tests.simulation.faults import run_seed

ATTEMPTS = 60
EVENTS = 400


def is_found() -> str:
    """What the first seed that fails says."""
    for seed in range(ATTEMPTS):
        try:
            run_seed(seed, EVENTS)
        except Violation as violation:
            return str(violation)
    pytest.fail(f"{ATTEMPTS} seeds find nothing wrong")


def cuts_to_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: who becomes a follower cuts what it does not know to be committed."""
    follow: Callable[..., None] = ReplicaManager._follow

    def cutting(self: ReplicaManager, partition: Partition, image: PartitionImage) -> None:
        is_new = partition.follower is None or partition.follower.leader_epoch != image.leader_epoch
        if is_new and image.leader not in (None, self._broker_id) and not self._flusher.is_busy(partition.log):
            partition.log.truncate_to(partition.high_watermark.offset, 0)
        follow(self, partition, image)

    monkeypatch.setattr(ReplicaManager, "_follow", cutting)


def commits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A6: the high watermark rises with fewer in sync than min.insync.replicas."""
    monkeypatch.setattr(Isr, "_has_enough", lambda self: True)


def forgets_who_was_eligible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A6: any replica will do for a leader when none that is in sync is there."""

    def rules(*_: Any) -> elections.TopicRules:
        return elections.TopicRules(min_insync_replicas=2, allows_unclean=True)

    monkeypatch.setattr(elections, "topic_rules", rules)
    monkeypatch.setattr(brokers, "topic_rules", rules)


def appends_a_repetition_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: a batch whose answer was lost is there twice."""
    check = producers._check

    def lenient(*args: Any) -> None:
        with suppress(producers.DuplicateBatch):
            check(*args)

    monkeypatch.setattr(producers, "_check", lenient)


def counts_what_is_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On topics that flush, what a replica has in its page cache does not count."""
    reported = Isr._reported

    def boasting(self: Isr, replica: BrokerId, follower: Any, end_offset: int, held_offset: int, *more: Any) -> bool:
        return reported(self, replica, follower, end_offset, end_offset, *more)

    monkeypatch.setattr(Isr, "_reported", boasting)


def forgets_whom_it_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes behind a batch that was refused is out of order, or taken for the first of its producer."""
    monkeypatch.setattr(TurnedAway, "check_first", lambda *_: None)
    monkeypatch.setattr(TurnedAway, "instead_of", lambda self, batch, error: error)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "put_in",
    [
        pytest.param(cuts_to_the_high_watermark, id="A1"),
        pytest.param(commits_alone, id="A6-alone"),
        pytest.param(forgets_who_was_eligible, id="A6-unclean"),
        pytest.param(appends_a_repetition_again, id="C1"),
        pytest.param(counts_what_is_not_flushed, id="not-flushed"),
        pytest.param(forgets_whom_it_turned_away, id="turned-away"),
    ],
)
def test_given_a_known_bug_when_simulated_then_it_is_found(
    put_in: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(monkeypatch)

    print(is_found())
