"""traps C1 to C4: what the five-batch window answers, compared with a model that remembers everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.storage.kit import NOW_MS, a_batch

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import MAX_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader, read_header
from penstock.protocol.control import EndMarker
from penstock.storage.producers import DuplicateBatch, ProducerEntry, Producers

PRODUCER = 7
_TEMPLATE = read_header(a_batch(1, producer=(PRODUCER, 0, 0)))


def a_header(sequence: int, count: int = 1, *, epoch: int = 0, timestamp: int = NOW_MS) -> BatchHeader:
    return _TEMPLATE._replace(
        base_sequence=sequence, last_offset_delta=count - 1, producer_epoch=epoch, max_timestamp=timestamp
    )


def outcome(
    producers: Producers, header: BatchHeader, base_offset: int, *, is_transactional: bool = False
) -> str | int | ErrorCode:
    """'appended', the original base offset of a duplicate, or the error code."""
    try:
        producers.accept(header, base_offset, NOW_MS, is_transactional)
    except DuplicateBatch as duplicate:
        return duplicate.base_offset
    except BrokerError as error:
        return error.code
    return "appended"


def producers_with(count: int, *, first_sequence: int = 0) -> Producers:
    """Batches of one record, at offsets 100, 101, ..."""
    producers = Producers()
    for number in range(count):
        producers.accept(a_header((first_sequence + number) & MAX_SEQUENCE), 100 + number, NOW_MS)
    return producers


@pytest.mark.parametrize("back", range(1, 6))
def test_given_a_retry_of_one_of_the_last_five_batches_when_accepted_then_its_original_offset_is_told(
    back: int,
) -> None:
    producers = producers_with(20)

    assert outcome(producers, a_header(20 - back), 120) == 120 - back


def test_given_a_retry_of_the_sixth_last_batch_when_accepted_then_it_is_a_duplicate_without_an_offset() -> None:
    producers = producers_with(20)

    assert outcome(producers, a_header(14), 120) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_given_a_duplicate_when_found_then_offsets_and_append_time_are_those_of_the_first_append() -> None:
    producers = Producers()
    producers.accept(a_header(0, 3, timestamp=5), 40, NOW_MS)

    with pytest.raises(DuplicateBatch) as duplicate:
        producers.accept(a_header(0, 3, timestamp=9), 43, NOW_MS)

    assert (duplicate.value.base_offset, duplicate.value.last_offset, duplicate.value.timestamp) == (40, 42, 5)


def test_given_a_gap_when_accepted_then_out_of_order() -> None:
    assert outcome(producers_with(3), a_header(4), 103) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_given_a_batch_that_overlaps_the_end_when_accepted_then_it_is_not_called_a_duplicate() -> None:
    """A client takes 46 for success: sequences 2 and 3 would be lost."""
    assert outcome(producers_with(2), a_header(1, 3), 102) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_given_an_older_epoch_when_accepted_then_invalid_producer_epoch() -> None:
    producers = producers_with(1)
    producers.accept(a_header(0, epoch=2), 101, NOW_MS)

    assert outcome(producers, a_header(1, epoch=1), 102) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_given_a_new_epoch_when_it_does_not_start_at_zero_then_out_of_order() -> None:
    producers = producers_with(4)

    assert outcome(producers, a_header(4, epoch=1), 104) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert outcome(producers, a_header(0, epoch=1), 104) == "appended"


def test_given_a_new_epoch_when_a_batch_repeats_a_sequence_of_the_old_one_then_it_is_no_duplicate() -> None:
    producers = producers_with(2)
    producers.accept(a_header(0, epoch=1), 102, NOW_MS)

    assert outcome(producers, a_header(1, epoch=1), 103) == "appended"


def test_given_the_largest_sequence_number_when_the_next_batch_comes_then_it_starts_at_zero() -> None:
    producers = producers_with(1, first_sequence=MAX_SEQUENCE)

    assert outcome(producers, a_header(0), 101) == "appended"
    assert outcome(producers, a_header(MAX_SEQUENCE), 102) == 100


def test_given_a_batch_across_the_wrap_when_repeated_then_it_is_found() -> None:
    producers = Producers()
    producers.accept(a_header(MAX_SEQUENCE - 1, 4), 10, NOW_MS)

    assert outcome(producers, a_header(MAX_SEQUENCE - 1, 4), 14) == 10
    assert outcome(producers, a_header(2), 14) == "appended"


def test_given_an_unknown_producer_when_it_starts_anywhere_then_it_is_taken() -> None:
    assert outcome(Producers(), a_header(77), 0) == "appended"


def test_given_a_producer_known_from_the_middle_when_an_older_batch_comes_then_it_is_not_called_a_duplicate() -> None:
    """Its state was lost, so nobody knows whether 70 was ever appended."""
    producers = producers_with(1, first_sequence=77)

    assert outcome(producers, a_header(70), 101) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_given_a_producer_id_without_a_sequence_when_accepted_then_the_record_is_invalid() -> None:
    assert outcome(Producers(), a_header(-1), 0) == ErrorCode.INVALID_RECORD


def test_given_a_refused_batch_when_accepted_then_nothing_changed() -> None:
    producers = producers_with(3)
    before = dict(producers.entries)

    outcome(producers, a_header(9), 103)
    outcome(producers, a_header(1), 103)

    assert producers.entries == before


def test_given_an_idle_producer_when_it_expires_then_it_is_forgotten_by_wall_clock_not_by_record_time() -> None:
    producers = Producers()
    producers.accept(a_header(0, timestamp=0), 0, NOW_MS)

    assert producers.expire(NOW_MS + 999, 1000) == 0
    assert producers.expire(NOW_MS + 1000, 1000) == 1
    assert not producers.entries


def test_given_an_open_transaction_when_producers_expire_then_its_producer_stays() -> None:
    entry = ProducerEntry(0, (), 0, NOW_MS, current_txn_first_offset=5)

    assert Producers({1: entry}).expire(NOW_MS * 2, 1) == 0


def a_transactional_header(sequence: int, count: int = 1) -> BatchHeader:
    header = a_header(sequence, count)
    return header._replace(attributes=header.attributes | TRANSACTIONAL_BIT)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_given_numbers_of_a_transaction_that_has_ended_when_they_come_again_then_they_are_no_retry(count: int) -> None:
    """Exactly, in part, and beyond: librdkafka gives them to other records after an abort."""
    producers = Producers()
    producers.accept(a_transactional_header(0), 0, NOW_MS, True)
    producers.accept(a_transactional_header(1, 2), 1, NOW_MS, True)
    retried = outcome(producers, a_transactional_header(1, 2), 3, is_transactional=True)
    producers.end_transaction(EndMarker(PRODUCER, 0, is_commit=False, coordinator_epoch=0), 3, NOW_MS, 1)

    before_the_next = outcome(producers, a_transactional_header(1, count), 4, is_transactional=True)
    producers.accept(a_transactional_header(3), 4, NOW_MS, True)
    within_the_next = outcome(producers, a_transactional_header(1, count), 5, is_transactional=True)

    assert retried == 1
    assert before_the_next is within_the_next is ErrorCode.UNKNOWN_PRODUCER_ID
    assert outcome(producers, a_transactional_header(3), 5, is_transactional=True) == 4
    assert outcome(producers, a_transactional_header(5), 5, is_transactional=True) == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )


class ProducersAgainstAModelThatForgetsNothing(RuleBasedStateMachine):
    """One producer, few numbers near the wrap, so that retries, gaps and overlaps all happen."""

    @initialize(start=st.sampled_from([0, 5, MAX_SEQUENCE - 4]))
    def begin(self, start: int) -> None:
        self.producers = Producers()
        self.epoch = 0
        self.next_sequence = start
        self.next_offset = 0
        # (base sequence, count, base offset) of this epoch, and every sequence number in it.
        self.appended: list[tuple[int, int, int]] = []
        self.seen: set[int] = set()

    def expected(self, sequence: int, count: int, epoch: int) -> str | int | ErrorCode:
        if not self.appended:
            return "appended"
        if epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch > self.epoch:
            return "appended" if sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if sequence == self.next_sequence:
            return "appended"
        for base, length, offset in self.appended[-5:]:
            if (base, length) == (sequence, count):
                return offset
        if all((sequence + number) & MAX_SEQUENCE in self.seen for number in range(count)):
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @rule(shift=st.integers(-12, 3), count=st.integers(1, 3), bump=st.sampled_from([0, 0, 0, 0, 1, -1]))
    def send(self, shift: int, count: int, bump: int) -> None:
        epoch = self.epoch + bump
        sequence = 0 if bump > 0 and shift < 0 else (self.next_sequence + shift) & MAX_SEQUENCE
        expected = self.expected(sequence, count, epoch)
        if not self.appended:
            epoch = max(epoch, self.epoch)

        assert outcome(self.producers, a_header(sequence, count, epoch=epoch), self.next_offset) == expected

        if expected == "appended":
            if epoch != self.epoch:
                self.epoch, self.appended, self.seen = epoch, [], set()
            self.appended.append((sequence, count, self.next_offset))
            self.seen.update((sequence + number) & MAX_SEQUENCE for number in range(count))
            self.next_sequence = (sequence + count) & MAX_SEQUENCE
            self.next_offset += count

    @rule(count=st.integers(1, 3))
    def send_the_next(self, count: int) -> None:
        self.send(0, count, 0)

    @rule(count=st.integers(1, 3))
    def send_and_undo(self, count: int) -> None:
        header = a_header(self.next_sequence, count, epoch=self.epoch)
        if self.expected(self.next_sequence, count, self.epoch) == "appended":
            self.producers.restore(PRODUCER, self.producers.accept(header, self.next_offset, NOW_MS))

    @invariant()
    def memory_is_bounded(self) -> None:
        assert all(len(entry.batches) <= 5 for entry in self.producers.entries.values())


TestProducersAgainstAModel = ProducersAgainstAModelThatForgetsNothing.TestCase
TestProducersAgainstAModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_given_any_log_when_replayed_then_the_state_is_that_of_the_live_appends(batches: list[tuple[int, int]]) -> None:
    live, replayed = Producers(), Producers()
    offset = 0
    sequences: dict[int, int] = {}
    for producer_id, count in batches:
        header = a_header(sequences.get(producer_id, 0), count)._replace(producer_id=producer_id, base_offset=offset)
        live.accept(header, offset, NOW_MS)
        replayed.replay(header, NOW_MS)
        sequences[producer_id] = sequences.get(producer_id, 0) + count
        offset += count

    assert replayed.entries == live.entries
