"""A consumer of confluent-kafka in a group, of either protocol."""

import struct
from collections.abc import Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

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
    def start(self, options: Options, listener: Listener) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": options["bootstrap"],
            "group.id": options["group"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 500,
            "metadata.max.age.ms": 5_000,
            "log_level": 0,
            "max.poll.interval.ms": options.get("max_poll_ms", MAX_POLL_INTERVAL_MS),
            "group.protocol": options["protocol"],
            "error_cb": self._failed,
        }
        if options["protocol"] == "classic":
            config["session.timeout.ms"] = options["session_ms"]
            config["heartbeat.interval.ms"] = options["heartbeat_ms"]
            config["partition.assignment.strategy"] = ",".join(options["assignors"])
        elif options["assignors"]:
            config["group.remote.assignor"] = options["assignors"][0]
        if options.get("instance"):
            config["group.instance.id"] = options["instance"]
        self._fatal: KafkaError | None = None
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.subscribe(
            options["topics"],
            on_assign=lambda _, partitions: listener.assigned(pairs(partitions)),
            on_revoke=lambda _, partitions: listener.revoked(pairs(partitions)),
            on_lost=lambda _, partitions: listener.lost(pairs(partitions)),
        )

    def _failed(self, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL or error.fatal():
            self._fatal = error

    def poll(self, timeout_s: float) -> list[Record]:
        records: list[Record] = []
        for message in self._consumer.consume(MAX_RECORDS, timeout_s):
            error = message.error()
            if error is not None:
                self._failed(error)
            else:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None and partition is not None and offset is not None
                records.append((topic, partition, offset))
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        return records

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        wanted = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            for partition in self._consumer.commit(offsets=wanted, asynchronous=False) or ():
                if partition.error is not None:
                    raise Refusal(str(partition.error))
        except KafkaException as failure:
            raise Refusal(str(failure)) from None

    def generation(self) -> int | None:
        """From what librdkafka says of itself for transactions: a mark, the generation, then names."""
        told = bytes(self._consumer.consumer_group_metadata())
        (generation,) = struct.unpack_from("=i", told, told.index(b":") + 1)
        return int(generation)

    def member_id(self) -> str:
        return str(self._consumer.memberid() or "")

    def close(self) -> None:
        self._consumer.close()
