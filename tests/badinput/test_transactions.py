"""Rows 25, 27 and 57, and what else a transactional producer can say that makes no sense: each gets Kafka's code, and
no transaction changes by it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.coordinators.transaction.records import TransactionRecord, TransactionStatus, encode
from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from penstock.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeProducersResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.badinput.batches import now_ms
from tests.badinput.rows import not_for_kafka
from tests.badinput.test_groups import append_to_log, fetched, find_coordinator
from tests.badinput.unharmed import ANSWER_TIMEOUT_S
from tests.testkit import Broker, BrokerProcess, RawClient, eventually
from tests.testkit.asking import create_usable_topic, fetch
from tests.testkit.transacting import (
    TV1,
    TV2,
    TransactionalProducer,
    a_producer,
    committed_values,
    described,
    find_transaction_coordinator,
    init_producer_id,
    open_transactions_of,
    write_marker,
)

pytestmark = pytest.mark.xdist_group("badinput-transactions")

BROKER_SETTINGS: dict[str, Any] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 2,
}
TOPIC = "committed-to"  # test_groups' own, whose functions are used
STATE_TOPIC, OFFSETS_TOPIC = "__transaction_state", "__consumer_offsets"
MAX_TIMEOUT_MS = 900_000
INT64_MAX = 2**63 - 1

versions = pytest.mark.parametrize("version", [TV1, TV2], ids=["tv1", "tv2"])


@pytest.fixture(scope="module", autouse=True)
def coordinators_are_there(module_broker: BrokerProcess) -> None:
    with RawClient(module_broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        create_usable_topic(client, TOPIC, 3)
        find_coordinator(client, "any")
        # One for each partition of __transaction_state.
        for transactional_id in ("a", "b"):
            find_transaction_coordinator(client, transactional_id)
            producer = a_producer(client, transactional_id)
            eventually(partial(commits_an_offset, producer))
            producer.end(commit=False)


def commits_an_offset(producer: TransactionalProducer) -> bool:
    return producer.commit_offset("warm", TOPIC) == ErrorCode.NONE


@pytest.fixture
def producer(client: RawClient, topic_name: str, version: int) -> TransactionalProducer:
    """Has seen an epoch before its own, so that there is one from the past."""
    a_producer(client, topic_name)
    return a_producer(client, topic_name, version)


def strangers(producer: TransactionalProducer) -> Iterator[tuple[str, dict[str, Any], ErrorCode]]:
    """Who comes with something of another; and what EndTxn, AddPartitionsToTxn and AddOffsetsToTxn answer."""
    yield "unknown producer id", {"producer_id": producer.producer_id + 10_000}, ErrorCode.INVALID_PRODUCER_ID_MAPPING
    yield "no producer id", {"producer_id": -1}, ErrorCode.INVALID_PRODUCER_ID_MAPPING
    yield "epoch of the past", {"producer_epoch": producer.producer_epoch - 1}, ErrorCode.PRODUCER_FENCED
    yield "epoch of the future", {"producer_epoch": producer.producer_epoch + 1}, ErrorCode.PRODUCER_FENCED
    yield "last epoch", {"producer_epoch": 32767}, ErrorCode.PRODUCER_FENCED
    yield "first epoch", {"producer_epoch": -32768}, ErrorCode.PRODUCER_FENCED
    yield "unknown transactional id", {"transactional_id": "never-there"}, ErrorCode.INVALID_PRODUCER_ID_MAPPING
    yield "another's transactional id", {"transactional_id": "a"}, ErrorCode.INVALID_PRODUCER_ID_MAPPING
    yield "no transactional id", {"transactional_id": ""}, ErrorCode.INVALID_REQUEST


def assert_untouched(producer: TransactionalProducer, *values: bytes, partition: int = 0) -> None:
    """Its transaction is open still, nothing of it is seen, and it can be committed, with these values."""
    state = producer.state()
    assert state.transaction_state == "Ongoing"
    assert (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.producer_epoch)
    assert producer.producer_id in open_transactions_of(producer.client, TOPIC, partition)
    before = committed_values(producer.client, TOPIC, partition=partition)
    producer.end(commit=True)
    assert committed_values(producer.client, TOPIC, partition=partition) == [*before, *values]


# InitProducerId


@pytest.mark.parametrize("transactional_id", ["with-an-id", None, ""])
@pytest.mark.parametrize("fields", [{"producer_id": 5}, {"producer_epoch": 5}], ids=["id-only", "epoch-only"])
def test_given_half_of_an_identity_when_a_producer_comes_with_it_then_the_request_is_invalid(
    client: RawClient, transactional_id: str | None, fields: dict[str, Any]
) -> None:
    answer = init_producer_id(client, transactional_id, **fields)

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_REQUEST
    assert answer.producer_id == -1


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), MAX_TIMEOUT_MS + 1, 2**31 - 1])
def test_given_a_timeout_out_of_bounds_when_a_producer_comes_then_it_is_refused_and_not_remembered(
    client: RawClient, topic_name: str, timeout_ms: int
) -> None:
    answer = init_producer_id(client, topic_name, transaction_timeout_ms=timeout_ms)

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert described(client, topic_name).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_given_an_empty_transactional_id_when_a_producer_comes_then_the_request_is_invalid(client: RawClient) -> None:
    assert ErrorCode(init_producer_id(client, "").error_code) == ErrorCode.INVALID_REQUEST
    assert described(client, "").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("transactional_id", ["i" * 32_000, "\0", "ü\U0001f9e8", "../../etc/passwd", "%s%n"])
def test_given_an_odd_transactional_id_when_used_then_it_is_one_like_any_other(
    client: RawClient, transactional_id: str
) -> None:
    producer = a_producer(client, transactional_id)
    producer.write(TOPIC, b"odd")
    producer.end(commit=True)

    assert committed_values(client, TOPIC)[-1] == b"odd"
    assert producer.state().transactional_id == transactional_id


@pytest.mark.parametrize("version", [5, 4, 3])
def test_given_a_producer_at_rest_when_another_comes_with_a_wrong_identity_then_that_one_is_fenced(
    client: RawClient, topic_name: str, version: int
) -> None:
    producer = a_producer(client, topic_name)
    mine = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    wrong = [
        {**mine, "producer_id": producer.producer_id + 10_000},
        {**mine, "producer_epoch": producer.producer_epoch + 1},
        {**mine, "producer_epoch": -5},
        {**mine, "producer_epoch": 32767},
    ]

    codes = {ErrorCode(init_producer_id(client, topic_name, version=version, **each).error_code) for each in wrong}
    right = init_producer_id(client, topic_name, version=version, **mine)
    again = init_producer_id(client, topic_name, version=version, **mine)

    # Older clients do not know the other.
    assert codes == {ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH}
    assert (right.error_code, right.producer_epoch) == (0, producer.producer_epoch + 1)
    # A retry, for which the answer got lost, is given the same (KIP-360).
    assert (again.error_code, again.producer_epoch) == (0, producer.producer_epoch + 1)


def test_given_an_identity_of_a_transactional_id_that_expired_when_a_producer_comes_with_it_then_it_gets_a_new_one(
    client: RawClient, topic_name: str
) -> None:
    answer = init_producer_id(client, topic_name, producer_id=INT64_MAX, producer_epoch=12)

    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id != INT64_MAX


@not_for_kafka  # which looks at the id only, and lets a fenced producer abort what its successor does
@pytest.mark.parametrize("epoch_difference", [-1, 1, 5])
@pytest.mark.parametrize("version", [TV2])
def test_given_a_transaction_when_a_producer_of_another_epoch_comes_back_then_it_is_fenced_and_the_transaction_lives(
    producer: TransactionalProducer, epoch_difference: int
) -> None:
    producer.write(TOPIC, b"mine")
    wrong = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch + epoch_difference}

    answer = init_producer_id(producer.client, producer.transactional_id, **wrong)

    assert ErrorCode(answer.error_code) == ErrorCode.PRODUCER_FENCED
    assert_untouched(producer, b"mine")


# EndTxn


@versions
def test_given_nothing_to_end_when_a_producer_commits_then_the_state_is_invalid(
    producer: TransactionalProducer, version: int
) -> None:
    epoch = producer.producer_epoch

    codes = [producer.end_once(commit=True), producer.end_once(commit=False)]

    # A producer of version 2 may abort what never reached the coordinator: whatever did not is fenced.
    assert codes == [ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE if version == TV1 else ErrorCode.NONE]
    assert producer.state().producer_epoch == epoch + (version == TV2)


@versions
@pytest.mark.parametrize("first", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("second", [True, False], ids=["then-commit", "then-abort"])
def test_given_a_transaction_that_ended_when_it_is_ended_again_then_only_the_same_outcome_is_told(
    producer: TransactionalProducer, version: int, first: bool, second: bool
) -> None:
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    visible = committed_values(producer.client, TOPIC)
    producer.write(TOPIC, b"once")
    producer.end(commit=first)
    before = producer.state()

    code = producer.end_once(commit=second, **identity)

    assert code == (ErrorCode.NONE if first == second else ErrorCode.INVALID_TXN_STATE)
    assert producer.state() == before
    assert committed_values(producer.client, TOPIC) == [*visible, *[b"once"] * first]


@versions
def test_given_a_transaction_when_a_stranger_ends_it_then_it_goes_on(
    producer: TransactionalProducer, version: int
) -> None:
    producer.write(TOPIC, b"mine")

    for who, fields, code in strangers(producer):
        for commit in (True, False):
            assert producer.end_once(commit=commit, **fields) == code, who

    assert_untouched(producer, b"mine")


@pytest.mark.parametrize("version", [TV1])
def test_given_an_old_client_when_it_is_fenced_then_it_gets_a_code_that_it_knows(
    producer: TransactionalProducer,
) -> None:
    fenced = {"producer_epoch": producer.producer_epoch - 1}

    codes = {
        producer.end_once(commit=True, version=1, **fenced),
        *producer.add_once({TOPIC: (0,)}, version=1, **fenced).values(),
    }

    assert codes == {ErrorCode.INVALID_PRODUCER_EPOCH}


# AddPartitionsToTxn, AddOffsetsToTxn


@pytest.mark.parametrize("version", [TV1])
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (("never-made", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("../x", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((TOPIC, 99), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((TOPIC, -1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((OFFSETS_TOPIC, 0), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ((STATE_TOPIC, 0), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
    ids=lambda each: each.name if isinstance(each, ErrorCode) else f"{each[0]}-{each[1]}",
)
def test_given_a_partition_that_a_producer_cannot_write_to_when_added_with_others_then_none_is_added(
    producer: TransactionalProducer, wrong: tuple[str, int], code: ErrorCode
) -> None:
    topic, partition = wrong
    asked = {TOPIC: (0, 1)}
    asked[topic] = (*asked.get(topic, ()), partition)

    codes = producer.add_once(asked)

    assert codes == {
        (TOPIC, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (TOPIC, 1): ErrorCode.OPERATION_NOT_ATTEMPTED,
        wrong: code,
    }
    assert (producer.state().transaction_state, producer.state().topics) == ("Empty", [])


@pytest.mark.parametrize("version", [TV1])
def test_given_a_transaction_when_a_stranger_adds_to_it_then_it_stays_as_it_is(producer: TransactionalProducer) -> None:
    producer.write(TOPIC, b"mine")
    before = producer.state()

    for who, fields, code in strangers(producer):
        assert producer.add_once({TOPIC: (1,)}, **fields) == {(TOPIC, 1): code}, who
        assert producer.add_offsets("any", **fields) == code, who

    assert producer.state() == before
    assert_untouched(producer, b"mine")


def test_given_several_transactions_in_a_request_of_a_broker_then_each_is_answered_on_its_own(
    client: RawClient, topic_name: str
) -> None:
    producer = a_producer(client, topic_name, TV1)
    asked = [
        (topic_name, TOPIC, 0),
        ("never-there", TOPIC, 0),
        ("", TOPIC, 0),
        (f"{topic_name}-2", "never-made", 0),
    ]
    transactions = [
        AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        for transactional_id, topic, partition in asked
    ]

    answer = client.exchange(AddPartitionsToTxnRequest(transactions=transactions), 5, AddPartitionsToTxnResponse)

    assert answer.error_code == 0
    codes = {
        result.transactional_id: ErrorCode(result.topic_results[0].results_by_partition[0].partition_error_code)
        for result in answer.results_by_transaction
    }
    assert codes == {
        topic_name: ErrorCode.NONE,
        "never-there": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        "": ErrorCode.INVALID_REQUEST,
        f"{topic_name}-2": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [each.topic for each in producer.state().topics] == [TOPIC]


# Produce


@versions
def test_given_no_transaction_when_a_batch_of_a_stranger_comes_then_it_is_refused_and_opens_nothing(
    producer: TransactionalProducer, version: int
) -> None:
    end = fetch(producer.client, TOPIC, min_bytes=0).high_watermark
    wrong: list[tuple[bytearray, dict[str, Any], ErrorCode]] = [
        (producer.batch(TOPIC, b"x", **fields), {}, code)
        for fields, code in (
            ({"producer_id": producer.producer_id + 10_000}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            ({"producer_epoch": producer.producer_epoch - 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
            ({"producer_epoch": producer.producer_epoch + 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
            ({"producer_epoch": 32767}, ErrorCode.INVALID_PRODUCER_EPOCH),
        )
    ]
    mine = producer.batch(TOPIC, b"x", base_sequence=0)
    wrong += [
        (mine, {"transactional_id": "never-there"}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (mine, {"transactional_id": "a"}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (mine, {"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        (mine, {"transactional_id": None}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ]
    if version == TV1:
        wrong += [
            (mine, {}, ErrorCode.TRANSACTION_ABORTABLE),
            (mine, {"version": 10}, ErrorCode.INVALID_TXN_STATE),  # which knows no other
        ]

    codes = [(ErrorCode(producer.send(TOPIC, batch, **fields).error_code), code) for batch, fields, code in wrong]

    assert [code for code, _ in codes] == [expected for _, expected in codes]
    assert fetch(producer.client, TOPIC, min_bytes=0).high_watermark == end
    assert producer.producer_id not in open_transactions_of(producer.client, TOPIC)
    producer.sequences.clear()
    producer.write(TOPIC, b"mine")
    assert_untouched(producer, b"mine")


@versions
def test_given_a_transaction_when_a_batch_comes_that_is_not_of_it_then_it_is_refused(
    producer: TransactionalProducer, version: int
) -> None:
    producer.write(TOPIC, b"mine")
    end = fetch(producer.client, TOPIC, min_bytes=0).high_watermark
    outside = producer.batch(TOPIC, b"x", base_sequence=1, is_transactional=False)
    wrong: list[tuple[bytearray, dict[str, Any], ErrorCode]] = [
        (outside, {}, ErrorCode.INVALID_TXN_STATE),
        (outside, {"transactional_id": None}, ErrorCode.INVALID_TXN_STATE),
        (producer.batch(TOPIC, b"x", base_sequence=7), {}, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (
            producer.batch(TOPIC, b"x", base_sequence=0, producer_epoch=producer.producer_epoch + 1),
            {},
            ErrorCode.INVALID_PRODUCER_EPOCH,
        ),
        (
            producer.batch(TOPIC, b"x", base_sequence=0, producer_epoch=producer.producer_epoch - 1),
            {},
            ErrorCode.INVALID_PRODUCER_EPOCH,
        ),
        (producer.batch(TOPIC, b"x", base_sequence=1, is_control=True), {}, ErrorCode.INVALID_RECORD),
    ]

    codes = [(ErrorCode(producer.send(TOPIC, batch, **fields).error_code), code) for batch, fields, code in wrong]

    assert [code for code, _ in codes] == [expected for _, expected in codes]
    assert fetch(producer.client, TOPIC, min_bytes=0).high_watermark == end
    assert_untouched(producer, b"mine")


@versions
def test_given_a_transactional_id_when_a_batch_is_not_transactional_then_it_is_one_like_any_other(
    producer: TransactionalProducer, version: int
) -> None:
    answer = producer.produce(TOPIC, b"outside", partition=1, is_transactional=False)

    assert answer.error_code == 0
    assert committed_values(producer.client, TOPIC, partition=1)[-1] == b"outside"
    assert producer.state().transaction_state == "Empty"


def test_given_a_producer_that_leaves_it_to_the_broker_when_its_first_batch_is_not_the_first_then_it_is_out_of_order(
    client: RawClient, topic_name: str
) -> None:
    producer = a_producer(client, topic_name)

    late = producer.send(TOPIC, producer.batch(TOPIC, b"second", base_sequence=1))
    producer.sequences.clear()
    first = producer.produce(TOPIC, b"first")
    again = producer.produce(TOPIC, b"second")

    assert ErrorCode(late.error_code) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (first.error_code, again.error_code) == (0, 0)
    assert_untouched(producer, b"first", b"second")


@not_for_kafka  # which takes it, as part of no transaction
@versions
def test_given_a_transactional_batch_of_no_producer_when_produced_then_it_is_refused(
    producer: TransactionalProducer, version: int
) -> None:
    batch = producer.batch(TOPIC, b"x", producer_id=-1, producer_epoch=-1, base_sequence=-1)

    assert ErrorCode(producer.send(TOPIC, batch).error_code) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("topic", [STATE_TOPIC, OFFSETS_TOPIC])
@pytest.mark.parametrize("version", [TV2])
def test_given_a_topic_of_the_coordinators_when_a_producer_writes_to_it_in_a_transaction_then_it_is_refused(
    producer: TransactionalProducer, topic: str
) -> None:
    assert ErrorCode(producer.produce(topic, b"x").error_code) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert producer.producer_id not in open_transactions_of(producer.client, topic)


# TxnOffsetCommit


def in_the_words_of_produce(code: ErrorCode) -> ErrorCode:
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code


@versions
def test_given_a_group_when_a_stranger_commits_offsets_for_it_then_none_is_pending(
    producer: TransactionalProducer, version: int, topic_name: str
) -> None:
    for who, fields, code in strangers(producer):
        assert producer.commit_offset(topic_name, TOPIC, **fields) == in_the_words_of_produce(code), who

    assert fetched(producer.client, topic_name) == -1
    assert producer.producer_id not in open_transactions_of(producer.client, OFFSETS_TOPIC)
    assert producer.state().transaction_state == "Empty"


@pytest.mark.parametrize("version", [TV1])
def test_given_a_group_that_was_never_added_when_offsets_are_committed_for_it_then_they_are_refused(
    producer: TransactionalProducer, topic_name: str
) -> None:
    codes = [producer.commit_offset(topic_name, TOPIC, version=version) for version in (4, 3, 0)]

    assert codes == [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE]
    assert fetched(producer.client, topic_name) == -1


@versions
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"generation_id": 3}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "nobody", "generation_id": 3}, ErrorCode.ILLEGAL_GENERATION),
        ({"topic": "never-made"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 99}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
    ids=["generation", "member", "topic", "partition", "no-partition", "no-group"],
)
def test_given_no_such_group_member_or_topic_when_offsets_are_committed_then_they_are_refused(
    producer: TransactionalProducer, version: int, topic_name: str, fields: dict[str, Any], code: ErrorCode
) -> None:
    if version == TV1:
        assert producer.add_offsets(topic_name) == ErrorCode.NONE

    answer = producer.commit_offset(**{"group_id": topic_name, "topic": TOPIC, **fields})

    assert answer == code
    if producer.state().transaction_state == "Ongoing":
        producer.end(commit=True)
    assert fetched(producer.client, topic_name) == -1


def joined(client: RawClient, group_id: str) -> JoinGroupResponse:
    """The only member, in a group that is stable."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    request.member_id = client.exchange(request, 9, JoinGroupResponse).member_id
    answer = client.exchange(request, 9, JoinGroupResponse)
    assert answer.error_code == 0, answer
    assignments = [SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"")]
    sync = SyncGroupRequest(
        group_id=group_id,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )
    assert client.exchange(sync, 5, SyncGroupResponse).error_code == 0
    return answer


@versions
def test_given_a_group_when_offsets_are_committed_for_who_is_no_member_of_it_any_more_then_they_are_refused(
    producer: TransactionalProducer, version: int, topic_name: str
) -> None:
    member = joined(producer.client, topic_name)
    if version == TV1:
        assert producer.add_offsets(topic_name) == ErrorCode.NONE
    now: dict[str, Any] = {"generation_id": member.generation_id, "member_id": member.member_id}

    codes = [
        producer.commit_offset(topic_name, TOPIC, 1, **fields)
        for fields in (
            {**now, "generation_id": member.generation_id - 1},
            {**now, "generation_id": member.generation_id + 1},
            {**now, "member_id": "nobody"},
            {**now, "group_instance_id": "nobody"},
        )
    ]
    right = producer.commit_offset(topic_name, TOPIC, 5, **now)
    producer.end(commit=True)

    assert codes == [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert right == ErrorCode.NONE
    eventually(lambda: fetched(producer.client, topic_name) == 5)


@versions
def test_given_a_transaction_that_ended_when_offsets_of_it_come_late_then_they_are_refused(
    producer: TransactionalProducer, version: int, topic_name: str
) -> None:
    late = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    if version == TV1:
        assert producer.add_offsets(topic_name) == ErrorCode.NONE
    assert producer.commit_offset(topic_name, TOPIC, 5) == ErrorCode.NONE
    producer.end(commit=True)

    code = producer.commit_offset(topic_name, TOPIC, 9, **late)

    assert code == (ErrorCode.TRANSACTION_ABORTABLE if version == TV1 else ErrorCode.INVALID_PRODUCER_EPOCH)
    eventually(lambda: fetched(producer.client, topic_name) == 5)
    assert producer.producer_id not in open_transactions_of(producer.client, OFFSETS_TOPIC)


# WriteTxnMarkers


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("never-made", 0), ("", 0), (TOPIC, 99), (TOPIC, -1), (TOPIC, 2**31 - 1), (OFFSETS_TOPIC, 99)],
)
def test_given_a_partition_that_does_not_exist_when_a_marker_is_written_then_it_is_unknown(
    client: RawClient, topic: str, partition: int
) -> None:
    code = write_marker(client, topic, 1, 0, commit=True, partition=partition)

    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@versions
def test_given_a_transaction_when_a_marker_of_the_past_comes_then_it_goes_on(
    producer: TransactionalProducer, version: int
) -> None:
    """Another epoch, another coordinator; and of version 2 the epoch must be one that no data has."""
    producer.write(TOPIC, b"earlier", partition=2)
    producer.end(commit=False)
    producer.write(TOPIC, b"mine", partition=2)
    write = partial(write_marker, producer.client, TOPIC, producer.producer_id, commit=True, partition=2)
    epoch = producer.producer_epoch

    codes = [write(epoch - 1), write(epoch, coordinator_epoch=-1)]
    if version == TV2:
        codes.append(write(epoch, transaction_version=2))

    assert codes == [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        *[ErrorCode.INVALID_PRODUCER_EPOCH] * (version == TV2),
    ]
    assert_untouched(producer, b"mine", partition=2)


def test_given_a_producer_that_a_partition_does_not_know_when_a_marker_comes_for_it_then_nothing_ends(
    client: RawClient, topic_name: str
) -> None:
    producer = a_producer(client, topic_name)
    producer.write(TOPIC, b"mine")

    codes = [
        write_marker(client, topic, producer.producer_id + 10_000, 3, commit=True) for topic in (TOPIC, OFFSETS_TOPIC)
    ]

    assert codes == [ErrorCode.NONE, ErrorCode.NONE]
    assert_untouched(producer, b"mine")


@not_for_kafka  # UNKNOWN_SERVER_ERROR, from within; and it writes markers among its coordinators' records
@pytest.mark.parametrize(
    ("topic", "producer_id", "producer_epoch", "code"),
    [
        (TOPIC, -1, 0, ErrorCode.INVALID_REQUEST),
        (TOPIC, 7, -1, ErrorCode.INVALID_REQUEST),
        (TOPIC, -(2**63), -32768, ErrorCode.INVALID_REQUEST),
        (STATE_TOPIC, 7, 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_given_a_marker_for_nobody_or_in_a_place_without_transactions_when_written_then_it_is_refused(
    client: RawClient, topic: str, producer_id: int, producer_epoch: int, code: ErrorCode
) -> None:
    end = fetch(client, topic, min_bytes=0).high_watermark

    assert write_marker(client, topic, producer_id, producer_epoch, commit=True) == code

    assert fetch(client, topic, min_bytes=0).high_watermark == end


# Topics that go


@versions
@pytest.mark.parametrize("is_back", [False, True], ids=["deleted", "recreated"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_given_a_transaction_over_a_topic_that_goes_when_it_ends_then_it_ends_in_the_others(
    producer: TransactionalProducer, version: int, topic_name: str, is_back: bool, commit: bool
) -> None:
    client = producer.client
    create_usable_topic(client, topic_name)
    before = committed_values(client, TOPIC, partition=1)
    producer.write(topic_name, b"gone")
    producer.write(TOPIC, b"kept", partition=1)
    client.exchange(DeleteTopicsRequest(topic_names=[topic_name], timeout_ms=5_000), 4, DeleteTopicsResponse)
    eventually(lambda: producer.send(topic_name, producer.batch(topic_name, b"late")).error_code != 0)
    if is_back:
        eventually(lambda: _can_be_made(client, topic_name))

    producer.end(commit=commit)

    assert producer.state().transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
    assert committed_values(client, TOPIC, partition=1) == [*before, *[b"kept"] * commit]
    if is_back:
        # What is there now never was part of the transaction.
        assert committed_values(client, topic_name) == []
        assert open_transactions_of(client, topic_name) == set()
        producer.sequences.clear() if version == TV2 else producer.begin_anew()
        producer.write(topic_name, b"new")
        producer.end(commit=True)
        assert committed_values(client, topic_name) == [b"new"]


def _can_be_made(client: RawClient, topic: str) -> bool:
    create_usable_topic(client, topic)
    return True


# Looking


def listed(client: RawClient, **fields: Any) -> tuple[ErrorCode, list[str], list[str]]:
    answer = client.exchange(ListTransactionsRequest(**fields), 2, ListTransactionsResponse)
    names = [each.transactional_id for each in answer.transaction_states]
    return ErrorCode(answer.error_code), sorted(set(answer.unknown_state_filters)), names


def test_given_filters_that_make_no_sense_when_transactions_are_listed_then_they_match_nothing(
    client: RawClient,
) -> None:
    unknown = ["", "Nonsense", "ongoing"]

    assert listed(client, state_filters=unknown) == (ErrorCode.NONE, unknown, [])
    assert listed(client, state_filters=[*unknown, "Dead"])[1] == unknown
    assert listed(client, producer_id_filters=[-1, INT64_MAX]) == (ErrorCode.NONE, [], [])
    assert listed(client, duration_filter=INT64_MAX) == (ErrorCode.NONE, [], [])
    assert "a" in listed(client, duration_filter=-5)[2]


@pytest.mark.parametrize("pattern", ["[", "(", "a{2,1}", "(a)\\1", "\\"])
def test_given_a_pattern_that_is_none_when_transactions_are_listed_then_it_is_said(
    client: RawClient, pattern: str
) -> None:
    answer = listed(client, transactional_id_pattern=pattern)

    assert answer == (ErrorCode.INVALID_REGULAR_EXPRESSION, [], [])


def test_given_ids_that_nobody_uses_when_described_then_each_has_its_code(client: RawClient) -> None:
    codes = [described(client, each).error_code for each in ("never-there", "")]

    assert codes == [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize(("topic", "partition"), [("never-made", 0), (TOPIC, 99), (TOPIC, -1)])
def test_given_a_partition_that_does_not_exist_when_its_producers_are_described_then_it_is_unknown(
    client: RawClient, topic: str, partition: int
) -> None:
    asked = DescribeProducersRequestTopic(name=topic, partition_indexes=[partition])
    answer = client.exchange(DescribeProducersRequest(topics=[asked]), 0, DescribeProducersResponse)

    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Garbage in the log

_KEY = b"\0\0\0\3bad"
GARBAGE = {
    "no version": (b"\0", b"x"),
    "no key": (None, b"x"),
    "a key that ends early": (b"\0\0\0\5ba", b"\0\1"),
    "a value that ends early": (_KEY, b"\0\1\0\0"),
    "a value of no version that is": (_KEY, b"\x7f\xff" + bytes(40)),
    "a status that does not exist": (
        _KEY,
        b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\x63" + b"\xff" * 4 + bytes(16),
    ),
    "a count out of this world": (
        _KEY,
        b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\1" + b"\x7f\xff\xff\xff" + bytes(16),
    ),
    "under way without partitions": (_KEY, b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\1" + b"\xff" * 4 + bytes(16)),
    "a status that nobody writes": (_KEY, b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\6" + bytes(4) + bytes(16)),
}
A_LATER_KIND = (b"\x03\xe7from the future", b"x")


def a_record(
    transactional_id: str,
    status: TransactionStatus,
    *partitions: TopicPartition,
    producer_id: int = 5_000,
    **fields: Any,
) -> Any:
    values: dict[str, Any] = {
        "producer_epoch": 0,
        "timeout_ms": 60_000,
        "last_update_ms": now_ms(),
        "start_ms": now_ms(),
    }
    return encode(
        TransactionRecord(
            transactional_id, producer_id, status=status, partitions=frozenset(partitions), **{**values, **fields}
        )
    )


@not_for_kafka  # whose coordinator does not come up again, see trap E4
def test_given_garbage_in_the_coordinators_log_when_the_broker_starts_then_it_is_reported_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    settings = {**BROKER_SETTINGS, "transaction.state.log.num.partitions": 1}
    with Broker.start(tmp_path / "data", **settings) as broker:
        with RawClient(broker.address) as client:
            create_usable_topic(client, TOPIC)
            find_transaction_coordinator(client, "before")
            before = a_producer(client, "before")
            before.write(TOPIC, b"x")
        broker.stop()
        odd = [
            a_record("of-nothing", TransactionStatus.PREPARE_COMMIT, TopicPartition("never-made", 3)),
            a_record("of-no-group", TransactionStatus.PREPARE_ABORT, TopicPartition(OFFSETS_TOPIC, 99)),
            a_record("of-itself", TransactionStatus.PREPARE_ABORT, TopicPartition(STATE_TOPIC, 0)),
            a_record("of-nobody", TransactionStatus.PREPARE_COMMIT, TopicPartition(TOPIC, 0), producer_id=-7),
            a_record("long-ago", TransactionStatus.ONGOING, TopicPartition(TOPIC, 0), timeout_ms=-1, start_ms=-1),
            a_record("", TransactionStatus.ONGOING, TopicPartition(TOPIC, 0)),
        ]
        append_to_log(tmp_path / "data" / f"{STATE_TOPIC}-0", [*GARBAGE.values(), A_LATER_KIND, *odd])
        broker.restart()

        with RawClient(broker.address) as client:
            before.client = client
            find_transaction_coordinator(client, "before")
            before.end(commit=True)
            for name in ("of-nothing", "of-no-group", "of-itself", "of-nobody", "long-ago"):
                TransactionalProducer(client, name).until_at_rest()
            assert committed_values(client, TOPIC) == [b"x"]
            for name in ("before", "bad", "of-nothing", "of-nobody", "long-ago", "new"):
                producer = a_producer(client, name)
                producer.write(TOPIC, name.encode())
                producer.end(commit=True)
            assert len(committed_values(client, TOPIC)) == 7

    assert broker.log_text().count("coordinator record not understood") == len(GARBAGE)
    assert "Traceback" not in broker.log_text()
