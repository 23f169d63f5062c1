"""What a reader makes of answers that a sound broker gives seldom, or never."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.records import PartitionData
from penstock.wire.errors import CorruptRecords, Refused, TimedOut, Unsupported
from penstock.wire.reading import read
from tests.testkit.asking import a_batch
from tests.wire.odd_broker import TOPIC, Answered, an_odd_broker
from tests.wire.reading import a_client, offsets_and_values

HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"


def batches(*first_offsets: int, end: int, count: int = 1) -> PartitionData:
    """Each of `count` records that say their offset."""
    written = b"".join(
        a_batch(*(b"%d" % (first + at) for at in range(count)), base_offset=first) for first in first_offsets
    )
    return PartitionData(high_watermark=end, last_stable_offset=end, records=written)


def in_turn(*answers: Answered) -> Iterator[Answered]:
    """The last one for ever."""
    yield from answers
    while True:
        yield answers[-1]


def test_given_a_gap_at_the_end_of_a_range_when_nothing_follows_then_it_ends_after_a_second_look() -> None:
    def answer(offset: int) -> Answered:
        return batches(offset, end=10) if offset < 2 else batches(end=10)

    with an_odd_broker(answer) as broker, a_client(broker.bootstrap) as cluster:
        found = offsets_and_values(cluster, TOPIC, 0, 10)

    assert found == {0: b"0", 1: b"1"}
    assert broker.fetched == [0, 1, 2, 2]


def test_given_a_gap_at_the_end_of_a_range_when_what_follows_is_past_the_end_then_it_ends_at_once() -> None:
    with an_odd_broker(lambda _: batches(0, 12, end=20)) as broker, a_client(broker.bootstrap) as cluster:
        found = offsets_and_values(cluster, TOPIC, 0, 10)

    assert found == {0: b"0"}
    assert broker.fetched == [0]


def test_given_batches_that_were_read_already_when_they_come_again_then_they_are_left_out() -> None:
    with (
        an_odd_broker(lambda offset: batches(*range(offset + 1), end=9)) as broker,
        a_client(broker.bootstrap) as cluster,
    ):
        found = offsets_and_values(cluster, TOPIC, 2, 6)

    assert found == {2: b"2", 3: b"3", 4: b"4", 5: b"5"}
    assert broker.fetched == [2, 3, 4, 5]


def test_given_nothing_but_batches_that_were_read_already_when_they_come_again_then_we_stay_where_we_are() -> None:
    thirds = in_turn(batches(0, end=9), batches(2, end=9))

    def answer(offset: int) -> Answered:
        return next(thirds) if offset == 2 else batches(offset, end=9)

    with an_odd_broker(answer) as broker, a_client(broker.bootstrap) as cluster:
        found = offsets_and_values(cluster, TOPIC, 0, 4)

    assert found == {0: b"0", 1: b"1", 2: b"2", 3: b"3"}
    assert broker.fetched == [0, 1, 2, 2, 3]


def test_given_a_batch_that_is_cut_when_it_is_fetched_again_then_it_comes_once() -> None:
    whole = bytes(batches(0, 3, end=9, count=3).records or b"")  # type: ignore[arg-type]

    def answer(offset: int) -> Answered:
        if offset == 0:
            return PartitionData(high_watermark=9, last_stable_offset=9, records=whole[:-5])
        return batches(offset, end=9, count=3)

    with an_odd_broker(answer) as broker, a_client(broker.bootstrap) as cluster:
        found = offsets_and_values(cluster, TOPIC, 0, 6)

    assert found == {offset: b"%d" % offset for offset in range(6)}


def test_given_trouble_that_passes_when_it_has_then_the_range_is_read_to_its_end() -> None:
    troubles = in_turn(
        PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        PartitionData(error_code=ErrorCode.FENCED_LEADER_EPOCH),
        None,  # a quota is used up
        b"",  # the connection is closed
        HTTP,
        PartitionData(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH),
        batches(0, end=2),
    )

    def answer(offset: int) -> Answered:
        return next(troubles) if offset == 0 else batches(1, end=2)

    with an_odd_broker(answer) as broker, a_client(broker.bootstrap, retry_backoff_ms=1) as cluster:
        assert offsets_and_values(cluster, TOPIC, 0, 2) == {0: b"0", 1: b"1"}


def test_given_a_broker_that_is_cut_off_and_names_an_old_leader_when_read_then_another_one_is_asked() -> None:
    old = PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with (
        an_odd_broker(lambda _: old) as cut_off,
        an_odd_broker(lambda offset: batches(offset, end=2)) as other,
        a_client(f"{cut_off.bootstrap},{other.bootstrap}") as cluster,
    ):
        assert offsets_and_values(cluster, TOPIC, 0, 2) == {0: b"0", 1: b"1"}

    assert (cut_off.fetched, other.fetched) == ([0], [0, 1])


def test_given_a_refusal_that_does_not_pass_when_read_then_it_is_named() -> None:
    refused = PartitionData(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with (
        an_odd_broker(lambda _: refused) as broker,
        a_client(broker.bootstrap) as cluster,
        pytest.raises(Refused, match=r"^reading orders-0: TOPIC_AUTHORIZATION_FAILED$"),
    ):
        offsets_and_values(cluster, TOPIC, 0, 2)


def test_given_a_quota_that_stays_used_up_when_read_then_that_times_out() -> None:
    with (
        an_odd_broker(lambda _: None) as broker,
        a_client(broker.bootstrap, default_api_timeout_ms=300) as cluster,
        pytest.raises(TimedOut, match="the broker's quota is used up"),
    ):
        offsets_and_values(cluster, TOPIC, 0, 2)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (65, "orders-0: the batch at offset 0 fails its CRC"),
        (16, "the broker sent what cannot be read: no batch at byte 0: magic"),
    ],
)
def test_given_spoilt_batches_when_read_then_they_are_fetched_again_and_refused_when_that_does_not_help(
    at: int, said: str
) -> None:
    spoilt = bytearray(batches(0, end=2).records)  # type: ignore[arg-type]
    spoilt[at] ^= 1
    bad = PartitionData(high_watermark=2, last_stable_offset=2, records=bytes(spoilt))

    for tries in (2, 3):
        answers = in_turn(*[bad] * tries, batches(0, 1, end=2))
        with (
            an_odd_broker(lambda _, answers=answers: next(answers)) as broker,  # type: ignore[misc]
            a_client(broker.bootstrap) as cluster,
        ):
            if tries == 2:
                assert offsets_and_values(cluster, TOPIC, 0, 2) == {0: b"0", 1: b"1"}
            else:
                with pytest.raises(CorruptRecords, match=said):
                    offsets_and_values(cluster, TOPIC, 0, 2)


def test_given_a_broker_without_topic_ids_in_fetch_when_read_then_names_are_used() -> None:
    with (
        an_odd_broker(lambda offset: batches(offset, end=9), newest_fetch=11) as broker,
        a_client(broker.bootstrap) as cluster,
    ):
        assert offsets_and_values(cluster, TOPIC, 0, 2) == {0: b"0", 1: b"1"}

    assert broker.fetch_versions == {11}


def test_given_a_part_that_is_being_worked_on_then_the_next_fetch_is_under_way_already() -> None:
    second = threading.Event()

    def answer(offset: int) -> Answered:
        if offset == 1:
            second.set()
        return batches(offset, end=9)

    with an_odd_broker(answer) as broker, a_client(broker.bootstrap) as cluster:
        parts = read(cluster, TopicPartition(TOPIC, 0), 0, 3, max_rows=1)
        next(parts)

        assert second.wait(30)
        assert len(list(parts)) == 2


def test_given_a_broker_that_is_too_old_when_read_then_it_is_said() -> None:
    with (
        an_odd_broker(lambda _: None, newest_fetch=2) as broker,
        a_client(broker.bootstrap) as cluster,
        pytest.raises(Unsupported, match="is too old or too new: it has no Fetch of this kind"),
    ):
        offsets_and_values(cluster, TOPIC, 0, 2)
