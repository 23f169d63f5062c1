"""A power cut: what was synced is there, what was not is gone, and every acknowledged record was synced.

The data directory lies on a file system in an image file. At the cut the broker is killed and the image is copied
without a sync or an unmount: the copy is what a disk would hold.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from tests.chaos.conftest import rounds
from tests.chaos.ledger import Ledger, Load, create_topic, read_all
from tests.testkit.broker import Broker
from tests.testkit.disks import an_image, copy_image, mounted
from tests.testkit.waiting import eventually

IMAGE_MIB = 512


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return an_image(tmp_path / "disk.img", IMAGE_MIB)


@pytest.mark.timeout(1800)
def test_given_acknowledged_records_when_the_power_is_cut_then_they_are_on_disk(
    tmp_path: Path, image: Path, luck: random.Random
) -> None:
    for number in range(rounds(short=2, full=20)):
        _cut_once(tmp_path / str(number), image, luck)


def _cut_once(workspace: Path, pristine: Path, luck: random.Random) -> None:
    workspace.mkdir()
    image, crash = workspace / "disk.img", workspace / "crash.img"
    copy_image(pristine, image)
    ledger = Ledger()
    with mounted(image, workspace / "disk") as disk:
        broker = Broker.start(disk / "data", log_segment_bytes=300_000)
        create_topic(broker.bootstrap)
        load = Load(broker.bootstrap, ledger)
        eventually(lambda: sum(map(len, ledger.acknowledged)) > 200, 30, "no progress")
        deadline = time.monotonic() + luck.random()
        eventually(lambda: time.monotonic() >= deadline, 5)
        broker.kill()
        copy_image(image, crash)
        broker.restart()  # so that the producer can end; what it sends now is not in the copy
        promised = [list(numbers) for numbers in ledger.acknowledged]
        broker.kill()
        load.abandon()
    ledger.acknowledged = promised
    with mounted(crash, workspace / "crashed") as disk, Broker.start(disk / "data") as broker:
        ledger.check(read_all(broker.bootstrap), exactly_once=True)
    shutil.rmtree(workspace, ignore_errors=True)
