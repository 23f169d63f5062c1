"""Whether a table is behind the checkpoint that it is filled with: then what lies between would never come to it.

A table that was restored from a backup, with a checkpoint that is somewhere else and newer, looks like any other. The
checkpoint says up to where it has read, the table up to which record it has, and the two differ without anything being
wrong: markers of transactions, aborted records and what compaction took are read and are no records. So what lies
between is looked at, in the topic. What is known to have nothing for the table is written down beside it at the end of
a run, since retention takes it from the topic some day; the note goes with the table into a backup, and counts only
for a table that has come as far as the one that it was written for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from penstock.core.ids import TopicPartition
from penstock.spark.offsets_json import StreamOffsets, listed
from penstock.spark.pipelines import archived, checkpoints
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, read_json
from penstock.spark.pipelines.topics import TopicSource
from penstock.wire.cluster import Cluster
from penstock.wire.offsets import earliest, latest

Spans = Mapping[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Followed:
    """`table` is what messages call it, `note` the path of ours beside it; `wanted` are those records it would have."""

    spark: SparkSession
    source: TopicSource
    checkpoint: str
    table: str
    note: str
    wanted: Callable[[DataFrame], DataFrame] = lambda records: records

    def check(self, reached: StreamOffsets) -> None:
        """`reached` is the table's own. Raises PipelineError when it is behind, WireError."""
        read = checkpoints.committed(Files(self.spark), self.checkpoint)
        if read is None:
            return
        noted = self._noted(reached)
        known = reached if noted is None else archived.furthest(reached, noted)
        between = {
            partition: (known.offsets.get(partition, 0), end)
            for partition, end in read.offsets.items()
            if partition.topic in self.source.topics and end > known.offsets.get(partition, 0)
        }
        if not between:
            return
        there, gone = self._there(between)
        # What lies before the first note was there before anybody looked, and may have been nothing.
        if gone and noted is not None and self.source.options.get("failOnDataLoss") != "false":
            raise self._is_behind(gone, "and retention has taken what lies between, which --skip-lost passes over")
        if there and self._has_any(there):
            raise self._is_behind(there, "and there are records between, which would be left out")

    def write_down(self, reached: StreamOffsets) -> None:
        """At the end of a run, which has come as far as the checkpoint says."""
        files = Files(self.spark)
        read = checkpoints.committed(files, self.checkpoint)
        if read is not None:
            note = {"reached": archived.to_text(reached), "read": archived.to_text(StreamOffsets(read.offsets))}
            files.write(self.note, json.dumps(note, indent=2))

    def _noted(self, reached: StreamOffsets) -> StreamOffsets | None:
        found = read_json(Files(self.spark), self.note)
        if found is None:
            return None
        then, read = (archived.from_text(str(found.get(key)), self.note) for key in ("reached", "read"))
        return None if archived.is_ahead(then, reached) else read

    def _there(self, between: Spans) -> tuple[Spans, Spans]:
        """What of it can be read, and what can not any more."""
        with closing(Cluster(self.source.brokers.settings())) as cluster:
            first, last = earliest(cluster, between), latest(cluster, between)
        there = {each: (max(start, first[each]), min(end, last[each])) for each, (start, end) in between.items()}
        gone = {each: (start, min(end, first[each])) for each, (start, end) in between.items() if start < first[each]}
        return {each: (start, end) for each, (start, end) in there.items() if start < end}, gone

    def _has_any(self, there: Spans) -> bool:
        partitions = self.source.check()
        nothing = {TopicPartition(topic, n): (0, 0) for topic, count in partitions.items() for n in range(count)}
        starts, ends = (
            archived.to_text(StreamOffsets({each: span[at] for each, span in {**nothing, **there}.items()}))
            for at in (0, 1)
        )
        options = {
            "startingOffsets": starts,
            "endingOffsets": ends,
            "includeHeaders": "true",
            "failOnDataLoss": "false",
        }
        records = TopicSource(self.source.brokers, self.source.topics, options).table(self.spark)
        return not self.wanted(records).isEmpty()

    def _is_behind(self, spans: Spans, why: str) -> PipelineError:
        partition, (start, end) = min(spans.items())
        more = f", as are {listed(spans.keys() - {partition})}" if len(spans) > 1 else ""
        return PipelineError(
            f"{self.table} is behind its checkpoint {self.checkpoint}, as one from a backup is: {partition} is read up "
            f"to offset {end} and is there up to {start}{more}, {why}. Go back to the checkpoint of that time, or take "
            "another directory for --checkpoint: with a new one it goes on where the table ends"
        )
