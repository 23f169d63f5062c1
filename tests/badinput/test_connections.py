"""Rows 7, 8, 18 and 53: clients that hang up, dawdle, do not listen, or are too many.

`PENSTOCK_TEST_HALF_FRAMES=10000` has them hang up as often.
"""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import randbytes
from typing import Any

import pytest

from penstock.protocol.messages.cluster import ApiVersionsRequest, MetadataRequest
from tests.badinput.batches import a_batch
from tests.badinput.rows import not_for_kafka, row
from tests.badinput.unharmed import (
    ANSWER_TIMEOUT_S,
    BYSTANDER_TOPIC,
    MIB,
    Vitals,
    forget_peak,
    peak_resident_bytes,
    produce_and_fetch,
    unharmed,
)
from tests.badinput.wire import framed, size_prefix, whole_request
from tests.testkit import Broker, BrokerProcess, RawClient, broker_under_test, eventually
from tests.testkit.asking import create_usable_topic, fetch_request, produce, produce_request

pytestmark = pytest.mark.xdist_group("badinput-connections")

HALF_FRAMES = int(os.environ.get("PENSTOCK_TEST_HALF_FRAMES", "500"))
PIPELINED = 10_000
READ_DEADLINE_MS = 600


# Row 7: half a frame, then the end


@pytest.mark.parametrize(
    "half",
    [
        row(7, "half a size", b"\0\0"),
        row(7, "size alone", size_prefix(1000)),
        row(7, "half a header", size_prefix(1000) + b"\0\3\0"),
        row(7, "half a body", size_prefix(1000) + whole_request(MetadataRequest(topics=[]), 9)),
        row(7, "half of a large body", size_prefix(200_000) + bytes(100_000)),
    ],
)
def test_given_half_a_frame_when_the_client_hangs_up_again_and_again_then_nothing_leaks(
    broker: BrokerProcess, half: bytes
) -> None:
    for _ in range(HALF_FRAMES // 5):
        with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as client:
            client.send_bytes(half)
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed_by_broker()


def test_row07_given_half_a_frame_when_the_connection_is_reset_then_nothing_leaks(broker: BrokerProcess) -> None:
    for _ in range(100):
        with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as client:
            client.send_bytes(size_prefix(200_000) + bytes(50_000))
            reset_on_close(client)


@not_for_kafka  # Kafka notices that the client is gone when it has an answer to send
def test_row07_given_long_polls_in_flight_when_the_client_is_gone_then_they_end_with_it(broker: BrokerProcess) -> None:
    nothing_yet = fetch_request({BYSTANDER_TOPIC: [(0, 0)]}, max_wait_ms=600_000, min_bytes=1 << 30)

    for pipelined in (1, 10, 1_000):
        with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as client:
            client.send_bytes(framed(whole_request(nothing_yet, 12)) * pipelined)


def reset_on_close(client: RawClient) -> None:
    """The other end gets RST in place of FIN."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# Row 8: a slow sender


@pytest.fixture(scope="module")
def impatient_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("impatient") / "data"
    with broker_under_test().start(data, penstock_request_read_deadline_ms=READ_DEADLINE_MS) as broker:
        broker.until_loaded()
        yield broker


@not_for_kafka  # it waits for connections.max.idle.ms, ten minutes, and any byte begins them anew
def test_row08_given_half_a_frame_when_silence_follows_then_the_deadline_closes_that_connection_only(
    impatient_broker: BrokerProcess,
) -> None:
    halves = (b"\0", size_prefix(1_000_000), size_prefix(1_000_000) + whole_request(MetadataRequest(topics=[]), 9))
    with unharmed(impatient_broker), ExitStack() as connections:
        quiet, *slow_ones = (
            connections.enter_context(RawClient(impatient_broker.address, timeout=ANSWER_TIMEOUT_S)) for _ in range(4)
        )

        for slow, half in zip(slow_ones, halves, strict=True):
            slow.send_bytes(half)

        assert all(slow.is_closed_by_broker() for slow in slow_ones)
        produce_and_fetch(quiet)  # which had begun no request, and so had no deadline


@not_for_kafka
def test_row08_given_a_byte_now_and_then_when_the_deadline_passes_then_the_connection_is_closed(
    impatient_broker: BrokerProcess,
) -> None:
    with unharmed(impatient_broker), RawClient(impatient_broker.address, timeout=0.05) as client:
        client.send_bytes(size_prefix(1_000_000))

        eventually(lambda: is_closed_after_another_byte(client), message="a byte now and then keeps it open")


def is_closed_after_another_byte(client: RawClient) -> bool:
    try:
        client.send_bytes(b"\0")
        return client.is_closed_by_broker()
    except TimeoutError:
        return False
    except (BrokenPipeError, ConnectionResetError):
        return True


@not_for_kafka
def test_row08_given_many_slow_senders_of_large_requests_when_they_dawdle_then_memory_follows_what_they_sent(
    impatient_broker: BrokerProcess,
) -> None:
    with unharmed(impatient_broker, growth_bytes=16 * MIB), ExitStack() as slow_ones:
        for _ in range(200):
            client = slow_ones.enter_context(RawClient(impatient_broker.address, timeout=ANSWER_TIMEOUT_S))
            client.send_bytes(size_prefix(100_000_000) + bytes(1000))

        produce_and_fetch(slow_ones.enter_context(RawClient(impatient_broker.address, timeout=ANSWER_TIMEOUT_S)))


# Row 18: pipelining without listening


def test_row18_given_ten_thousand_pipelined_requests_when_answers_are_read_late_then_all_come_in_order(
    client: RawClient,
) -> None:
    requests = [framed(struct.pack(">hhih", ApiVersionsRequest.API_KEY, 0, number, -1)) for number in range(PIPELINED)]

    sender = send_in_background(client, b"".join(requests))
    answered = [correlation_id(client) for _ in range(PIPELINED)]
    sender.join(ANSWER_TIMEOUT_S)

    assert answered == list(range(PIPELINED))


def test_row18_given_ten_thousand_pipelined_requests_when_answers_are_not_read_then_memory_is_bounded(
    broker: BrokerProcess, client: RawClient, vitals: Vitals
) -> None:
    create_usable_topic(client, "of-many-partitions", 100)  # so that all the answers would take 26 MB
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    all_topics = framed(whole_request(MetadataRequest(topics=None), 1))

    sender = send_in_background(client, all_topics * PIPELINED)
    eventually(vitals.is_at_rest, message="the broker goes on answering somebody who does not listen")
    with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as other:
        produce_and_fetch(other)
    grown_while_unread = vitals.grown_bytes()
    client.socket.shutdown(socket.SHUT_RDWR)
    sender.join(ANSWER_TIMEOUT_S)

    assert grown_while_unread < 16 * MIB


def test_row18_given_ten_thousand_pipelined_fetches_when_answers_are_not_read_then_memory_is_bounded(
    broker: BrokerProcess, client: RawClient, vitals: Vitals
) -> None:
    create_usable_topic(client, "of-large-records")
    produce(client, "of-large-records", a_batch(bytes(900_000)))
    fetches = framed(whole_request(fetch_request({"of-large-records": [(0, 0)]}), 4)) * PIPELINED

    sender = send_in_background(client, fetches)
    for _ in range(5):
        correlation_id(client)
    eventually(vitals.is_at_rest, message="the broker goes on answering somebody who does not listen")
    with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as other:
        produce_and_fetch(other)
    grown_while_unread = vitals.grown_bytes()
    client.socket.shutdown(socket.SHUT_RDWR)
    sender.join(ANSWER_TIMEOUT_S)

    assert grown_while_unread < 16 * MIB


def test_row18_given_batches_that_wait_to_be_opened_when_pipelined_then_memory_is_bounded(
    broker: BrokerProcess, client: RawClient
) -> None:
    create_usable_topic(client, "recompressed", compression_type="zstd")
    batch = a_batch(randbytes(900_000))
    requests = framed(whole_request(produce_request("recompressed", {0: batch}), 9)) * 100
    before = broker.resident_bytes()
    forget_peak(broker)

    sender = send_in_background(client, requests)
    answers = [client.receive_frame() for _ in range(100)]
    sender.join(ANSWER_TIMEOUT_S)

    assert None not in answers
    if isinstance(broker, Broker):
        assert peak_resident_bytes(broker) - before < 48 * MIB


def correlation_id(client: RawClient) -> int:
    frame = client.receive_frame()
    assert frame is not None, "closed instead of an answer"
    return int.from_bytes(frame[:4], "big")


def send_in_background(client: RawClient, data: bytes) -> threading.Thread:
    """Sending blocks once the broker has stopped to read."""
    sender = threading.Thread(target=send_until_refused, args=(client, data), daemon=True)
    sender.start()
    return sender


def send_until_refused(client: RawClient, data: bytes) -> None:
    try:
        client.send_bytes(data)
    except OSError:  # the test has seen enough
        return


# Row 53: too many connections


# Over max.connections Kafka lets clients wait in the backlog.
@pytest.mark.parametrize(
    "settings",
    [row(53, "per address", {"max.connections.per.ip": 5}), row(53, "in all", {"max.connections": 5}, only_ours=True)],
)
def test_given_a_limit_of_connections_when_it_is_reached_then_the_next_is_closed_until_another_ends(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with broker_under_test().start(tmp_path / "data", **settings) as broker, unharmed(broker):
        with ExitStack() as open_ones:
            allowed = [open_ones.enter_context(a_served_client(broker)) for _ in range(4)]  # `unharmed` has the fifth

            for _ in range(20):
                with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as one_too_many:
                    assert one_too_many.is_closed_by_broker()
            allowed[0].close()

            eventually(lambda: is_served(broker), message="no place became free")
            assert all(is_serving(client) for client in allowed[1:])
        eventually(lambda: is_served(broker), message="no place became free")


def test_row53_given_two_thousand_idle_connections_then_they_cost_little_and_others_are_served(
    broker: BrokerProcess, vitals: Vitals
) -> None:
    idle_cost_bytes = 40 * 1024  # 5,000 of them may cost 200 MiB

    for _ in range(2):
        with ExitStack() as idle_ones:
            for _ in range(2_000):
                idle_ones.enter_context(RawClient(broker.address, timeout=ANSWER_TIMEOUT_S))
            with a_served_client(broker) as other:
                produce_and_fetch(other)
            grown = vitals.grown_bytes()

    assert grown < 2_000 * idle_cost_bytes, f"{grown / MIB:.1f} MiB"


def a_served_client(broker: BrokerProcess) -> RawClient:
    client = RawClient(broker.address, timeout=ANSWER_TIMEOUT_S)
    assert is_serving(client), "the connection was not served"
    return client


def is_serving(client: RawClient) -> bool:
    client.send_frame(whole_request(ApiVersionsRequest(), 0))
    return client.receive_frame() is not None


def is_served(broker: BrokerProcess) -> bool:
    with RawClient(broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        try:
            return is_serving(client)
        except (BrokenPipeError, ConnectionResetError):
            return False
