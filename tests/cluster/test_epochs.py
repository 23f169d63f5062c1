"""Clients with another idea of the leader epoch than the leader (trap A3).

One that missed an election would read, and look up offsets, in a history that has since been cut; one that knows more
than the broker it asks would be told of a history that is no longer the partition's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.protocol.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.cluster.finding import all_are_known, create_topic_over, leader_of, states_of, write_to_leader
from tests.testkit import Cluster, RawClient
from tests.testkit.asking import FETCH_VERSION

TOPIC = "elected"
EARLIEST = -2
NOT_KNOWN = -1


class Elected(NamedTuple):
    """A partition whose leader was another one a moment ago."""

    client: RawClient
    epoch: int


@pytest.fixture(scope="module")
def elected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elected]:
    with Cluster.start(tmp_path_factory.mktemp("pair"), brokers=2) as cluster:
        all_are_known(cluster)
        create_topic_over(cluster, TOPIC, (2, 1))
        write_to_leader(cluster, TOPIC, b"of the first leader")
        before = states_of(cluster, TOPIC)[0].leader_epoch
        cluster[2].stop()
        assert leader_of(cluster, TOPIC) == 1
        write_to_leader(cluster, TOPIC, b"of the next one")
        with RawClient(cluster[1].address) as client:
            yield Elected(client, before)


def fetched(client: RawClient, current_leader_epoch: int) -> int:
    asked = FetchPartition(
        partition=0, current_leader_epoch=current_leader_epoch, fetch_offset=0, partition_max_bytes=1_000
    )
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[asked])])
    return client.exchange(request, FETCH_VERSION, FetchResponse).responses[0].partitions[0].error_code


def looked_up(client: RawClient, current_leader_epoch: int) -> int:
    asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=current_leader_epoch, timestamp=EARLIEST)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    return client.exchange(request, 7, ListOffsetsResponse).topics[0].partitions[0].error_code


def compared(client: RawClient, current_leader_epoch: int) -> int:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current_leader_epoch, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])])
    return client.exchange(request, 4, OffsetForLeaderEpochResponse).topics[0].partitions[0].error_code


@pytest.mark.parametrize("ask", [fetched, looked_up, compared])
def test_given_an_election_when_asked_with_the_epoch_before_or_one_to_come_then_refused_and_the_client_can_tell_why(
    elected: Elected, ask: Callable[[RawClient, int], int]
) -> None:
    now = elected.epoch + 1

    codes = {epoch: ErrorCode(ask(elected.client, epoch)) for epoch in (NOT_KNOWN, elected.epoch, now, now + 1)}

    assert codes == {
        NOT_KNOWN: ErrorCode.NONE,
        elected.epoch: ErrorCode.FENCED_LEADER_EPOCH,
        now: ErrorCode.NONE,
        now + 1: ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
