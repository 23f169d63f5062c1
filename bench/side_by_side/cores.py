"""Who runs where: a broker alone on the first core, its clients on the last, so that neither takes the other's time.

A cluster and its client share all cores. A machine with one core has no choice.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cores:
    all: frozenset[int]
    is_pinned: bool

    @classmethod
    def of_this_machine(cls, *, pin: bool = True) -> "Cores":
        available = frozenset(os.sched_getaffinity(0))
        return cls(available, pin and len(available) > 1)

    @property
    def broker(self) -> frozenset[int]:
        return frozenset({min(self.all)}) if self.is_pinned else self.all

    @property
    def client(self) -> frozenset[int]:
        return frozenset({max(self.all)}) if self.is_pinned else self.all

    def launcher(self, cores: frozenset[int]) -> list[str]:
        """A command that becomes the one behind it, there."""
        return ["taskset", "--cpu-list", ",".join(map(str, sorted(cores)))]

    @contextmanager
    def clients_run_on(self, cores: frozenset[int]) -> Iterator[None]:
        """This process and all that it starts meanwhile, brokers with a launcher apart."""
        os.sched_setaffinity(0, cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self.all)
