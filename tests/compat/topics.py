"""Topics for tests: how one is asked for, and when it counts as there."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from tests.compat.clients.interface import Refused
from tests.testkit import eventually

UNKNOWN_TOPIC_OR_PARTITION = 3

Answer = TypeVar("Answer")


class CreateTopic(Protocol):
    """The fixture `create_topic`: creates the test's own topic and returns its name when it can be used."""

    def __call__(self, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str: ...


def eventually_known(question: Callable[[], Answer]) -> Answer:
    """Kafka answers CreateTopics before every broker knows the topic: "unknown topic" means "not yet" here."""

    def ask() -> Answer:
        try:
            return question()
        except Refused as refusal:
            assert refusal.error_code != UNKNOWN_TOPIC_OR_PARTITION, refusal
            raise

    return eventually(ask, message="the topic did not come to be known")
