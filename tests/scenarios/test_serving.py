"""The broker as a process: starting, being ready, being watched, stopping."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.cluster import MetadataRequest, MetadataResponse
from penstock.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.testkit import Broker, RawClient
from tests.testkit.asking import NOW_MS, a_batch, create_topic, fetch, fetch_request, offset_at, produce, values_of
from tests.testkit.broker_process import BrokerDied
from tests.testkit.waiting import eventually


def get(broker: Broker, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_given_a_started_broker_then_the_ready_file_says_where_it_is(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "data") as broker:
        facts = json.loads(broker.ready_path.read_text())

        assert facts == {"node_id": 1, "pid": broker.pid, "kafka": broker.bootstrap, "http": broker.http}
        assert f"ready: kafka {broker.bootstrap}, http {broker.http}" in broker.log_text()
        broker.stop()

        assert not broker.ready_path.exists()


def test_given_a_data_directory_in_use_when_a_second_broker_starts_then_it_is_refused_by_name(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "data") as first:
        command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data-dir", str(tmp_path / "data")]
        command += ["--port", "0", "--http-port", "0", "--ready-file", str(first.ready_path)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert first.ready_path.exists()

    assert second.returncode == 1
    assert f"{tmp_path / 'data'} is in use by another broker" in second.stderr
    assert "Traceback" not in second.stderr


def test_given_a_port_in_use_then_the_broker_says_which(tmp_path: Path, broker: Broker) -> None:
    port = str(broker.address[1])
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data-dir", str(tmp_path), "--port", port]

    second = subprocess.run([*command, "--http-port", "0"], capture_output=True, text=True, timeout=30)

    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_given_a_waiting_consumer_when_the_broker_is_told_to_stop_then_it_answers_and_marks_a_clean_stop(
    tmp_path: Path, number: signal.Signals
) -> None:
    broker = Broker.start(tmp_path / "data")
    with broker, RawClient(broker.address) as client:
        create_topic(client, "orders")
        produce(client, "orders", a_batch(b"a"))
        waiting = client.send_request(1, 4, _a_long_poll())
        with RawClient(broker.address) as other:
            fetch(other, "orders", 0)  # the long poll, sent before, is parked by now

        os.kill(broker.pid, number)

        assert client.receive_response(1, 4, waiting)
        assert broker._running().wait(10) == 0
        marker = json.loads((tmp_path / "data" / ".kafka_cleanshutdown").read_text())
        assert int(marker["version"]) == 0
        broker.restart()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        with RawClient(broker.address) as again:
            assert values_of(fetch(again, "orders", 0)) == [b"a"]


def _a_long_poll() -> bytes:
    return fetch_request({"orders": [(0, 1)]}, max_wait_ms=60_000).encode(4)


def test_given_the_http_port_then_health_readiness_and_metrics_are_there(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "data") as broker, RawClient(broker.address) as client:
        create_topic(client, "orders", partitions=2)
        produce(client, "orders", a_batch(b"a", b"b"))
        fetch(client, "orders", 0)
        fetch(client, "orders", 99)

        assert get(broker, "/healthz") == (200, '{"status": "ok"}')
        assert get(broker, "/readyz") == (200, '{"status": "ready"}')
        assert get(broker, "/nothing")[0] == 404
        status, text = get(broker, "/metrics")
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    assert status == 200
    assert float(lines['penstock_topic_records_in_total{topic="orders"}']) == 2
    assert float(lines['penstock_topic_records_out_total{topic="orders"}']) == 2
    assert float(lines['penstock_topic_bytes_in_total{topic="orders"}']) > 61
    assert float(lines['penstock_topic_fetch_errors_total{topic="orders"}']) == 1
    assert float(lines['penstock_requests_total{api="Fetch"}']) == 2
    assert float(lines['penstock_request_errors_total{api="Fetch",error="OFFSET_OUT_OF_RANGE"}']) == 1
    assert float(lines['penstock_request_seconds_count{api="Produce"}']) == 1
    assert float(lines['penstock_log_end_offset{partition="0",topic="orders"}']) == 2
    assert float(lines['penstock_connections{listener="PLAINTEXT"}']) == 1


def test_given_advertised_listeners_then_clients_are_sent_there(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"advertised.listeners": "PLAINTEXT://queue.example:19999"}
    with Broker.start(tmp_path / "data", **settings) as broker, RawClient(broker.address) as client:
        (node,) = client.exchange(MetadataRequest(topics=[]), 12, MetadataResponse).brokers

        assert (node.node_id, node.host, node.port) == (1, "queue.example", 19999)


def test_given_retention_by_size_then_whole_segments_go_from_the_front_while_a_reader_goes_on(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"log.retention.check.interval.ms": 100, "log.segment.delete.delay.ms": 50}
    with Broker.start(tmp_path / "data", **settings) as broker, RawClient(broker.address) as client:
        create_topic(client, "orders", segment_bytes=2048, retention_bytes=4096, retention_ms=-1)
        for number in range(20):
            produce(client, "orders", a_batch(b"%02d" % number * 500))

        start = eventually(lambda: offset_at(client, "orders", -2).offset)
        eventually(lambda: fetch(client, "orders", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE)

        assert start > 0
        assert values_of(fetch(client, "orders", 19)) == [b"19" * 500]
        logs = tmp_path / "data" / "orders-0"
        eventually(lambda: not list(logs.glob("*.deleted")))
        eventually(lambda: sum(file.stat().st_size for file in logs.glob("*.log")) <= 4096 + 2048)


def test_given_retention_by_time_then_old_records_go_and_fresh_ones_stay(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"log.retention.check.interval.ms": 100}
    with Broker.start(tmp_path / "data", **settings) as broker, RawClient(broker.address) as client:
        create_topic(client, "orders", segment_bytes=1024, retention_ms=3_600_000)
        for _ in range(5):
            produce(client, "orders", a_batch(b"old" * 300, timestamp=NOW_MS))
        fresh = produce(client, "orders", a_batch(b"fresh" * 100, timestamp=_now_ms())).base_offset

        eventually(lambda: offset_at(client, "orders", -2).offset == fresh)
        assert values_of(fetch(client, "orders", fresh)) == [b"fresh" * 100]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_given_delete_records_then_the_log_starts_there_also_after_a_restart(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "orders")
            for number in range(5):
                produce(client, "orders", a_batch(b"%d" % number))

            assert _delete_records(client, 3) == (0, 3)
            assert _delete_records(client, 9)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
            assert fetch(client, "orders", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert offset_at(client, "orders", -2).offset == 3
        broker.kill()
        broker.restart()
        with RawClient(broker.address) as client:
            assert offset_at(client, "orders", -2).offset == 3
            assert values_of(fetch(client, "orders", 3)) == [b"3", b"4"]


def _delete_records(client: RawClient, offset: int) -> tuple[int, int]:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
        ],
        timeout_ms=1_000,
    )
    (result,) = client.exchange(request, 2, DeleteRecordsResponse).topics[0].partitions
    return result.error_code, result.low_watermark


def test_given_restarts_then_each_has_a_leader_epoch_and_its_end_offset_is_known(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "orders")
            produce(client, "orders", a_batch(b"a", b"b"))
            first = offset_at(client, "orders", -1).leader_epoch
        broker.restart()
        with RawClient(broker.address) as client:
            produce(client, "orders", a_batch(b"c"))
            second = offset_at(client, "orders", -1).leader_epoch

            assert second == first + 1
            assert _end_of_epoch(client, first) == (first, 2)
            assert _end_of_epoch(client, second) == (second, 3)
            assert _end_of_epoch(client, second + 5) == (-1, -1)


def _end_of_epoch(client: RawClient, epoch: int) -> tuple[int, int]:
    partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="orders", partitions=[partition])])
    (answer,) = client.exchange(request, 4, OffsetForLeaderEpochResponse).topics[0].partitions
    assert answer.error_code == 0
    return answer.leader_epoch, answer.end_offset


def test_given_a_log_whose_partition_metadata_a_power_cut_took_then_it_is_adopted_and_not_set_aside(
    tmp_path: Path,
) -> None:
    metadata = tmp_path / "data" / "orders-0" / "partition.metadata"
    with Broker.start(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "orders")
            produce(client, "orders", a_batch(b"a"))
        broker.kill()
        whole = metadata.read_text()
        metadata.write_bytes(b"")
        broker.restart()
        with RawClient(broker.address) as client:
            assert values_of(fetch(client, "orders", 0)) == [b"a"]

    assert metadata.read_text() == whole
    assert not list((tmp_path / "data").glob("*-stray"))


@pytest.mark.parametrize("settings", [{}, {"node.id": 1}, {"node.id": 7}], ids=["no id", "its id", "another id"])
def test_given_partitions_without_meta_properties_when_started_then_refused_and_it_can_be_put_back_as_it_is_told(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    data = tmp_path / "data"
    with Broker.start(data) as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "orders")
            produce(client, "orders", a_batch(b"a"))
        broker.stop()
        meta = (data / "meta.properties").read_text()
        (data / "meta.properties").unlink()

        with pytest.raises(BrokerDied) as died:
            Broker.start(data, **settings)

        told = re.search(r"\(a line for each of: ([^)]+)\)", str(died.value.__notes__))
        assert told is not None
        assert told[1].split() == [line for line in meta.splitlines() if not line.startswith("#")]
        assert [path.name for path in data.glob("orders-*")] == ["orders-0"]
        (data / "meta.properties").write_text("\n".join(told[1].split()) + "\n")
        broker.restart()
        with RawClient(broker.address) as client:
            assert values_of(fetch(client, "orders", 0)) == [b"a"]


@pytest.mark.parametrize("flush_messages", [1, 1_000_000])
def test_given_a_kill_when_started_again_then_what_was_checked_is_written_down_at_once(
    tmp_path: Path, flush_messages: int
) -> None:
    checked = tmp_path / "data" / "recovery-point-offset-checkpoint"
    with Broker.start(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "orders", **{"flush.messages": flush_messages})
            produce(client, "orders", a_batch(b"a", b"b", b"c"))
        broker.kill()
        assert not checked.exists() or "orders 0 3" not in checked.read_text()
        broker.restart()

        eventually(lambda: checked.exists() and "orders 0 3" in checked.read_text().splitlines())
