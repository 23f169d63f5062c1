"""From an archive back to a topic: in the order of each partition, with the timestamps and headers that they had.

What is to be written is laid down as a plan of chunks before the first one is (replay_plan). A chunk is one write of
the sink, exactly once under a name of its own, so one that was cut off is repeated by the next run, and one that was
written is not, even if nobody was left to note it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F

from penstock.core.ids import topic_id_to_text
from penstock.spark.pipelines.archive_reading import Archive
from penstock.spark.pipelines.errors import PipelineError, why
from penstock.spark.pipelines.files import Files, joined
from penstock.spark.pipelines.planning import Lines, carried_out
from penstock.spark.pipelines.progress import Progress
from penstock.spark.pipelines.replay_plan import Bucket, Chunk, ReplayChunks, bucket_offsets, condition, cut
from penstock.spark.pipelines.replay_state import Done, ReplayState, check_id
from penstock.spark.pipelines.running import Ended, StopRequest, stopping_on_signals
from penstock.spark.pipelines.selection import Selection, parse_offsets, parse_time
from penstock.spark.pipelines.settings import settings
from penstock.spark.pipelines.topics import Brokers

log = logging.getLogger(__name__)

DEFAULT_ROWS_PER_CHUNK = 1_000_000
_RATE_BURST_S = 5
_WAIT_S = 0.1
_READERS_SETTINGS = ("fetch.max.wait.ms", "max.partition.fetch.bytes")
# So a chunk that is written again has the same tasks. And one without rows is counted: otherwise Spark, when it finds
# nothing to sort, leaves out the rest of the query, with what counts.
_ALWAYS_THE_SAME = {"spark.sql.adaptive.enabled": "false"}


class Partitions(StrEnum):
    """Which partition of the target a record goes to."""

    KEEP = "keep"
    MODULO = "modulo"
    KEY = "key"


def plan_replay(
    spark: SparkSession,
    *,
    archive: str,
    bootstrap: str,
    to: str,
    topic: str | None = None,
    since: str | int | datetime | None = None,
    until: str | int | datetime | None = None,
    offsets: Sequence[str] = (),
    keys: Sequence[str | bytes] = (),
    where: str | None = None,
    partitions: str = "keep",
    new_timestamps: bool = False,
    rate: int | None = None,
    replay_id: str | None = None,
    rows_per_chunk: int = DEFAULT_ROWS_PER_CHUNK,
    kafka: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
) -> ReplayPlan:
    """Writes the records of an archive that are selected to the topic `to`, which is there already. Asked for again, it
    goes on where it was cut off; what is complete is not done twice, unless under another id. Raises PipelineError,
    WireError.

    `offsets` are as in "0:100-200" (partition, first, end), `where` is a condition of SQL on the archive's columns.
    """
    if partitions not in list(Partitions):
        raise PipelineError(f'partitions takes {", ".join(Partitions)}, not "{partitions}"')
    if rate is not None and rate < 1:
        raise PipelineError(f"rate takes records a second, not {rate}")
    if replay_id is not None:
        check_id(replay_id)
    files, found = Files(spark), Archive.at(spark, archive, catalog or {})
    selection = Selection(
        topic=found.topic(topic),
        since_ms=parse_time(since, "since"),
        until_ms=parse_time(until, "until"),
        offsets=parse_offsets(offsets),
        keys=tuple(key.encode() if isinstance(key, str) else key for key in keys),
        where=where,
    )
    brokers = Brokers(bootstrap, kafka or {})
    target = brokers.topics([to])[to]
    purpose = {
        "archive": found.home.id,
        "to": to,
        "topic_id": topic_id_to_text(target.id),
        "partitions": partitions,
        "new_timestamps": new_timestamps,
        **selection.to_json(),
    }
    name = replay_id or hashlib.sha256(json.dumps(purpose, sort_keys=True).encode()).hexdigest()[:16]
    plan = ReplayPlan(
        archive=found,
        brokers=brokers,
        to=to,
        target_partitions=len(target.leaders),
        selection=selection,
        partitions=Partitions(partitions),
        new_timestamps=new_timestamps,
        rate=rate,
        state=ReplayState(files, files.qualified(joined(checkpoint or found.home.replays, name)), name, purpose),
        rows_per_chunk=min(rows_per_chunk, rate * _RATE_BURST_S) if rate else rows_per_chunk,
    )
    plan.check()
    return plan


replay = carried_out("replay", plan_replay)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    archive: Archive
    brokers: Brokers
    to: str
    target_partitions: int
    selection: Selection
    partitions: Partitions
    new_timestamps: bool
    rate: int | None
    state: ReplayState
    rows_per_chunk: int

    def check(self) -> None:
        """Raises PipelineError when the target cannot take the records as they are."""
        chosen = self._selected()
        self.state.chunks()
        if self.partitions is Partitions.KEEP:
            archived = self.archive.archived().offsets
            last = max(each.partition for each in archived if each.topic == self.selection.topic)
            if last >= self.target_partitions:
                raise PipelineError(
                    f'topic "{self.to}" has {self.target_partitions} partitions, and the records are of {last + 1}: '
                    "give it as many, or choose --partitions modulo or key"
                )
        if not self.new_timestamps:
            self._check_times(chosen)

    def _check_times(self, chosen: DataFrame) -> None:
        config = self.brokers.config_of(self.to)
        if config.get("message.timestamp.type") == "LogAppendTime":
            raise PipelineError(
                f'topic "{self.to}" gives records its own time (message.timestamp.type=LogAppendTime): set CreateTime, '
                "or ask for --new-timestamps"
            )
        time_ms = F.unix_millis("timestamp")
        oldest_ms, newest_ms = chosen.agg(F.min(time_ms), F.max(time_ms)).first() or (None, None)
        if oldest_ms is None or newest_ms is None:
            return
        now_ms = time.time_ns() // 1_000_000
        retention_ms = int(config.get("retention.ms") or -1)
        deletes = retention_ms >= 0 and "delete" in config.get("cleanup.policy", "delete")
        if deletes and oldest_ms < now_ms - retention_ms:
            raise PipelineError(
                f'topic "{self.to}" deletes records that are older than {retention_ms} ms, and some of these are: set '
                "its retention.ms to -1, or ask for --new-timestamps"
            )
        for side, distance_ms in (("before", now_ms - oldest_ms), ("after", newest_ms - now_ms)):
            setting = f"message.timestamp.{side}.max.ms"  # brokers before Kafka 3.6 do not have it
            if distance_ms > int(config.get(setting) or distance_ms):
                raise PipelineError(
                    f'topic "{self.to}" refuses records of more than {config[setting]} ms {side} its own time, and '
                    f"some of these are: set its {setting} higher, or ask for --new-timestamps"
                )

    def lines(self) -> Lines:
        known, done = self.state.chunks(), self.state.done()
        chunks = self._cut(self._selected()) if known is None else self._in_smaller(known, done)
        limit = f", at most {self.rate:,} records a second" if self.rate else ""
        return [
            ("replay", f"{self.state.id} ({self.state.directory})"),
            ("archive", f"{self.archive.home.path}, topic {self.selection.topic}"),
            ("records", f"{chunks.rows:,}: {self.selection.told()}"),
            ("to", f"topic {self.to}, {self.target_partitions} partitions ({self.partitions}){limit}"),
            ("chunks", f"{len(chunks.chunks)}, of which {done.chunks} are written"),
        ]

    def run(self) -> Ended:
        begun_s = time.monotonic()
        known, done = self.state.laid_down(lambda: self._cut(self._selected())), self.state.done()
        chunks = self._in_smaller(known, done)
        if chunks != known:
            self.state.lay_anew(chunks)
        if done.chunks >= len(chunks.chunks):
            log.info("replay is complete already", extra={"replay": self.state.id, "rows": done.rows})
        rows, written = 0, 0
        context = self.archive.spark.sparkContext
        with stopping_on_signals(context.cancelAllJobs) as stop, Progress(f"replay to {self.to}") as progress:
            for number in range(done.chunks, len(chunks.chunks)):
                chunk_s = time.monotonic()
                progress.show_parts(number, len(chunks.chunks), done.rows)
                count = self._written(chunks.chunks[number], number, stop)
                if count is None:
                    break
                done = Done(number + 1, done.rows + count)
                self.state.note(done)
                rows, written = rows + count, written + 1
                self._tell(number, count, chunk_s)
                self._wait(count, chunk_s, stop)
                if stop.is_made:
                    break
        is_stopped = stop.is_made and done.chunks < len(chunks.chunks)
        return Ended(rows, written, time.monotonic() - begun_s, is_stopped)

    def _tell(self, number: int, rows: int, chunk_s: float) -> None:
        took_ms = round((time.monotonic() - chunk_s) * 1_000)
        facts = {"replay": self.state.id, "chunk": number, "rows": rows, "ms": took_ms}
        log.info("chunk written", extra=facts | {"rows_per_s": round(rows * 1_000 / max(1, took_ms))})

    def _wait(self, rows: int, chunk_s: float, stop: StopRequest) -> None:
        """Until the chunk has taken as long as the rate says."""
        while self.rate and not stop.is_made and time.monotonic() < chunk_s + rows / self.rate:
            time.sleep(_WAIT_S)

    # Chunks

    def _selected(self) -> DataFrame:
        return self.selection.of(self.archive.records())

    def _cut(self, records: DataFrame) -> ReplayChunks:
        """By counted rows, since those that are selected may lie together. All partitions get on together."""
        end, of_partition = F.col("offset") + 1, Window.partitionBy("partition")
        buckets = records.groupBy("partition", F.expr(f"offset div {bucket_offsets(self.rows_per_chunk)}")).agg(
            F.min("offset").alias("first"), F.max(end).alias("end"), F.count("*").alias("rows")
        )
        first_of_all = F.min("first").over(of_partition)
        progress = (F.col("first") - first_of_all) / (F.max("end").over(of_partition) - first_of_all)
        ordered = buckets.withColumn("progress", progress).orderBy("progress", "partition")
        found = ordered.select("partition", "first", "end", "rows").toLocalIterator()
        return cut((Bucket(*row) for row in found), self.rows_per_chunk)

    def _in_smaller(self, known: ReplayChunks, done: Done) -> ReplayChunks:
        """Those that are to come, where they may have more rows than is asked for now. The next one stays as it is: it
        may have been begun, or even written without being noted.
        """
        begun = done.chunks + 1
        if begun >= len(known.chunks) or not known.may_exceed(self.rows_per_chunk):
            return known
        return known.and_then(begun, self._cut(self._selected().where(condition(known.after(begun)))))

    def _written(self, chunk: Chunk, number: int, stop: StopRequest) -> int | None:
        """How many rows; None when it was cut off on request."""
        seen = Observation()
        rows = self._selected().where(condition(chunk)).observe(seen, F.count("*").alias("rows"))
        # One task for each partition, which is written in order.
        ordered = rows.repartitionById(max(chunk) + 1, F.col("partition")).sortWithinPartitions("partition", "offset")
        options = self._sink_options() | {"writeId": self.state.write_id(number)}
        try:
            with settings(self.archive.spark, _ALWAYS_THE_SAME):
                ordered.select(*self._columns()).write.format("penstock").options(**options).mode("append").save()
        except (PySparkException, Py4JJavaError) as error:
            if stop.is_urgent:
                return None
            raise PipelineError(f"replay to {self.to}: {why(error)}") from error
        return int(seen.get.get("rows", 0))

    def _sink_options(self) -> dict[str, str]:
        given = {
            name: value
            for name, value in self.brokers.options().items()
            if name.removeprefix("kafka.") not in _READERS_SETTINGS
        }
        return given | {"topic": self.to, "exactlyOnce": "true"}

    def _columns(self) -> list[Column | str]:
        columns: list[Column | str] = ["key", "value", "headers"]
        if not self.new_timestamps:
            columns.append("timestamp")
        if self.partitions is Partitions.KEEP:
            columns.append("partition")
        elif self.partitions is Partitions.MODULO:
            columns.append((F.col("partition") % self.target_partitions).cast("int").alias("partition"))
        return columns
