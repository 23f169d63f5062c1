"""What may happen to a message when something dies: lost, or delivered twice."""

from collections.abc import Mapping
from enum import Enum


class Delivery(Enum):
    """The promise of a client, for what it publishes and for what it consumes."""

    AT_MOST_ONCE = "at most once"
    """Never twice, but a message may be lost.

    `publish` does not wait for the broker (acks=0) and does not try again. `consume` commits a batch before it returns
    it: a worker that dies while it works on the batch leaves the rest of it undone.
    """

    AT_LEAST_ONCE = "at least once"
    """Never lost, but a message may be delivered again. The default.

    `publish` returns when every in-sync replica has the message (acks=all), and tries again without writing it twice
    (idempotence). `consume` commits a batch when the next one is asked for: a worker that dies before that finds the
    whole batch again.
    """


PRODUCER_SETTINGS: Mapping[Delivery, Mapping[str, str | int | bool]] = {
    Delivery.AT_MOST_ONCE: {"acks": 0, "message.send.max.retries": 0},
    Delivery.AT_LEAST_ONCE: {"acks": "all", "enable.idempotence": True},
}

DECIDED_HERE = frozenset(
    {
        "bootstrap.servers",
        "group.id",
        "acks",
        "request.required.acks",
        "retries",
        "message.send.max.retries",
        "enable.idempotence",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "error_cb",
        "logger",
    }
)
"""Settings of librdkafka that a caller may not give, because the promise (or the SDK itself) rests on them."""
