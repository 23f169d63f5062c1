"""Which records of a topic are meant: by time, offsets, keys, or any condition that SQL can say.

All that is said must hold. Times and offsets are from the first one on, up to before the second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.spark.pipelines.errors import PipelineError, why
from penstock.spark.pipelines.plan_checks import check_same_in_every_run

_OFFSETS = re.compile(r"(\d+):(\d*)-(\d*)")
_DIGITS_OF_MS = 13
_FIRST_TIME_MS, _END_OF_TIMES_MS = -62_135_596_800_000, 253_402_300_800_000  # what Python can tell as a date

OffsetBounds = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Selection:
    """Of `offsets`, only partitions that are named are meant, if any is."""

    topic: str
    since_ms: int | None = None
    until_ms: int | None = None
    offsets: Mapping[int, OffsetBounds] = field(default_factory=dict)
    keys: tuple[bytes, ...] = ()
    where: str | None = None

    def __post_init__(self) -> None:
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise PipelineError(
                f"there is nothing between since {_time(self.since_ms)} and until {_time(self.until_ms)}"
            )

    def of(self, records: DataFrame) -> DataFrame:
        """Raises PipelineError when the condition cannot be asked of these columns, or has no fixed answer."""
        found = records.where(F.col("topic") == self.topic)
        if self.since_ms is not None:
            found = found.where(F.col("timestamp") >= F.timestamp_millis(F.lit(self.since_ms)))
        if self.until_ms is not None:
            found = found.where(F.col("timestamp") < F.timestamp_millis(F.lit(self.until_ms)))
        if self.offsets:
            found = found.where(" or ".join(_condition(*each) for each in sorted(self.offsets.items())))
        if self.keys:
            found = found.where(F.col("key").isin([F.lit(key) for key in self.keys]))
        if self.where is None:
            return found
        try:
            found = found.where(self.where)
        except PySparkException as error:
            raise PipelineError(f'the condition "{self.where}" cannot be asked: {why(error)}') from None
        check_same_in_every_run(found, f'the condition "{self.where}"')
        return found

    def told(self) -> str:
        parts = []
        if self.since_ms is not None:
            parts.append(f"from {_time(self.since_ms)}")
        if self.until_ms is not None:
            parts.append(f"until {_time(self.until_ms)}")
        for partition, (first, end) in sorted(self.offsets.items()):
            parts.append(
                f"partition {partition}, offsets {'' if first is None else first}-{'' if end is None else end}"
            )
        if self.keys:
            parts.append("keys " + ", ".join(key.decode(errors="replace") for key in self.keys))
        if self.where is not None:
            parts.append(f"where {self.where}")
        return "; ".join(parts) or "all records"

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "offsets": {str(partition): list(bounds) for partition, bounds in sorted(self.offsets.items())},
            "keys": [key.hex() for key in self.keys],
            "where": self.where,
        }


def parse_offsets(texts: Sequence[str]) -> dict[int, OffsetBounds]:
    """Of "0:100-200", "1:100-" and "2:-200". Raises PipelineError."""
    found: dict[int, OffsetBounds] = {}
    for text in texts:
        match = _OFFSETS.fullmatch(text.strip())
        if match is None:
            raise PipelineError(f'offsets are PARTITION:FIRST-END, such as 0:100-200 or 0:100-, not "{text}"')
        partition, first, end = match.groups()
        bounds = int(first) if first else None, int(end) if end else None
        if None not in bounds and bounds[0] >= bounds[1]:  # type: ignore[operator]
            raise PipelineError(f'offsets "{text}": there is nothing between {first} and {end}')
        if int(partition) in found:
            raise PipelineError(f"offsets: partition {partition} is there twice")
        found[int(partition)] = bounds
    return found


def parse_time(text: str | int | datetime | None, name: str) -> int | None:
    """Milliseconds, of those or of a time such as 2026-01-31T12:00:00Z; without a zone it is UTC."""
    if text is None:
        return None
    found = _parsed_text(text, name) if isinstance(text, str) else text
    if isinstance(found, datetime):
        found = round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)
    if not _FIRST_TIME_MS <= found < _END_OF_TIMES_MS:
        raise PipelineError(f"{name} {text}: times are of the years 1 to 9999")
    return found


def _parsed_text(text: str, name: str) -> int | datetime:
    """Other digits than those of milliseconds of our days are no time: 20260131 means a day, 1767225600 seconds."""
    if not (text.isascii() and text.isdigit()):
        with suppress(ValueError):
            return datetime.fromisoformat(text)
    elif len(text) == _DIGITS_OF_MS:
        return int(text)
    raise PipelineError(
        f'{name} "{text}": expected epoch milliseconds, of {_DIGITS_OF_MS} digits, or a time like 2026-01-31T12:00:00Z'
    )


def _condition(partition: int, bounds: OffsetBounds) -> str:
    first, end = bounds
    parts = [f"partition = {partition}"]
    parts += [f"offset >= {first}"] if first is not None else []
    parts += [f"offset < {end}"] if end is not None else []
    return f"({' and '.join(parts)})"


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
