"""Lines of several processes in one stream."""

from __future__ import annotations

import asyncio
import os
import threading
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.server.log_stream import Lines, LogStream

LETTERS = st.text("ab\n", max_size=200).map(str.encode)


@given(text=LETTERS, cuts=st.lists(st.integers(0, 200)))
def test_given_text_in_any_pieces_then_it_is_cut_where_its_lines_end(text: bytes, cuts: list[int]) -> None:
    lines = Lines()
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})

    read = [line for start, end in pairwise(edges) for line in lines.feed(text[start:end])]

    assert read + lines.rest() == text.removesuffix(b"\n").split(b"\n") * bool(text)
    assert lines.rest() == []


@given(st.lists(LETTERS))
def test_given_lines_that_are_too_long_then_they_are_cut_and_nothing_is_lost(chunks: list[bytes]) -> None:
    lines = Lines(max_line_bytes=3)

    read = [line for chunk in chunks for line in lines.feed(chunk)]

    rest = b"".join(lines.rest())
    assert len(rest) < 3
    assert b"".join(read) + rest == b"".join(chunks).replace(b"\n", b"")


async def test_given_a_very_long_line_and_one_without_an_end_then_both_come_out_whole_behind_their_name() -> None:
    reading, writing = os.pipe()
    pipe = asyncio.StreamReader()
    long = b"x" * 500_000
    with os.fdopen(reading, "rb") as read_end:
        stream = LogStream(writing, ["a", "long-name"])
        everything: list[bytes] = []
        reader = threading.Thread(target=lambda: everything.append(read_end.read()))
        reader.start()
        pipe.feed_data(b"first\n\n" + long + b"\nlast")
        pipe.feed_eof()

        last = await stream.relay(pipe, "a")
        await stream.finish()

        os.close(writing)
        reader.join()
    prefix = b"a         | "
    assert b"".join(everything) == b"".join(prefix + line + b"\n" for line in (b"first", b"", long, b"last"))
    assert last == ["last"]


async def test_given_nobody_reads_the_stream_then_the_loop_goes_on_and_when_it_is_closed_nothing_is_waited_for() -> (
    None
):
    reading, writing = os.pipe()
    stream = LogStream(writing, ["a"])
    for _ in range(10):
        stream.print("x" * 100_000, "a")
    pipe = asyncio.StreamReader()
    pipe.feed_data(b"unheard\n")
    pipe.feed_eof()

    os.close(reading)

    assert await asyncio.wait_for(stream.relay(pipe, "a"), 10) == ["unheard"]
    await asyncio.wait_for(stream.finish(), 10)
    os.close(writing)
