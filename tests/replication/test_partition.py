"""A partition over a real log and a real flusher: what is committed when."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.testkit.images import a_partition_on, a_sole_replica

from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicId, TopicPartition
from penstock.core.metrics import TopicMetrics
from penstock.core.topic_config import topic_config
from penstock.protocol.batch import read_header
from penstock.protocol.control import EndMarker
from penstock.protocol.records import Record, build_batch
from penstock.replication.appends import ACKS_ALL
from penstock.replication.fetch_session import Serving
from penstock.replication.follower import FetchAnswer
from penstock.replication.isr import Proposal
from penstock.replication.partition import SILENT_MS, Partition
from penstock.replication.turned_away import AWAITED_MS, MAX_AWAITED
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log, LogConfig

LEADER, OTHER = BrokerId(1), BrokerId(2)
NEVER = 2**63 - 1


@dataclass
class Told:
    """What an appender heard: offsets, or the error."""

    outcomes: dict[int, int | ErrorCode] = field(default_factory=dict)

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        self.outcomes[slot] = base_offset

    def failed(self, slot: int, error: BrokerError) -> None:
        self.outcomes[slot] = error.code


@dataclass
class Session:
    """All that a partition asks of its broker here: whether its session was renewed in time."""

    is_overdue: bool = False

    def proposed(self, partition: Partition, leader_epoch: int, proposal: Proposal) -> None:
        pass

    def progressed(self, partition: Partition) -> None:
        pass


def a_partition(
    directory: Path, files: Files, *, clean: bool = True, flush_messages: int = 1, session: Session | None = None
) -> Partition:
    config = topic_config({"flush.messages": str(flush_messages)}, BrokerConfig())
    log = Log.open(str(directory), LogConfig.of(config), clean=clean, now_ms=0)
    partition = Partition(
        TopicPartition("orders", 0),
        TopicId(bytes(16)),
        log,
        config,
        broker_id=LEADER,
        tick=Tick(asyncio.get_running_loop()),
        flusher=Flusher(files, lambda error: None),
        tasks=TaskGroup(),
        metrics=TopicMetrics(),
        replication=session,
    )
    partition.lead(a_sole_replica(LEADER), {}, lag_max_ms=30_000, now_ms=0)
    return partition


def append(partition: Partition, told: Told, slot: int, *, acks: int, deadline_ms: float = 1e15, **fields: int) -> None:
    batch = build_batch([Record(None, b"value", (), 1)], **fields)  # type: ignore[arg-type]
    partition.append(memoryview(batch), read_header(batch), acks, 0, deadline_ms, told, slot)


async def until(condition, timeout_s: float = 10) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - about files, which have no event
            await asyncio.sleep(0)


async def test_given_a_topic_that_flushes_then_acks_all_waits_for_the_disk_and_acks_1_does_not(tmp_path: Path) -> None:
    partition, told = a_partition(tmp_path / "orders-0", Files(2, "test")), Told()
    append(partition, told, 0, acks=1)
    append(partition, told, 1, acks=ACKS_ALL)

    partition._write()

    assert told.outcomes == {0: 0}
    assert partition.high_watermark.offset == 0
    await until(lambda: told.outcomes == {0: 0, 1: 1})
    assert partition.high_watermark.offset == partition.log.flushed_offset == 2


async def test_given_a_crash_when_the_log_is_opened_then_what_was_never_flushed_is_not_committed_before_it_is(
    tmp_path: Path,
) -> None:
    files = Files(2, "test")
    before, told = a_partition(tmp_path / "orders-0", files, flush_messages=2**63 - 1), Told()
    append(before, told, 0, acks=1, producer_id=9, producer_epoch=0, base_sequence=0)
    before._write()
    assert told.outcomes == {0: 0}

    after = a_partition(tmp_path / "orders-0", files, clean=False)
    retried = Told()
    append(after, retried, 0, acks=ACKS_ALL, producer_id=9, producer_epoch=0, base_sequence=0)
    after._write()

    assert (after.log.log_end_offset, after.high_watermark.offset) == (1, 0)
    assert retried.outcomes == {}, "a duplicate is acknowledged no earlier than its original is on disk"
    await until(lambda: retried.outcomes == {0: 0})
    assert after.log.flushed_offset == 1


async def test_given_a_topic_left_to_the_page_cache_when_its_log_is_opened_after_a_crash_then_nobody_waits_for_the_disk(
    tmp_path: Path,
) -> None:
    files = Files(2, "test")
    before = a_partition(tmp_path / "orders-0", files, flush_messages=NEVER)
    await until(lambda: not before._flusher.is_busy(before.log))  # the files of a new partition
    append(before, Told(), 0, acks=1)
    before._write()

    after, told = a_partition(tmp_path / "orders-0", files, flush_messages=NEVER, clean=False), Told()
    append(after, told, 0, acks=ACKS_ALL)
    after._write()

    assert told.outcomes == {0: 1}
    assert not after._flusher.is_busy(after.log)
    assert (after.high_watermark.offset, after.log.flushed_offset) == (2, 0)


async def test_given_a_topic_left_to_the_page_cache_when_it_is_to_flush_then_what_it_has_is_flushed_and_stays_committed(
    tmp_path: Path,
) -> None:
    partition, told = a_partition(tmp_path / "orders-0", Files(2, "test"), flush_messages=NEVER), Told()
    append(partition, told, 0, acks=ACKS_ALL)
    partition._write()
    assert (told.outcomes, partition.high_watermark.offset) == ({0: 0}, 1)

    partition.configure(topic_config({"flush.messages": "1"}, BrokerConfig()))
    partition.lead(a_sole_replica(LEADER, leader_epoch=1), {}, lag_max_ms=30_000, now_ms=0)

    assert (partition.log.flushed_offset, partition.high_watermark.offset) == (0, 1), "shown, and then taken back"
    await until(lambda: partition.log.flushed_offset == 1)


async def test_given_flush_ms_when_so_much_time_has_passed_then_what_was_written_is_flushed(tmp_path: Path) -> None:
    partition = a_partition(tmp_path / "orders-0", Files(2, "test"), flush_messages=NEVER)
    await until(lambda: not partition._flusher.is_busy(partition.log))  # the files of a new partition
    partition.configure(topic_config({"flush.messages": str(NEVER), "flush.ms": "1000"}, BrokerConfig()))
    append(partition, Told(), 0, acks=1)
    partition._write()

    for now_ms in (0, 999):
        partition.look_around(now_ms, is_overdue=False)
        assert not partition._flusher.is_busy(partition.log)
    partition.look_around(1_000, is_overdue=False)

    await until(lambda: partition.log.flushed_offset == 1)


async def test_given_a_deadline_that_passes_then_the_outcome_is_unknown_and_says_so(tmp_path: Path) -> None:
    partition, told = a_partition(tmp_path / "orders-0", Files(2, "test")), Told()
    append(partition, told, 0, acks=ACKS_ALL, deadline_ms=1_000)
    partition._write()

    partition.expire(999)
    assert told.outcomes == {}
    partition.expire(1_000)

    assert told.outcomes == {0: ErrorCode.REQUEST_TIMED_OUT}


async def test_given_a_failed_partition_then_everybody_waiting_and_everybody_coming_is_told(tmp_path: Path) -> None:
    partition, told = a_partition(tmp_path / "orders-0", Files(2, "test")), Told()
    append(partition, told, 0, acks=ACKS_ALL)
    partition._write()
    append(partition, told, 1, acks=ACKS_ALL)  # staged, not written

    partition.fail(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone"))
    partition._write()

    assert told.outcomes == {0: ErrorCode.KAFKA_STORAGE_ERROR, 1: ErrorCode.KAFKA_STORAGE_ERROR}
    with pytest.raises(BrokerError):
        append(partition, told, 2, acks=1)


async def test_given_records_that_were_cut_off_and_others_in_their_place_then_what_is_committed_ends_where_those_do(
    tmp_path: Path,
) -> None:
    partition, told = a_partition(tmp_path / "orders-0", Files(2, "test"), flush_messages=NEVER), Told()
    partition.lead(a_partition_on(LEADER, OTHER, leader_epoch=1), {}, lag_max_ms=30_000, now_ms=0)
    for slot in range(2):
        append(partition, told, slot, acks=1)
        partition._write()
    partition.stop_leading(leader_epoch=2)
    follower = partition.follow(leader_epoch=2)
    partition.log.truncate_to(0, now_ms=0)

    for offset in range(3):
        others = build_batch([Record(None, b"another value", (), 1)], base_offset=offset, leader_epoch=2)
        partition.log.append_replicated(memoryview(others), leader_epoch=2, now_ms=0)
    follower.appended(FetchAnswer(ErrorCode.NONE, high_watermark=1, log_start_offset=0))
    partition.followed()

    assert partition.high_watermark == partition.log.position_of(1)


async def test_given_a_follower_that_was_cut_and_has_others_in_their_place_then_what_is_committed_ends_where_those_do(
    tmp_path: Path,
) -> None:
    partition = a_partition(tmp_path / "orders-0", Files(2, "test"), flush_messages=NEVER)
    partition.stop_leading(leader_epoch=2)
    follower = partition.follow(leader_epoch=2)

    def append_three(value: bytes) -> None:
        for offset in range(3):
            batch = build_batch([Record(None, value, (), 1)], base_offset=offset, leader_epoch=2)
            partition.log.append_replicated(memoryview(batch), leader_epoch=2, now_ms=0)
            partition.followed()

    append_three(b"value")
    partition.log.truncate_to(0, now_ms=0)
    partition.followed()
    append_three(b"another value")
    follower.appended(FetchAnswer(ErrorCode.NONE, high_watermark=1, log_start_offset=0))
    partition.followed()

    assert partition.high_watermark == partition.log.position_of(1)


async def test_given_a_fetch_of_a_process_that_was_replaced_when_it_comes_late_then_what_the_new_one_said_still_counts(
    tmp_path: Path,
) -> None:
    partition, told = a_partition(tmp_path / "orders-0", Files(2, "test")), Told()
    partition.lead(a_partition_on(LEADER, OTHER, leader_epoch=1), {OTHER: 6}, lag_max_ms=30_000, now_ms=0)
    partition.fetched_by(OTHER, broker_epoch=6, offset=0, now_ms=0)
    append(partition, told, 0, acks=ACKS_ALL)
    partition._write()
    await until(lambda: partition.log.flushed_offset == 1)

    with pytest.raises(BrokerError, match="is in epoch 6"):
        partition.fetched_by(OTHER, broker_epoch=5, offset=0, now_ms=0)

    partition.flushed_by(OTHER, broker_epoch=6, offset=1, flushed=1, now_ms=0)
    assert told.outcomes == {0: 0}


async def test_given_a_sole_replica_when_another_is_added_in_the_same_epoch_then_it_may_come_into_sync_and_then_counts(
    tmp_path: Path,
) -> None:
    files = Files(2, "test")
    partition = a_partition(tmp_path / "orders-0", files, flush_messages=NEVER)
    told = Told()
    append(partition, told, 0, acks=-1)
    await until(lambda: 0 in told.outcomes)
    alone, serving = a_sole_replica(LEADER), {LEADER: 1, OTHER: 1}

    moving = replace(alone, replicas=(LEADER, OTHER), adding=(OTHER,), partition_epoch=alone.partition_epoch + 1)
    partition.lead(moving, serving, lag_max_ms=30_000, now_ms=0)
    append(partition, told, 1, acks=-1)
    await until(lambda: 1 in told.outcomes)  # not held up by one that has nothing yet
    partition.fetched_by(OTHER, 1, 2, 0)
    both = replace(moving, isr=(LEADER, OTHER), adding=(), partition_epoch=moving.partition_epoch + 1)
    partition.lead(both, serving, lag_max_ms=30_000, now_ms=0)
    append(partition, told, 2, acks=-1)
    await until(lambda: partition.log.end_position.offset == 3)

    assert partition.in_sync == {LEADER, OTHER}
    assert 2 not in told.outcomes
    partition.fetched_by(OTHER, 1, 3, 0)
    assert told.outcomes == {0: 0, 1: 1, 2: 2}
    files.close()


async def test_given_a_topic_that_wants_two_in_sync_when_it_has_one_replica_or_grows_then_one_is_enough(
    tmp_path: Path,
) -> None:
    """Until there are more: what the controller counts as enough must be enough here, and nothing less."""
    files = Files(2, "test")
    partition = a_partition(tmp_path / "orders-0", files, flush_messages=NEVER)
    partition.configure(topic_config({"flush.messages": str(NEVER), "min.insync.replicas": "2"}, BrokerConfig()))
    told = Told()
    append(partition, told, 0, acks=-1)
    await until(lambda: 0 in told.outcomes)
    state = a_sole_replica(LEADER)

    state = replace(state, replicas=(LEADER, OTHER), adding=(OTHER,), partition_epoch=state.partition_epoch + 1)
    partition.lead(state, {LEADER: 1}, lag_max_ms=30_000, now_ms=0)
    append(partition, told, 1, acks=-1)
    await until(lambda: 1 in told.outcomes)
    state = replace(state, adding=(), partition_epoch=state.partition_epoch + 1)
    partition.lead(state, {LEADER: 1}, lag_max_ms=30_000, now_ms=0)

    assert told.outcomes == {0: 0, 1: 1}
    with pytest.raises(BrokerError, match=r"min\.insync\.replicas=2"):
        append(partition, told, 2, acks=-1)
    files.close()


async def test_given_a_batch_that_waits_when_too_few_stay_in_sync_then_its_producer_is_told_and_may_send_it_again(
    tmp_path: Path,
) -> None:
    files = Files(2, "test")
    partition, told = a_partition(tmp_path / "orders-0", files, flush_messages=NEVER), Told()
    partition.configure(topic_config({"flush.messages": str(NEVER), "min.insync.replicas": "2"}, BrokerConfig()))
    both = a_partition_on(LEADER, OTHER, leader_epoch=1)
    partition.lead(both, {OTHER: 6}, lag_max_ms=30_000, now_ms=0)
    append(partition, told, 0, acks=ACKS_ALL, producer_id=9, producer_epoch=0, base_sequence=0)
    partition._write()
    assert told.outcomes == {}

    partition.lead(replace(both, isr=(LEADER,), partition_epoch=1), {OTHER: 6}, lag_max_ms=30_000, now_ms=0)

    assert told.outcomes == {0: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    assert (partition.log.log_end_offset, partition.high_watermark.offset) == (1, 0)
    partition.lead(replace(both, partition_epoch=2), {OTHER: 6}, lag_max_ms=30_000, now_ms=0)
    append(partition, told, 1, acks=ACKS_ALL, producer_id=9, producer_epoch=0, base_sequence=0)
    partition._write()
    partition.fetched_by(OTHER, broker_epoch=6, offset=1, now_ms=0)
    assert (told.outcomes[1], partition.log.log_end_offset) == (0, 1)
    files.close()


async def test_given_a_leader_past_its_session_when_a_follower_fetches_and_has_nothing_to_say_then_it_goes_on(
    tmp_path: Path,
) -> None:
    """In a fetch session an idle partition is spoken of by nobody; when the metadata is away it is no less led."""
    partition = a_partition(tmp_path / "orders-0", Files(2, "test"), session=Session(is_overdue=True))
    partition.lead(a_partition_on(LEADER, OTHER, leader_epoch=1), {OTHER: 6}, lag_max_ms=30_000, now_ms=0)
    partition.fetched_by(OTHER, broker_epoch=6, offset=0, now_ms=0)
    fetching = Serving(OTHER, 1)
    fetching.names((partition.topic_id, 0)).joins(partition.replica_waiters)

    fetching.asked_ms = 2 * SILENT_MS
    partition.look_around(3 * SILENT_MS, is_overdue=True)
    assert not partition.is_forsaken

    partition.look_around(3 * SILENT_MS + 1, is_overdue=True)
    assert partition.is_forsaken


async def test_given_a_leader_past_its_session_when_a_follower_is_silent_then_clients_are_told_to_look_elsewhere(
    tmp_path: Path,
) -> None:
    """They believe who says to lead: one that is cut off would keep them for good."""
    session = Session()
    partition, told = a_partition(tmp_path / "orders-0", Files(2, "test"), session=session), Told()
    partition.lead(a_partition_on(LEADER, OTHER, leader_epoch=1), {OTHER: 6}, lag_max_ms=30_000, now_ms=0)
    partition.fetched_by(OTHER, broker_epoch=6, offset=0, now_ms=0)
    append(partition, told, 0, acks=ACKS_ALL)
    partition._write()

    partition.look_around(SILENT_MS + 1, is_overdue=False)  # a follower may be slow
    session.is_overdue = True
    partition.look_around(SILENT_MS, is_overdue=True)  # the metadata may be away
    assert not partition.is_forsaken
    assert told.outcomes == {}

    partition.look_around(SILENT_MS + 1, is_overdue=True)
    assert told.outcomes == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    for refused in (
        lambda: append(partition, told, 1, acks=ACKS_ALL),
        lambda: partition.read(partition.high_watermark.offset, 1_000, at_least_one=True),
    ):
        with pytest.raises(BrokerError) as error:
            refused()
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    partition.fetched_by(OTHER, broker_epoch=6, offset=1, now_ms=SILENT_MS + 2)
    partition.look_around(SILENT_MS + 3, is_overdue=True)
    append(partition, told, 2, acks=ACKS_ALL)
    partition._write()
    assert partition.read(partition.high_watermark.offset, 1_000, at_least_one=True) is None


# Batches that are turned away


@pytest.fixture
def files() -> Iterator[Files]:
    files = Files(2, "test")
    yield files
    files.close()


class Batch(bytearray):
    """One that can be referred to weakly."""


def a_partition_no_longer_led(tmp_path: Path, files: Files) -> Partition:
    """It has the first batch of producer 7."""
    partition = a_partition(tmp_path / "orders-0", files)
    append(partition, Told(), 0, acks=1, producer_id=7, producer_epoch=0, base_sequence=0)
    partition._write()
    partition.stop_leading(1)
    return partition


def outcome_of(partition: Partition, told: Told, producer_id: int, base_sequence: int) -> ErrorCode | None:
    """None: it was taken."""
    try:
        append(partition, told, 0, acks=1, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence)
    except BrokerError as error:
        return error.code
    return None


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS])
async def test_given_a_batch_that_is_to_be_sent_again_then_those_behind_it_are_too_and_are_not_out_of_order(
    tmp_path: Path, files: Files, code: ErrorCode
) -> None:
    """librdkafka would take a new epoch, and send what is here already once more."""
    partition, told = a_partition(tmp_path / "orders-0", files), Told()
    append(partition, told, 0, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=0)
    partition._write()
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        partition.stop_leading(1)
    else:
        partition.lead(a_partition_on(LEADER, OTHER, isr=(), leader_epoch=1), {}, lag_max_ms=30_000, now_ms=0)
    with pytest.raises(BrokerError) as refused:
        append(partition, told, 1, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=1)
    assert refused.value.code is code

    partition.lead(a_sole_replica(LEADER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)
    with pytest.raises(BrokerError) as behind:
        append(partition, told, 2, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=2)
    assert behind.value.code is code

    for sequence in range(3):
        append(partition, told, sequence, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=sequence)
    partition._write()
    await until(lambda: told.outcomes == {0: 0, 1: 1, 2: 2})
    with pytest.raises(BrokerError) as gap:
        append(partition, told, 4, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=4)
    assert gap.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_given_a_batch_that_a_full_disk_refused_then_those_behind_it_are_refused_alike_until_it_is_here(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an hour of faults found it: another partition, which could not commit just then, got its records twice."""

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    partition, told = a_partition(tmp_path / "orders-0", files), Told()
    for sequence in range(2):
        append(partition, told, sequence, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=sequence)
    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", no_room)
        partition._write()
    assert told.outcomes == dict.fromkeys(range(2), ErrorCode.KAFKA_STORAGE_ERROR)

    assert outcome_of(partition, told, 7, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert outcome_of(partition, told, 7, 2) is ErrorCode.KAFKA_STORAGE_ERROR

    told.outcomes.clear()
    for sequence in range(3):
        append(partition, told, sequence, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=sequence)
    partition._write()
    await until(lambda: told.outcomes == {0: 0, 1: 1, 2: 2})


async def test_given_a_leader_that_is_new_then_what_is_too_early_is_to_be_sent_again_for_a_while(
    tmp_path: Path, files: Files
) -> None:
    """What comes before it may be on its way to the leader before, or back from there."""
    partition, told = a_partition_no_longer_led(tmp_path, files), Told()
    partition.lead(a_partition_on(LEADER, OTHER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)

    assert outcome_of(partition, told, 7, 2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert outcome_of(partition, told, 8, 5) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert outcome_of(partition, told, 9, 0) is None
    partition.look_around(0, is_overdue=False)
    partition.look_around(AWAITED_MS, is_overdue=False)
    assert outcome_of(partition, told, 7, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert outcome_of(partition, told, 8, 5) is None


async def test_given_a_partition_that_nobody_has_led_before_then_a_producer_begins_anywhere(
    tmp_path: Path, files: Files
) -> None:
    """A topic was deleted and created anew, and a producer goes on."""
    partition, told = a_partition(tmp_path / "orders-0", files), Told()
    partition.stop_leading(-1)
    partition.lead(a_partition_on(LEADER, OTHER, leader_epoch=0), {}, lag_max_ms=30_000, now_ms=0)

    assert outcome_of(partition, told, 8, 5) is None


async def test_given_a_producer_of_which_nothing_is_here_when_its_first_batch_is_turned_away_then_the_next_is_too(
    tmp_path: Path, files: Files
) -> None:
    """Taken, it would stand before the first one for good."""
    partition, told = a_partition_no_longer_led(tmp_path, files), Told()
    assert outcome_of(partition, told, 8, 5) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert outcome_of(partition, told, 8, 6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(a_sole_replica(LEADER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)

    assert outcome_of(partition, told, 8, 6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert outcome_of(partition, told, 8, 5) is None
    assert outcome_of(partition, told, 8, 6) is None


async def test_given_a_batch_that_never_comes_again_then_those_behind_it_are_out_of_order_in_the_end(
    tmp_path: Path, files: Files
) -> None:
    partition, told = a_partition_no_longer_led(tmp_path, files), Told()
    assert outcome_of(partition, told, 8, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.look_around(0, is_overdue=False)
    assert outcome_of(partition, told, 7, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.look_around(AWAITED_MS, is_overdue=False)
    partition.lead(a_sole_replica(LEADER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)

    assert outcome_of(partition, told, 7, 2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.look_around(AWAITED_MS, is_overdue=False)
    partition.look_around(2 * AWAITED_MS, is_overdue=False)
    assert outcome_of(partition, told, 7, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("is_led", [False, True])
async def test_given_batches_that_are_refused_again_and_again_then_none_of_them_is_kept(
    tmp_path: Path, files: Files, is_led: bool
) -> None:
    """An error that was raised once and again kept the frames of each time, with the requests in them."""
    partition = a_partition_no_longer_led(tmp_path, files)
    if is_led:
        partition.lead(a_partition_on(LEADER, OTHER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)
    refused = []
    for _ in range(20):
        batch = Batch(build_batch([Record(None, b"value", (), 1)], producer_id=7, producer_epoch=0, base_sequence=9))
        refused.append(weakref.ref(batch))
        with pytest.raises(BrokerError):
            partition.append(memoryview(batch), read_header(batch), ACKS_ALL, 0, 1e15, Told(), 0)
    del batch
    gc.collect()

    assert [each for each in refused if each() is not None] == []


async def test_given_batches_behind_one_that_was_turned_away_when_it_comes_then_the_others_are_awaited_too(
    tmp_path: Path, files: Files
) -> None:
    """A client may have all of them under way again before it hears of the first."""
    partition, told = a_partition_no_longer_led(tmp_path, files), Told()
    assert outcome_of(partition, told, 7, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(a_sole_replica(LEADER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)
    assert outcome_of(partition, told, 7, 2) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    assert outcome_of(partition, told, 7, 1) is None
    assert outcome_of(partition, told, 7, 3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [outcome_of(partition, told, 7, sequence) for sequence in (2, 3)] == [None, None]
    assert outcome_of(partition, told, 7, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_given_batches_that_are_turned_away_in_another_order_then_the_first_of_them_is_the_first_to_come(
    tmp_path: Path, files: Files
) -> None:
    partition, told = a_partition_no_longer_led(tmp_path, files), Told()
    for sequence in (6, 5):
        assert outcome_of(partition, told, 8, sequence) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(a_sole_replica(LEADER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)

    assert outcome_of(partition, told, 8, 6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [outcome_of(partition, told, 8, sequence) for sequence in (5, 6)] == [None, None]


async def test_given_a_marker_that_is_turned_away_then_the_producer_s_first_batch_does_not_wait_for_it(
    tmp_path: Path, files: Files
) -> None:
    partition, told = a_partition_no_longer_led(tmp_path, files), Told()
    with pytest.raises(BrokerError):
        partition.append_marker(EndMarker(8, 0, coordinator_epoch=0, is_commit=True), 0, 0, told, 0)
    assert outcome_of(partition, told, 8, 5) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(a_sole_replica(LEADER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)

    assert outcome_of(partition, told, 8, 5) is None


async def test_given_an_instance_of_an_older_epoch_when_it_is_turned_away_then_what_the_newer_one_was_told_holds(
    tmp_path: Path, files: Files
) -> None:
    def outcome(producer_epoch: int, base_sequence: int) -> ErrorCode | None:
        fields = {"producer_id": 7, "producer_epoch": producer_epoch, "base_sequence": base_sequence}
        try:
            append(partition, Told(), 0, acks=1, **fields)
        except BrokerError as error:
            return error.code
        return None

    partition = a_partition_no_longer_led(tmp_path, files)
    assert outcome(1, 0) is outcome(0, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(a_sole_replica(LEADER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)

    assert outcome(1, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [outcome(1, sequence) for sequence in (0, 1)] == [None, None]


async def test_given_producers_without_end_that_are_turned_away_then_each_is_forgotten_in_time_and_few_are_kept(
    tmp_path: Path, files: Files
) -> None:
    partition = a_partition_no_longer_led(tmp_path, files)
    for number in range(3 * MAX_AWAITED):
        outcome_of(partition, Told(), 1_000 + number, 0)
        partition.look_around(number, is_overdue=False)
    assert len(partition.turned_away) == MAX_AWAITED

    partition.look_around(3 * MAX_AWAITED + AWAITED_MS // 2, is_overdue=False)
    outcome_of(partition, Told(), 1, 0)
    partition.look_around(3 * MAX_AWAITED + AWAITED_MS, is_overdue=False)
    assert len(partition.turned_away) == 1


async def test_given_a_producer_that_was_forgotten_for_others_when_its_next_batch_comes_then_it_is_not_the_first(
    tmp_path: Path, files: Files
) -> None:
    partition, told = a_partition_no_longer_led(tmp_path, files), Told()
    for number in range(MAX_AWAITED + 1):
        assert outcome_of(partition, told, 1_000 + number, 5) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.lead(a_sole_replica(LEADER, leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)

    assert outcome_of(partition, told, 1_000, 6) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_given_a_leader_that_turns_others_away_all_the_time_then_it_is_new_for_half_a_minute_only(
    tmp_path: Path, files: Files
) -> None:
    partition, told = a_partition_no_longer_led(tmp_path, files), Told()
    partition.lead(a_partition_on(LEADER, OTHER, isr=(LEADER,), leader_epoch=2), {}, lag_max_ms=30_000, now_ms=0)
    partition.min_isr = 2
    for now_ms in range(0, AWAITED_MS + 1, AWAITED_MS // 3):
        with pytest.raises(BrokerError) as refused:
            append(partition, told, 0, acks=ACKS_ALL, producer_id=now_ms, producer_epoch=0, base_sequence=0)
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        partition.look_around(now_ms, is_overdue=False)

    assert outcome_of(partition, told, 8, 5) is None


# Batches that come once more


async def test_given_a_batch_older_than_the_window_when_it_comes_again_then_that_is_said_when_it_is_committed(
    tmp_path: Path, files: Files
) -> None:
    """Clients take it for delivered, so it must not be lost any more."""
    partition, told = a_partition(tmp_path / "orders-0", files, flush_messages=NEVER), Told()
    partition.lead(a_partition_on(LEADER, OTHER, leader_epoch=1), {OTHER: 1}, lag_max_ms=30_000, now_ms=0)
    for sequence in range(6):
        append(partition, told, sequence, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=sequence)
    append(partition, told, 10, acks=ACKS_ALL, producer_id=7, producer_epoch=0, base_sequence=0)
    cut_anew = build_batch([Record(None, b"value", (), 1)] * 2, producer_id=7, producer_epoch=0, base_sequence=4)
    partition.append(memoryview(cut_anew), read_header(cut_anew), ACKS_ALL, 0, 1e15, told, 11)
    partition._write()
    assert told.outcomes == {}

    partition.fetched_by(OTHER, 1, 5, now_ms=0)
    assert told.outcomes == {sequence: sequence for sequence in range(5)}
    partition.fetched_by(OTHER, 1, 6, now_ms=0)
    assert told.outcomes[10] is told.outcomes[11] is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
