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
from penstock.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.testkit import Broker, RawClient, eventually
from tests.testkit.asking import a_batch, create_topic, fetch, produce, values_of
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
