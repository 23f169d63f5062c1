"""The selector under the broker's event loop, beside asyncio's own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from selectors import EVENT_READ, EVENT_WRITE

import pytest

from penstock.runtime.selector import EpollSelector, new_event_loop


@pytest.fixture
def selector() -> Iterator[EpollSelector]:
    made = EpollSelector()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def found(selector: EpollSelector, timeout: float = 1) -> list[tuple[object, int]]:
    return [(key.data, mask) for key, mask in selector.select(timeout)]


def test_given_descriptors_then_each_is_told_of_what_it_asked_for(
    selector: EpollSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    selector.register(here.fileno(), EVENT_READ, "here")
    assert found(selector, 0) == []

    there.send(b"x")
    assert found(selector) == [("here", EVENT_READ)]

    selector.modify(here.fileno(), EVENT_READ | EVENT_WRITE, "both")
    assert found(selector) == [("both", EVENT_READ | EVENT_WRITE)]

    selector.modify(here.fileno(), EVENT_WRITE, "write")
    assert found(selector) == [("write", EVENT_WRITE)]
    assert selector.get_key(here.fileno()).data == "write"
    assert [*selector.get_map()] == [here.fileno()]

    selector.unregister(here.fileno())
    assert found(selector, 0) == []
    with pytest.raises(KeyError):
        selector.get_key(here.fileno())


def test_given_a_socket_instead_of_its_number_then_it_is_told_all_the_same(
    selector: EpollSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    selector.register(here, EVENT_READ, "here")
    there.send(b"x")

    assert found(selector) == [("here", EVENT_READ)]

    selector.modify(here.fileno(), EVENT_WRITE, "write")
    assert selector.get_key(here).data == "write"
    selector.unregister(here)
    assert found(selector, 0) == []


@pytest.mark.parametrize("events", [EVENT_READ, EVENT_WRITE, EVENT_READ | EVENT_WRITE])
def test_given_a_peer_that_is_gone_then_whoever_is_there_hears_of_it(selector: EpollSelector, events: int) -> None:
    reading, writing = os.pipe()
    try:
        watched = writing if events == EVENT_WRITE else reading
        os.close(writing if watched == reading else reading)
        selector.register(watched, events, "left")

        assert found(selector) == [("left", events)]
    finally:
        os.close(watched)


def test_given_a_descriptor_that_was_closed_then_it_can_be_taken_away_and_used_again(selector: EpollSelector) -> None:
    here, there = socket.socketpair()
    descriptor = here.fileno()
    selector.register(descriptor, EVENT_READ, "first")
    with pytest.raises(KeyError):
        selector.register(descriptor, EVENT_READ, "twice")
    here.close()
    selector.unregister(descriptor)
    there.close()

    with socket.socket() as again:
        assert again.fileno() == descriptor
        selector.register(descriptor, EVENT_READ, "second")
        assert selector.get_key(descriptor).data == "second"


def test_given_something_found_then_only_the_next_poll_without_waiting_is_left_out(
    selector: EpollSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    selector.register(here.fileno(), EVENT_READ, "here")
    there.send(b"x")

    assert [len(found(selector, 0)) for _ in range(5)] == [1, 0, 1, 0, 1]
    assert [len(found(selector, 1)) for _ in range(3)] == [1, 1, 1]


def test_given_a_loop_that_is_never_idle_then_sockets_and_timers_have_their_turn(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    here.setblocking(False)
    there.setblocking(False)

    async def busy() -> None:
        while True:  # noqa: ASYNC110 - being busy is the point
            await asyncio.sleep(0)

    async def serve() -> bytes:
        loop = asyncio.get_running_loop()
        hog = loop.create_task(busy())
        timer = asyncio.Event()
        loop.call_later(0.01, timer.set)
        await loop.sock_sendall(there, b"request")
        received = await loop.sock_recv(here, 100)
        await timer.wait()
        hog.cancel()
        return received

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(asyncio.wait_for(serve(), 10)) == b"request"
