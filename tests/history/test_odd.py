"""Histories that look odd and break no promise: nothing may be found in them."""

from __future__ import annotations

import pytest

from tests.history.events import NO_OFFSET
from tests.history.story import OTHER_TOPIC, TOPIC, Story


@pytest.mark.parametrize("is_there", [False, True])
def test_given_a_write_without_an_answer_when_it_is_there_or_not_then_both_are_fine(is_there: bool) -> None:
    story = Story()
    producer = story.producer()
    first, unknown, last = producer.write(0), producer.write(outcome="unknown"), producer.write(2)
    story.consumer().read((0, first), *[(1, unknown)] * is_there, (2, last), final=True)

    assert not story.findings()


@pytest.mark.parametrize("is_there", [False, True])
def test_given_a_commit_without_an_answer_when_all_of_it_is_there_or_nothing_then_both_are_fine(is_there: bool) -> None:
    story = Story()
    producer, consumer = story.producer(group="g"), story.consumer(group="g")
    one = producer.write(0, transaction=1)
    other = producer.write(0, transaction=1, partition=1)
    producer.recorder.transaction_offsets(1, "g", [(TOPIC, 0, 7)])
    producer.end(1, "commit", "unknown")
    consumer.read(*[(0, one)] * is_there, final=True)
    consumer.read(*[(0, other)] * is_there, final=True, partition=1)
    consumer.told(7 if is_there else NO_OFFSET)

    assert not story.findings()


def test_given_a_commit_that_never_was_answered_when_its_process_is_dead_then_it_may_be_there() -> None:
    story = Story()
    producer = story.producer()
    record = producer.write(0, transaction=1)
    producer.recorder.ending(1, "commit")
    story.consumer().read((0, record), final=True)

    assert not story.findings()


def test_given_a_transaction_over_two_partitions_when_a_reader_has_come_to_one_of_them_then_it_is_not_torn() -> None:
    story = Story()
    producer, consumer = story.producer(), story.consumer()
    earlier = producer.write(0, partition=1)
    here = producer.write(0, transaction=1)
    producer.write(1, transaction=1, partition=1)
    producer.end(1, "commit")
    consumer.read((0, here), start=0)
    consumer.read((0, earlier), start=0, partition=1)

    assert not story.findings()


def test_given_uncommitted_readers_when_they_read_open_and_aborted_transactions_then_that_is_what_they_are_for() -> (
    None
):
    story = Story()
    producer, consumer = story.producer(), story.consumer(isolation="read_uncommitted")
    open_, aborted = producer.write(0, transaction=1), producer.write(1, transaction=2)
    producer.end(2, "abort")
    consumer.read((0, open_), (1, aborted), start=0)

    assert not story.findings()


def test_given_gaps_of_markers_and_aborted_records_when_read_then_nothing_is_missing() -> None:
    story = Story()
    producer = story.producer()
    first = producer.write(0, transaction=1)
    producer.end(1, "commit")  # a marker at 1
    producer.write(2, transaction=2)
    producer.end(2, "abort")  # a marker at 3
    last = producer.write(4)
    story.consumer().read((0, first), (4, last), final=True)

    assert not story.findings()


def test_given_a_compacted_topic_when_only_the_last_of_a_key_is_there_then_nothing_is_missing() -> None:
    story = Story()
    producer = story.producer()
    producer.write(0, key="a")
    kept = producer.write(1, key="b")
    producer.write(2, key="c", transaction=1)
    producer.end(1, "abort")
    last = producer.write(4, key="a")
    for isolation in ("read_committed", "read_uncommitted"):
        story.consumer(isolation, isolation).read((1, kept), (4, last), final=True)

    assert story.findings()
    assert not story.findings(TOPIC)


def test_given_a_rebalance_before_the_commit_when_records_come_again_then_that_is_at_least_once() -> None:
    story = Story()
    producer = story.producer()
    first, second = producer.write(0), producer.write(1)
    before, after = story.consumer("before", group="g"), story.consumer("after", group="g")
    before.told(NO_OFFSET)
    before.read((0, first), (1, second))
    before.commit(2, "failed")  # it is no longer a member
    after.told(NO_OFFSET)
    after.read((0, first), (1, second))
    after.commit(2)

    assert not story.findings()


@pytest.mark.parametrize("position", [3, 5])
def test_given_a_commit_of_offsets_without_an_answer_when_asked_for_then_both_positions_are_fine(position: int) -> None:
    story = Story()
    member = story.consumer(group="g")
    member.commit(3)
    member.commit(5, "unknown")
    member.told(position)

    assert not story.findings()


def test_given_a_committed_transaction_when_who_does_not_wait_for_markers_asks_then_an_old_position_is_fine() -> None:
    story = Story()
    producer, member = story.producer(), story.consumer(isolation="read_uncommitted", group="g")
    producer.recorder.transaction_offsets(1, "g", [(TOPIC, 0, 7)])
    producer.end(1, "commit")
    member.told(NO_OFFSET)

    assert not story.findings()


def test_given_a_producer_without_idempotence_when_retries_double_and_reorder_then_that_is_its_choice() -> None:
    story = Story()
    producer = story.producer(is_idempotent=False)
    first, second = producer.write(2), producer.write(1)
    third, fourth = producer.write(4), producer.write(3)
    story.consumer().read((0, first), (1, second), (2, first), (3, fourth), (4, third), final=True)

    assert not story.findings()


def test_given_a_producer_without_idempotence_when_only_its_first_try_is_read_then_the_second_may_be_there() -> None:
    story = Story()
    record = story.producer(is_idempotent=False).write(2)
    story.consumer().read((0, record), start=0)

    assert not story.findings()


def test_given_copies_without_transactions_when_records_were_delivered_again_then_they_are_copied_again() -> None:
    story = Story()
    story.producer().write(0)
    copier = story.producer("copier", group="g")
    for offset in range(2):
        copier.write(offset, topic=OTHER_TOPIC, source=(TOPIC, 0, 0))

    assert not story.findings()


def test_given_a_copy_in_a_transaction_without_an_answer_when_nobody_read_the_end_then_nothing_is_left_out() -> None:
    story = Story()
    producer, copier = story.producer(), story.producer("copier", group="g")
    for offset in range(3):
        producer.write(offset)
        copier.write(offset, transaction=offset, topic=OTHER_TOPIC, source=(TOPIC, 0, offset))
        copier.end(offset, "commit", "unknown" if offset == 1 else "ok")

    assert not story.findings()


def test_given_an_aborted_copy_when_it_is_copied_again_then_it_is_there_once() -> None:
    story = Story()
    story.producer().write(0)
    copier = story.producer("copier", group="g")
    for transaction, ending in ((1, "abort"), (2, "commit")):
        copier.write(transaction, transaction=transaction, topic=OTHER_TOPIC, source=(TOPIC, 0, 0))
        copier.end(transaction, ending)  # type: ignore[arg-type]

    assert not story.findings()


def test_given_what_was_acknowledged_after_a_final_reader_began_when_it_is_not_there_then_it_came_too_late() -> None:
    story = Story()
    producer, consumer = story.producer(), story.consumer()
    first = producer.write(0)
    consumer.read((0, first), final=True)
    producer.write(1)

    assert not story.findings()
