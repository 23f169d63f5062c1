"""Which topic names are allowed. A name becomes a directory's name and part of a metric's, so nothing else may pass."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import MAX_TOPIC_NAME_LENGTH

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises BrokerError (INVALID_TOPIC_EXCEPTION) with the reason."""
    if name in ("", ".", ".."):
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f'"{name}" is not a topic name')
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"a topic name has at most {MAX_TOPIC_NAME_LENGTH} characters, this one has {len(name)}",
        )
    if _LEGAL.fullmatch(name) is None:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name!r} is not a topic name: only ASCII letters, digits, '.', '_' and '-' are allowed",
        )


class NamesInUse:
    """Finds names that metrics could not tell apart: they turn periods into underscores."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_metric_name = {_metric_name(name): name for name in names}

    def take(self, name: str) -> None:
        """Add a name, or raise BrokerError because another one differs only in periods and underscores."""
        taken = self._by_metric_name.setdefault(_metric_name(name), name)
        if taken != name:
            raise BrokerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f'"{name}" differs from the topic "{taken}" only in periods and underscores',
            )


def _metric_name(name: str) -> str:
    return name.replace(".", "_")
