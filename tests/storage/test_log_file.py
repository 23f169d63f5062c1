"""Reading ahead gives what was asked for, and takes from the file what is worth it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.storage.log_file import LogFile, ReadAhead

SIZE = 3 << 20


class Counting(LogFile):
    """A file that counts what is read from it."""

    __slots__ = ("bytes_read", "reads")

    def __init__(self, path: str) -> None:
        super().__init__(path, os.O_RDONLY)
        self.reads = 0
        self.bytes_read = 0

    def read(self, length: int, position: int, *, wait: bool = True) -> bytes | bytearray:
        found = super().read(length, position, wait=wait)
        self.reads += 1
        self.bytes_read += len(found)
        return found


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def file(content: bytes, tmp_path: Path) -> Counting:
    path = tmp_path / "some.log"
    path.write_bytes(content)
    return Counting(str(path))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    jumps=st.lists(st.tuples(st.integers(-20_000, 40_000), st.integers(1, 20_000)), min_size=1, max_size=60),
    start=st.integers(0, SIZE),
)
def test_given_any_reads_when_they_are_read_ahead_then_each_is_what_the_file_has_there(
    file: Counting, content: bytes, jumps: list[tuple[int, int]], start: int
) -> None:
    ahead = ReadAhead(file)
    position = start
    for jump, length in jumps:
        position = max(0, position + jump)

        assert ahead.read(length, position) == content[position : position + length]


def test_given_small_reads_one_behind_the_other_when_they_are_read_ahead_then_the_file_is_read_seldom(
    file: Counting,
) -> None:
    ahead = ReadAhead(file)

    for position in range(0, SIZE, 512):
        ahead.read(512, position)

    assert file.reads < 20
    assert file.bytes_read <= 1.1 * SIZE


def test_given_reads_far_apart_when_they_are_read_ahead_then_nothing_else_is_read(file: Counting) -> None:
    ahead = ReadAhead(file)

    for position in range(0, SIZE, 65_536):
        ahead.read(8_192, position)

    assert file.bytes_read <= SIZE / 65_536 * 8_192 + 8_192
