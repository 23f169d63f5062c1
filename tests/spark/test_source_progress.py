"""How streams go on when topics have changed since, decided without a broker."""

from __future__ import annotations

import pytest

from penstock.core.ids import TopicId, TopicPartition
from penstock.spark.data_loss import Extent
from penstock.spark.errors import BadOffsets
from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.progress import check_same_query, continued, held, left_of_batch, ranges_of_batch
from penstock.spark.ranges import OffsetRange
from penstock.spark.subscriptions import Partitions, Pattern, Topics
from penstock.spark.topics import Found

OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOTH = Topics(("a", "b"))


def test_given_topics_as_they_were_when_a_stream_goes_on_then_it_is_from_where_it_was() -> None:
    start = continued(StreamOffsets({A0: 5, B0: 7}, {"a": OLD}), StreamOffsets({A0: 9, B0: 7}, {"a": OLD}), BOTH)

    assert start.positions == {A0: 5, B0: 7}
    assert start.losses == []


def test_given_a_new_partition_and_a_new_topic_when_a_stream_goes_on_then_they_begin_at_0() -> None:
    start = continued(StreamOffsets({A0: 5}, {"a": OLD}), StreamOffsets({A0: 9, A1: 3, B0: 7}, {"a": OLD}), BOTH)

    assert start.positions == {A0: 5, A1: 0, B0: 0}
    assert start.losses == []


def test_given_a_topic_with_another_id_when_a_stream_goes_on_then_it_is_lost_and_begins_at_0() -> None:
    start = continued(StreamOffsets({A0: 5, A1: 2}, {"a": OLD}), StreamOffsets({A0: 9}, {"a": NEW}), BOTH)

    assert start.positions == {A0: 0}
    (loss,) = start.losses
    assert loss.startswith(
        'topic "a" was deleted and created anew, offset 5 of a-0, offset 2 of a-1 is not what it was'
    )


def test_given_ids_that_are_known_on_one_side_only_when_a_stream_goes_on_then_nothing_is_lost() -> None:
    assert continued(StreamOffsets({A0: 5}), StreamOffsets({A0: 9}, {"a": NEW}), BOTH).losses == []
    assert continued(StreamOffsets({A0: 5}, {"a": OLD}), StreamOffsets({A0: 9}), BOTH).losses == []


def test_given_partitions_that_are_gone_or_not_asked_for_any_more_when_a_stream_goes_on_then_both_are_lost() -> None:
    gone = continued(StreamOffsets({A0: 5, A1: 6}), StreamOffsets({A0: 5}), BOTH)
    deselected = continued(StreamOffsets({A0: 5, A1: 6}), StreamOffsets({A0: 5}), Partitions((A0,)))

    assert gone.losses == ["a-1 is not there any more, and was read up to offset 6"]
    assert deselected.losses == ["a-1 was read up to offset 6, and is not read by this query any more"]
    assert gone.positions == deselected.positions == {A0: 5}


def test_given_ends_before_positions_when_a_stream_goes_on_then_only_a_shorter_partition_is_a_loss() -> None:
    positions, ends = {A0: 9, A1: 9, B0: 1}, {A0: 5, A1: 5, B0: 4}

    end = held(positions, ends, high_watermarks={A0: 12, A1: 7})

    assert end.positions == {A0: 9, A1: 5, B0: 4}
    assert end.losses == ["a-1 was read up to offset 9, and ends at 7 now"]


def test_given_a_checkpoint_of_another_query_when_checked_then_it_is_said_what_it_has_and_what_is_read() -> None:
    begun = StreamOffsets({A0: 5, A1: 6})

    check_same_query(begun, Topics(("a",)))
    check_same_query(begun, Topics(("a", "c")))
    check_same_query(StreamOffsets({}), Topics(("c",)))
    for other in (Topics(("b",)), Pattern("b.*"), Partitions((B0,))):
        with pytest.raises(BadOffsets, match=r"^the checkpoint is of another query: it has offsets of a-0, a-1, and"):
            check_same_query(begun, other)


def test_given_two_ends_when_a_batch_is_planned_then_it_has_what_is_between_and_nothing_empty() -> None:
    ranges = ranges_of_batch(StreamOffsets({A0: 5, B0: 7}, {"a": OLD}), StreamOffsets({A0: 9, A1: 3, B0: 7}))

    assert ranges == [OffsetRange(A0, 5, 9), OffsetRange(A1, 0, 3)]


def test_given_the_first_batch_when_it_is_planned_again_then_it_begins_where_it_began() -> None:
    """Spark asks for the initial offset again, and it is another one by now."""
    end = StreamOffsets({A0: 9, B0: 8}, began_at={A0: 5, B0: 8})

    assert ranges_of_batch(StreamOffsets({A0: 30, B0: 30}), end) == [OffsetRange(A0, 5, 9)]


def test_given_a_topic_that_was_created_anew_in_between_when_a_batch_is_planned_then_it_begins_at_0() -> None:
    start, end = StreamOffsets({A0: 50, B0: 1}, {"a": OLD}), StreamOffsets({A0: 3, B0: 2}, {"a": NEW})

    assert ranges_of_batch(start, end) == [OffsetRange(A0, 0, 3), OffsetRange(B0, 1, 2)]


def test_given_a_batch_of_which_parts_are_gone_when_it_is_planned_then_what_is_lost_is_named_to_the_offset() -> None:
    ranges = [OffsetRange(A0, 5, 20), OffsetRange(A1, 5, 20), OffsetRange(B0, 2, 4)]
    found = Found(frozenset({A0, A1}), {"a": OLD})

    left, losses = left_of_batch(ranges, StreamOffsets({}, {"a": OLD}), found, {A0: Extent(8, 15), A1: Extent(30, 40)})

    assert left == [OffsetRange(A0, 8, 15), OffsetRange(A1, 20, 20)]
    assert losses == [
        "offsets 5 to 7 of a-0 are not there any more, the first one is 8",
        "offsets 15 to 19 of a-0 are not there, the partition ends at 15",
        "offsets 5 to 19 of a-1 are not there any more, the first one is 30",
        "b-0 is not there any more, and was read up to offset 2",
    ]


def test_given_a_topic_that_was_created_anew_since_when_a_batch_is_planned_then_nothing_of_it_is_read() -> None:
    ranges = [OffsetRange(A0, 5, 20), OffsetRange(B0, 2, 4)]
    found = Found(frozenset({A0, B0}), {"a": NEW})

    left, losses = left_of_batch(ranges, StreamOffsets({}, {"a": OLD}), found, {A0: Extent(0, 40), B0: Extent(0, 9)})

    assert left == [OffsetRange(B0, 2, 4)]
    assert len(losses) == 1 and losses[0].startswith('topic "a" was deleted and created anew, offset 5 of a-0')
