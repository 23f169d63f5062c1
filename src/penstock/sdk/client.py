"""The synchronous client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from penstock.sdk.connection import Connection
from penstock.sdk.delivery import Delivery
from penstock.sdk.messages import Batch, Headers, Published
from penstock.sdk.publisher import Outgoing, Text
from penstock.sdk.session import Session

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 15.0
DEFAULT_WAIT_S = 1.0
DEFAULT_BATCH_SIZE = 100


class Client:
    """Publishes to topics and consumes from them, with the promise that `delivery` names.

    Use it with `with`: leaving the block commits what was processed, leaves the groups and sends what is queued.
    Leaving it by an exception commits nothing of the batches in hand, so that they are delivered again.

    Its calls may be made from any thread. Batches of one topic and group belong to one loop: a second worker is a
    second Client.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_BOOTSTRAP,
        *,
        delivery: Delivery = Delivery.AT_LEAST_ONCE,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        config: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """Does not connect yet: the first call does.

        bootstrap: `host:port` of one or more brokers, with commas between.
        delivery: what may happen to a message when something dies; for `publish` and `consume` alike.
        timeout_s: how long a call waits for the broker before it raises BrokerUnreachable.
        config: settings of librdkafka, for what has no argument here (TLS, SASL, group.instance.id, ...).
        """
        self._session = Session(Connection(bootstrap, config or {}, timeout_s), delivery)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        config: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Creates a topic and returns when it can be used. What is not given the broker decides.

        config: settings of the topic, such as `{"retention.ms": "86400000"}`.
        exist_ok: a topic of this name that is there already is left as it is, instead of TopicExists.
        """
        self._session.create_topic(name, partitions, replication_factor, config, exist_ok)

    def publish(self, topic: str, key: Text, payload: Text, *, headers: Headers | None = None) -> Published:
        """Publishes one message and returns where it landed. For many messages, `publish_many` is far faster.

        key: messages with the same key go to the same partition and stay in order; None: to each partition in turn.
        payload: None is a tombstone, which deletes the key in a compacted topic.

        Raises UnknownTopic, MessageTooLarge, PublishFailed or BrokerUnreachable.
        """
        return self._session.publisher().submit(topic, key, payload, headers).result()

    def publish_many(self, topic: str, messages: Iterable[Outgoing]) -> list[Published]:
        """Publishes all messages, each `(key, payload)` or `(key, payload, headers)`, without waiting for each.

        Returns where they landed, in the order given, once the last is settled. Raises PartlyPublished if any failed.
        """
        return self._session.publisher().publish_many(topic, messages)

    def consume(
        self, topic: str, group: str, max_batch_size: int = DEFAULT_BATCH_SIZE, *, wait_s: float = DEFAULT_WAIT_S
    ) -> Batch:
        """The next messages of the partitions that this client has in the group, one to `max_batch_size` of them.

        Returns at once when there are messages, and an empty batch when none came within `wait_s`. The first call joins
        the group, and its `wait_s` begins when partitions are assigned and can be read. A group that has committed
        nothing starts at the beginning of the topic.

        At least once: this call commits the batch before it, as a whole: asking for more says that it is done.
        At most once: this call commits the batch that it returns.

        Raises UnknownTopic, BrokerUnreachable or CommitRefused (the batch before will be delivered again). After any of
        them the call can be made again.
        """
        batch = self._session.fetch(topic, group, max_batch_size, wait_s)
        batch.handed_out = True
        return batch

    def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Sets the group's offset in a partition: the offset of the next message to deliver, not of the last one done.

        While this client consumes with the group, this says how far the batch in hand is done in this partition, and
        `consume` does not commit it again. Otherwise the group must have no members; its next ones start there.

        Raises CommitRefused when the group does not take it, because this client has lost its place in it, or because
        others are its members.
        """
        self._session.commit_offset(topic, group, partition, offset)

    def seek(self, topic: str, group: str, partition: int, offset: int) -> None:
        """The next batch goes on from this offset; nothing is committed by this.

        Joins the group if need be. Raises NotAssigned if the partition is another member's.
        """
        self._session.consumer(topic, group).seek(partition, offset)

    def pause(self, topic: str, group: str, partition: int | None = None) -> None:
        """`consume` returns nothing of this partition (None: of any) until `resume`. The group does not notice."""
        self._session.consumer(topic, group).pause(partition)

    def resume(self, topic: str, group: str, partition: int | None = None) -> None:
        """Ends a pause of this partition (None: of all), at the message where it began."""
        self._session.consumer(topic, group).resume(partition)

    def close(self) -> None:
        """Commits the messages that the loops over the batches have gone past, leaves the groups, sends what is queued.

        Raises what went wrong with that, when everything is closed.
        """
        self._session.close(is_clean=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close(is_clean=error is None)
