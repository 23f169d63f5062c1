"""What retention has to know of a log's segments: how old they are and where they end. Blocks."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.storage import retention
from penstock.storage.log_config import LogConfig
from penstock.storage.log_file import LogPosition
from penstock.storage.segment import Segment


def plan_retention(
    segments: Sequence[Segment],
    end: LogPosition,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> retention.RetentionPlan | None:
    if segments[-1].base_offset != end.segment_base_offset:
        return None  # it rolled between the two: another time
    ends = [segment.base_offset for segment in segments[1:]] + [end.offset]
    facts = [
        retention.SegmentFacts(segment.base_offset, end_offset, segment.size)
        for segment, end_offset in zip(segments, ends, strict=True)
    ]
    deletes = config.is_deleted_by_retention
    return retention.plan(
        facts,
        retention.RetentionRule(config.retention_ms if deletes else -1, config.retention_bytes if deletes else -1),
        lambda at: segments[at].age_timestamp(),
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        now_ms=now_ms,
    )
