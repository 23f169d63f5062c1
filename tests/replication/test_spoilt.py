"""What becomes of replicas that must not lead until the controller knows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.machines.controlled_cluster import TWO
from tests.replication.test_manager import Heard, a_manager

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicId
from penstock.metadata.image import EMPTY_IMAGE
from penstock.replication import spoilt
from penstock.replication.spoilt import Lost, SpoiltReplicas
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup

OWN = Lost(TopicId(bytes(16)), 0, is_spoilt=True)
OF_ANOTHER = Lost(TopicId(bytes(16)), 1, is_spoilt=True, replica=TWO)


class Controller:
    """Of a cluster that is upgraded at some time."""

    def __init__(self) -> None:
        self.is_upgraded = asyncio.Event()
        self.heard: list[Lost] = []

    async def resign(self, lost: Sequence[Lost]) -> Sequence[BrokerError | None]:
        too_old = BrokerError(ErrorCode.UNSUPPORTED_VERSION, "upgrade first")
        refused = [each for each in lost if each.is_spoilt and not self.is_upgraded.is_set()]
        self.heard += [each for each in lost if each not in refused]
        return [too_old if each in refused else None for each in lost]


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[tuple[SpoiltReplicas, Controller]]:
    tasks, files, controller = TaskGroup(), Files(1, "test"), Controller()
    async with a_manager(tmp_path, Heard()) as manager:
        yield (
            SpoiltReplicas(
                manager,
                image=lambda: EMPTY_IMAGE,
                resign=controller.resign,
                files=files,
                tasks=tasks,
                clock=SystemClock(),
            ),
            controller,
        )
        await tasks.stop()
        files.close()


async def test_given_a_cluster_that_is_being_upgraded_when_a_replica_is_spoilt_then_it_resigns_and_begins_anew_later(
    replicas: tuple[SpoiltReplicas, Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spoilt, "RETRY_S", 0)
    monkeypatch.setattr(spoilt, "UPGRADE_S", 0)
    spoilt_replicas, controller = replicas

    async with asyncio.timeout(10):
        await spoilt_replicas.tell([OWN, OF_ANOTHER])
        assert set(controller.heard) == {OWN._replace(is_spoilt=False)}

        controller.is_upgraded.set()
        while OWN not in controller.heard:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
    assert OF_ANOTHER not in controller.heard, "its leader finds it away again, or not"
