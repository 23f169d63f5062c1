"""A replay cut into chunks: each is one write, and is done whole or not at all.

A chunk is a range of offsets of every partition, so it has the same records whenever it is read: what an archive has of
a range does not change. All partitions get on together, as they did when the records were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.spark.pipelines.errors import PipelineError


class Bucket(NamedTuple):
    """A few offsets of a partition, and how many rows are selected between them; the last one is exclusive."""

    partition: int
    first: int
    end: int
    rows: int


Chunk = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ReplayChunks:
    """None has more than `rows_per_chunk`; None where that is not known, of chunks that were cut by offsets once."""

    rows: int
    chunks: tuple[Chunk, ...]
    rows_per_chunk: int | None = None

    def may_exceed(self, rows: int) -> bool:
        return self.rows_per_chunk is None or self.rows_per_chunk > rows

    def after(self, number: int) -> Chunk:
        """What the chunks from this one on cover, as one."""
        found: dict[int, tuple[int, int]] = {}
        for chunk in self.chunks[number:]:
            for partition, (first, end) in chunk.items():
                found[partition] = (found.get(partition, (first, end))[0], end)
        return found

    def and_then(self, number: int, others: ReplayChunks) -> ReplayChunks:
        """With others in place of those from this one on, which have the same rows."""
        return replace(others, rows=self.rows, chunks=self.chunks[:number] + others.chunks)

    def to_json(self) -> dict[str, object]:
        return {
            "rows": self.rows,
            "rows_per_chunk": self.rows_per_chunk,
            "chunks": [{str(each): list(bounds) for each, bounds in chunk.items()} for chunk in self.chunks],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], where: str) -> ReplayChunks:
        try:
            chunks = tuple(
                {int(partition): (int(first), int(end)) for partition, (first, end) in chunk.items()}
                for chunk in found["chunks"]
            )
            rows_per_chunk = found.get("rows_per_chunk")
            return cls(int(found["rows"]), chunks, None if rows_per_chunk is None else int(rows_per_chunk))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PipelineError(f"{where} is damaged: {error!r}") from None


def bucket_offsets(rows_per_chunk: int) -> int:
    """How many a bucket covers: it has no more rows than that, and chunks of several get nearly full."""
    return max(1, rows_per_chunk // 10)


def cut(buckets: Iterable[Bucket], rows_per_chunk: int) -> ReplayChunks:
    """In the order of the buckets, where those of a partition have ascending offsets. A chunk has no more rows than it
    may, unless a bucket of it alone has.
    """
    chunks: list[dict[int, tuple[int, int]]] = []
    rows, room = 0, 0
    for bucket in buckets:
        if not chunks or bucket.rows > room:
            chunks.append({})
            room = rows_per_chunk
        first, _ = chunks[-1].get(bucket.partition, (bucket.first, bucket.end))
        chunks[-1][bucket.partition] = (first, bucket.end)
        rows, room = rows + bucket.rows, room - bucket.rows
    return ReplayChunks(rows, tuple(chunks), rows_per_chunk)


def condition(chunk: Chunk) -> str:
    parts = (
        f"(partition = {partition} and offset >= {first} and offset < {end})"
        for partition, (first, end) in sorted(chunk.items())
    )
    return " or ".join(parts)
