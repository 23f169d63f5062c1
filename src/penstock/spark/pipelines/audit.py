"""Whether broker, archive and the topic that it was replayed to have the same records.

Broker and archive are compared where both have something to say: what retention has taken from the broker, and what is
not archived yet, is told and is no difference. Offsets that neither has are explained by compaction or by transactions.
One that only the broker has is lost, and so is one that retention took before the archive came to it; one that only the
archive has is too much, unless the topic is compacted. Where nothing of a topic can be compared with the broker, it is
not equal by that, unless what was replayed of it was compared in its place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.core.ids import TopicPartition
from penstock.spark.pipelines.archive_reading import Archive
from penstock.spark.pipelines.audit_broker import (
    OnBroker,
    compared_bounds,
    offsets_of,
    on_broker,
    read_broker,
    read_topic,
)
from penstock.spark.pipelines.audit_compare import compared
from penstock.spark.pipelines.audit_measure import Bounds, Measured, Zone, changed, measured, rows_in
from penstock.spark.pipelines.audit_partition import Facts, audit_partition, rows_by_hour
from penstock.spark.pipelines.audit_passes import Passes
from penstock.spark.pipelines.audit_replayed import audit_replayed
from penstock.spark.pipelines.audit_result import AuditResult, NotCompared, PartitionAudit, ReplayedAudit
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.planning import Lines, carried_out
from penstock.spark.pipelines.progress import Progress
from penstock.spark.pipelines.running import stopping_on_signals
from penstock.spark.pipelines.selection import Selection, parse_offsets, parse_time
from penstock.spark.pipelines.topics import Brokers

log = logging.getLogger(__name__)

_CHANGED_AT_MOST = 1_000


def plan_audit(
    spark: SparkSession,
    *,
    archive: str,
    bootstrap: str,
    topics: Sequence[str] = (),
    replayed_to: str | None = None,
    keeps_partitions: bool = True,
    since: str | int | datetime | None = None,
    until: str | int | datetime | None = None,
    offsets: Sequence[str] = (),
    keys: Sequence[str | bytes] = (),
    where: str | None = None,
    kafka: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
) -> AuditPlan:
    """Compares an archive with the topics that it is of, all that it has if none is named, and with the topic that it
    was replayed to. What was selected for the replay is said as there. Raises PipelineError, WireError.
    """
    found = Archive.at(spark, archive, catalog or {})
    for topic in topics:
        found.topic(topic)
    brokers = Brokers(bootstrap, kafka or {})
    selection = None
    if replayed_to is not None:
        selection = Selection(
            topic=found.topic(topics[0] if len(topics) == 1 else None),
            since_ms=parse_time(since, "since"),
            until_ms=parse_time(until, "until"),
            offsets=parse_offsets(offsets),
            keys=tuple(key.encode() if isinstance(key, str) else key for key in keys),
            where=where,
        )
        brokers.topics([replayed_to])
        selection.of(found.records())
    elif since or until or offsets or keys or where:
        raise PipelineError("a selection is of what was replayed: name the topic that it was replayed to")
    names = tuple(dict.fromkeys(topics)) or tuple(found.topics())
    return AuditPlan(found, brokers, names, replayed_to, keeps_partitions, selection)


audit = carried_out("audit", plan_audit)


@dataclass(frozen=True, slots=True)
class AuditPlan:
    archive: Archive
    brokers: Brokers
    topics: tuple[str, ...]
    replayed_to: str | None
    keeps_partitions: bool
    selection: Selection | None

    def lines(self) -> Lines:
        archived = self.archive.archived()
        there = on_broker(self.brokers, self.topics, archived)
        lines = [("archive", self.archive.home.path)]
        for topic in self.topics:
            offsets = sum(
                end - first for each, (first, end) in compared_bounds(there, archived).items() if each.topic == topic
            )
            lines.append(("topic", f"{topic}: {there.why_not.get(topic) or f'{offsets:,} offsets to compare'}"))
        if self.replayed_to is not None and self.selection is not None:
            lines.append(("replayed", f"{self.selection.topic} to {self.replayed_to}: {self.selection.told()}"))
        return lines

    def run(self) -> AuditResult:
        """Raises PipelineError, WireError; Stopped when somebody asks for that before there is a result."""
        begun_s = time.monotonic()
        with stopping_on_signals() as stop, Progress("audit") as progress:
            passes = Passes(self.archive.spark, "audit", stop, progress)
            result = self._compared(passes, progress.is_shown)
        rows = sum(each.archive.rows for each in result.partitions)
        took_ms = round((time.monotonic() - begun_s) * 1_000)
        facts = {"pipeline": "audit", "rows": rows, "differences": len(result.differences), "ms": took_ms}
        log.info("pipeline ended", extra=facts)
        return result

    def _compared(self, passes: Passes, is_shown: bool) -> AuditResult:
        archived = self.archive.archived()
        there = on_broker(self.brokers, self.topics, archived)
        bounds = compared_bounds(there, archived)
        records = self.archive.records().where(F.col("topic").isin(*self.topics))
        from_broker = read_broker(self.archive.spark, self.brokers, bounds)
        on_brokers, in_archive, in_target = self._sizes(passes, bounds, records) if is_shown else (0, 0, 0)
        passes.rows = on_brokers + in_archive + in_target
        broker: Measured = {}
        if from_broker is not None:
            broker = passes.run("broker", lambda: measured(from_broker), on_brokers, rows_in)
        kept = passes.run("archive", lambda: measured(records, bounds), in_archive, rows_in)
        found_changed = {} if from_broker is None else self._changed(passes, from_broker, records, broker, kept)
        partitions = [
            audit_partition(
                each,
                Facts(
                    kept.get(each, {}),
                    broker.get(each, {}).get(Zone.COMPARED, {}),
                    bounds.get(each),
                    there.bounds.get(each, (0, 0))[1],
                    archived.offsets.get(each, 0),
                    found_changed.get(each, ()),
                    each.topic in there.compacted,
                    there.why_not.get(each.topic),
                ),
            )
            for each in sorted(kept.keys() | bounds.keys())
        ]
        replayed = self._replayed(passes, in_target)
        return self._result(partitions, replayed, kept, broker, self._not_compared(there, bounds, partitions, replayed))

    def _sizes(self, passes: Passes, bounds: Bounds, records: DataFrame) -> tuple[int, int, int]:
        """About how many rows there are to read: from the broker, in the archive, and for what was replayed."""
        archived = passes.run("size", records.count)
        replayed = 0
        if self.replayed_to is not None:
            # Once for the contents, and once for their order.
            replayed = 2 * (archived + offsets_of(self.brokers, self.replayed_to))
        return sum(end - first for first, end in bounds.values()), archived, replayed

    def _changed(
        self, passes: Passes, from_broker: DataFrame, records: DataFrame, broker: Measured, kept: Measured
    ) -> dict[TopicPartition, list[int]]:
        """Only stretches that are not the same are looked at once more, record by record."""
        doubtful = {}
        for each in broker.keys() & kept.keys():
            difference = compared(broker[each].get(Zone.COMPARED, {}), kept[each].get(Zone.COMPARED, {}))
            if difference.stretches:
                doubtful[each] = difference.stretches
        if not doubtful:
            return {}
        return passes.run("changes", lambda: changed(from_broker, records, doubtful, _CHANGED_AT_MOST), 0, _offsets_in)

    def _replayed(self, passes: Passes, rows: int) -> list[ReplayedAudit]:
        if self.replayed_to is None or self.selection is None:
            return []
        selected = self.selection.of(self.archive.records())
        to, keeps_partitions = self.replayed_to, self.keeps_partitions
        replayed = read_topic(self.archive.spark, self.brokers, to)
        return passes.run(
            "replayed", lambda: audit_replayed(selected, replayed, to, keeps_partitions), rows, _rows_replayed
        )

    def _not_compared(
        self,
        there: OnBroker,
        bounds: Bounds,
        partitions: Sequence[PartitionAudit],
        replayed: Sequence[ReplayedAudit],
    ) -> list[NotCompared]:
        found = []
        for topic in self.topics:
            of_it = [each for each in partitions if each.topic == topic]
            has_common = any(first < end for each, (first, end) in bounds.items() if each.topic == topic)
            why = there.why_not.get(topic)
            if why is None and not has_common and any(each.archive.rows for each in of_it):
                why = "they have no offsets in common"
            if why is not None:
                is_replayed = self.selection is not None and self.selection.topic == topic
                is_compared = is_replayed and any(each.archive_rows for each in replayed)
                is_different = any(each.differences for each in of_it)
                found.append(NotCompared(topic, why, not is_compared and not is_different))
        return found

    def _result(
        self,
        partitions: Sequence[PartitionAudit],
        replayed: Sequence[ReplayedAudit],
        kept: Measured,
        broker: Measured,
        not_compared: Sequence[NotCompared],
    ) -> AuditResult:
        return AuditResult(
            archive=self.archive.home.path,
            bootstrap=self.brokers.bootstrap,
            when=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            partitions=tuple(partitions),
            replayed_to=self.replayed_to,
            selection="" if self.selection is None else self.selection.told(),
            replayed=tuple(replayed),
            rows_by_time={"archive": rows_by_hour(kept), "broker": rows_by_hour(broker)},
            not_compared=tuple(not_compared),
        )


def _offsets_in(found: Mapping[TopicPartition, Sequence[int]]) -> int:
    return sum(map(len, found.values()))


def _rows_replayed(audits: Sequence[ReplayedAudit]) -> int:
    return sum(each.archive_rows + each.replayed_rows for each in audits)
