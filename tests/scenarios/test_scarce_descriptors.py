"""A broker that runs out of descriptors: what it cannot do now it does later, and loses and fails nothing meanwhile."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from penstock.protocol.messages.records import ProduceRequest, ProduceResponse
from penstock.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.testkit import Broker, RawClient, eventually
from tests.testkit.asking import (
    PRODUCE_VERSION,
    a_batch,
    ask_to_create,
    create_topic,
    fetch,
    produce,
    produce_request,
    topic_names,
    values_of,
)

TOPIC_RESOURCE = 2
NOT_YET = "partitions are not as they should be, trying again"
STILL_THERE = "a deleted partition's files are still there, trying again"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.start(tmp_path / "data") as broker:
        broker.until_loaded()
        yield broker


@contextmanager
def no_descriptor_left(broker: Broker) -> Iterator[None]:
    """From now on every open of the broker fails, with EMFILE; connections and files that are open stay so."""
    with limited(broker, 0):
        yield


@contextmanager
def limited(broker: Broker, limit: int) -> Iterator[None]:
    soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    try:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, hard))
        yield
    finally:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))


def lowest_free_descriptor(broker: Broker) -> int:
    in_use = descriptors_of(broker)
    return next(number for number in count() if number not in in_use)


def descriptors_of(broker: Broker) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{broker.pid}/fd").iterdir()}


def fill_gaps(broker: Broker, connections: ExitStack) -> None:
    """What was open for a moment when something else was opened leaves a number free below it: connections take it."""
    while lowest_free_descriptor(broker) < max(descriptors_of(broker)):
        client = connections.enter_context(RawClient(broker.address))
        topic_names(client)  # answered, so it was accepted


def delete_topic(client: RawClient, name: str) -> int:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=5_000)
    (answer,) = client.exchange(request, 4, DeleteTopicsResponse).responses
    return answer.error_code


def directories_of(broker: Broker, topic: str) -> list[str]:
    return sorted(path.name for path in broker.data.iterdir() if path.name.startswith(f"{topic}-"))


def test_given_no_descriptor_left_when_produced_with_acks_all_then_it_is_answered_once_the_flush_could_be_done(
    broker: Broker,
) -> None:
    with RawClient(broker.address) as client, RawClient(broker.address) as waiting:
        # The flush after the first record of a leader writes down its epoch. From the page cache nothing is flushed.
        create_topic(client, "orders", flush_messages=2**63 - 1)
        assert produce(client, "orders", a_batch(b"a")).error_code == 0

        with no_descriptor_left(broker):
            flush_every_message(client, "orders")
            request = produce_request("orders", {0: a_batch(b"b")}, timeout_ms=60_000)
            asked = waiting.send_request(ProduceRequest.API_KEY, PRODUCE_VERSION, request.encode(PRODUCE_VERSION))
            hurried = produce(client, "orders", a_batch(b"c"), timeout_ms=1)
            unhurried = produce(client, "orders", a_batch(b"d"), acks=1)

            assert ErrorCode(hurried.error_code) == ErrorCode.REQUEST_TIMED_OUT
            assert (unhurried.error_code, unhurried.base_offset) == (0, 3)
            assert values_of(fetch(client, "orders", 0)) == [b"a"]
        body = waiting.receive_response(ProduceRequest.API_KEY, PRODUCE_VERSION, asked)

        ((row,),) = (each.partition_responses for each in ProduceResponse.decode(body, PRODUCE_VERSION).responses)
        assert (row.error_code, row.base_offset) == (0, 1)
        assert broker.is_running
        eventually(lambda: values_of(fetch(client, "orders", 0)) == [b"a", b"b", b"c", b"d"])


def flush_every_message(client: RawClient, topic: str) -> None:
    configs = [AlterableConfig(name="flush.messages", value="1")]
    resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=configs)
    (answer,) = client.exchange(AlterConfigsRequest(resources=[resource]), 2, AlterConfigsResponse).responses
    assert answer.error_code == 0, answer


def test_given_no_descriptor_left_when_a_topic_is_created_then_it_can_be_used_once_there_are_some(
    broker: Broker,
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "before")
        produce(client, "before", a_batch(b"a"))

        with no_descriptor_left(broker):
            created = ask_to_create(client, "orders", 2)
            assert created.error_code == 0
            assert NOT_YET in broker.log_text()
            assert produce(client, "orders", a_batch(b"a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert produce(client, "before", a_batch(b"b")).error_code == 0

        for partition in range(2):
            eventually(
                lambda at=partition: produce(client, "orders", a_batch(b"a"), partition=at).error_code == 0  # type: ignore[misc]
            )


def test_given_no_descriptor_left_when_a_topic_is_deleted_then_its_files_go_once_there_are_some(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "orders", 2)

        with no_descriptor_left(broker):
            assert delete_topic(client, "orders") == 0
            eventually(lambda: NOT_YET in broker.log_text())
            assert "orders" not in topic_names(client)
            assert len(directories_of(broker, "orders")) == 2

        eventually(lambda: not directories_of(broker, "orders"), message="the files of a deleted topic stay")


def test_given_hardly_a_descriptor_left_when_a_topic_is_deleted_then_its_files_go_once_there_are_some(
    broker: Broker,
) -> None:
    """To remove a directory takes descriptors too: that failed, and was not tried again before the next start."""
    with RawClient(broker.address) as client, ExitStack() as connections:
        create_topic(client, "orders")
        produce(client, "orders", a_batch(b"a"))
        fill_gaps(broker, connections)

        with limited(broker, lowest_free_descriptor(broker)):
            assert delete_topic(client, "orders") == 0  # which gives back the one that its log had
            eventually(lambda: STILL_THERE in broker.log_text())
            assert len(directories_of(broker, "orders")) == 1

        eventually(lambda: not directories_of(broker, "orders"), message="the files of a deleted topic stay")


def test_given_no_descriptor_left_when_a_topic_is_deleted_and_created_again_then_the_new_one_is_empty(
    broker: Broker,
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "orders")
        produce(client, "orders", a_batch(b"old"))

        with no_descriptor_left(broker):
            assert delete_topic(client, "orders") == 0
            assert ask_to_create(client, "orders").error_code == 0
            assert delete_topic(client, "orders") == 0  # it never had files
            assert ask_to_create(client, "orders").error_code == 0

        eventually(lambda: produce(client, "orders", a_batch(b"new")).error_code == 0)
        assert values_of(fetch(client, "orders", 0)) == [b"new"]
        eventually(lambda: directories_of(broker, "orders") == ["orders-0"], message="the old files stay")
