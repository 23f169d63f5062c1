"""A power cut: what was synced is there, what was not is gone, and every acknowledged record was synced.

The data directory lies on a file system in an image file. At the cut the broker is killed and the image is copied
without a sync or an unmount: the copy is what a disk would hold.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.conftest import rounds
from tests.chaos.ledger import Ledger, Load, create_topic, read_all
from tests.testkit.broker import Broker
from tests.testkit.waiting import eventually

IMAGE_MIB = 512


def _run(*command: str | Path) -> None:
    subprocess.run([str(each) for each in command], check=True, capture_output=True)


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    _run("mount", "-o", "loop", image, at)
    try:
        yield at
    finally:
        _run("umount", "--lazy", at)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("a power cut needs root and mkfs.ext4 to mount an image")
    image = tmp_path / "disk.img"
    _run("truncate", "-s", f"{IMAGE_MIB}M", image)
    _run("mkfs.ext4", "-q", "-F", image)
    try:
        with mounted(image, tmp_path / "probe"):
            pass
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop mounts here: {error.stderr.decode().strip()}")
    return image


@pytest.mark.timeout(1800)
def test_given_acknowledged_records_when_the_power_is_cut_then_they_are_on_disk(
    tmp_path: Path, image: Path, luck: random.Random
) -> None:
    for number in range(rounds(short=2, full=20)):
        _cut_once(tmp_path / str(number), image, luck)


def _cut_once(workspace: Path, pristine: Path, luck: random.Random) -> None:
    workspace.mkdir()
    image, crash = workspace / "disk.img", workspace / "crash.img"
    _run("cp", "--sparse=always", pristine, image)
    ledger = Ledger()
    with mounted(image, workspace / "disk") as disk:
        broker = Broker.start(disk / "data", log_segment_bytes=300_000)
        create_topic(broker.bootstrap)
        load = Load(broker.bootstrap, ledger)
        eventually(lambda: sum(map(len, ledger.acknowledged)) > 200, 30, "no progress")
        deadline = time.monotonic() + luck.random()
        eventually(lambda: time.monotonic() >= deadline, 5)
        broker.kill()
        _run("cp", "--sparse=always", image, crash)
        broker.restart()  # so that the producer can end; what it sends now is not in the copy
        promised = [list(numbers) for numbers in ledger.acknowledged]
        broker.kill()
        load.abandon()
    ledger.acknowledged = promised
    with mounted(crash, workspace / "crashed") as disk, Broker.start(disk / "data") as broker:
        ledger.check(read_all(broker.bootstrap), exactly_once=True)
    shutil.rmtree(workspace, ignore_errors=True)
