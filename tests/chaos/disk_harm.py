"""Disks that lose their power, fill up, fail to write, and flip a bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.core.ids import TopicPartition
from penstock.protocol.batch import HEADER_BYTES, read_header
from penstock.storage.checkpoints import RECOVERY_POINTS, read_offsets
from tests.chaos.conftest import FULL
from tests.chaos.faults import inject
from tests.chaos.harming import Harming, Kind, let_pass
from tests.testkit import Broker, eventually
from tests.testkit.disks import Disk

_FULL_FOR_S = (1, 4)
# Within sessions, and behind their end.
_NOBODY_FOR_S = (0, 4)
_TRIES = 5
# Of a batch: nothing vouches for its leader epoch, which is under no CRC and may be any.
_LEADER_EPOCH = range(12, 16)


class Doubted(NamedTuple):
    """A batch behind the recovery point, which a start after a crash reads."""

    path: Path
    position: int
    size: int


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
        kinds = [self.cut_the_power_of_one, self.fill_a_disk, self.fail_to_write, self.flip_a_bit]
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
        tracer = inject(self._strace, broker.pid, "fdatasync:error=EIO:when=1")
        eventually(lambda: not broker.is_running, 30, "it goes on with a disk that fails")
        tracer.wait(10)
        assert "a flush failed" in broker.log_text()
        self._harming.until_all_get_on("the disk of a broker has failed")
        self._harming.check_invariants()
        self._bring_back(number)

    def flip_a_bit(self) -> None:
        """Of a broker that is away, in what it was in sync with: it may lead nothing before it has that again."""
        self._harming.until_settled()
        number, batches = self._killed_with_doubted()
        others = [each for each in self._cluster.ids if each != number]
        comes_back = self._luck.choice(("at once", "late", "first of all"))
        if comes_back == "first of all":
            for other in others:
                self._harming.say(f"  broker {other} killed")
                self._cluster[other].kill()
        name, broker = self._flip(number, self._luck.choice(batches)), self._cluster[number]
        cuts = broker.log_text().count(_log_cut(name))
        if comes_back == "late":
            self._harming.until_all_get_on("a broker with a flipped bit is away")
        elif comes_back == "first of all":
            let_pass(self._luck.choice(_NOBODY_FOR_S))
        self._bring_back(number)
        # It is ready when the controller knows; until then it is in sync, by what the store has.
        self._harming.check_invariants()
        set_aside = [*broker.data.glob("*-spoilt")]
        assert set_aside or broker.log_text().count(_log_cut(name)) > cuts, f"{name}: nobody noticed"
        if comes_back == "first of all":
            for other in self._luck.sample(others, len(others)):
                self._bring_back(other)
        self._harming.until_settled()
        self._harming.check_invariants()
        for path in set_aside:
            shutil.rmtree(path)

    def _killed_with_doubted(self) -> tuple[int, list[Doubted]]:
        """By chance; another one where all that was written has been vouched for."""
        for _ in range(_TRIES):
            number = self._one()
            self._harming.say(f"  broker {number} killed")
            self._cluster[number].kill()
            if batches := list(_doubted(self._cluster[number].data)):
                return number, batches
            self._bring_back(number)
            self._harming.until_settled()
        raise AssertionError("nobody ever has anything behind its recovery points")

    def _flip(self, number: int, batch: Doubted) -> str:
        """Half of the time in a header. Returns the name of the partition."""
        size = self._luck.choice((HEADER_BYTES, batch.size))
        at = batch.position + self._luck.choice([each for each in range(size) if each not in _LEADER_EPOCH])
        bit = self._luck.randrange(8)
        name = batch.path.parent.name
        self._harming.say(
            f"  broker {number}: bit {bit} of byte {at} flipped in {name}/{batch.path.name}, of a batch of "
            f"{batch.size} bytes at {batch.position}, {batch.path.stat().st_size} in all"
        )
        with batch.path.open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))
        return name

    def _bring_back(self, number: int) -> None:
        broker: Broker = self._cluster[number]
        self._harming.say(f"  broker {number} comes back")
        broker.restart()  # at the port that it was given

    def _one(self) -> int:
        return self._luck.choice(self._cluster.ids)


def _log_cut(partition: str) -> str:
    return f"log cut partition={partition} "


def _doubted(data: Path) -> Iterator[Doubted]:
    """Of the clients' topics, with as many from each partition as there are."""
    recovery_points = read_offsets(str(data / RECOVERY_POINTS))
    for directory in sorted(data.glob("[!_]*-[0-9]")):
        topic, _, partition = directory.name.rpartition("-")
        recovery_point = recovery_points.get(TopicPartition(topic, int(partition)), 0)
        for path in sorted(directory.glob("*.log")):
            log = path.read_bytes()
            position = 0
            while position + HEADER_BYTES <= len(log):
                header = read_header(log, position)
                if position + header.size > len(log):
                    break
                if header.base_offset >= recovery_point:
                    yield Doubted(path, position, header.size)
                position += header.size
