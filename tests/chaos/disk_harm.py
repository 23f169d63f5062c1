"""Disks that lose their power, fill up, and fail to write."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.conftest import FULL
from tests.chaos.faults import inject
from tests.chaos.harming import Harming, Kind, let_pass
from tests.testkit import Broker, eventually
from tests.testkit.disks import Disk

_FULL_FOR_S = (1, 4)


class DiskHarm:
    def __init__(self, harming: Harming, disks: Mapping[int, Disk], strace: str) -> None:
        """Each broker's data directory is a disk of its own."""
        self._harming = harming
        self._cluster = harming.cluster
        self._luck = harming.luck
        self._disks = disks
        self._strace = strace

    @property
    def kinds(self) -> list[Kind]:
        kinds = [self.cut_the_power_of_one, self.fill_a_disk, self.fail_to_write]
        return [*kinds, self.cut_the_power_of_all] if FULL else kinds

    def cut_the_power_of_one(self) -> None:
        """What is left must hold all that it was in sync for."""
        number = self._one()
        self._cut(number)
        self._harming.check_invariants()
        if self._luck.random() < 0.5:
            self._harming.until_all_get_on("a broker has no power")
        self._bring_back(number)

    def cut_the_power_of_all(self) -> None:
        for number in self._cluster.ids:
            self._cluster[number].kill()
        for number in self._cluster.ids:
            self._lose_power(number)
        self._harming.check_invariants()
        for number in self._luck.sample(self._cluster.ids, len(self._cluster.ids)):
            self._bring_back(number)

    def _cut(self, number: int) -> None:
        self._cluster[number].kill()
        self._lose_power(number)

    def _lose_power(self, number: int) -> None:
        self._harming.say(f"  broker {number} has no power")
        self._disks[number].lose_power()

    def fill_a_disk(self) -> None:
        """What it leads takes nothing, and what it follows falls behind, until there is room again."""
        number = self._one()
        self._harming.say(f"  the disk of broker {number} is full")
        self._disks[number].fill_up()
        try:
            let_pass(self._luck.choice(_FULL_FOR_S))
        finally:
            self._disks[number].make_room()
            self._harming.say(f"  the disk of broker {number} has room")
        self._harming.check_invariants()

    def fail_to_write(self) -> None:
        """Never tried again: the broker ends, and whoever supervises it starts it again."""
        number = self._one()
        broker = self._cluster[number]
        self._harming.say(f"  the disk of broker {number} fails")
        tracer = inject(self._strace, broker, "fdatasync:error=EIO:when=1")
        eventually(lambda: not broker.is_running, 30, "it goes on with a disk that fails")
        tracer.wait(10)
        assert "a flush failed" in broker.log_text()
        self._harming.until_all_get_on("the disk of a broker has failed")
        self._harming.check_invariants()
        self._bring_back(number)

    def _bring_back(self, number: int) -> None:
        broker: Broker = self._cluster[number]
        self._harming.say(f"  broker {number} comes back")
        broker.restart()  # at the port that it was given

    def _one(self) -> int:
        return self._luck.choice(self._cluster.ids)
