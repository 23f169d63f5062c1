"""How a row of the specification becomes a parameter of a test: its number stands first in the test's id."""

from typing import Any

import pytest

from tests.testkit import KafkaBroker, broker_under_test

AGAINST_KAFKA = broker_under_test() is KafkaBroker

not_for_kafka = pytest.mark.skipif(AGAINST_KAFKA, reason="here we mean to differ from Kafka")


def row(number: int, name: str, *values: Any, only_ours: bool = False) -> Any:
    """`only_ours`: Kafka answers otherwise, or not at all, and we mean to differ."""
    marks = [not_for_kafka] if only_ours else []
    return pytest.param(*values, id=f"row{number:02}-{name.replace(' ', '-')}", marks=marks)
