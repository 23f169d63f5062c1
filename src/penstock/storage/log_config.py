"""What a log uses of its topic's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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

    @classmethod
    def of(cls, settings: TopicSettings) -> LogConfig:
        return cls(
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms,
            segment_index_bytes=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
            file_delete_delay_ms=settings.file_delete_delay_ms,
            is_compacted="compact" in settings.cleanup_policy,
            is_deleted_by_retention="delete" in settings.cleanup_policy,
        )
