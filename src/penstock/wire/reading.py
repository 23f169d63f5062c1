"""A range of a partition, from its leader to columns, in bounded memory.

How far we have come is what the headers of batches say, not which records were in them: compaction, markers and aborted
transactions leave gaps. The offset that is fetched next is always that after the last whole batch, so whatever breaks
on the way is begun anew from there, at whoever leads the partition then; nothing comes twice, nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple, NoReturn

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import NO_TOPIC_ID, TopicId, TopicPartition, topic_id_to_text
from penstock.protocol.control import read_end_marker
from penstock.protocol.records import InvalidRecords, records_of
from penstock.protocol.records.columns import Columns, Taken
from penstock.wire.cluster import Cluster, Leader
from penstock.wire.connection import ReceiveBuffer
from penstock.wire.errors import CorruptRecords, NotNow, OffsetsLost, Refused, TopicRecreated, error_name, reason
from penstock.wire.fetching import Batch, Fetched, Fetcher
from penstock.wire.offsets import Isolation, earliest, is_passing, latest
from penstock.wire.patience import PASSING, Patience
from penstock.wire.transactions import AbortedTransactions

DEFAULT_ROWS = 1 << 16
DEFAULT_BYTES = 16 << 20
# A column of one Taken has 31 bits for its bytes, and a batch, which is added whole, at most 64 MiB.
MAX_BYTES = 1 << 30
_CORRUPT_TRIES = 3
_SURE_AFTER = 2


def read(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    isolation: Isolation = Isolation.READ_COMMITTED,
    *,
    with_headers: bool = True,
    max_rows: int = DEFAULT_ROWS,
    max_bytes: int = DEFAULT_BYTES,
    topic_id: TopicId | None = None,
) -> Iterator[Taken]:
    """The records from `start` to before `end`, in parts: each has a row or more, and the batch that fills it whole.

    `topic_id` is that of the topic which the offsets are of, if it is known. Raises WireError: OffsetsLost,
    TopicRecreated, UnknownTopic, CorruptRecords, TimedOut when nothing comes for `default.api.timeout.ms`.
    """
    if not 0 < max_bytes <= MAX_BYTES:
        raise ValueError(f"a part has between 1 and {MAX_BYTES} bytes, not {max_bytes}")
    columns = Columns(with_headers=with_headers)
    with closing(PartitionReader(cluster, partition, start, end, isolation, topic_id)) as reader:
        for part in reader.parts():
            for batch in reader.visible(part):
                reader.add_to(columns, part, batch)
                if columns.rows >= max_rows or columns.size >= max_bytes:
                    yield columns.take()
    if columns.rows:
        yield columns.take()


class Part(NamedTuple):
    """What one answer has of the range."""

    first: int
    fetched: Fetched
    batches: list[Batch]


class PartitionReader:
    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        start: int,
        end: int,
        isolation: Isolation,
        topic_id: TopicId | None,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._position = start
        self._end = end
        self._isolation = isolation
        self._topic_id = topic_id or NO_TOPIC_ID
        self._buffer = ReceiveBuffer()
        self._fetcher: Fetcher | None = None
        self._readable_end: int | None = None

    def parts(self) -> Iterator[Part]:
        """Each is good until the next one is asked for: they share a buffer."""
        patience = Patience(self._cluster.settings)
        corrupt_tries = 0
        empty_answers = 0
        while self._position < self._end:
            try:
                part = self._next_part()
            except PASSING as error:
                self._begin_anew()
                patience.after(f"reading {self._partition} from offset {self._position}", error)
                continue
            except CorruptRecords:
                # The broker may have found out as well: then another one leads soon.
                corrupt_tries += 1
                if corrupt_tries == _CORRUPT_TRIES:
                    raise
                self._begin_anew()
                continue
            if part is not None:
                yield part
                # What was waited for here is not the broker's fault.
                patience.progressed()
                corrupt_tries = empty_answers = 0
            elif self._readable_end is None:
                patience.after(f"reading {self._partition}", NotNow("the broker's quota is used up"))
            elif self._readable_end >= self._end:
                # Records up to there can be read, and none came: there is a gap at the end.
                empty_answers += 1
                if empty_answers == _SURE_AFTER:
                    return
            else:
                patience.check(f"reading {self._partition} from offset {self._position}", self._why_nothing_comes())

    def _next_part(self) -> Part | None:
        """None when there is nothing from our offset on, as yet. Asks for what follows before it returns."""
        fetcher = self._fetcher or self._connect()
        if not fetcher.has_asked:
            fetcher.ask_for(self._position)
        fetched = fetcher.received()
        self._check(fetched)
        self._readable_end = fetched.end
        first = self._position
        batches = []
        for batch in fetched.batches(self._partition):
            if batch.header.base_offset >= self._end:
                self._position = self._end
                break
            if batch.header.next_offset > first:
                self._position = batch.header.next_offset
                batches.append(batch)
        if self._position == first:
            return None
        if self._position < self._end:
            fetcher.ask_for(self._position)
        return Part(first, fetched, batches)

    def _connect(self) -> Fetcher:
        leader = self._cluster.leader_of(self._partition)
        self._check_topic_id(leader)
        settings = self._cluster.settings
        self._fetcher = Fetcher(
            self._cluster.connect(leader.node),
            self._partition,
            leader,
            self._isolation,
            fetch_bytes=settings.fetch_bytes,
            wait_ms=settings.fetch_wait_ms,
            buffer=self._buffer,
        )
        return self._fetcher

    def _check_topic_id(self, leader: Leader) -> None:
        if self._topic_id == NO_TOPIC_ID:
            self._topic_id = leader.topic_id
        elif leader.topic_id not in (self._topic_id, NO_TOPIC_ID):
            raise TopicRecreated(
                f'topic "{self._partition.topic}" was deleted and created anew: its id is '
                f"{topic_id_to_text(leader.topic_id)} and was {topic_id_to_text(self._topic_id)}, "
                f"offset {self._position} of partition {self._partition.partition} is not what it was"
            )

    def _check(self, fetched: Fetched) -> None:
        code = fetched.error_code
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._raise_lost()
        if is_passing(code):
            raise NotNow(f"the broker says {error_name(code)}")
        raise Refused(f"reading {self._partition}: {error_name(code)}")

    def _raise_lost(self) -> NoReturn:
        """Unless it is there after all: the leader may have changed meanwhile."""
        wanted, one = self._position, [self._partition]
        self._cluster.forget(self._partition.topic)
        self._check_topic_id(self._cluster.leader_of(self._partition))
        first = earliest(self._cluster, one)[self._partition]
        end = latest(self._cluster, one, Isolation.READ_UNCOMMITTED)[self._partition]
        if first <= wanted <= end:
            raise NotNow(f"the broker says {ErrorCode.OFFSET_OUT_OF_RANGE.name}")
        raise OffsetsLost(self._partition.topic, self._partition.partition, wanted, first, end)

    def _why_nothing_comes(self) -> str:
        what = "committed records end" if self._isolation is Isolation.READ_COMMITTED else "the partition ends"
        return f"{what} at offset {self._readable_end}, and those up to {self._end} were asked for"

    def visible(self, part: Part) -> Iterator[Batch]:
        """Without markers and, for readers of committed records, without aborted transactions."""
        aborted = AbortedTransactions((each.producer_id, each.first_offset) for each in part.fetched.aborted)
        for batch in part.batches:
            if batch.header.is_control:
                aborted.ended(batch.header, is_abort=self._is_abort(part, batch))
            elif batch.header.records_count and not aborted.hides(batch.header):
                yield batch

    def _is_abort(self, part: Part, batch: Batch) -> bool:
        try:
            marker = read_end_marker(part.fetched.records, batch.position)
        except (ValueError, BrokerError) as error:
            raise CorruptRecords(f"{self._partition}, offset {batch.header.base_offset}: {error}") from None
        return marker is not None and not marker.is_commit

    def add_to(self, columns: Columns, part: Part, batch: Batch) -> None:
        try:
            section = records_of(part.fetched.records, batch.position, batch.header)
            columns.add(section, batch.header, part.first, self._end)
        except BrokerError as error:
            self._raise_unreadable(batch, reason(error))
        except InvalidRecords as error:
            self._raise_unreadable(batch, str(error))

    def _raise_unreadable(self, batch: Batch, why: str) -> NoReturn:
        raise CorruptRecords(
            f"{self._partition}: the batch at offset {batch.header.base_offset} cannot be read: {why}"
        ) from None

    def _begin_anew(self) -> None:
        """With whoever leads the partition now."""
        self.close()
        self._cluster.forget(self._partition.topic)

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
