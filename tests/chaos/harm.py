"""What is done to the broker and to its clients while they work.

Every kind comes once in each round, in an order by chance, so that a short run has some of each. After each of them all
clients must get on before the next: who cannot is a finding, not a victim of what came too soon.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.chaos.conftest import FULL
from tests.chaos.fleet import Fleet, Worker
from tests.testkit import BrokerProcess, eventually

# Nobody notices; somebody waits; longer than a request may take or a session may last; longer than a transaction may.
_PAUSES_S = (0.2, 2, 6, 12) if FULL else (0.2, 2)


class Harm:
    def __init__(self, broker: BrokerProcess, fleet: Fleet, luck: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._broker = broker
        self._fleet = fleet
        self._luck = luck

    def go_on_for(self, seconds: float) -> None:
        """At least one round."""
        self._fleet.until_all_progress()
        end = time.monotonic() + seconds
        for harm in self._rounds(end):
            harm()
            self.done[harm.__name__] += 1
            self._fleet.until_all_progress()
            _let_pass(self._luck.random())

    def _rounds(self, end: float) -> Iterator[Callable[[], None]]:
        kinds = [self.kill_the_broker, self.pause_the_broker, self.kill_a_client, self.pause_a_client]
        if self._with_transactional_id():
            kinds += [self.start_a_rival, self.wake_a_zombie]
        first_round = kinds
        while first_round or time.monotonic() < end:
            first_round = []
            yield from self._luck.sample(kinds, len(kinds))

    def kill_the_broker(self) -> None:
        self._broker.kill()
        self._broker.restart(same_port=True)

    def pause_the_broker(self) -> None:
        """What clients gave up on is waiting in its sockets, and is done when it wakes."""
        os.kill(self._broker.pid, signal.SIGSTOP)
        _let_pass(self._luck.choice(_PAUSES_S))
        os.kill(self._broker.pid, signal.SIGCONT)

    def kill_a_client(self) -> None:
        self._fleet.replace(self._luck.choice(self._fleet.living))

    def pause_a_client(self) -> None:
        victim = self._luck.choice(self._fleet.living)
        victim.pause()
        _let_pass(self._luck.choice(_PAUSES_S))
        victim.resume()

    def start_a_rival(self) -> None:
        """Two with one transactional id fence each other for a while, until one of them ends."""
        older = self._luck.choice(self._with_transactional_id())
        rival = self._fleet.start_another(older)
        self._fleet.until_all_progress()
        self._fleet.end_these([each for each in (self._luck.choice((older, rival)),) if each in self._fleet.living])

    def wake_a_zombie(self) -> None:
        """It slept in the middle of something, and another one has its transactional id when it goes on."""
        zombie = self._luck.choice(self._with_transactional_id())
        zombie.pause()
        successor = self._fleet.start_another(zombie)
        before = successor.progress()
        eventually(lambda: successor.progress() > before + _SOME_TRANSACTIONS, 40, "the successor does not get on")
        zombie.resume()
        self._fleet.until_all_progress()
        if zombie in self._fleet.living:
            zombie.kill()
            self._fleet.living.remove(zombie)

    def _with_transactional_id(self) -> list[Worker]:
        return [worker for worker in self._fleet.living if worker.options.get("transactional_id")]


_SOME_TRANSACTIONS = 2_000
"""Bytes of a history: more than its first line."""


def _let_pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until, seconds + 5)
