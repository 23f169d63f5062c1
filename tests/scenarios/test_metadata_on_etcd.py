"""A broker whose metadata is on etcd: the same broker, also when etcd is away."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from penstock.core.errors import ErrorCode
from penstock.metadata.records import PARTITIONS_PREFIX, TOPICS_PREFIX
from penstock.protocol.messages.records import ProduceResponse
from penstock.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.testkit import Broker, RawClient, eventually
from tests.testkit.asking import (
    PRODUCE_VERSION,
    a_batch,
    create_topic,
    create_usable_topic,
    fetch,
    produce,
    produce_request,
    values_of,
)
from tests.testkit.broker_process import BrokerDied
from tests.testkit.etcd import EtcdCluster

pytestmark = pytest.mark.xdist_group("etcd")


@pytest.fixture
def etcd_broker(etcd: EtcdCluster, tmp_path: Path) -> Iterator[Broker]:
    with Broker.start(tmp_path / "data", arguments=["--metadata", etcd.address(uuid.uuid4().hex)]) as broker:
        yield broker


def readiness(broker: Broker) -> tuple[int, str]:
    try:
        with urlopen(f"http://{broker.http}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, json.loads(error.read())["reason"]


def test_given_a_topic_on_etcd_when_the_broker_restarts_then_topic_and_records_are_there(
    etcd_broker: Broker, topic_name: str
) -> None:
    with RawClient(etcd_broker.address) as client:
        create_topic(client, topic_name)
        produce(client, topic_name, a_batch(b"before"))

    etcd_broker.restart()

    with RawClient(etcd_broker.address) as client:
        produce(client, topic_name, a_batch(b"after"))
        assert values_of(fetch(client, topic_name, 0)) == [b"before", b"after"]
    assert not (etcd_broker.data / "metadata.db").exists()


def test_given_more_partitions_than_a_transaction_of_etcd_has_operations_then_all_are_usable_and_all_are_deleted(
    etcd: EtcdCluster, etcd_broker: Broker, topic_name: str
) -> None:
    """etcd takes 128, and the topic is there as a whole or not at all."""
    partitions = 300
    prefix = etcd_broker.arguments[1].rpartition("/")[2]

    def keys() -> list[str]:
        return [key for key in etcd.values(prefix) if key.startswith((TOPICS_PREFIX, PARTITIONS_PREFIX))]

    with RawClient(etcd_broker.address) as client:
        create_usable_topic(client, topic_name, partitions)
        request = produce_request(topic_name, {each: a_batch(b"%d" % each) for each in range(partitions)})
        (written,) = client.exchange(request, PRODUCE_VERSION, ProduceResponse).responses
        assert [row.error_code for row in written.partition_responses] == [0] * partitions
        assert len(keys()) == 1 + partitions

        doomed = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic_name)], timeout_ms=10_000)
        (deleted,) = client.exchange(doomed, 6, DeleteTopicsResponse).responses

        assert deleted.error_code == 0
        assert keys() == []
    eventually(lambda: not list(etcd_broker.data.glob(f"{topic_name}-*")), 20, "files are left")


def test_given_a_lost_quorum_when_used_then_records_flow_and_changes_are_refused_until_it_is_back(
    etcd: EtcdCluster, etcd_broker: Broker, topic_name: str
) -> None:
    with etcd.healed_afterwards(), RawClient(etcd_broker.address) as client:
        create_topic(client, topic_name)
        for member in etcd.followers:
            member.kill()

        eventually(lambda: readiness(etcd_broker)[0] == 503, 20, "the broker says that it is ready")
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=f"{topic_name}-2", num_partitions=1, replication_factor=1)]
        )
        (refused,) = client.exchange(request, 7, CreateTopicsResponse).topics
        produce(client, topic_name, a_batch(b"meanwhile"))

        assert values_of(fetch(client, topic_name, 0)) == [b"meanwhile"]
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "no answer from etcd" in (refused.error_message or "")
        assert "no answer from etcd" in readiness(etcd_broker)[1]
        assert "etcd does not answer" in etcd_broker.log_text()

        etcd.start_missing()
        eventually(lambda: readiness(etcd_broker)[0] == 200, 20, "the broker does not become ready again")
        (created,) = client.exchange(request, 7, CreateTopicsResponse).topics
        assert created.error_code == ErrorCode.NONE


def test_given_nobody_at_the_address_when_started_then_it_ends_and_says_who_was_asked(tmp_path: Path) -> None:
    with pytest.raises(BrokerDied) as died:
        Broker.start(tmp_path / "data", arguments=["--metadata", "etcd://me:secret@127.0.0.1:1,127.0.0.1:2/x"])

    said = "\n".join(died.value.__notes__)
    assert "penstock serve: no answer from etcd (127.0.0.1:1: Connection refused; 127.0.0.1:2: Connection" in said
    assert "secret" not in said
