"""A log whose files are looked at because somebody suspects them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import read_header
from penstock.storage.log import Log
from penstock.storage.soundness import first_damage


def a_log_of_some_segments(new_log: NewLog) -> Log:
    log = new_log(segment_bytes=400)
    for _ in range(12):
        append(log, a_batch(2, value=b"." * 40))
    return log


def flip(path: str, position: int) -> None:
    content = bytearray(Path(path).read_bytes())
    content[position] ^= 1
    Path(path).write_bytes(content)


def test_given_a_log_as_it_was_written_when_looked_at_then_it_is_sound(new_log: NewLog) -> None:
    log = a_log_of_some_segments(new_log)
    assert len(log.segments) > 2

    assert first_damage(log) is None
    log.roll(NOW_MS)
    assert first_damage(log) is None


@pytest.mark.parametrize("position", [0, 7, 10, 16, 17, 30, 60, 80, -1])
@pytest.mark.parametrize("segment", [0, 1, -1])
def test_given_a_flipped_bit_anywhere_when_looked_at_then_it_is_found(
    new_log: NewLog, segment: int, position: int
) -> None:
    log = a_log_of_some_segments(new_log)
    path = log.segments[segment].path

    flip(path, position)

    damage = first_damage(log)
    assert damage is not None
    assert path in damage


def test_given_a_file_that_ends_early_when_looked_at_then_it_is_found(new_log: NewLog) -> None:
    log = a_log_of_some_segments(new_log)
    path = Path(log.segments[0].path)
    path.write_bytes(path.read_bytes()[: read_header(path.read_bytes()).size])

    assert first_damage(log) is not None


def test_given_a_damaged_header_when_read_then_the_log_is_under_suspicion(new_log: NewLog) -> None:
    log = a_log_of_some_segments(new_log)
    flip(log.segments[0].path, 16)

    with pytest.raises(BrokerError) as refused:
        log.read(1, 100, log.end_position, at_least_one=True)

    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.suspicion is not None
