"""What a follower tells its leader about its disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.replication.test_partition import LEADER, OTHER, a_partition

from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicId
from penstock.replication.fetcher import Fetcher
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.runtime.tasks import spawn


class Nowhere:
    """Where no leader is, with what was to be said to it."""

    def __init__(self) -> None:
        self.asked = 0

    async def to(self, address: object) -> object:
        self.asked += 1
        raise BrokerError(ErrorCode.NETWORK_EXCEPTION, "nobody is there")


async def never(*_: object) -> None:
    raise AssertionError


async def test_given_a_leader_s_next_epoch_when_what_is_on_disk_was_found_out_in_the_last_then_it_is_not_told(
    tmp_path: Path,
) -> None:
    """In the next one the logs may differ: the leader would take for held here what is about to be cut."""
    files, talking = Files(2, "test"), Nowhere()
    partition = a_partition(tmp_path / "orders-0", files)
    partition.stop_leading(3)
    partition.follow(3)
    fetcher = Fetcher(
        OTHER,
        broker_id=LEADER,
        session_epoch=lambda: 5,
        address=lambda: ("127.0.0.1", 1),
        fetching=talking,  # type: ignore[arg-type]
        talking=talking,  # type: ignore[arg-type]
        shorten=never,
        holds_up=lambda _: False,
        received=lambda *_: None,
        config=BrokerConfig,
        clock=SystemClock(),
    )
    fetcher.add(partition)
    fetcher._agreed.add((TopicId(bytes(16)), 0))
    fetcher.progressed(partition)

    partition.follow(5)
    fetcher.add(partition)

    reporting = spawn(fetcher.report(), name="report")
    for _ in range(10):
        await asyncio.sleep(0)
    reporting.cancel()
    assert talking.asked == 0
    files.close()
