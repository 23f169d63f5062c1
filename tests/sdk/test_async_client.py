"""The asynchronous client: the same calls, and what asyncio adds to them, against a real broker."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.sdk import AsyncClient, ClientClosed, Delivery, Message, Published, UnknownTopic
from tests.sdk.reading import DEADLINE_S, committed, payloads
from tests.testkit import BrokerProcess


class Died(Exception):
    """A worker's own failure."""


@pytest.fixture
async def async_client(broker: BrokerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(broker.bootstrap) as client:
        yield client


async def _read(client: AsyncClient, topic: str, group: str, count: int) -> list[Message]:
    messages: list[Message] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(messages) < count:
            messages.extend(await client.consume(topic, group, count - len(messages), wait_s=0.2))
    return messages


async def test_given_a_topic_when_published_and_consumed_then_it_is_as_with_the_other_client(
    broker: BrokerProcess, async_client: AsyncClient, topic_name: str, group: str
) -> None:
    await async_client.create_topic(topic_name, 2, 1)

    one = await async_client.publish(topic_name, None, "a", headers={"name": "value"})
    others = await async_client.publish_many(topic_name, [(None, "b"), (None, "c")])

    assert [one, *others] == [Published(topic_name, 0, 0), Published(topic_name, 1, 0), Published(topic_name, 0, 1)]
    messages = await _read(async_client, topic_name, group, 3)
    assert sorted(payloads(messages)) == ["a", "b", "c"]
    await async_client.commit_offset(topic_name, group, 0, 1)
    assert committed(broker, topic_name, group, 0) == 1


async def test_given_many_publishes_at_once_when_gathered_then_all_land(async_client: AsyncClient, topic: str) -> None:
    landed = await asyncio.gather(*(async_client.publish(topic, None, str(number)) for number in range(500)))

    assert {one.offset for one in landed} == set(range(500))


async def test_given_a_consumer_that_waits_when_other_tasks_run_then_none_of_them_waits(
    async_client: AsyncClient, topic: str, group: str
) -> None:
    await async_client.consume(topic, group, wait_s=0)
    waiting = asyncio.gather(async_client.consume(topic, group, wait_s=60))

    await async_client.pause(topic, group)
    await async_client.resume(topic, group)
    await async_client.publish(topic, None, "news")
    (batch,) = await asyncio.wait_for(waiting, 20)

    assert payloads(list(batch)) == ["news"]


@pytest.mark.parametrize("delivery", Delivery)
async def test_given_a_consume_that_was_cancelled_when_asked_again_then_its_batch_is_not_lost(
    broker: BrokerProcess, topic: str, group: str, delivery: Delivery
) -> None:
    async with AsyncClient(broker.bootstrap, delivery=delivery) as client:
        await client.consume(topic, group, wait_s=0)
        waiting = asyncio.gather(client.consume(topic, group, wait_s=60))
        await client.pause(topic, group)  # its turn comes when the other call polls
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.resume(topic, group)

        await client.publish_many(topic, [(None, str(number)) for number in range(5)])

        assert payloads(await _read(client, topic, group, 5)) == ["0", "1", "2", "3", "4"]


async def test_given_a_worker_that_fails_when_its_client_ends_then_its_batch_is_delivered_again(
    broker: BrokerProcess, async_client: AsyncClient, topic: str, group: str
) -> None:
    await async_client.publish(topic, None, "important")

    with pytest.raises(Died):
        async with AsyncClient(broker.bootstrap) as worker:
            await _read(worker, topic, group, 1)
            raise Died

    assert committed(broker, topic, group) is None
    assert payloads(await _read(async_client, topic, group, 1)) == ["important"]


async def test_given_a_clean_end_when_asked_what_is_committed_then_it_is_what_was_read(
    broker: BrokerProcess, async_client: AsyncClient, topic: str, group: str
) -> None:
    await async_client.publish(topic, None, "done")

    async with AsyncClient(broker.bootstrap) as worker:
        await _read(worker, topic, group, 1)

    assert committed(broker, topic, group) == 1


async def test_given_messages_read_when_sought_back_then_they_come_again(
    async_client: AsyncClient, topic: str, group: str
) -> None:
    await async_client.publish_many(topic, [(None, "a"), (None, "b")])
    await _read(async_client, topic, group, 2)

    await async_client.seek(topic, group, 0, 1)

    assert payloads(await _read(async_client, topic, group, 1)) == ["b"]


async def test_given_errors_when_awaited_then_they_are_the_same(broker: BrokerProcess, topic_name: str) -> None:
    client = AsyncClient(broker.bootstrap)
    with pytest.raises(UnknownTopic):
        await client.publish(topic_name, None, "lost")
    with pytest.raises(UnknownTopic):
        await client.consume(topic_name, "group")

    await client.close()
    await client.close()

    with pytest.raises(ClientClosed):
        await client.publish(topic_name, None, "late")
    with pytest.raises(ClientClosed):
        await client.consume(topic_name, "group")
