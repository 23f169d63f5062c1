"""What the broker tells of itself: the cluster, its disk, producer ids, and coordinators that do not exist yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.cluster import (
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from tests.testkit import Broker, RawClient
from tests.testkit.asking import a_batch, create_topic, produce


@pytest.mark.parametrize("version", range(3))
def test_given_any_version_when_the_cluster_is_described_then_broker_and_controller_are_known(
    broker: Broker, version: int
) -> None:
    with RawClient(broker.address) as client:
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)

        response = client.exchange(request, version, DescribeClusterResponse)

        assert (response.error_code, response.controller_id) == (0, 1)
        assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [(1, *broker.address)]
        assert response.cluster_id in Path(broker.data / "meta.properties").read_text()
        assert response.cluster_authorized_operations > 0


def test_given_other_endpoints_when_the_cluster_is_described_then_refused_in_words(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        controllers = client.exchange(DescribeClusterRequest(endpoint_type=2), 2, DescribeClusterResponse)
        unheard_of = client.exchange(DescribeClusterRequest(endpoint_type=9), 2, DescribeClusterResponse)

        assert controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
        assert unheard_of.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        assert unheard_of.error_message


@pytest.mark.parametrize("version", range(1, 5))
def test_given_any_version_when_log_directories_are_described_then_sizes_are_those_of_the_log(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, partitions=2)
        batch = a_batch(bytes(1000))
        produce(client, topic_name, batch, partition=1)
        asked = [
            DescribableLogDirTopic(topic=topic_name, partitions=[1, 7]),
            DescribableLogDirTopic(topic="no-such-topic", partitions=[0]),
        ]

        (some,) = client.exchange(DescribeLogDirsRequest(topics=asked), version, DescribeLogDirsResponse).results
        (everything,) = client.exchange(DescribeLogDirsRequest(topics=None), version, DescribeLogDirsResponse).results

        assert (some.error_code, some.log_dir) == (0, str(broker.data))
        (topic,) = some.topics
        assert topic.name == topic_name
        assert [(row.partition_index, row.partition_size) for row in topic.partitions] == [(1, len(batch))]
        assert topic_name in [row.name for row in everything.topics]
        if version >= 4:
            assert some.total_bytes >= some.usable_bytes > 0


@pytest.mark.parametrize("version", range(6))
def test_given_any_version_when_producer_ids_are_asked_for_then_each_is_new(broker: Broker, version: int) -> None:
    with RawClient(broker.address) as client:
        request = InitProducerIdRequest(transactional_id=None, producer_id=0, producer_epoch=3)

        answers = [client.exchange(request, version, InitProducerIdResponse) for _ in range(3)]

        assert [(answer.error_code, answer.producer_epoch) for answer in answers] == [(0, 0)] * 3
        assert len({answer.producer_id for answer in answers}) == 3


def test_given_a_kill_when_started_again_then_producer_ids_do_not_repeat(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    ids = []
    with Broker.start(tmp_path_factory.mktemp("producers") / "data") as broker:
        for _ in range(2):
            with RawClient(broker.address) as client:
                request = InitProducerIdRequest(transactional_id=None)
                ids += [client.exchange(request, 5, InitProducerIdResponse).producer_id for _ in range(3)]
            broker.kill()
            broker.restart()

    assert len(set(ids)) == 6


def test_given_an_empty_transactional_id_when_a_producer_id_is_asked_for_then_invalid_request(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        empty = client.exchange(InitProducerIdRequest(transactional_id=""), 5, InitProducerIdResponse)

        assert empty.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(7))
def test_given_any_version_when_a_coordinator_is_asked_for_then_the_answer_is_well_formed(
    broker: Broker, version: int
) -> None:
    with RawClient(broker.address) as client:
        request = FindCoordinatorRequest(key="group", coordinator_keys=["group", "other"])

        response = client.exchange(request, version, FindCoordinatorResponse)

        found = [response] if version < 4 else response.coordinators
        assert {(each.error_code, each.node_id, each.host, each.port) for each in found} == {(0, 1, *broker.address)}
        assert [each.key for each in response.coordinators] == (["group", "other"] if version >= 4 else [])


def test_given_an_unknown_type_when_a_coordinator_is_asked_for_then_invalid_request(broker: Broker) -> None:
    with RawClient(broker.address) as client:

        def code(key_type: int, version: int) -> int:
            request = FindCoordinatorRequest(key="k", coordinator_keys=["k"], key_type=key_type)
            answer = client.exchange(request, version, FindCoordinatorResponse)
            return answer.coordinators[0].error_code if version >= 4 else answer.error_code

        assert code(1, 3) == code(1, 6) == ErrorCode.NONE
        assert code(2, 6) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert code(2, 5) == code(9, 6) == code(-1, 1) == ErrorCode.INVALID_REQUEST
