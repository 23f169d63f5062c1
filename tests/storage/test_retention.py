from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.retention import RetentionPlan, RetentionRule, SegmentFacts, plan

NOW_MS = 10_000


def segments_of(*sizes: int) -> list[SegmentFacts]:
    """Ten offsets each."""
    return [SegmentFacts(place * 10, place * 10 + (10 if size else 0), size) for place, size in enumerate(sizes)]


def planned(
    segments: Sequence[SegmentFacts],
    timestamps: Sequence[int],
    *,
    ms: int = -1,
    size: int = -1,
    start: int = 0,
    high_watermark: int = 10**9,
) -> RetentionPlan | None:
    return plan(
        segments,
        RetentionRule(ms, size),
        timestamps.__getitem__,
        log_start_offset=start,
        high_watermark=high_watermark,
        now_ms=NOW_MS,
    )


def test_given_old_segments_in_front_when_planned_then_they_go_and_the_log_starts_after_them() -> None:
    taken = planned(segments_of(5, 5, 5), [100, 200, 9_999], ms=1_000)

    assert taken == RetentionPlan(log_start_offset=20, segments=2, bytes_freed=10, takes_active=False)


def test_given_a_segment_exactly_as_old_as_allowed_when_planned_then_it_stays() -> None:
    assert planned(segments_of(5, 5), [NOW_MS - 1_000, NOW_MS], ms=1_000) is None


def test_given_a_record_from_the_future_in_front_when_planned_then_what_follows_stays_too() -> None:
    assert planned(segments_of(5, 5, 5), [NOW_MS + 10**9, 0, 0], ms=1_000) is None


def test_given_all_segments_are_old_when_planned_then_the_active_one_goes_too() -> None:
    taken = planned(segments_of(5, 5), [0, 0], ms=1_000)

    assert taken == RetentionPlan(log_start_offset=20, segments=2, bytes_freed=10, takes_active=True)


def test_given_an_empty_active_segment_when_planned_then_it_stays() -> None:
    taken = planned(segments_of(5, 0), [0, 0], ms=1_000)

    assert taken == RetentionPlan(log_start_offset=10, segments=1, bytes_freed=5, takes_active=False)


def test_given_size_retention_when_planned_then_no_less_than_the_limit_remains() -> None:
    assert planned(segments_of(5, 5, 5), [0, 0, 0], size=11) is None
    assert planned(segments_of(5, 5, 5), [0, 0, 0], size=10) == RetentionPlan(10, 1, 5, takes_active=False)


def test_given_records_at_the_high_watermark_when_planned_then_their_segment_stays() -> None:
    taken = planned(segments_of(5, 5, 5), [0, 0, 0], ms=1, high_watermark=19)

    assert taken is not None
    assert taken.log_start_offset == 10


def test_given_a_log_start_in_the_second_segment_when_planned_then_the_first_goes() -> None:
    assert planned(segments_of(5, 5), [NOW_MS, NOW_MS], start=15) == RetentionPlan(15, 1, 5, takes_active=False)


def test_given_no_limit_when_planned_then_no_timestamp_is_even_asked_for() -> None:
    assert planned(segments_of(5, 5), []) is None


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12_000)), min_size=1, max_size=7),
    st.integers(-1, 5_000),
    st.integers(-1, 30),
    st.integers(0, 70),
    st.integers(0, 70),
)
@settings(max_examples=300, deadline=None)
def test_given_any_log_when_planned_then_it_is_what_looking_at_the_first_segment_again_and_again_gives(
    shape: list[tuple[int, int]], ms: int, size: int, start: int, high_watermark: int
) -> None:
    """The naive model: while some rule applies to the first segment, drop it and look again."""
    segments = segments_of(*(each or 1 for each, _ in shape[:-1]), shape[-1][0])
    timestamps = [timestamp for _, timestamp in shape]
    left = list(zip(segments, timestamps, strict=True))
    while left:
        first, timestamp = left[0]
        is_last = len(left) == 1
        old = ms >= 0 and NOW_MS - timestamp > ms
        large = size >= 0 and sum(each.size_bytes for each, _ in left[1:]) >= size
        passed = not is_last and first.end_offset <= start
        if first.end_offset > high_watermark or (is_last and first.size_bytes == 0) or not (old or large or passed):
            break
        left.pop(0)

    taken = planned(segments, timestamps, ms=ms, size=size, start=start, high_watermark=high_watermark)

    assert (taken.segments if taken else 0) == len(segments) - len(left)
    if taken:
        assert taken.bytes_freed == sum(each.size_bytes for each in segments[: taken.segments])
        assert taken.log_start_offset == max(start, segments[taken.segments - 1].end_offset)
