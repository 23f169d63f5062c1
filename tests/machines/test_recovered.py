"""Who may lack what is committed after a stop, by what is known of that stop."""

from __future__ import annotations

import pytest

from penstock.replication.recovered import Recovered, is_lost, may_lack_committed

KILLED = Recovered(
    end_offset=10,
    high_watermark=10,
    was_clean=False,
    has_page_cache=True,
    flushes=True,
    cut_bytes=0,
    is_torn=True,
)


@pytest.mark.parametrize(
    ("recovered", "may_lack"),
    [
        (KILLED, False),
        (KILLED._replace(flushes=False), False),
        (KILLED._replace(cut_bytes=99), False),
        (KILLED._replace(cut_bytes=99, is_torn=False), True),
        (KILLED._replace(end_offset=9), True),
        (KILLED._replace(has_page_cache=False), False),
        (KILLED._replace(has_page_cache=False, cut_bytes=99, is_torn=False), False),
        (KILLED._replace(has_page_cache=False, end_offset=9), True),
        (KILLED._replace(has_page_cache=False, flushes=False), True),
        (KILLED._replace(was_clean=True, has_page_cache=False, flushes=False), False),
        (KILLED._replace(was_clean=True, cut_bytes=1), True),
        (KILLED._replace(was_clean=True, end_offset=9), True),
        (KILLED._replace(was_clean=True, end_offset=0, high_watermark=0, was_missing=True), True),
        (KILLED._replace(end_offset=0, high_watermark=0, was_missing=True), True),
    ],
    ids=[
        "killed",
        "killed, from the page cache",
        "killed while it wrote",
        "killed, and damaged since",
        "killed, and less than was committed",
        "power cut, flushed",
        "power cut, what was not flushed is in pieces",
        "power cut, and less than was committed",
        "power cut, from the page cache",
        "stopped, booted since",
        "stopped, and damaged since",
        "stopped, and less than was committed",
        "stopped, and not there any more",
        "killed, and not there any more",
    ],
)
def test_given_a_stop_when_a_log_was_opened_then_it_is_known_whether_it_may_lack_something(
    recovered: Recovered, may_lack: bool
) -> None:
    assert may_lack_committed(recovered) is may_lack


EMPTY = KILLED._replace(end_offset=0, was_missing=True)


@pytest.mark.parametrize(
    ("recovered", "is_gone"),
    [
        (EMPTY, True),
        (EMPTY._replace(was_clean=True, has_page_cache=False, flushes=False), True),
        (EMPTY._replace(end_offset=5, log_start_offset=5), True),
        (EMPTY._replace(has_page_cache=False), True),
        (EMPTY._replace(has_page_cache=False, flushes=False), False),
        (EMPTY._replace(high_watermark=0), False),
        (KILLED._replace(end_offset=9), False),
    ],
    ids=[
        "killed",
        "stopped, booted since",
        "what was deleted by request is not missed",
        "power cut, flushed",
        "power cut, from the page cache",
        "perhaps never written to",
        "its end is gone, not all of it",
    ],
)
def test_given_a_log_that_holds_nothing_then_it_is_known_whether_it_was_taken_away(
    recovered: Recovered, is_gone: bool
) -> None:
    assert is_lost(recovered) is is_gone
