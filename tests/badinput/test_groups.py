"""Rows 40, 41 and 56, and what else groups can be told that makes no sense."""

import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.coordinators.group.records import OffsetCommitRecord, encode
from penstock.core.errors import ErrorCode
from penstock.protocol.batch import read_header
from penstock.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from penstock.protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.protocol.records import Record, build_batch
from tests.badinput.batches import a_batch, now_ms, with_fields
from tests.badinput.rows import not_for_kafka, row
from tests.badinput.unharmed import ANSWER_TIMEOUT_S, MIB, Vitals
from tests.testkit import Broker, BrokerProcess, RawClient, eventually, membership
from tests.testkit.asking import create_topic, produce
from tests.testkit.membership import JOIN_VERSION, heartbeat, join, join_request, sync

pytestmark = pytest.mark.xdist_group("badinput-groups")

BROKER_SETTINGS: dict[str, Any] = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
TOPIC = "committed-to"
OFFSETS_TOPIC = "__consumer_offsets"
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
commit = partial(membership.commit, topic=TOPIC)
fetched = partial(membership.fetched, topic=TOPIC)


@pytest.fixture(scope="module", autouse=True)
def topic_is_there(module_broker: BrokerProcess) -> None:
    with RawClient(module_broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        create_topic(client, TOPIC)
        find_coordinator(client, "any")
        assert commit(client, "warm") == ErrorCode.NONE


def find_coordinator(client: RawClient, group_id: str) -> None:
    """Creates __consumer_offsets where it is not there yet, and waits until it is loaded."""

    def ask() -> bool:
        request = FindCoordinatorRequest(coordinator_keys=[group_id])
        (found,) = client.exchange(request, 4, FindCoordinatorResponse).coordinators
        return found.error_code == 0 and fetched(client, group_id) is not None

    eventually(ask, 20, "no coordinator")


# Row 40


def test_row40_given_no_group_id_when_joined_then_it_is_invalid(client: RawClient) -> None:
    assert join(client, "").error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(
    "session_timeout_ms",
    [row(40, "one", 1), row(40, "zero", 0), row(40, "minus one", -1), row(40, "too long", 1_800_001)],
)
def test_given_a_session_timeout_out_of_bounds_when_joined_then_it_is_refused(
    client: RawClient, session_timeout_ms: int
) -> None:
    answer = join(client, "impatient", session_timeout_ms=session_timeout_ms)

    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize(
    ("size", "code"),
    [
        row(40, "at the limit", 4096, ErrorCode.NONE),
        row(40, "one over", 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        row(40, "longest text", 32767, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_given_metadata_when_committed_then_its_size_is_limited(client: RawClient, size: int, code: ErrorCode) -> None:
    group_id = f"metadata-{size}"

    assert commit(client, group_id, metadata="x" * size) == code

    assert fetched(client, group_id) == (7 if code is ErrorCode.NONE else -1)


def test_row40_given_a_megabyte_of_metadata_when_committed_then_it_is_no_text_and_the_connection_is_closed(
    client: RawClient,
) -> None:
    with pytest.raises(ConnectionError):
        commit(client, "metadata-megabyte", metadata="x" * MIB)


# Row 41


@pytest.mark.parametrize(
    "metadata",
    [
        row(41, "nothing", b""),
        row(41, "zeros", bytes(64)),
        # Kafka reads the subscription of a consumer, stumbles over these, and never answers.
        row(41, "ones", b"\xff" * 64, only_ours=True),
        row(41, "a count out of this world", b"\0\1\x7f\xff\xff\xff", only_ours=True),
        row(41, "a quarter of a megabyte", b"\0\3" + b"g" * (MIB // 4), only_ours=True),
    ],
)
def test_given_garbage_as_a_members_metadata_when_it_joins_then_it_is_passed_on_as_it_is(
    client: RawClient, metadata: bytes
) -> None:
    group_id = f"garbage-{len(metadata)}-{metadata[:4].hex()}"
    protocols = [JoinGroupRequestProtocol(name="range", metadata=metadata)]

    joined = join(client, group_id, protocols=protocols)
    synced = sync(client, group_id, joined, metadata)

    assert (joined.error_code, synced.error_code) == (0, 0)
    (member,) = joined.members
    assert bytes(member.metadata) == metadata
    assert bytes(synced.assignment) == metadata
    assert heartbeat(client, group_id, joined) == ErrorCode.NONE
    # What it subscribes to nobody can say; its offsets are not for that reason lost.
    fields: dict[str, Any] = {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}
    assert commit(client, group_id, **fields) == ErrorCode.NONE
    assert fetched(client, group_id) == 7


# Row 56 and other commits


@pytest.mark.parametrize(
    "offset", [row(56, "minus one", -1), row(56, "smallest", INT64_MIN), row(56, "largest", INT64_MAX)]
)
def test_given_an_odd_offset_when_committed_then_the_partition_is_answered(client: RawClient, offset: int) -> None:
    group_id = f"odd-{offset}"

    code = commit(client, group_id, offset=offset)

    assert code == ErrorCode.NONE
    assert fetched(client, group_id) == offset


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("never-made", 0), (TOPIC, 1), (TOPIC, -1), (TOPIC, 2**31 - 1), ("", 0), ("not a topic!", 0)],
)
def test_given_a_partition_that_does_not_exist_when_committed_then_it_is_unknown(
    client: RawClient, topic: str, partition: int
) -> None:
    assert commit(client, "lost", topic=topic, partition=partition) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    assert fetched(client, "lost") == -1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"generation_id_or_member_epoch": 3, "member_id": "nobody"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 2**31 - 1}, ErrorCode.ILLEGAL_GENERATION),
    ],
    ids=["member", "generation"],
)
def test_given_no_such_group_when_a_member_of_it_commits_then_it_is_refused(
    client: RawClient, fields: dict[str, Any], code: ErrorCode
) -> None:
    assert commit(client, "never-there", **fields) == code

    assert fetched(client, "never-there") == -1


def test_given_a_retention_beyond_the_end_of_time_when_committed_then_it_is_kept_until_then(client: RawClient) -> None:
    code = commit(client, "for-ever", version=3, retention_time_ms=INT64_MAX)

    assert code == ErrorCode.NONE
    assert fetched(client, "for-ever") == 7


# Members that are not, or not together


def test_given_a_member_of_another_group_when_it_speaks_up_then_it_is_unknown(client: RawClient) -> None:
    mine, others = join(client, "mine"), join(client, "others")
    sync(client, "mine", mine, b"")
    sync(client, "others", others, b"")
    stranger: dict[str, Any] = {"generation_id_or_member_epoch": mine.generation_id, "member_id": mine.member_id}

    assert heartbeat(client, "others", mine) == ErrorCode.UNKNOWN_MEMBER_ID
    assert sync(client, "others", mine, b"").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(client, "others", **stranger) == ErrorCode.UNKNOWN_MEMBER_ID
    rejoined = client.exchange(join_request("others", mine.member_id), JOIN_VERSION, JoinGroupResponse)
    assert rejoined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeat(client, "others", others, generation_id=others.generation_id + 1) == ErrorCode.ILLEGAL_GENERATION
    # Neither group has noticed anything.
    assert heartbeat(client, "mine", mine) == heartbeat(client, "others", others) == ErrorCode.NONE
    assert fetched(client, "others") == -1


@pytest.mark.parametrize(
    "fields",
    [
        {"protocols": [JoinGroupRequestProtocol(name="roundrobin", metadata=b"")]},
        {"protocols": []},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ],
    ids=["other", "none", "other-type", "no-type"],
)
def test_given_a_member_when_another_has_no_protocol_in_common_then_only_that_one_is_refused(
    client: RawClient, fields: dict[str, Any]
) -> None:
    group_id = f"agreed-{fields}"
    joined = join(client, group_id)
    sync(client, group_id, joined, b"")

    refused = join(client, group_id, **fields)

    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert heartbeat(client, group_id, joined) == ErrorCode.NONE


def test_given_an_assignment_that_no_log_takes_when_the_leader_sends_it_then_it_is_refused_and_the_group_lives(
    client: RawClient, vitals: Vitals
) -> None:
    vitals.growth_bytes = 64 * MIB
    joined = join(client, "heavy")

    synced = sync(client, "heavy", joined, bytes(2 * MIB))

    assert synced.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    again = client.exchange(join_request("heavy", joined.member_id), JOIN_VERSION, JoinGroupResponse)
    assert again.error_code == 0
    assert sync(client, "heavy", again, b"light").error_code == 0
    assert heartbeat(client, "heavy", again) == ErrorCode.NONE


def test_given_the_offsets_topic_when_a_client_produces_to_it_then_it_is_refused(client: RawClient) -> None:
    answer = produce(client, OFFSETS_TOPIC, a_batch(b"mine"))

    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@not_for_kafka  # UNKNOWN_SERVER_ERROR: its own message does not fit
def test_given_the_longest_name_there_is_when_no_such_group_is_described_then_the_answer_can_be_read(
    client: RawClient,
) -> None:
    name = "g" * 32_767
    consumer = ConsumerGroupDescribeRequest(group_ids=[name])
    (as_classic,) = client.exchange(DescribeGroupsRequest(groups=[name]), 6, DescribeGroupsResponse).groups
    (as_consumer,) = client.exchange(consumer, 1, ConsumerGroupDescribeResponse).groups

    assert as_classic.group_id == as_consumer.group_id == name
    assert as_classic.error_code == as_consumer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


# Garbage in the log


GARBAGE = {
    "no version": (b"\0", b"x"),
    "a key that ends early": (b"\0\1\0\5gro", b"\0\3" + bytes(30)),
    "a value that ends early": (b"\0\1\0\3bad\0\1t\0\0\0\0", b"\0\3\0\0"),
    "a group without the rest": (b"\0\2\0\3bad", b"\0\3\0\x08consumer\0\0"),
    "a length below zero": (b"\0\2\0\3bad", b"\0\3\xff\xf0" + bytes(20)),
    "a count out of this world": (
        b"\0\2\0\3bad",
        b"\0\3\0\x08consumer\0\0\0\1\xff\xff\xff\xff" + bytes(8) + b"\x7f\xff\xff\xff",
    ),
    "a value of no version that is": (b"\0\3\0\3bad", b"\x7f\xff" + bytes(20)),
}
A_LATER_KIND = (struct.pack(">h", 999) + b"from the future", b"x")


@not_for_kafka  # which does not come up again, see trap E4
def test_given_garbage_in_the_offsets_log_when_the_broker_starts_then_it_is_reported_and_the_other_groups_are_served(
    tmp_path: Path,
) -> None:
    with Broker.start(tmp_path / "data", **BROKER_SETTINGS) as broker:
        with RawClient(broker.address) as client:
            create_topic(client, TOPIC)
            find_coordinator(client, "before")
            assert commit(client, "before") == ErrorCode.NONE
        broker.stop()
        good = encode(OffsetCommitRecord("after", TOPIC, 0, 9, -1, "", now_ms()))
        append_to_log(tmp_path / "data" / f"{OFFSETS_TOPIC}-0", [*GARBAGE.values(), A_LATER_KIND, good])
        broker.restart()

        with RawClient(broker.address) as client:
            offsets = [eventually_fetched(client, group_id) for group_id in ("before", "after", "bad")]
            codes = [commit(client, group_id) for group_id in ("before", "bad")]

    assert offsets == [7, 9, -1]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]
    assert broker.log_text().count("coordinator record not understood") == len(GARBAGE)
    assert "Traceback" not in broker.log_text()


def eventually_fetched(client: RawClient, group_id: str) -> int:
    found: list[int] = []

    def ask() -> bool:
        offset = fetched(client, group_id)
        if offset is not None:
            found.append(offset)
        return bool(found)

    eventually(ask, 20)
    return found[0]


def append_to_log(directory: Path, records: list[Any]) -> None:
    """In one batch, at the end of the last segment, as the broker would have written it."""
    segment = max(directory.glob("*.log"))
    content = segment.read_bytes()
    position, offset, epoch = 0, int(segment.stem), 0
    while position < len(content):
        header = read_header(content, position)
        position += 12 + header.batch_length
        offset, epoch = header.next_offset, header.partition_leader_epoch
    batch = build_batch([Record(each[0], each[1], (), now_ms()) for each in records])
    with segment.open("ab") as log:
        log.write(with_fields(batch, base_offset=offset, partition_leader_epoch=epoch))
