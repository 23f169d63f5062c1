"""A broken history for each way in which a promise can be broken: it is found, by its name, with its lines."""

from __future__ import annotations

from tests.history.events import WriteId
from tests.history.findings import Anomaly, report
from tests.history.story import OTHER_TOPIC, TOPIC, Story


def test_given_an_acknowledged_write_when_a_reader_passes_its_place_without_it_then_it_is_lost() -> None:
    story = Story()
    producer, consumer = story.producer(), story.consumer()
    first, lost, last = (producer.write(offset) for offset in (0, 1, 2))
    consumer.read((0, first), (2, last), start=0)

    (finding,) = story.findings()

    assert finding.anomaly is Anomaly.LOST_WRITE and lost in finding.what
    assert finding.evidence == (
        "producer.history:4 write to t-0",
        "producer.history:5 its outcome: ok at offset 1",
        "consumer.history:2 a session that passed t-0 offset 1",
    )
    assert "LOST_WRITE: 1" in report([finding])


def test_given_an_acknowledged_write_at_the_tail_when_the_final_reader_ends_before_it_then_it_is_lost() -> None:
    story = Story()
    producer = story.producer()
    first = producer.write(0)
    producer.write(1)
    story.consumer().read((0, first), final=True)

    assert story.anomalies() == [Anomaly.LOST_WRITE]


def test_given_a_committed_transaction_when_nothing_of_it_is_there_then_its_writes_are_lost() -> None:
    story = Story()
    producer = story.producer()
    producer.write(0, transaction=1)
    producer.write(1, "unknown", transaction=1)  # a commit speaks for all writes before it
    producer.end(1, "commit")
    story.consumer().read(final=True)

    assert story.anomalies() == [Anomaly.LOST_WRITE] * 2


def test_given_two_readers_when_one_of_them_misses_a_record_then_it_skipped_it() -> None:
    story = Story()
    producer = story.producer()
    records = [(offset, producer.write(offset)) for offset in range(3)]
    story.consumer("whole").read(*records, start=0)
    story.consumer("skips").read(records[0], records[2], start=0)

    assert story.anomalies() == [Anomaly.SKIPPED_READ]


def test_given_an_idempotent_producer_when_a_write_is_there_twice_then_it_is_a_duplicate() -> None:
    story = Story()
    producer = story.producer()
    first, second = producer.write(0), producer.write(1)
    story.consumer().read((0, first), (1, second), (2, first), final=True)

    assert story.anomalies() == [Anomaly.DUPLICATE]


def test_given_two_writes_when_they_are_in_the_log_in_another_order_then_they_are_reordered() -> None:
    story = Story()
    producer = story.producer()
    first, second = producer.write(1), producer.write(0)
    story.consumer().read((0, second), (1, first), final=True)

    assert story.anomalies() == [Anomaly.REORDERING]


def test_given_one_offset_when_readers_find_different_records_there_then_offsets_are_inconsistent() -> None:
    story = Story()
    one, other = story.producer("one").write(0), story.producer("other").write(outcome="unknown")
    story.consumer("a").read((0, one), start=0)
    story.consumer("b").read((0, other), start=0)

    assert story.anomalies() == [Anomaly.INCONSISTENT_OFFSETS]


def test_given_one_offset_when_it_is_acknowledged_to_two_then_offsets_are_inconsistent() -> None:
    story = Story()
    story.producer("one").write(5)
    story.producer("other").write(5)

    assert story.anomalies() == [Anomaly.INCONSISTENT_OFFSETS]


def test_given_an_acknowledged_offset_when_the_record_is_elsewhere_then_offsets_are_inconsistent() -> None:
    story = Story()
    record = story.producer().write(5)
    story.consumer().read((6, record), start=0)

    assert story.anomalies() == [Anomaly.INCONSISTENT_OFFSETS]


def test_given_an_aborted_transaction_when_a_record_of_it_is_read_then_that_is_an_aborted_read() -> None:
    story = Story()
    producer = story.producer()
    record = producer.write(0, transaction=1)
    producer.end(1, "abort")
    story.consumer().read((0, record), start=0)

    (finding,) = story.findings()

    assert finding.anomaly is Anomaly.ABORTED_READ
    assert "producer.history:4 abort of transaction 1 of producer" in finding.evidence


def test_given_a_commit_that_was_refused_when_a_record_is_read_then_that_is_an_aborted_read() -> None:
    story = Story()
    producer = story.producer()
    record = producer.write(0, transaction=1)
    producer.end(1, "commit", "failed")
    story.consumer().read((0, record), start=0)

    assert story.anomalies() == [Anomaly.ABORTED_READ]


def test_given_a_write_that_failed_for_certain_when_it_is_read_then_that_is_an_aborted_read() -> None:
    story = Story()
    record = story.producer().write(outcome="failed")
    story.consumer(isolation="read_uncommitted").read((0, record), start=0)

    assert story.anomalies() == [Anomaly.ABORTED_READ]


def test_given_an_open_transaction_when_a_record_is_read_before_the_commit_then_that_is_an_early_read() -> None:
    story = Story()
    producer = story.producer()
    record = producer.write(0, transaction=1)
    story.consumer().read((0, record), start=0)
    producer.end(1, "commit")

    assert story.anomalies() == [Anomaly.EARLY_READ]


def test_given_a_producer_killed_in_a_transaction_when_a_record_of_it_is_read_then_that_is_an_early_read() -> None:
    story = Story()
    record = story.producer().write(0, transaction=1)
    story.consumer().read((0, record), start=0)

    assert story.anomalies() == [Anomaly.EARLY_READ]


def test_given_one_session_when_an_offset_comes_again_then_polls_are_not_monotonic() -> None:
    story = Story()
    producer, consumer = story.producer(), story.consumer()
    first, second = producer.write(0), producer.write(1)
    consumer.read((0, first), (1, second), start=0)
    consumer.read((1, second))

    assert story.anomalies() == [Anomaly.NON_MONOTONIC_POLL]


def test_given_a_committed_transaction_when_one_partition_lacks_its_record_then_it_is_torn() -> None:
    story = Story()
    producer, consumer = story.producer(), story.consumer()
    here = producer.write(0, transaction=1)
    missing = producer.write(0, transaction=1, partition=1)
    producer.end(1, "commit")
    later = producer.write(2, partition=1)
    consumer.read((0, here), start=0)
    consumer.read((2, later), start=0, partition=1)

    (finding,) = story.findings()

    assert finding.anomaly is Anomaly.TORN_TRANSACTION and missing in finding.what


def test_given_a_commit_without_an_answer_when_half_of_it_is_there_then_it_is_torn() -> None:
    story = Story()
    producer = story.producer()
    here, _ = producer.write(0, transaction=1), producer.write(1, transaction=1)
    producer.end(1, "commit", "unknown")
    story.consumer().read((0, here), final=True)

    assert story.anomalies() == [Anomaly.TORN_TRANSACTION]


def test_given_a_committed_transaction_when_its_group_is_told_an_older_position_then_it_is_torn() -> None:
    story = Story()
    producer, member = story.producer(group="g"), story.consumer(group="g")
    producer.recorder.transaction_offsets(1, "g", [(TOPIC, 0, 7)])
    producer.end(1, "commit")
    member.told(0)

    # Nothing but that transaction can have committed anything, so no position but 7 is explained.
    assert story.anomalies() == [Anomaly.TORN_TRANSACTION]


def test_given_an_aborted_transaction_when_its_group_is_told_its_offset_then_it_is_torn() -> None:
    story = Story()
    producer, member = story.producer(group="g"), story.consumer(group="g")
    producer.recorder.transaction_offsets(1, "g", [(TOPIC, 0, 7)])
    producer.end(1, "abort")
    member.told(7)

    assert story.anomalies() == [Anomaly.TORN_TRANSACTION]


def test_given_a_copier_killed_before_it_asked_for_a_commit_when_its_group_is_told_its_offset_then_it_is_torn() -> None:
    story = Story()
    producer, member = story.producer(group="g"), story.consumer(group="g")
    producer.recorder.transaction_offsets(1, "g", [(TOPIC, 0, 7)])
    member.told(7)

    assert story.anomalies() == [Anomaly.TORN_TRANSACTION]


def test_given_an_acknowledged_commit_when_the_group_is_told_an_older_position_then_it_is_lost() -> None:
    story = Story()
    member = story.consumer(group="g")
    member.commit(3)
    member.commit(5)
    member.told(3)

    assert story.anomalies() == [Anomaly.LOST_COMMIT]


def test_given_a_group_when_it_is_told_a_position_that_nobody_committed_then_that_is_a_phantom() -> None:
    story = Story()
    member = story.consumer(group="g")
    member.commit(3)
    member.told(4)

    assert story.anomalies() == [Anomaly.PHANTOM]


def test_given_a_record_when_nobody_wrote_it_there_then_that_is_a_phantom() -> None:
    story = Story()
    elsewhere = story.producer().write(0, partition=1)
    story.consumer().read((0, WriteId("nobody:1")), (1, elsewhere), start=0)

    assert story.anomalies() == [Anomaly.PHANTOM] * 2


def test_given_a_copier_when_two_of_its_transactions_copy_one_record_then_that_is_a_duplicate() -> None:
    story = Story()
    story.producer().write(0)
    copier = story.producer("copier", group="g")
    for transaction in (1, 2):
        copier.write(transaction, transaction=transaction, topic=OTHER_TOPIC, source=(TOPIC, 0, 0))
        copier.end(transaction, "commit")

    assert story.anomalies() == [Anomaly.DUPLICATE]


def test_given_a_copier_when_it_leaves_out_a_record_then_that_is_lost() -> None:
    story = Story()
    producer, copier = story.producer(), story.producer("copier", group="g")
    for offset in range(3):
        producer.write(offset)
    for offset in (0, 2):
        copier.write(offset, transaction=1, topic=OTHER_TOPIC, source=(TOPIC, 0, offset))
    copier.end(1, "commit")

    assert story.anomalies() == [Anomaly.LOST_WRITE]


def test_given_two_copiers_when_their_copies_are_in_another_order_than_the_sources_then_they_are_reordered() -> None:
    story = Story()
    for name, source, offset in (("one", 0, 5), ("two", 1, 3)):
        copier = story.producer(name, group="g")
        copier.write(offset, transaction=1, topic=OTHER_TOPIC, source=(TOPIC, 0, source))
        copier.end(1, "commit")

    assert story.anomalies() == [Anomaly.REORDERING]
