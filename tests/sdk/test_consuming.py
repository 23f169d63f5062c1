"""Consuming in groups, and what is committed when, against a real broker."""

import threading
import time
from collections.abc import Mapping

import pytest

from penstock.sdk import Batch, Client, ClientClosed, CommitRefused, Delivery, Message, NotAssigned, UnknownTopic
from tests.sdk.reading import committed, payloads, read
from tests.testkit import BrokerProcess, eventually


class Died(Exception):
    """A worker's own failure."""


@pytest.fixture
def ten_messages(client: Client, topic: str) -> str:
    """A topic of one partition with payloads 0 to 9."""
    client.publish_many(topic, [(None, str(number)) for number in range(10)])
    return topic


def test_given_more_messages_than_asked_for_when_consumed_then_batches_are_no_larger(
    client: Client, ten_messages: str, group: str
) -> None:
    sizes: list[int] = []
    while sum(sizes) < 10:
        sizes.append(len(client.consume(ten_messages, group, max_batch_size=3)))

    assert max(sizes) == 3


def test_given_no_name_for_the_group_when_consumed_then_it_is_refused(client: Client, topic: str) -> None:
    with pytest.raises(ValueError, match="a group needs a name"):
        client.consume(topic, "")


@pytest.mark.parametrize("size", [0, -1, 1_000_001])
def test_given_an_impossible_batch_size_when_consumed_then_it_is_refused(
    client: Client, topic: str, group: str, size: int
) -> None:
    with pytest.raises(ValueError, match=str(size)):
        client.consume(topic, group, size)


@pytest.mark.parametrize("offset", [-5, 2**63])
def test_given_an_impossible_offset_when_sought_or_committed_then_it_is_refused(
    client: Client, topic: str, group: str, offset: int
) -> None:
    for ask in (client.seek, client.commit_offset):
        with pytest.raises(ValueError, match=str(offset)):
            ask(topic, group, 0, offset)


def test_given_nothing_to_read_when_consumed_then_the_batch_is_empty_after_the_wait(
    client: Client, topic: str, group: str
) -> None:
    client.consume(topic, group, wait_s=0)
    started = time.monotonic()

    batch = client.consume(topic, group, wait_s=0.3)

    assert not batch and len(batch) == 0 and list(batch) == []
    assert time.monotonic() - started >= 0.3


def test_given_a_consumer_that_waits_when_a_message_comes_then_it_has_it_at_once(
    client: Client, topic: str, group: str
) -> None:
    client.consume(topic, group, wait_s=0)
    received: list[Message] = []
    waiting = threading.Thread(target=lambda: received.extend(client.consume(topic, group, wait_s=60)))
    waiting.start()

    client.publish(topic, None, "news")

    waiting.join(20)
    assert payloads(received) == ["news"]


def test_given_at_least_once_when_the_next_batch_is_asked_for_then_the_one_before_is_committed(
    broker: BrokerProcess, client: Client, ten_messages: str, group: str
) -> None:
    read(client, ten_messages, group, 10)
    in_hand = committed(broker, ten_messages, group)

    client.consume(ten_messages, group, wait_s=0)

    assert in_hand is None or in_hand < 10
    assert committed(broker, ten_messages, group) == 10


def test_given_at_least_once_when_closed_then_what_the_loop_went_past_is_committed(
    broker: BrokerProcess, ten_messages: str, group: str
) -> None:
    with Client(broker.bootstrap) as worker:
        for message in _whole_batch(worker, ten_messages, group):
            if message.offset == 6:
                break

    assert committed(broker, ten_messages, group) == 6


def test_given_at_least_once_when_the_worker_fails_then_its_batch_is_delivered_again(
    broker: BrokerProcess, client: Client, ten_messages: str, group: str
) -> None:
    with pytest.raises(Died), Client(broker.bootstrap) as worker:
        list(_whole_batch(worker, ten_messages, group))
        raise Died

    assert committed(broker, ten_messages, group) is None
    assert payloads(read(client, ten_messages, group, 10)) == [str(number) for number in range(10)]


def test_given_at_most_once_when_the_worker_fails_then_its_batch_is_gone(
    broker: BrokerProcess, client: Client, ten_messages: str, group: str
) -> None:
    with pytest.raises(Died), Client(broker.bootstrap, delivery=Delivery.AT_MOST_ONCE) as worker:
        _whole_batch(worker, ten_messages, group)
        raise Died

    assert committed(broker, ten_messages, group) == 10
    client.publish(ten_messages, None, "next")
    assert payloads(read(client, ten_messages, group, 1)) == ["next"]


def test_given_a_batch_in_hand_when_an_offset_of_it_is_committed_then_that_one_stays(
    broker: BrokerProcess, ten_messages: str, group: str
) -> None:
    with Client(broker.bootstrap) as worker:
        list(_whole_batch(worker, ten_messages, group))
        worker.commit_offset(ten_messages, group, 0, 4)

        worker.consume(ten_messages, group, wait_s=0)

    assert committed(broker, ten_messages, group) == 4


def test_given_a_group_without_members_when_its_offset_is_set_then_it_starts_there(
    broker: BrokerProcess, client: Client, ten_messages: str, group: str
) -> None:
    client.commit_offset(ten_messages, group, 0, 7)

    assert payloads(read(client, ten_messages, group, 3)) == ["7", "8", "9"]


def test_given_a_group_of_others_when_its_offset_is_set_then_that_is_refused(
    broker: BrokerProcess, client: Client, ten_messages: str, group: str
) -> None:
    read(client, ten_messages, group, 10)

    with Client(broker.bootstrap) as stranger, pytest.raises(CommitRefused, match="no member") as refusal:
        stranger.commit_offset(ten_messages, group, 0, 0)

    assert refusal.value.code == "UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize("is_member", [False, True])
def test_given_no_such_partition_when_its_offset_is_set_then_that_is_said(
    client: Client, ten_messages: str, group: str, is_member: bool
) -> None:
    if is_member:
        read(client, ten_messages, group, 10)

    with pytest.raises(UnknownTopic, match="no partition 77"):
        client.commit_offset(ten_messages, group, 77, 1)


def test_given_a_member_that_another_replaced_when_it_commits_then_it_is_told_and_may_join_again(
    broker: BrokerProcess, ten_messages: str, group: str
) -> None:
    config = {"group.instance.id": "the-one"}
    with Client(broker.bootstrap, config=config) as first, Client(broker.bootstrap, config=config) as second:
        read(first, ten_messages, group, 10)
        assert payloads(read(second, ten_messages, group, 10)) == [str(number) for number in range(10)]

        with pytest.raises(CommitRefused, match=r"same group\.instance\.id"):
            first.consume(ten_messages, group, wait_s=1)

        assert payloads(read(first, ten_messages, group, 10)) == [str(number) for number in range(10)]
        with pytest.raises(CommitRefused, match=r"same group\.instance\.id"):
            second.close()  # now it is the other one that was replaced


def test_given_no_such_topic_when_consumed_then_that_is_said(client: Client, topic_name: str, group: str) -> None:
    with pytest.raises(UnknownTopic, match=f"no topic '{topic_name}'"):
        client.consume(topic_name, group)


def test_given_a_paused_partition_when_consumed_then_only_the_others_come_until_it_is_resumed(
    client: Client, topic_name: str, group: str
) -> None:
    client.create_topic(topic_name, partitions=2)
    client.pause(topic_name, group, 1)
    client.publish_many(topic_name, [(None, str(number)) for number in range(6)])

    assert payloads(read(client, topic_name, group, 3)) == ["0", "2", "4"]
    assert not client.consume(topic_name, group, wait_s=0.5)

    client.resume(topic_name, group, 1)
    assert payloads(read(client, topic_name, group, 3)) == ["1", "3", "5"]


def test_given_a_paused_topic_when_one_partition_is_resumed_then_only_that_one_comes(
    client: Client, topic_name: str, group: str
) -> None:
    client.create_topic(topic_name, partitions=2)
    client.consume(topic_name, group, wait_s=0)
    client.pause(topic_name, group)
    client.publish_many(topic_name, [(None, str(number)) for number in range(6)])
    assert not client.consume(topic_name, group, wait_s=0.5)

    client.resume(topic_name, group, 0)
    assert payloads(read(client, topic_name, group, 3)) == ["0", "2", "4"]
    assert not client.consume(topic_name, group, wait_s=0.5)

    client.resume(topic_name, group)
    assert payloads(read(client, topic_name, group, 3)) == ["1", "3", "5"]


def test_given_a_long_poll_when_paused_or_closed_from_another_thread_then_nobody_waits_for_its_end(
    broker: BrokerProcess, topic: str, group: str
) -> None:
    worker = Client(broker.bootstrap)
    worker.consume(topic, group, wait_s=0)
    outcome: list[object] = []

    def wait() -> None:
        try:
            outcome.append(worker.consume(topic, group, wait_s=60))
        except ClientClosed as closed:
            outcome.append(closed)

    waiting = threading.Thread(target=wait)
    waiting.start()
    worker.pause(topic, group)
    worker.resume(topic, group)
    worker.close()
    waiting.join(20)

    assert len(outcome) == 1 and isinstance(outcome[0], ClientClosed)


def test_given_messages_read_when_sought_back_then_they_come_again(
    client: Client, ten_messages: str, group: str
) -> None:
    read(client, ten_messages, group, 10)

    client.seek(ten_messages, group, 0, 4)

    assert payloads(read(client, ten_messages, group, 6)) == [str(number) for number in range(4, 10)]


def test_given_a_new_member_when_it_seeks_first_then_it_starts_there(
    client: Client, ten_messages: str, group: str
) -> None:
    client.seek(ten_messages, group, 0, 8)

    assert payloads(read(client, ten_messages, group, 2)) == ["8", "9"]


def test_given_a_partition_of_another_member_when_sought_then_that_is_said(
    client: Client, ten_messages: str, group: str
) -> None:
    with pytest.raises(NotAssigned, match="partition 5"):
        client.seek(ten_messages, group, 5, 0)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"heartbeat.interval.ms": 200}, id="eager"),
        pytest.param(
            {"heartbeat.interval.ms": 200, "partition.assignment.strategy": "cooperative-sticky"}, id="cooperative"
        ),
        pytest.param({"group.protocol": "consumer"}, id="kip-848"),
    ],
)
def test_given_two_members_when_one_leaves_then_each_message_is_processed_once(
    broker: BrokerProcess, client: Client, topic_name: str, group: str, config: Mapping[str, str | int]
) -> None:
    client.create_topic(topic_name, partitions=4)
    processed: list[str] = []
    published = 0

    def round_trip(*workers: Client) -> set[int]:
        """Publishes to each partition and waits until all is processed; returns the partitions of the last worker."""
        nonlocal published
        client.publish_many(topic_name, [(None, str(published + number)) for number in range(4)])
        published += 4
        partitions: set[int] = set()

        def is_all_processed() -> bool:
            for worker in workers:
                batch = list(worker.consume(topic_name, group, wait_s=0.05))
                processed.extend(payloads(batch))
                if worker is workers[-1]:
                    partitions.update(message.partition for message in batch)
            return len(processed) >= published

        eventually(is_all_processed, 40, "all messages processed")
        return partitions

    # One thread is both workers: none may wait long for a group that waits for the other.
    with Client(broker.bootstrap, config=config, timeout_s=3) as stays:
        assert round_trip(stays) == {0, 1, 2, 3}
        with Client(broker.bootstrap, config=config, timeout_s=3) as leaves:
            eventually(lambda: len(round_trip(stays, leaves)) == 2, 60, "the second member has its share")
        eventually(lambda: round_trip(stays) == {0, 1, 2, 3}, 60, "the first member has all again")

    assert sorted(processed, key=int) == [str(number) for number in range(published)]


def _whole_batch(worker: Client, topic: str, group: str) -> Batch:
    """All ten messages in one batch: they lie in one partition, and one answer of the broker has them all."""
    batch = worker.consume(topic, group, max_batch_size=10, wait_s=10)
    assert len(batch) == 10
    return batch
