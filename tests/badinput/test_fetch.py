"""Row 36, and Fetch in rows 16 and 57: fetches that ask for too much, for nothing, or for what is not there."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from tests.badinput.batches import a_batch
from tests.badinput.rows import not_for_kafka, row
from tests.badinput.unharmed import ANSWER_TIMEOUT_S, Vitals
from tests.testkit import BrokerProcess, RawClient, broker_under_test
from tests.testkit.asking import create_usable_topic, fetch, fetch_request, produce

pytestmark = pytest.mark.xdist_group("badinput-fetch")

TOPIC = "fetched-from"
BATCHES = 8
BATCH_BYTES = 500_000
INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)
FETCH_MAX_BYTES = 57_671_680
MANY = 100_000
BEYOND_AN_ANSWER: dict[str, Any] = {"fetch.max.bytes": INT32_MAX}


@pytest.fixture(scope="module", autouse=True)
def topic(module_broker: BrokerProcess) -> None:
    with RawClient(module_broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        create_usable_topic(client, TOPIC)
        for _ in range(BATCHES):
            assert produce(client, TOPIC, a_batch(bytes(BATCH_BYTES))).error_code == 0


# To a negative size or an unknown isolation level Kafka answers UNKNOWN_SERVER_ERROR.
@pytest.mark.parametrize("version", [4, 11, 12])
@pytest.mark.parametrize(
    ("fields", "batches"),
    [
        row(36, "max bytes negative", {"max_bytes": -1}, 1, only_ours=True),
        row(36, "smallest max bytes", {"max_bytes": INT32_MIN}, 1, only_ours=True),
        row(36, "max bytes zero", {"max_bytes": 0}, 1),
        row(36, "largest max bytes", {"max_bytes": INT32_MAX, "partition_max_bytes": INT32_MAX}, BATCHES),
        row(36, "partition max bytes negative", {"partition_max_bytes": -1}, 1, only_ours=True),
        row(36, "smallest partition max bytes", {"partition_max_bytes": INT32_MIN}, 1, only_ours=True),
        row(36, "min bytes huge", {"min_bytes": INT32_MAX, "max_wait_ms": 50}, BATCHES),
        row(36, "min bytes negative", {"min_bytes": INT32_MIN, "max_wait_ms": INT32_MAX}, BATCHES),
        row(36, "max wait negative", {"min_bytes": INT32_MAX, "max_wait_ms": INT32_MIN}, BATCHES),
        row(36, "isolation level 99", {"isolation_level": 99}, BATCHES, only_ours=True),
    ],
)
def test_given_odd_limits_when_fetched_then_the_first_batch_or_all_of_them_come(
    client: RawClient, fields: dict[str, Any], batches: int, version: int
) -> None:
    answer = fetch(client, TOPIC, version=version, **fields)

    assert answer.error_code == 0
    assert isinstance(answer.records, memoryview)
    assert len(answer.records) // BATCH_BYTES == batches


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        row(36, "offset past the end", BATCHES + 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        row(36, "offset minus one", -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        row(36, "largest offset", 2**63 - 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        row(36, "smallest offset", -(2**63), ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_given_an_offset_that_is_not_there_when_fetched_then_it_is_out_of_range(
    client: RawClient, offset: int, code: ErrorCode
) -> None:
    assert ErrorCode(fetch(client, TOPIC, offset).error_code) == code


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        row(16, "unknown topic", "never-made", 0),
        row(16, "name of a path", "../../etc/passwd", 0),
        row(16, "unknown partition", TOPIC, 1),
        row(16, "negative partition", TOPIC, -1),
    ],
)
def test_given_a_partition_that_does_not_exist_when_fetched_then_it_is_unknown(
    client: RawClient, topic: str, partition: int
) -> None:
    answer = fetch(client, topic, partition=partition)

    assert ErrorCode(answer.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        row(36, "leader epoch from the future", 1000, ErrorCode.UNKNOWN_LEADER_EPOCH),
        row(36, "largest leader epoch", INT32_MAX, ErrorCode.UNKNOWN_LEADER_EPOCH),
        row(36, "negative leader epoch", -2, ErrorCode.FENCED_LEADER_EPOCH, only_ours=True),
    ],
)
def test_given_a_leader_epoch_that_is_not_the_leaders_when_fetched_then_it_is_fenced_or_unknown(
    client: RawClient, epoch: int, code: ErrorCode
) -> None:
    request = fetch_request({TOPIC: [(0, 0)]})
    request.topics[0].partitions[0].current_leader_epoch = epoch

    answer = client.exchange(request, 12, FetchResponse)

    assert ErrorCode(answer.responses[0].partitions[0].error_code) == code


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [
        row(36, "unknown session", 12345, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        row(36, "session minus one", -1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        row(36, "no session with an epoch", 0, 5, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_given_a_fetch_session_that_does_not_exist_when_used_then_it_is_not_found(
    client: RawClient, session_id: int, epoch: int, code: ErrorCode
) -> None:
    request = fetch_request({TOPIC: [(0, 0)]}, session_id=session_id, session_epoch=epoch)

    assert ErrorCode(client.exchange(request, 12, FetchResponse).error_code) == code


@pytest.mark.parametrize("epoch", [row(36, f"session epoch {epoch}", epoch) for epoch in (2, INT32_MAX, -2, INT32_MIN)])
def test_given_a_fetch_session_when_used_with_a_wrong_epoch_then_the_epoch_is_invalid(
    client: RawClient, epoch: int
) -> None:
    opened = client.exchange(fetch_request({TOPIC: [(0, 0)]}, session_epoch=0), 12, FetchResponse)

    answer = client.exchange(
        fetch_request({TOPIC: [(0, 0)]}, session_id=opened.session_id, session_epoch=epoch), 12, FetchResponse
    )

    assert opened.session_id > 0
    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_row36_given_more_sessions_than_slots_when_opened_then_the_rest_goes_without(client: RawClient) -> None:
    opening = fetch_request({"never-made": [(0, 0)]}, session_epoch=0, min_bytes=0)

    opened = [client.exchange(opening, 12, FetchResponse) for _ in range(1_200)]
    for session_id in {answer.session_id for answer in opened}:
        close_session(client, session_id)

    assert {answer.error_code for answer in opened} == {0}
    assert opened[0].session_id > 0
    assert opened[-1].session_id == 0


# 100,000 partitions


def many_partitions(topic: str, indexes: range | list[int], offset: int = 0) -> list[FetchTopic]:
    asked = [FetchPartition(partition=each, fetch_offset=offset, partition_max_bytes=INT32_MAX) for each in indexes]
    return [FetchTopic(topic=topic, partitions=asked)]


@pytest.mark.parametrize(
    ("topics", "code"),
    [
        row(36, "partitions that do not exist", many_partitions(TOPIC, range(1, MANY + 1)), 3),
        row(36, "partitions of an unknown topic", many_partitions("never-made", range(MANY)), 3),
    ],
)
def test_given_a_hundred_thousand_partitions_when_fetched_then_each_is_answered_within_bounds(
    client: RawClient, topics: list[FetchTopic], code: int
) -> None:
    request = FetchRequest(max_wait_ms=0, topics=topics)

    answer = client.exchange(request, 12, FetchResponse)

    assert {each.error_code for topic in answer.responses for each in topic.partitions} == {code}
    assert sum(len(topic.partitions) for topic in answer.responses) == MANY


@not_for_kafka  # it answers each partition once
def test_row36_given_the_same_partition_a_thousand_times_when_fetched_then_the_answer_has_fetch_max_bytes_at_most(
    client: RawClient, vitals: Vitals
) -> None:
    request = FetchRequest(max_wait_ms=0, max_bytes=INT32_MAX, topics=many_partitions(TOPIC, [0] * 1_000))

    answer = client.exchange(request, 12, FetchResponse)

    rows = [each for topic in answer.responses for each in topic.partitions]
    assert sum(len(each.records) for each in rows if isinstance(each.records, memoryview)) <= FETCH_MAX_BYTES


@not_for_kafka  # it answers each partition once
def test_row36_given_a_limit_beyond_what_an_answer_can_be_when_asked_for_more_then_the_answer_has_as_much_as_it_can(
    tmp_path: Path,
) -> None:
    with broker_under_test().start(tmp_path / "data", **BEYOND_AN_ANSWER) as broker:
        with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as client:
            create_usable_topic(client, TOPIC)
            assert produce(client, TOPIC, a_batch(bytes(BATCH_BYTES))).error_code == 0
            enough = many_partitions(TOPIC, [0] * (2 * INT32_MAX // BATCH_BYTES))
            request = FetchRequest(max_wait_ms=0, max_bytes=INT32_MAX, topics=enough)
            client.send_request(request.API_KEY, 12, request.encode(12))

            size = int.from_bytes(client.socket.recv(4), "big", signed=True)  # who reads it all takes a while

        assert 1 << 30 < size < INT32_MAX
        assert broker.is_running


@not_for_kafka  # whose sessions are bounded in number only
def test_row36_given_a_session_when_incremental_fetches_add_partitions_without_end_then_they_come_to_an_end(
    client: RawClient, vitals: Vitals
) -> None:
    session_id = client.exchange(fetch_request({"never-made": [(0, 0)]}, session_epoch=0), 12, FetchResponse).session_id
    vitals.cpu_limit_s = 5 * vitals.cpu_limit_s  # for five requests, of which the last looks at 200,000 partitions

    codes = []
    for epoch in range(1, 6):
        topics = many_partitions("never-made", range(epoch * 50_000, (epoch + 1) * 50_000))
        request = FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=epoch, topics=topics)
        answered = client.request(FetchRequest.API_KEY, 12, request.encode(12))
        codes.append(int.from_bytes(answered[4:6], "big"))  # after the throttle time
    close_session(client, session_id)

    assert session_id > 0
    assert any(codes), "250,000 partitions in one session"


def close_session(client: RawClient, session_id: int) -> None:
    client.exchange(fetch_request({"never-made": [(0, 0)]}, session_id=session_id, session_epoch=-1), 12, FetchResponse)


@pytest.mark.parametrize(
    "forgotten",
    [
        row(36, "unknown topic", ForgottenTopic(topic="never-made", partitions=[0])),
        row(36, "odd partitions", ForgottenTopic(topic=TOPIC, partitions=[-1, 9, INT32_MAX])),
        row(36, "many partitions", ForgottenTopic(topic=TOPIC, partitions=list(range(1, MANY)))),
    ],
)
def test_given_a_session_when_it_forgets_what_it_never_had_then_it_goes_on(
    client: RawClient, forgotten: ForgottenTopic
) -> None:
    opened = client.exchange(fetch_request({TOPIC: [(0, 0)]}, session_epoch=0, max_bytes=0), 12, FetchResponse)
    request = fetch_request(
        {TOPIC: [(0, 0)]}, session_id=opened.session_id, session_epoch=1, forgotten_topics_data=[forgotten]
    )

    answer = client.exchange(request, 12, FetchResponse)

    assert answer.error_code == 0
    assert [each.error_code for topic in answer.responses for each in topic.partitions] == [0]


# Row 57: followers are brokers, and do not come through a client's listener


@not_for_kafka  # without an authorizer it lets anyone fetch as a replica
@pytest.mark.parametrize(
    ("version", "fields"),
    [
        row(57, "replica id", 12, {"replica_id": 0}),
        row(57, "our own replica id", 12, {"replica_id": 1}),
        row(57, "replica state", 15, {"replica_state": ReplicaState(replica_id=1, replica_epoch=5)}),
    ],
)
def test_given_a_client_when_it_fetches_as_a_replica_then_it_is_not_authorized(
    client: RawClient, version: int, fields: dict[str, Any]
) -> None:
    answer = client.exchange(fetch_request({TOPIC: [(0, 0)]}, **fields), version, FetchResponse)

    assert ErrorCode(answer.error_code) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
