"""SIGKILL at random points under load: every acknowledged record is there afterwards, in order, once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.chaos.conftest import rounds
from tests.chaos.ledger import Ledger, Load, create_topic, read_all
from tests.chaos.unheard import WINDOW_BATCHES, UnheardProducer
from tests.testkit.broker import Broker
from tests.testkit.waiting import eventually


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"], ids=["fdatasync", "page-cache"])
def test_given_load_when_the_broker_is_killed_again_and_again_then_nothing_acknowledged_is_lost_or_doubled(
    tmp_path: Path, luck: random.Random, flush_messages: str
) -> None:
    ledger = Ledger()
    broker = Broker.start(tmp_path / "data", log_segment_bytes=1_000_000)
    broker.restart(same_port=True)
    with broker:
        create_topic(broker.bootstrap, flush_messages=flush_messages)
        unheard = UnheardProducer(broker, flush_messages=flush_messages)
        load = Load(broker.bootstrap, ledger)

        for _ in range(rounds(short=4, full=50)):
            so_far = sum(map(len, ledger.acknowledged))
            # The process also survives a kill, so page-cache acknowledgements must too.
            eventually(lambda before=so_far: sum(map(len, ledger.acknowledged)) > before, 30, "no progress")  # type: ignore[misc]
            deadline = time.monotonic() + luck.random() * 0.4
            eventually(lambda until=deadline: time.monotonic() >= until, 5)  # type: ignore[misc]
            unheard.send(broker, until_written=luck.randint(1, WINDOW_BATCHES))
            broker.kill()
            broker.restart(same_port=True)
            unheard.send_again(broker)
        load.finish()

        found = read_all(broker.bootstrap)

    assert not ledger.failures
    ledger.check(found, exactly_once=True)
    assert sum(map(len, found)) == sum(map(len, ledger.sent))
