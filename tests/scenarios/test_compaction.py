"""Compacted topics on a running broker: a table rebuilt from one, also after SIGKILL in the middle of a round."""

from __future__ import annotations

import random
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from examples.rebuild_table import Table, rebuild

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.protocol.records import Record, build_batch
from tests.testkit import Broker, RawClient, eventually
from tests.testkit.asking import create_topic, produce

KEYS = 200
SEGMENT_BYTES = 64 << 10
COMPACTED: dict[str, Any] = {
    "cleanup.policy": "compact", "segment.bytes": SEGMENT_BYTES, "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 0, "file.delete.delay.ms": 0, "flush.messages": 1_000_000,
}  # fmt: skip


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Broker]:
    """A broker that compacts as soon as it can."""
    settings = {"log.cleaner.backoff.ms": "50", "log.cleaner.threads": "2", "log.retention.check.interval.ms": "100"}
    with Broker.start(tmp_path / "data", **settings) as broker:  # type: ignore[arg-type]
        yield broker


def metric(broker: Broker, name: str) -> float:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^penstock_cleaner_{name} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


class Writer:
    """Changes a table at random, in a topic and in a model."""

    def __init__(self, broker: Broker, topic: str, seed: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "batch.size": 16_384,
            }
        )
        self._topic = topic
        self._random = random.Random(seed)
        self.model: dict[bytes, bytes] = {}
        self.written = 0

    def write(self, count: int) -> None:
        failed: list[object] = []
        for _ in range(count):
            key = b"key-%d" % self._random.randrange(KEYS)
            value = None if self._random.random() < 0.1 else self._random.randbytes(300)
            self._producer.produce(
                self._topic, value, key, on_delivery=lambda error, _: failed.append(error) if error else None
            )
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value
        self.written += count
        assert self._producer.flush(30) == 0
        assert not failed


def cleaned(broker: Broker, topic: str, model: dict[bytes, bytes], written: int) -> Table:
    table = rebuild(broker.bootstrap, topic)
    assert table.rows == model
    # Two partitions have an active segment each, and what was new since the last round.
    assert table.records_read < written / 2
    return table


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_given_a_compacted_topic_when_a_table_is_rebuilt_then_it_is_the_model_at_the_cost_of_its_keys(
    busy: Broker, topic_name: str, policy: str
) -> None:
    with RawClient(busy.address) as client:
        create_topic(client, topic_name, 2, **{**COMPACTED, "cleanup.policy": policy})
    writer = Writer(busy, topic_name, seed=1)
    for _ in range(5):
        writer.write(2_000)

    table = eventually(lambda: cleaned(busy, topic_name, writer.model, writer.written), timeout=20)

    assert len(table.rows) == len(writer.model) > KEYS / 2
    assert metric(busy, "runs_total") > 0
    assert metric(busy, "bytes_read_total") > metric(busy, "bytes_written_total") > 0
    assert metric(busy, "uncleanable_partitions") == metric(busy, "restarts_total") == 0
    assert metric(busy, "seconds_since_last_run") < 10
    assert 0 <= metric(busy, "max_dirty_ratio") <= 1


def test_given_sigkill_again_and_again_when_a_table_is_rebuilt_then_nothing_is_missing(
    busy: Broker, topic_name: str
) -> None:
    with RawClient(busy.address) as client:
        create_topic(client, topic_name, 2, **COMPACTED)
    model: dict[bytes, bytes] = {}
    for seed in range(4):
        writer = Writer(busy, topic_name, seed)
        writer.model = model
        writer.write(3_000)
        busy.kill()
        busy.restart()
        assert rebuild(busy.bootstrap, topic_name).rows == model

    eventually(lambda: cleaned(busy, topic_name, model, 12_000), timeout=20)
    busy.stop()
    names = [path.name for path in (busy.data / f"{topic_name}-0").iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    assert (busy.data / "cleaner-offset-checkpoint").read_text().startswith("0\n")


def test_given_a_topic_that_is_compacted_when_deleted_and_made_again_then_the_new_one_is_empty(
    busy: Broker, topic_name: str
) -> None:
    batch = build_batch([Record(b"key-%d" % (n % 7), bytes(300), (), 1_700_000_000_000) for n in range(100)])
    with RawClient(busy.address) as client:
        for _ in range(10):
            create_topic(client, topic_name, **COMPACTED)
            for _ in range(20):
                assert produce(client, topic_name, batch).error_code == 0
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic_name)], timeout_ms=10_000)
            (deleted,) = client.exchange(request, 6, DeleteTopicsResponse).responses
            assert deleted.error_code == 0
        create_topic(client, topic_name, **COMPACTED)
        assert produce(client, topic_name, build_batch([Record(b"a", b"1", (), 1_700_000_000_000)])).base_offset == 0

    assert rebuild(busy.bootstrap, topic_name).rows == {b"a": b"1"}
    assert metric(busy, "uncleanable_partitions") == metric(busy, "restarts_total") == 0


def test_given_a_record_without_a_key_when_produced_to_a_compacted_topic_then_it_is_refused(
    busy: Broker, topic_name: str
) -> None:
    with RawClient(busy.address) as client:
        create_topic(client, topic_name, **COMPACTED)
        refused = produce(client, topic_name, build_batch([Record(b"a", b"1"), Record(None, b"2")]))

    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1]
