"""Reading with confluent-kafka, with every position written down.

Records are taken one by one, and what was taken is written down before a rebalance is answered: a record in the history
belongs to the assignment that is above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.workers.process import Options, Stop, client_settings
from tests.history.events import NO_OFFSET, Position, WriteId
from tests.history.reading import Partition
from tests.history.recording import Recorder

Polled = tuple[str, int, int, WriteId]

_ATTEMPT_S = 5.0
# A broker that is down, and a group that went on without us: librdkafka joins again by itself.
_PASSING = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._MAX_POLL_EXCEEDED)


class Reader:
    def __init__(self, options: Options, recorder: Recorder, stop: Stop) -> None:
        self._recorder = recorder
        self._stop = stop
        self._begin = 0
        self._polled: list[Polled] = []
        self.ends: dict[Partition, int] = {}
        self.consumer = Consumer(
            client_settings(options)
            | {
                "group.id": options.group or "never-joined",
                "isolation.level": options.isolation,
                "session.timeout.ms": options.session_ms,
                "heartbeat.interval.ms": 500,
                # Who hangs in a transaction must not hold up the whole group for five minutes.
                "max.poll.interval.ms": 20_000,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                # Nothing is deleted in these tests: an offset that is not there is a fault.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "check.crcs": True,
            }
        )

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: self._assigned(partitions),
            on_revoke=lambda _, partitions: self._revoked(),
            on_lost=lambda _, partitions: self._revoked(),
        )

    def _revoked(self) -> None:
        """What was polled of it is no longer ours to commit or to copy."""
        self._write_down()

    def rewind(self) -> None:
        """Back to what the group has committed."""
        self._assigned(self.consumer.assignment())

    def poll(self, limit: int, timeout_s: float) -> list[Polled]:
        """Some records, of partitions that are still ours."""
        self._begin = self._recorder.now()
        while len(self._polled) < limit:
            message = self.consumer.poll(0 if self._polled else timeout_s)
            if message is None:
                break
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            error, value = message.error(), message.value()
            if error is None:
                assert topic is not None and partition is not None and offset is not None and value is not None
                record_id = bytes(value).partition(b" ")[0].decode(errors="replace")
                self._polled.append((topic, partition, offset, WriteId(record_id)))
            elif error.code() == KafkaError._PARTITION_EOF:
                assert topic is not None and partition is not None and offset is not None
                self.ends[(topic, partition)] = offset
            elif not error.retriable() and error.code() not in _PASSING:
                raise KafkaException(error)
        return self._write_down()

    def _write_down(self) -> list[Polled]:
        polled, self._polled = self._polled, []
        if polled:
            self._recorder.polled(self._begin, polled)
        return polled

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._write_down()
        if not partitions:
            return
        begin = self._recorder.now()
        starts = []
        for told in self._committed(partitions):
            offset = max(told.offset, NO_OFFSET)  # librdkafka says -1001 for none
            self._recorder.positioned(begin, (told.topic, told.partition, offset), is_committed=True)
            starts.append(TopicPartition(told.topic, told.partition, OFFSET_BEGINNING if offset < 0 else offset))
        self.consumer.assign(starts)

    def _committed(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        while True:
            try:
                told: list[TopicPartition] = self.consumer.committed(list(partitions), timeout=_ATTEMPT_S)
            except KafkaException:
                if self._stop.is_asked:
                    return []
                continue
            if all(each.error is None for each in told):
                return told

    def commit(self, positions: Sequence[Position]) -> None:
        """An error may come from a second try after a first that was heard: its outcome is unknown."""
        line = self._recorder.committing(positions)
        offsets = [TopicPartition(*position) for position in positions]
        try:
            answered: Any = self.consumer.commit(offsets=offsets, asynchronous=False)
            is_ok = bool(answered) and all(each.error is None for each in answered)
        except KafkaException:
            is_ok = False
        self._recorder.committed(line, "ok" if is_ok else "unknown")


def positions_after(records: Sequence[Polled]) -> list[Position]:
    after = {(topic, partition): offset + 1 for topic, partition, offset, _ in records}
    return [(topic, partition, offset) for (topic, partition), offset in after.items()]
