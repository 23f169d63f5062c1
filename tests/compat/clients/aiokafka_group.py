"""A consumer of aiokafka in a group."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import aiokafka
import aiokafka.errors
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

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
    """Its event loop runs in a thread of its own, so that the member may wait for its test without stopping it."""

    ASSIGNORS: Mapping[str, type[Any]] = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start(self, options: Options, listener: Listener) -> None:
        self._run(self._start(options, listener))

    async def _start(self, options: Options, listener: Listener) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=options["bootstrap"],
            group_id=options["group"],
            group_instance_id=options.get("instance"),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1_000,
            retry_backoff_ms=50,
            session_timeout_ms=options["session_ms"],
            heartbeat_interval_ms=options["heartbeat_ms"],
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            partition_assignment_strategy=[self.ASSIGNORS[name] for name in options["assignors"]],
        )
        self._consumer.subscribe(options["topics"], listener=_Listener(listener))
        await self._consumer.start()

    def poll(self, timeout_s: float) -> list[Record]:
        polled = self._run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=MAX_RECORDS))
        return [(each.topic, each.partition, each.offset) for records in polled.values() for each in records]

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        wanted = {aiokafka.TopicPartition(*partition): offset for partition, offset in offsets.items()}
        try:
            self._run(self._consumer.commit(wanted))
        except aiokafka.errors.KafkaError as failure:
            raise Refusal(f"{type(failure).__name__}: {failure}") from None

    def generation(self) -> int | None:
        return int(self._consumer._coordinator.generation)

    def member_id(self) -> str:
        return str(self._consumer._coordinator.member_id)

    def close(self) -> None:
        self._run(self._consumer.stop())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def on_partitions_assigned(self, assigned: Sequence[Any]) -> None:
        self._listener.assigned(pairs(sorted(assigned)))

    async def on_partitions_revoked(self, revoked: Sequence[Any]) -> None:
        self._listener.revoked(pairs(sorted(revoked)))
