"""Rows 37 to 39: names and numbers of which no topic can be made."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.codec import Request
from penstock.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from penstock.protocol.messages.table import RESPONSES
from penstock.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.badinput.batches import a_batch
from tests.badinput.rows import not_for_kafka, row
from tests.badinput.unharmed import ANSWER_TIMEOUT_S, Vitals, open_descriptors
from tests.testkit import BrokerProcess, RawClient
from tests.testkit.asking import ask_to_create, create_usable_topic, fetch, metadata_error, produce, topic_names

pytestmark = pytest.mark.xdist_group("badinput-topics")

TOPIC = "asked-about"
TOPIC_RESOURCE = 2
INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)
A_BILLION = 1_000_000_000


@pytest.fixture(scope="module", autouse=True)
def topic(module_broker: BrokerProcess) -> None:
    with RawClient(module_broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        create_usable_topic(client, TOPIC, 2)


# Row 37: names

BAD_NAMES = [
    row(37, "dot", "."),
    row(37, "two dots", ".."),
    row(37, "nothing", ""),
    row(37, "path out of the directory", "../../etc/x"),
    row(37, "path into a directory", "a/b"),
    row(37, "path from the root", "/etc/x"),
    row(37, "backslash", "a\\b"),
    row(37, "nul", "a\0b"),
    row(37, "nul alone", "\0"),
    row(37, "250 characters", "n" * 250),
    row(37, "32767 characters", "n" * 32767, only_ours=True),  # Kafka cannot encode what it wants to say
    row(37, "not ascii", "tópico"),
    row(37, "beyond the basic plane", "\U0001f9e8"),
    row(37, "right to left", "\u202etopic"),
    row(37, "space", "a b"),
    row(37, "end of line", "topic\n"),
    row(37, "percent", "%2e%2e%2f"),
    row(37, "command", "$(touch x)"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_given_a_name_that_is_no_topic_name_when_created_then_it_is_invalid_and_no_file_appears(
    broker: BrokerProcess, client: RawClient, name: str
) -> None:
    before = files_around(broker)

    created = ask_to_create(client, name).error_code
    seen = metadata_error(client, name)
    produced = produce(client, name, a_batch())
    fetched = fetch(client, name)

    assert ErrorCode(created) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert ErrorCode(seen) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert ErrorCode(produced.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode(fetched.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert files_around(broker) == before
    assert name not in topic_names(client)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_given_a_name_that_is_no_topic_name_when_its_configuration_is_asked_then_it_is_invalid(
    client: RawClient, name: str
) -> None:
    asked = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name)

    (answer,) = client.exchange(DescribeConfigsRequest(resources=[asked]), 4, DescribeConfigsResponse).results

    assert answer.error_code in (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    )


@pytest.mark.parametrize("name", BAD_NAMES)
def test_given_a_name_that_is_no_topic_name_when_deleted_then_nothing_is(
    broker: BrokerProcess, client: RawClient, name: str
) -> None:
    before = files_around(broker)

    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000)
    (answer,) = client.exchange(request, 4, DeleteTopicsResponse).responses

    assert ErrorCode(answer.error_code) in (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    )
    assert files_around(broker) == before


def answers_that_say_why() -> Iterator[Any]:
    """Requests whose answer repeats in an error message what was asked, in every version of the message."""
    long = "n" * 32767
    topics = [
        new_topic(long, partitions=1),
        CreatableTopic(name="t", configs=[CreatableTopicConfig(name=long, value=long)]),
    ]
    requests: list[Request] = [
        CreateTopicsRequest(topics=topics, validate_only=True),
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=long, count=3)]),
        DeleteTopicsRequest(topic_names=[long], topics=[DeleteTopicState(name=long)]),
        DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name=long)]),
        AlterConfigsRequest(resources=[a_change(AlterConfigsResource, AlterableConfig, long, long)]),
        AlterConfigsRequest(resources=[a_change(AlterConfigsResource, AlterableConfig, TOPIC, long)]),
        IncrementalAlterConfigsRequest(
            resources=[a_change(IncrementalAlterConfigsResource, IncrementallyAlterableConfig, TOPIC, long)]
        ),
    ]
    for request in requests:
        for version in range(request.MIN_VERSION, request.MAX_VERSION + 1):
            yield row(37, f"long text in {request.NAME} v{version}", request, version)


def a_change(resource: Any, config: Any, name: str, text: str) -> Any:
    return resource(resource_type=TOPIC_RESOURCE, resource_name=name, configs=[config(name=text, value=text)])


@not_for_kafka  # it closes the connection when its words do not fit
@pytest.mark.parametrize(("request_message", "version"), answers_that_say_why())
def test_given_text_too_long_to_be_repeated_when_the_answer_says_why_then_it_can_be_read(
    client: RawClient, request_message: Request, version: int
) -> None:
    answer = client.exchange(request_message, version, RESPONSES[request_message.API_KEY])

    assert answer.encode(version)


@not_for_kafka
def test_row37_given_the_longest_name_when_created_then_its_files_lie_in_its_own_directory(
    broker: BrokerProcess, client: RawClient
) -> None:
    before = files_around(broker)
    name = "n" * 249

    create_usable_topic(client, name)
    produced = produce(client, name, a_batch())

    new_files = files_around(broker) - before
    assert produced.error_code == 0
    assert new_files
    assert {path.parent for path in new_files if path.suffix == ".log"} == {broker.data / f"{name}-0"}


@not_for_kafka
def test_row37_given_all_that_was_asked_then_every_open_file_lies_in_the_data_directory(broker: BrokerProcess) -> None:
    files = {target for target in open_descriptors(broker) if target.startswith("/")}

    outside = files - {str(broker.stdout_path), str(broker.stderr_path)}
    assert {target for target in outside if not target.startswith(("/dev/", "/proc/"))} == set()


def files_around(broker: BrokerProcess) -> set[Path]:
    """Every file of the data directory and, for names that lead out of it, of two directories above."""
    return {path for path in broker.data.parents[1].rglob("*") if _is_of_interest(path, broker)}


def _is_of_interest(path: Path, broker: BrokerProcess) -> bool:
    """Not the metadata store and the log of the broker, which change at any time."""
    return broker.data not in path.parents or path.parent.parent == broker.data


# Row 38: names that differ in periods and underscores


@pytest.mark.parametrize(
    ("first", "second"),
    [
        row(38, "period then underscore", "collides.one", "collides_one"),
        row(38, "underscore then period", "collides_two", "collides.two"),
        row(38, "several", "collides.a_b.c", "collides_a.b_c"),
    ],
)
def test_given_names_that_are_one_in_metrics_when_the_second_is_created_then_it_is_invalid(
    client: RawClient, first: str, second: str
) -> None:
    create_usable_topic(client, first)

    assert ErrorCode(ask_to_create(client, second).error_code) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert second not in topic_names(client)


# Row 39: numbers


@pytest.mark.parametrize(
    ("partitions", "replication_factor", "code"),
    [
        row(39, "no partitions", 0, 1, ErrorCode.INVALID_PARTITIONS),
        row(39, "minus five partitions", -5, 1, ErrorCode.INVALID_PARTITIONS),
        row(39, "smallest partitions", INT32_MIN, 1, ErrorCode.INVALID_PARTITIONS),
        row(39, "a billion partitions", A_BILLION, 1, ErrorCode.INVALID_PARTITIONS, only_ours=True),
        row(39, "largest partitions", INT32_MAX, 1, ErrorCode.INVALID_PARTITIONS, only_ours=True),
        row(39, "more replicas than brokers", 1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
        row(39, "largest replication factor", 1, 32767, ErrorCode.INVALID_REPLICATION_FACTOR),
        row(39, "no replicas", 1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        row(39, "minus five replicas", 1, -5, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_given_numbers_that_make_no_topic_when_created_then_they_are_refused_at_once(
    client: RawClient, vitals: Vitals, partitions: int, replication_factor: int, code: ErrorCode
) -> None:
    vitals.cpu_limit_s = 1

    answered = ask_to_create(client, "never-created", partitions, replication_factor=replication_factor)

    assert ErrorCode(answered.error_code) == code
    assert "never-created" not in topic_names(client)


@pytest.mark.parametrize(
    ("count", "code"),
    [
        row(39, "as many as there are", 2, ErrorCode.INVALID_PARTITIONS),
        row(39, "fewer", 1, ErrorCode.INVALID_PARTITIONS),
        row(39, "none", 0, ErrorCode.INVALID_PARTITIONS),
        row(39, "minus five", -5, ErrorCode.INVALID_PARTITIONS),
        row(39, "a billion", A_BILLION, ErrorCode.INVALID_PARTITIONS, only_ours=True),
    ],
)
def test_given_a_number_that_a_topic_cannot_grow_to_when_asked_then_it_is_refused_at_once(
    client: RawClient, vitals: Vitals, count: int, code: ErrorCode
) -> None:
    vitals.cpu_limit_s = 1
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=TOPIC, count=count)], timeout_ms=5_000)

    (answer,) = client.exchange(request, 3, CreatePartitionsResponse).results

    assert ErrorCode(answer.error_code) == code


@not_for_kafka
def test_row39_given_many_topics_of_many_partitions_in_one_request_then_it_is_answered_at_once(
    client: RawClient, vitals: Vitals
) -> None:
    vitals.cpu_limit_s = 1
    topics = [new_topic(f"one.of.many.{each}", partitions=9_999) for each in range(500)]
    request = CreateTopicsRequest(topics=topics, timeout_ms=5_000, validate_only=True)

    answer = client.exchange(request, 5, CreateTopicsResponse)

    assert [topic.error_code for topic in answer.topics[1:]] == [ErrorCode.INVALID_PARTITIONS] * 499


@not_for_kafka
def test_row39_given_ten_thousand_topics_in_one_request_then_it_is_answered_at_once(
    client: RawClient, vitals: Vitals
) -> None:
    vitals.cpu_limit_s = 1
    topics = [new_topic(f"one.of.many.{each}", partitions=1) for each in range(10_000)]
    request = CreateTopicsRequest(topics=topics, timeout_ms=5_000, validate_only=True)

    answer = client.exchange(request, 5, CreateTopicsResponse)

    assert {topic.error_code for topic in answer.topics} <= {ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS}


def new_topic(name: str, *, partitions: int) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
