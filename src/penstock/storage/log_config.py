"""What a log uses of its topic's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.core.config_values import DAY_MS, LONG_MAX


class TopicSettings(Protocol):
    """The part of a topic's configuration that reaches the log, under the topic configuration's names."""

    @property
    def segment_bytes(self) -> int: ...
    @property
    def segment_ms(self) -> int: ...
    @property
    def segment_index_bytes(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...
    @property
    def retention_ms(self) -> int: ...
    @property
    def retention_bytes(self) -> int: ...
    @property
    def file_delete_delay_ms(self) -> int: ...
    @property
    def cleanup_policy(self) -> tuple[str, ...]: ...
    @property
    def min_cleanable_dirty_ratio(self) -> float: ...
    @property
    def min_compaction_lag_ms(self) -> int: ...
    @property
    def max_compaction_lag_ms(self) -> int: ...
    @property
    def delete_retention_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    # Negative: for ever, without limit.
    retention_ms: int
    retention_bytes: int
    file_delete_delay_ms: int
    # Compaction leaves gaps between offsets; without it a gap at the end of a crashed log is damage.
    is_compacted: bool = False
    # Whether retention deletes segments at all (cleanup.policy has "delete").
    is_deleted_by_retention: bool = True
    # When compaction takes the log, which of its records, and how long tombstones stay.
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = DAY_MS

    @classmethod
    def of(cls, settings: TopicSettings) -> LogConfig:
        is_compacted = "compact" in settings.cleanup_policy
        return cls(
            segment_bytes=settings.segment_bytes,
            # Only closed segments are compacted, so one must be closed before a record in it is overdue.
            segment_ms=min(settings.segment_ms, settings.max_compaction_lag_ms)
            if is_compacted
            else settings.segment_ms,
            segment_index_bytes=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
            file_delete_delay_ms=settings.file_delete_delay_ms,
            is_compacted=is_compacted,
            is_deleted_by_retention="delete" in settings.cleanup_policy,
            min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=settings.min_compaction_lag_ms,
            max_compaction_lag_ms=settings.max_compaction_lag_ms,
            delete_retention_ms=settings.delete_retention_ms,
        )
