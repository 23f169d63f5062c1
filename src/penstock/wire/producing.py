"""A producer for one thread that writes much: rows in columns become batches, and batches are sent while more are made.

Nothing happens but within its calls. What must stay true:
- Every batch is sent until it is acknowledged or refused for good, within delivery.timeout.ms (`lanes`).
- What is gathered and what is not acknowledged have buffer.memory together: who finds it full waits.
- What was put is sent as soon as nothing else is under way, so nobody waits for rows that may not come for long.
- All rows go to the topic of that name that the first ones went to. Leaders are asked by name, as in all versions of
  Produce that transactions of any broker may use (v13 has ids, but adds partitions by itself: see `lines`), and take
  rows for a topic that was made anew since. So before it is said that all is written, the ids are looked up.

After anything was raised, only `abort` and `close` are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.protocol.messages.records import PartitionProduceResponse
from penstock.protocol.records.gathering import Gathering, RowColumns, TooLarge, sealed
from penstock.wire.cluster import Cluster, Node
from penstock.wire.connection import with_answers
from penstock.wire.errors import (
    NoAnswer,
    NotNow,
    NotWritten,
    RowTooLarge,
    TimedOut,
    TopicRecreated,
    WireError,
    check,
    reason,
)
from penstock.wire.identity import Identity, Transactions, new_identity
from penstock.wire.lanes import Lane, Sealed, StateLost
from penstock.wire.lines import Line
from penstock.wire.offsets import is_passing
from penstock.wire.patience import PASSING, UNKNOWN_FOR_S, Patience
from penstock.wire.producer_settings import ProducerSettings

# Of the buffer: what is gathered by one topic, and by all, before it is sent as it is.
_GATHERED_SHARE = 4
# Several batches share a request up to that.
_REQUEST_BYTES = 1 << 20
# Said before anything is written. Others may be said of what is in the log, by a leader that is none any more.
_NOTHING_WRITTEN = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Producer:
    """Idempotent; with a transactional id, all that it writes is in transactions. Everything raises WireError.

    `seed` says which partition the first rows without a key go to.
    """

    def __init__(
        self, cluster: Cluster, settings: ProducerSettings, transactional_id: str | None = None, *, seed: int = 0
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._seed = seed
        self._identity: Identity | None = None
        self._transactions: Transactions | None = None
        if transactional_id is not None:
            self._transactions = Transactions(
                cluster, transactional_id, settings.transaction_timeout_ms, settings.delivery_timeout_s
            )
        self._gathered: dict[str, Gathering] = {}
        self._topic_ids: dict[str, TopicId] = {}  # all zeros from brokers that have none
        self._is_unchecked = False  # something was acknowledged since they were looked up
        self._lanes: dict[TopicPartition, Lane] = {}
        self._busy: dict[Lane, None] = {}  # those that are not idle, in the order in which they came to be so
        self._lines: dict[Node, Line] = {}
        self._unacknowledged_bytes = 0
        self._left_at_s = time.monotonic()
        self._gathered_limit = max(1, settings.buffer_bytes // _GATHERED_SHARE)
        self._unacknowledged_limit = settings.buffer_bytes - 2 * self._gathered_limit

    # Rows

    def put(self, topic: str, partitions: int, rows: RowColumns) -> None:
        """`partitions` is how many the topic has. Returns when all are gathered, and most on their way."""
        self._come_back()
        gathering = self._gathering(topic, partitions)
        start = 0
        while start < rows.rows:
            try:
                start = gathering.add(rows, start, time.time_ns() // 1_000_000)
            except TooLarge as error:
                raise RowTooLarge(error.size, self._settings.max_bytes) from None
            if gathering.full >= 0:
                self._seal(topic, gathering, gathering.full)
            elif sum(each.size for each in self._gathered.values()) >= self._gathered_limit:
                self._seal_all()
            self._serve()
        if not self._busy:
            self._seal_all()
            self._send()
        self._left_at_s = time.monotonic()

    def flush(self) -> None:
        """Returns when everything is acknowledged, and none of the topics was made anew meanwhile."""
        self._come_back()
        self._seal_all()
        while self._busy:
            self._send()
            self._receive(self._pause_s())
        self._check_topics()
        self._left_at_s = time.monotonic()

    def _come_back(self) -> None:
        """The time between two calls is the caller's: it is not held against the brokers."""
        away_s = time.monotonic() - self._left_at_s
        for lane in self._busy:
            lane.rested(away_s)

    def _gathering(self, topic: str, partitions: int) -> Gathering:
        found = self._gathered.get(topic)
        if found is None:
            settings = self._settings
            found = self._gathered[topic] = Gathering(
                partitions,
                batch_bytes=settings.batch_bytes,
                max_bytes=settings.max_bytes,
                open_bytes=self._gathered_limit,
                sticky=self._seed % partitions,
            )
        elif partitions > found.partitions:
            found.widen(partitions)
        return found

    def _seal_all(self) -> None:
        for topic, gathering in self._gathered.items():
            for partition in gathering.waiting():
                self._seal(topic, gathering, partition)

    def _seal(self, topic: str, gathering: Gathering, partition: int) -> None:
        if self._identity is None:
            assert self._transactions is None, "fenced first"
            self._identity = new_identity(self._cluster)
        gathered = gathering.take(partition)
        where = TopicPartition(topic, partition)
        lane = self._lanes.get(where) or self._lanes.setdefault(where, Lane(where))
        batch = sealed(
            gathered,
            codec=self._settings.codec,
            level=self._settings.level,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=lane.next_sequence,
            is_transactional=self._transactions is not None,
        )
        lane.append(batch, gathered.rows)
        self._busy[lane] = None
        self._unacknowledged_bytes += len(batch)

    # Transactions

    def fence(self) -> None:
        """Earlier producers of this transactional id can do nothing more, and what they left open is aborted. This one
        goes on with a new epoch, whose sequences begin with 0.
        """
        assert self._transactions is not None and not self._busy
        self._identity = self._transactions.fence()
        self._lanes.clear()

    def commit(self) -> None:
        """Everything that was put since the last time. When it fails, it may be committed nevertheless."""
        assert self._transactions is not None
        self.flush()
        self._transactions.end(is_commit=True)

    def abort(self, within_s: float) -> None:
        """Once nothing is under way any more that would come after it."""
        assert self._transactions is not None
        until_s = time.monotonic() + within_s
        for line in self._lines.values():
            with suppress(WireError):
                while line.under_way and with_answers([line.connection], until_s - time.monotonic()):
                    line.receive()
        self._transactions.end(is_commit=False, within_s=max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    # Sending

    def _serve(self) -> None:
        self._send()
        self._receive(0)
        while self._unacknowledged_bytes > self._unacknowledged_limit:
            self._send()
            self._receive(self._pause_s())

    def _send(self) -> None:
        """All that can be sent now."""
        while by_node := self._ready():
            for node, batches in by_node.items():
                self._send_to(node, batches)

    def _ready(self) -> dict[Node, list[Sealed]]:
        """For every leader that takes one, a request."""
        now_s = time.monotonic()
        ready = [(lane, batch) for lane in self._busy if (batch := lane.next_batch(now_s)) is not None]
        if ready and self._transactions is not None:
            self._transactions.add([lane.partition for lane, _ in ready])
        by_node: dict[Node, list[Sealed]] = {}
        for lane, batch in ready:
            node = self._leader_of(lane)
            if node is None or not self._has_room(node):
                continue
            together = by_node.setdefault(node, [])
            if not together or sum(len(each.batch) for each in together) + len(batch.batch) <= _REQUEST_BYTES:
                together.append(batch)
        return by_node

    def _leader_of(self, lane: Lane) -> Node | None:
        if lane.node is not None and lane.has_unanswered:
            return lane.node
        try:
            leader = self._cluster.leader_of(lane.partition)
        except PASSING as error:
            self._delay([lane], error)
            return None
        self._check_id(lane.partition.topic, leader.topic_id)
        lane.led_by(leader.node)
        return leader.node

    def _check_topics(self) -> None:
        """One request, whatever was written since the last time."""
        patience = Patience(self._cluster.settings, self._settings.delivery_timeout_s, "delivery.timeout.ms")
        while self._is_unchecked:
            try:
                found = self._cluster.look_up(self._topic_ids)
            except PASSING as error:
                patience.after("looking up the topics that were written to", error)
            else:
                for topic in found.values():
                    self._check_id(topic.name, topic.id)
                self._is_unchecked = False

    def _check_id(self, topic: str, topic_id: TopicId) -> None:
        first = self._topic_ids.setdefault(topic, topic_id)
        if first != topic_id and NO_TOPIC_ID not in (first, topic_id):
            raise TopicRecreated(f'topic "{topic}" was deleted and created anew while it was written to')

    def _has_room(self, node: Node) -> bool:
        line = self._lines.get(node)
        return line is None or len(line.under_way) < self._settings.max_in_flight

    def _send_to(self, node: Node, batches: Sequence[Sealed]) -> None:
        try:
            line = self._lines.get(node) or self._connect(node)
        except NoAnswer as error:
            self._delay([each.lane for each in batches], error)
            return
        for each in batches:
            each.lane.sent(each)
        try:
            line.send(batches, time.monotonic())
        except NoAnswer as error:
            self._give_up(node, error)
            self._fail(batches, error)

    def _connect(self, node: Node) -> Line:
        transactional_id = None if self._transactions is None else self._transactions.id
        timeout_s = self._cluster.settings.request_timeout_s
        line = Line(self._cluster.connect(node), transactional_id, self._settings.codec, timeout_s)
        self._lines[node] = line
        return line

    # Answers

    def _pause_s(self) -> float:
        """How long nothing happens but answers."""
        now_s = time.monotonic()
        timeout_s = self._cluster.settings.request_timeout_s
        until = [line.under_way[0].sent_at_s + timeout_s for line in self._lines.values() if line.under_way]
        # Who could have been tried again before now waits for room on a connection, which an answer makes.
        retries = [lane.trouble.retry_at_s for lane in self._busy if lane.trouble and not lane.has_unanswered]
        until += [retry_at_s for retry_at_s in retries if retry_at_s > now_s]
        return max(0.0, min(until, default=now_s) - now_s)

    def _receive(self, timeout_s: float) -> None:
        """What has come, or comes within that time."""
        asked = {line.connection: node for node, line in self._lines.items() if line.under_way}
        if not asked:
            time.sleep(timeout_s)
            return
        answering = with_answers(asked, timeout_s)
        for connection in answering:
            node = asked[connection]
            line = self._lines[node]
            try:
                batches, rows = line.receive()
            except NoAnswer as error:
                self._give_up(node, error)
            except WireError:
                self._lines.pop(node).close()
                raise
            else:
                self._settle(batches, rows)
        self._expire([node for connection, node in asked.items() if connection not in answering])

    def _expire(self, silent: Iterable[Node]) -> None:
        """Who has just answered is not silent: more of its answers may wait to be read, from before we came back."""
        timeout_s = self._cluster.settings.request_timeout_s
        now_s = time.monotonic()
        for node in silent:
            line = self._lines[node]
            if now_s - line.under_way[0].sent_at_s >= timeout_s:
                address = str(line.connection.address)
                self._give_up(node, NoAnswer(f"broker {node} did not answer within {timeout_s:g} s", address))

    def _settle(self, batches: Sequence[Sealed], rows: dict[TopicPartition, PartitionProduceResponse]) -> None:
        for each in batches:
            row = rows.get(each.lane.partition)
            if row is None:
                self._fail([each], NotNow(f"the broker says nothing of {each.lane.partition}"))
            elif row.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._acknowledge(each)
            else:
                self._refused(each, row)

    def _acknowledge(self, batch: Sealed) -> None:
        try:
            acknowledged = batch.lane.acknowledged(batch, time.monotonic())
        except StateLost:
            raise NotWritten(
                f"writing to {batch.lane.partition}: the broker has refused a batch and taken the next one. It has "
                "lost what it knew of this producer, or the topic was deleted and created anew",
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ) from None
        self._is_unchecked = True
        self._unacknowledged_bytes -= sum(len(each.batch) for each in acknowledged)
        if batch.lane.is_idle:
            del self._busy[batch.lane]

    def _refused(self, batch: Sealed, row: PartitionProduceResponse) -> None:
        lane = batch.lane
        try:
            check(row.error_code, row.error_message)
        except BrokerError as refused:
            error = NotNow(f"the broker says {reason(refused)}")
            if refused.code in _NOTHING_WRITTEN:
                self._postpone(lane, error, partial(lane.refused, batch))
            elif is_passing(row.error_code):
                self._fail([batch], error)
            elif refused.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or self._is_lost(batch, error):
                what = f"writing {batch.count} records, {len(batch.batch)} bytes, to {lane.partition}"
                raise NotWritten(f"{what}: {reason(refused)}", refused.code) from None

    def _is_lost(self, batch: Sealed, error: WireError) -> bool:
        now_s = time.monotonic()
        return batch.lane.out_of_order(batch, error, now_s, self._cluster.settings.retry_backoff_s)

    # Trouble

    def _give_up(self, node: Node, error: NoAnswer) -> None:
        """On a connection; what was under way is not known to have come, or not to have."""
        line = self._lines.pop(node)
        line.close()
        for request in line.under_way:
            self._fail(request.batches, error)

    def _fail(self, batches: Iterable[Sealed], error: WireError) -> None:
        for each in batches:
            self._postpone(each.lane, error, partial(each.lane.failed, each))

    def _delay(self, lanes: Iterable[Lane], error: WireError) -> None:
        for lane in lanes:
            self._postpone(lane, error, lane.delayed)

    def _postpone(self, lane: Lane, error: WireError, how: Callable[[WireError, float, float], None]) -> None:
        now_s = time.monotonic()
        how(error, now_s, self._cluster.settings.retry_backoff_s)
        self._cluster.doubt(lane.partition.topic)
        self._check_patience(lane, now_s)

    def _check_patience(self, lane: Lane, now_s: float) -> None:
        trouble, limit_s = lane.trouble, self._settings.delivery_timeout_s
        assert trouble is not None
        if trouble.unknown_since_s is not None and now_s - trouble.unknown_since_s >= min(UNKNOWN_FOR_S, limit_s):
            raise trouble.error
        if now_s - trouble.since_s >= limit_s:
            raise TimedOut(
                f"writing to {lane.partition}: nothing was acknowledged for {limit_s:g} s (delivery.timeout.ms): "
                f"{trouble.error}"
            )
