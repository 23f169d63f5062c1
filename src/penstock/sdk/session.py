"""What `Client` and `AsyncClient` share: the parts behind the calls, each made when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sdk.connection import Connection
from penstock.sdk.delivery import Delivery
from penstock.sdk.errors import (
    ClientClosed,
    PenstockError,
    TopicExists,
    check_offset,
    commit_refused,
    is_unreachable,
    topic_refused,
)
from penstock.sdk.group_consumer import GroupConsumer
from penstock.sdk.messages import Batch
from penstock.sdk.publisher import Publisher

_BROKER_DECIDES = -1
_MAX_BATCH_SIZE = 1_000_000  # librdkafka's


class Session:
    """A producer, an admin client, a consumer for each topic and group. All calls block; any thread may make them."""

    def __init__(self, connection: Connection, delivery: Delivery) -> None:
        self._connection = connection
        self._delivery = delivery
        self._lock = threading.Lock()
        self._is_closed = False
        self._admin: AdminClient | None = None
        self._publisher: Publisher | None = None
        self._consumers: dict[tuple[str, str], GroupConsumer] = {}

    def create_topic(
        self,
        name: str,
        partitions: int | None,
        replication_factor: int | None,
        config: Mapping[str, str] | None,
        exist_ok: bool,
    ) -> None:
        admin = self._admin_client()
        new_topic = NewTopic(
            name,
            num_partitions=_BROKER_DECIDES if partitions is None else partitions,
            replication_factor=_BROKER_DECIDES if replication_factor is None else replication_factor,
            config=dict(config or {}),
        )
        try:
            admin.create_topics([new_topic], request_timeout=self._connection.timeout_s)[name].result()
            self._connection.wait_for_leaders(admin, name)
        except KafkaException as failure:
            error = failure.args[0]
            if is_unreachable(error):
                raise self._unreachable(admin, error) from None
            refusal = topic_refused(error, name)
            if not (exist_ok and isinstance(refusal, TopicExists)):
                raise refusal from None

    def publisher(self) -> Publisher:
        with self._lock:
            self.check_open()
            if self._publisher is None:
                self._publisher = Publisher(self._connection, self._delivery)
            return self._publisher

    def fetch(self, topic: str, group: str, max_batch_size: int, wait_s: float) -> Batch:
        """The caller sets `handed_out` of the batch when it is."""
        if not 1 <= max_batch_size <= _MAX_BATCH_SIZE:
            raise ValueError(f"max_batch_size is {max_batch_size}: it must be from 1 to {_MAX_BATCH_SIZE}")
        return self.consumer(topic, group).fetch(max_batch_size, wait_s)

    def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        check_offset(offset)
        if (consumer := self._consumers.get((topic, group))) is not None:
            consumer.commit(partition, offset)
        else:
            self._reset_offset(topic, group, partition, offset)

    def consumer(self, topic: str, group: str) -> GroupConsumer:
        if not group:
            raise ValueError("a group needs a name")  # without one confluent-kafka ends the process
        with self._lock:
            self.check_open()
            consumer = self._consumers.get((topic, group))
            if consumer is not None and consumer.is_broken:
                consumer.close(is_clean=False)
                consumer = None
            if consumer is None:
                consumer = GroupConsumer(self._connection, self._delivery, topic, group)
                self._consumers[topic, group] = consumer
            return consumer

    def close(self, *, is_clean: bool) -> None:
        with self._lock:
            self._is_closed = True
            consumers, self._consumers = list(self._consumers.values()), {}
        failures: list[PenstockError] = []
        for consumer in consumers:
            try:
                consumer.close(is_clean=is_clean)
            except PenstockError as failure:
                failures.append(failure)
        if self._publisher is not None:
            self._publisher.close()
        if failures and is_clean:
            raise failures[0]

    def _reset_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """As Kafka's admin tools do it, in the name of no member."""
        admin = self._admin_client()
        request = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])]
        answers = admin.alter_consumer_group_offsets(request, request_timeout=self._connection.timeout_s)
        error: KafkaError | None
        try:
            error = answers[group].result().topic_partitions[0].error
        except KafkaException as failure:
            error = failure.args[0]
        if error is not None and is_unreachable(error):
            raise self._unreachable(admin, error)
        if error is not None:
            raise commit_refused(error, topic, group, {partition: offset})

    def _unreachable(self, admin: AdminClient, error: KafkaError) -> PenstockError:
        admin.poll(0)  # the reason waits in the queue of callbacks
        return self._connection.unreachable(error)

    def _admin_client(self) -> AdminClient:
        with self._lock:
            self.check_open()
            if self._admin is None:
                self._admin = self._connection.made(AdminClient, self._connection.settings({}, {}))
            return self._admin

    def check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client is closed")
