"""Two brokers on one store: whichever is asked, the controller decides, and nobody but brokers gets in between them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from urllib.request import urlopen

import pytest

from penstock.core.errors import ErrorCode
from penstock.core.ids import BrokerId
from penstock.net.channel import NotSent, open_channel
from penstock.net.cluster_key import Credentials
from penstock.protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from penstock.protocol.messages.internal import AskControllerRequest, AskControllerResponse
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.records import FetchRequest, FetchResponse, ReplicaState
from penstock.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.testkit import Broker, RawClient, eventually
from tests.testkit.asking import ask_to_create, create_topic, topic_names

Brokers = tuple[Broker, Broker]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("two-brokers")
    metadata = ["--metadata", f"sqlite:{directory / 'metadata.db'}"]
    with (
        Broker.start(directory / "one", arguments=metadata, node_id=1) as one,
        Broker.start(directory / "two", arguments=metadata, node_id=2) as two,
    ):
        yield one, two


def stored(brokers: Brokers, key: str) -> dict[str, object]:
    """What the metadata has under a key."""
    with closing(sqlite3.connect(brokers[0].data.parent / "metadata.db")) as database:
        ((value,),) = database.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchall()
    content: dict[str, object] = json.loads(value)
    return content


def internal_address(brokers: Brokers, broker_id: int) -> tuple[str, int]:
    internal = stored(brokers, f"brokers/{broker_id}")["internal"]
    assert isinstance(internal, dict)
    return internal["host"], internal["port"]


def cluster_key(brokers: Brokers) -> str:
    return str(stored(brokers, "cluster-key")["key"])


def controller_and_other(brokers: Brokers) -> Brokers:
    number = stored(brokers, "controller")["broker_id"]
    one, two = brokers
    return (one, two) if number == 1 else (two, one)


def forwarded(broker: Broker) -> int:
    with urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith('penstock_requests_total{api="AskController"}'):
                return int(float(line.split()[-1]))
    raise AssertionError("the metric is missing")


def test_given_a_broker_that_is_not_the_controller_when_clients_ask_it_then_it_is_done(brokers: Brokers) -> None:
    controller, other = controller_and_other(brokers)
    before = forwarded(controller)

    with RawClient(other.address) as client:
        create_topic(client, "orders", 3)
        assert topic_names(client) >= {"orders"}  # at once: this broker has seen what it told
        again = ask_to_create(client, "orders")
        producer = client.exchange(InitProducerIdRequest(), 4, InitProducerIdResponse)
        (deleted,) = client.exchange(DeleteTopicsRequest(topic_names=["orders"]), 5, DeleteTopicsResponse).responses
        assert "orders" not in topic_names(client)

    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert (producer.error_code, deleted.error_code) == (0, 0)
    assert forwarded(controller) == before + 4


def test_given_a_controller_that_comes_back_then_brokers_find_it_again(brokers: Brokers) -> None:
    controller, other = controller_and_other(brokers)
    with RawClient(other.address) as client:
        create_topic(client, "before")

        controller.restart()

        create_topic(client, "after")
        assert topic_names(client) >= {"before", "after"}


async def test_given_a_broker_when_others_ask_on_its_internal_port_then_only_with_the_key(brokers: Brokers) -> None:
    address = internal_address(brokers, 1)
    key = cluster_key(brokers)

    with pytest.raises(NotSent) as wrong:
        await open_channel(address, Credentials(BrokerId(2), key[::-1]))
    channel = await open_channel(address, Credentials(BrokerId(2), key))
    answer = await channel.request(
        ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3, timeout_ms=5_000
    )
    channel.close("done")

    assert wrong.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    served = {each.api_key for each in ApiVersionsResponse.decode(answer, 3).api_keys}
    assert AskControllerRequest.API_KEY in served
    with RawClient(address) as client:
        client.send_request(3, 9, MetadataRequest(topics=None).encode(9))
        assert client.is_closed_by_broker()
    eventually(lambda: "somebody who has not proven to be a broker" in brokers[0].stderr_path.read_text())


async def test_given_a_broker_when_it_fetches_as_another_replica_then_it_is_refused(brokers: Brokers) -> None:
    channel = await open_channel(internal_address(brokers, 1), Credentials(BrokerId(2), cluster_key(brokers)))
    codes = []
    for replica_id in (2, 3):
        request = FetchRequest(replica_state=ReplicaState(replica_id=replica_id, replica_epoch=1), session_epoch=-1)
        answer = await channel.request(request, 17, timeout_ms=5_000)
        codes.append(FetchResponse.decode(answer, 17).error_code)
    channel.close("done")

    assert codes == [0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def test_given_a_client_when_it_acts_as_a_broker_then_it_is_refused(brokers: Brokers) -> None:
    with RawClient(brokers[0].address) as client:
        as_replica = FetchRequest(replica_state=ReplicaState(replica_id=2, replica_epoch=1))
        assert client.exchange(as_replica, 17, FetchResponse).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        before_v15 = client.exchange(FetchRequest(replica_id=2), 12, FetchResponse)
        assert before_v15.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(ConnectionError):
            client.exchange(AskControllerRequest(command="AllocateProducerIds", body=b"{}"), 0, AskControllerResponse)


def all_brokers(client: RawClient) -> MetadataResponse | None:
    metadata = client.exchange(MetadataRequest(topics=[]), 9, MetadataResponse)
    return metadata if len(metadata.brokers) == 2 else None


def test_given_internal_ports_then_clients_are_not_told_of_them_and_nobody_of_the_key(brokers: Brokers) -> None:
    internal = {internal_address(brokers, number) for number in (1, 2)}
    clients = {broker.address for broker in brokers}
    with RawClient(brokers[0].address) as client:
        metadata = eventually(lambda: all_brokers(client), message="a broker has not heard of the other")
        described = client.exchange(DescribeClusterRequest(), 0, DescribeClusterResponse)
        versions = client.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)

    assert {(each.host, each.port) for each in metadata.brokers} == clients
    assert {(each.host, each.port) for each in described.brokers} == clients
    assert not internal & clients
    assert AskControllerRequest.API_KEY not in {each.api_key for each in versions.api_keys}
    for broker in brokers:
        with urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
            said = answer.read().decode()
        said += broker.stderr_path.read_text() + broker.stdout_path.read_text()
        assert cluster_key(brokers) not in said
