"""Where the broker is, how long to wait for it, and why it was not reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from penstock.sdk.delivery import DECIDED_HERE
from penstock.sdk.errors import (
    BadConfig,
    BrokerUnreachable,
    PenstockError,
    UnknownTopic,
    is_unknown_topic,
    is_unreachable,
    refused,
)

_log = logging.getLogger("penstock.sdk")

_NO_ANSWER = "no answer"
_PAUSE_S = 0.05

Made = TypeVar("Made")


class _Asks(Protocol):
    """Producer, Consumer and AdminClient of confluent-kafka alike."""

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any: ...

    def poll(self, timeout: float = -1) -> Any: ...


class Connection:
    """What a client's producer, consumers and admin client have in common."""

    def __init__(self, bootstrap: str, config: Mapping[str, str | int | float | bool], timeout_s: float) -> None:
        if taken := sorted(DECIDED_HERE & config.keys()):
            raise BadConfig(f"config may not set {', '.join(taken)}: the client's arguments decide that")
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._config = dict(config)
        self._last_failure = _NO_ANSWER
        self.failures = 0
        """Counts what librdkafka reports of lost connections: whoever waits in vain looks whether it has grown."""

    def settings(self, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """librdkafka's settings: the SDK's own, over them what the caller gave, over that what the promise rests on."""
        own = {"client.id": "penstock-sdk", "allow.auto.create.topics": False, **defaults}
        always = {"bootstrap.servers": self.bootstrap, "error_cb": self._failed, "logger": _log}
        return {**own, **self._config, **always, **fixed}

    def made(self, client: Callable[[dict[str, Any]], Made], settings: dict[str, Any]) -> Made:
        """librdkafka looks at its settings when a client is made."""
        try:
            return client(settings)
        except KafkaException as refused:
            raise BadConfig(f"config: {refused.args[0].str()}") from None

    def unreachable(self, error: KafkaError | None = None) -> BrokerUnreachable:
        reason = self._last_failure
        if reason == _NO_ANSWER and error is not None:
            reason = error.str()
        return BrokerUnreachable(self.bootstrap, self.timeout_s, reason)

    def partition_count(self, asker: _Asks, topic: str) -> int:
        """Asks a broker; raises UnknownTopic or BrokerUnreachable."""
        try:
            known = asker.list_topics(topic, timeout=self.timeout_s).topics[topic]
        except KafkaException as failure:
            asker.poll(0)  # the reason waits in the queue of callbacks
            raise self.translated(failure.args[0], f"topic {topic!r} could not be looked up") from None
        if known.error is not None and is_unknown_topic(known.error):
            raise UnknownTopic(topic)
        if known.error is not None and known.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
            raise refused(known.error, f"topic {topic!r} could not be looked up")
        return len(known.partitions)

    def wait_for_leaders(self, asker: _Asks, topic: str) -> None:
        """A new topic is answered before every broker has heard of it: waits until it can be used."""
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            known = asker.list_topics(topic, timeout=self.timeout_s).topics[topic]
            if known.error is None and known.partitions and all(p.leader >= 0 for p in known.partitions.values()):
                return
            time.sleep(_PAUSE_S)

    def translated(self, error: KafkaError, what: str) -> PenstockError:
        return self.unreachable(error) if is_unreachable(error) else refused(error, what)

    def _failed(self, error: KafkaError) -> None:
        self.failures += 1
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # says how many, not why
            self._last_failure = error.str()
