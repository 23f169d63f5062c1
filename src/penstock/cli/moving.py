"""Carrying out a plan: some partitions at a time, with progress on standard error, until all have moved.

What has begun goes on in the cluster when the command is stopped; what has not is found again by the next one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from penstock.cli.client import fail
from penstock.cli.cluster_client import ClusterClient
from penstock.cli.cluster_view import ClusterView, plan_document, print_plan
from penstock.cli.terminal import counted, print_json
from penstock.controller.balance import Move
from penstock.core.ids import TopicPartition

# More at the same time would not be faster, and clients would notice it more.
AT_ONCE = 50
LOOK_EVERY_S = 0.3
_SAY_WAITING_AFTER_S = 15.0
_NAMED = 3


def show_plan(client: ClusterClient, view: ClusterView, moves: Sequence[Move], *, as_json: bool) -> None:
    """As a table only if there is something in it."""
    sizes = client.sizes() if moves else {}
    if as_json:
        print_json(plan_document(moves, sizes))
    elif moves:
        print_plan(view, moves, sizes)


def carry_out(client: ClusterClient, moves: Sequence[Move]) -> None:
    """Returns when every partition is where it should be."""
    left = list(moves)
    moving: set[TopicPartition] = set()
    progress = _Progress(len(moves))
    try:
        while left or moving:
            some, left = left[: AT_ONCE - len(moving)], left[AT_ONCE - len(moving) :]
            if some:
                client.reassign({move.topic_partition: move.after for move in some})
                moving |= {move.topic_partition for move in some}
            moving &= client.ongoing().keys()
            progress.show(len(left), moving)
            if moving:
                time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        fail(
            f"stopped: {counted(len(moving), 'partition')} still moving, {len(left)} not begun; the same command again "
            "takes up where this one stopped",
            130,
        )


def wait_until_moved(client: ClusterClient, partitions: set[TopicPartition]) -> None:
    """Of what somebody else has begun."""
    progress = _Progress(len(partitions))
    try:
        while partitions := partitions & client.ongoing().keys():
            progress.show(0, partitions)
            time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        fail(f"stopped: {counted(len(partitions), 'partition')} still moving", 130)


class _Progress:
    def __init__(self, total: int) -> None:
        self._total = total
        self._done = -1
        self._since = time.monotonic()

    def show(self, left: int, moving: set[TopicPartition]) -> None:
        done = self._total - left - len(moving)
        now = time.monotonic()
        if done != self._done:
            self._done, self._since = done, now
            print(f"penstock: {done} of {counted(self._total, 'partition')} moved", file=sys.stderr)
        elif now - self._since >= _SAY_WAITING_AFTER_S:
            self._since = now
            named = ", ".join(map(str, sorted(moving)[:_NAMED])) + (", ..." if len(moving) > _NAMED else "")
            print(f"penstock: still moving {named}", file=sys.stderr)
