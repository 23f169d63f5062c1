"""Columns as Arrow lays them out, with something before the first row and after the last."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.protocol.records._pure_checksum import Blobs, Numbers, Pairs

Blob = bytes | None
Pair = tuple[Blob, Blob]


def bits(entries: Sequence[object]) -> bytes:
    number = sum(1 << at for at, entry in enumerate(entries) if entry is not None)
    return number.to_bytes(len(entries) // 8 + 1, "little")


def offsets(lengths: Sequence[int], width: int, start: int) -> bytes:
    ends = [start]
    for length in lengths:
        ends.append(ends[-1] + length)
    return struct.pack(f"={len(ends)}{'i' if width == 4 else 'q'}", *ends)


def blobs(entries: Sequence[Blob], before: Sequence[Blob], width: int) -> Blobs:
    # What is null may still have bytes.
    every = [*before, *entries]
    data = [b"junk" if entry is None else entry for entry in every]
    has_null = any(entry is None for entry in every)
    return Blobs(
        bits(every) if has_null else None,
        offsets(list(map(len, data)), width, start=3),
        b"xyz" + b"".join(data) + b"rest",
        len(before),
        width,
    )


def numbers(entries: Sequence[int | None], before: Sequence[int | None]) -> Numbers:
    every = [*before, *entries]
    packed = struct.pack(f"={len(every)}q", *(7 if entry is None else entry for entry in every))
    return Numbers(bits(every), packed, len(before))


def pairs(lists: Sequence[Sequence[Pair] | None], before: Sequence[Sequence[Pair] | None], width: int) -> Pairs:
    every = [*before, *lists]
    entries = [pair for each in every for pair in (each or [])]
    outer: list[Pair] = [(b"outer", None)]
    return Pairs(
        bits(every),
        offsets([len(each or []) for each in every], width, start=0),
        blobs([key for key, _ in entries], [key for key, _ in outer], width),
        blobs([value for _, value in entries], [value for _, value in outer], width),
        len(before),
        width,
    )
