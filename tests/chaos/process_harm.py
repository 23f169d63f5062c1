"""Brokers that are killed, paused and restarted, one, two or all at a time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.conftest import FULL
from tests.chaos.harming import Harming, Kind, let_pass
from tests.testkit import Broker, eventually

# Somebody waits; others have taken over when it wakes; they have gone on for long.
PAUSES_S = (0.5, 1.5, 4) if FULL else (0.5, 1.5)


class ProcessHarm:
    def __init__(self, harming: Harming, may_be_paused: Callable[[Broker], bool] = lambda broker: True) -> None:
        """`may_be_paused` is asked about a broker that stands still already: whether it may stay so."""
        self._harming = harming
        self._cluster = harming.cluster
        self._luck = harming.luck
        self._may_be_paused = may_be_paused

    @property
    def kinds(self) -> list[Kind]:
        kinds = [
            self.kill_a_broker,
            self.kill_the_controller,
            self.pause_a_broker,
            self.restart_one_after_the_other,
            self.two_at_once,
        ]
        return [*kinds, self.kill_all] if FULL else kinds

    def kill_a_broker(self) -> None:
        self._kill(self._harming.anyone())

    def kill_the_controller(self) -> None:
        self._kill(self._harming.controller())

    def _kill(self, broker: Broker) -> None:
        """It comes back at once, or when the others have gone on without it."""
        self._harming.say(f"  {broker.name} killed")
        broker.kill()
        if self._luck.random() < 0.7:
            self._harming.until_all_get_on("a broker is away")
            self._harming.check_invariants()
        self._bring_back(broker)

    def pause_a_broker(self) -> None:
        """What came while it stood still it does when it wakes, and believes to lead what others have."""
        with self._paused(self._luck.choice((self._harming.anyone(), self._harming.controller()))):
            if self._luck.random() < 0.5:
                self._harming.until_all_get_on("a broker stands still")
                self._harming.check_invariants()
            else:
                let_pass(self._luck.choice(PAUSES_S))

    def restart_one_after_the_other(self) -> None:
        """As for an upgrade: the next when the last one has caught up."""
        for broker in self._luck.sample(list(self._cluster), len(self._cluster.ids)):
            self._harming.until_settled()
            self._harming.say(f"  {broker.name} restarts")
            broker.restart(same_port=True)
            self._harming.until_all_get_on("a broker was restarted")

    def two_at_once(self) -> None:
        """Nothing can be committed meanwhile."""
        one, other = self._luck.sample(list(self._cluster), 2)
        if self._luck.random() < 0.5:
            with self._paused(one):
                self._harming.say(f"  {other.name} killed")
                other.kill()
                let_pass(self._luck.choice(PAUSES_S))
            self._bring_back(other)
            return
        for broker in (one, other):
            self._harming.say(f"  {broker.name} killed")
            broker.kill()
            let_pass(self._luck.choice((0, 0.1, 1.5)))
        self._harming.check_invariants()
        for broker in self._luck.sample((one, other), 2):
            self._bring_back(broker)

    def kill_all(self) -> None:
        for broker in self._cluster:
            self._harming.say(f"  {broker.name} killed")
            broker.kill()
        self._harming.check_invariants()
        for broker in self._luck.sample(list(self._cluster), len(self._cluster.ids)):
            self._bring_back(broker)

    def _bring_back(self, broker: Broker) -> None:
        self._harming.say(f"  {broker.name} comes back")
        broker.restart(same_port=True)

    @contextmanager
    def _paused(self, broker: Broker) -> Iterator[None]:
        eventually(lambda: self._stopped(broker), 10, "it writes metadata all the time")
        self._harming.say(f"  {broker.name} stands still")
        try:
            yield
        finally:
            os.kill(broker.pid, signal.SIGCONT)
            self._harming.say(f"  {broker.name} goes on")

    def _stopped(self, broker: Broker) -> bool:
        os.kill(broker.pid, signal.SIGSTOP)
        if self._may_be_paused(broker):
            return True
        os.kill(broker.pid, signal.SIGCONT)
        return False


def without_the_lock_of(metadata: Path) -> Callable[[Broker], bool]:
    """Of a metadata file: who stops with it stops all, until the supervisor kills it."""
    return lambda broker: not _holds_a_lock(broker.pid, metadata)


def _holds_a_lock(pid: int, metadata: Path) -> bool:
    """On the database or on its lease: by the inodes in /proc/locks."""
    leases = Path(f"{metadata}-leases")
    files = [metadata, *metadata.parent.glob(f"{metadata.name}-*"), *(leases.iterdir() if leases.exists() else ())]
    inodes = set()
    for file in files:
        try:
            inodes.add(file.stat().st_ino)
        except FileNotFoundError:
            continue  # a lease that ended meanwhile
    for line in Path("/proc/locks").read_text().splitlines():
        _, *fields = line.split()
        if fields[0] == "->" or fields[2] != "WRITE":
            continue
        if int(fields[3]) == pid and int(fields[4].rpartition(":")[2]) in inodes:
            return True
    return False
