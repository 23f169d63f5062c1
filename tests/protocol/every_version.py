"""What runs over every message in every version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from penstock.protocol.codec import Message
from penstock.protocol.messages.table import MESSAGES, REQUESTS, RESPONSES


def with_versions(*messages: type[Message]) -> Iterator[Any]:
    for message in messages:
        for version in range(message.MIN_VERSION, message.MAX_VERSION + 1):
            yield pytest.param(message, version, id=f"{message.__name__}-v{version}")


every_request_version = pytest.mark.parametrize(("message", "version"), list(with_versions(*REQUESTS.values())))
every_response_version = pytest.mark.parametrize(("message", "version"), list(with_versions(*RESPONSES.values())))
every_version = pytest.mark.parametrize(
    ("message", "version"), [parameters for pair in MESSAGES for parameters in with_versions(*pair)]
)


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
