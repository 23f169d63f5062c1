"""A replay cut into chunks: each is one write, and is done whole or not at all.

A chunk is a range of offsets of every partition, so it has the same records whenever it is read: what an archive has of
a range does not change. All partitions get on together, as they did when the records were written.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.spark.pipelines.errors import PipelineError


class Extent(NamedTuple):
    """What is selected of a partition: how many rows, between which offsets; the last one is exclusive."""

    rows: int
    first: int
    end: int


Chunk = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ReplayChunks:
    rows: int
    chunks: tuple[Chunk, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "rows": self.rows,
            "chunks": [{str(each): list(bounds) for each, bounds in chunk.items()} for chunk in self.chunks],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], where: str) -> ReplayChunks:
        try:
            chunks = tuple(
                {int(partition): (int(first), int(end)) for partition, (first, end) in chunk.items()}
                for chunk in found["chunks"]
            )
            return cls(int(found["rows"]), chunks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PipelineError(f"{where} is damaged: {error!r}") from None


def cut(extents: Mapping[int, Extent], rows_per_chunk: int) -> ReplayChunks:
    """In about equal chunks; how many rows each has depends on how evenly they lie among the offsets."""
    rows = sum(extent.rows for extent in extents.values())
    count = max(1, -(-rows // rows_per_chunk)) if rows else 0
    edges = {partition: _edges(extent, count) for partition, extent in sorted(extents.items())}
    chunks = []
    for number in range(count):
        chunk = {partition: at[number] for partition, at in edges.items() if at[number][0] < at[number][1]}
        if chunk:
            chunks.append(chunk)
    return ReplayChunks(rows, tuple(chunks))


def condition(chunk: Chunk) -> str:
    parts = (
        f"(partition = {partition} and offset >= {first} and offset < {end})"
        for partition, (first, end) in sorted(chunk.items())
    )
    return " or ".join(parts)


def _edges(extent: Extent, count: int) -> Sequence[tuple[int, int]]:
    size = extent.end - extent.first
    return list(itertools.pairwise(extent.first + size * number // count for number in range(count + 1)))
