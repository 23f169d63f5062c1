"""A consumer of kafka-python in a group."""

from collections.abc import Mapping, Sequence
from typing import Any

import kafka
import kafka.errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.compat.clients.group_consumers import (
    MAX_POLL_INTERVAL_MS,
    MAX_RECORDS,
    GroupConsumer,
    Listener,
    Options,
    Partition,
    Record,
    Refusal,
    pairs,
)


class Consumer(GroupConsumer):
    ASSIGNORS: Mapping[str, type[Any]] = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def start(self, options: Options, listener: Listener) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=options["bootstrap"],
            group_id=options["group"],
            group_instance_id=options.get("instance"),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1_000,
            retry_backoff_ms=50,
            reconnect_backoff_max_ms=200,
            session_timeout_ms=options["session_ms"],
            heartbeat_interval_ms=options["heartbeat_ms"],
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            max_poll_records=MAX_RECORDS,
            partition_assignment_strategy=[self.ASSIGNORS[name] for name in options["assignors"]],
        )
        self._consumer.subscribe(options["topics"], listener=_Listener(listener))

    def poll(self, timeout_s: float) -> list[Record]:
        # An assignment that arrives while a poll is giving up is lost on this client (3.0.12): it gets more time.
        polled = self._consumer.poll(timeout_ms=int(10 * timeout_s * 1000))
        return [(each.topic, each.partition, each.offset) for records in polled.values() for each in records]

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        wanted = {
            kafka.TopicPartition(*partition): kafka.OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        try:
            self._consumer.commit(wanted, timeout_ms=10_000)
        except (kafka.errors.KafkaError, AssertionError) as failure:
            raise Refusal(f"{type(failure).__name__}: {failure}") from None

    def generation(self) -> int | None:
        return int(self._consumer._coordinator._generation.generation_id)

    def member_id(self) -> str:
        return str(self._consumer._coordinator._generation.member_id)

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class _Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def on_partitions_assigned(self, assigned: Sequence[Any]) -> None:
        self._listener.assigned(pairs(assigned))

    def on_partitions_revoked(self, revoked: Sequence[Any]) -> None:
        self._listener.revoked(pairs(revoked))

    def on_partitions_lost(self, lost: Sequence[Any]) -> None:
        self._listener.lost(pairs(lost))
