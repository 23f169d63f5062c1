"""Waiting for a condition with a deadline: the only way a test may wait."""

import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

_PAUSE_S = 0.02


def eventually(condition: Callable[[], Answer | None], timeout: float = 10, message: str = "") -> Answer:
    """Asks until the answer is truthy, and returns that answer; fails with `message` after `timeout` seconds.

    An AssertionError inside the condition counts as "not yet" and is shown when time is up; any other error is a bug
    and is raised.
    """
    deadline = time.monotonic() + timeout
    while True:
        refusal: AssertionError | None = None
        answer: Answer | None = None
        try:
            answer = condition()
        except AssertionError as error:
            refusal = error
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(
                f"{message or 'condition not met'} (waited {timeout} s; last answer: {answer!r})"
            ) from refusal
        time.sleep(_PAUSE_S)


def free_port() -> int:
    """A port that was free a moment ago. Prefer port 0 where the broker can say which port it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def lasting_port() -> int:
    """For a broker that goes and comes back: the kernel gives it to no connection meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)  # below the ports of outgoing connections
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
