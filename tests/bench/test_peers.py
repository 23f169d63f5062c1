"""Peers of the benchmark: what is installed starts, takes and gives back messages, and is gone afterwards.

What the prepared bytes of the loads have done is looked at through the makers' own clients.
"""

import asyncio
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import nats
import psutil  # type: ignore[import-untyped]
import pytest
import rstream
from bench.machine import in_own_process
from bench.peers import PEERS, Peer, nats_jetstream, nats_load, rabbitmq_load
from bench.peers.peer import Load
from hypothesis import given
from hypothesis import strategies as st
from nats.js.api import AckPolicy, ConsumerConfig

VALUE_BYTES = 1_000
COUNT = 300
CORE = min(os.sched_getaffinity(0))
# A peer starts in seconds, on a machine that has nothing else to do.
PATIENCE_S = 900

each_peer = pytest.mark.parametrize("name", list(PEERS))
pytestmark = pytest.mark.timeout(PATIENCE_S)


def installed(name: str) -> type[Peer]:
    why_not = PEERS[name].missing()
    if why_not:
        pytest.skip(f"{PEERS[name].title} cannot be had: {why_not}")
    return PEERS[name]


@pytest.fixture(scope="module", params=list(PEERS))
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with installed(request.param).start(tmp_path_factory.mktemp(request.param) / "peer", {CORE}) as running:
        yield running


@pytest.fixture
def stream(peer: Peer) -> Iterator[str]:
    peer.protocol.create_stream(peer.port, "taken")
    yield "taken"
    peer.protocol.delete_stream(peer.port, "taken")


def read_by_its_own_client(peer: Peer, stream: str, count: int) -> list[bytes]:
    reading = _read_nats if isinstance(peer, nats_jetstream.NatsJetStream) else _read_rabbitmq
    return asyncio.run(asyncio.wait_for(reading(peer.port, stream, count), PATIENCE_S / 2))


async def _read_nats(port: int, stream: str, count: int) -> list[bytes]:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    wanted = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await client.jetstream().pull_subscribe(stream, durable="reader", stream=stream, config=wanted)
    values: list[bytes] = []
    while len(values) < count:
        values += [message.data for message in await subscription.fetch(count - len(values), timeout=60)]
    await client.close()
    return values


async def _read_rabbitmq(port: int, stream: str, count: int) -> list[bytes]:
    values: list[bytes] = []
    all_there = asyncio.Event()

    def take(value: object, _: rstream.MessageContext) -> None:
        assert isinstance(value, bytes)
        values.append(value)
        if len(values) >= count:
            all_there.set()

    consumer = rstream.Consumer("127.0.0.1", port, username="guest", password="guest")
    await consumer.start()
    await consumer.subscribe(stream, take)
    await all_there.wait()
    await consumer.close()
    return values


def test_given_a_load_when_it_is_produced_then_the_peers_own_client_reads_all_of_it(peer: Peer, stream: str) -> None:
    in_own_process(peer.protocol.produce, Load(peer.port, stream, VALUE_BYTES, COUNT))

    values = read_by_its_own_client(peer, stream, COUNT)

    assert len(values) == COUNT
    assert {len(value) for value in values} == {VALUE_BYTES}


def test_given_a_stream_when_one_value_is_acknowledged_then_it_is_there(peer: Peer, stream: str) -> None:
    peer.protocol.write_one(peer.port, stream, b"first")

    assert read_by_its_own_client(peer, stream, 1) == [b"first"]


def test_given_a_peer_when_it_is_measured_then_every_figure_is_there(peer: Peer) -> None:
    produced = peer.produce(VALUE_BYTES, COUNT * VALUE_BYTES)
    consumed = peer.consume(VALUE_BYTES, COUNT * VALUE_BYTES)
    latency = peer.latency(rate_per_s=100, seconds=0.5)

    for throughput in (produced, consumed):
        assert throughput.mb_per_s > 0
        assert throughput.messages_per_s > 0
        assert throughput.cpu_s_per_gb >= 0
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["p99.9_ms"] <= latency["max_ms"]


def test_given_a_running_peer_when_asked_then_it_names_its_processes_memory_and_version(peer: Peer) -> None:
    assert all(psutil.pid_exists(pid) for pid in peer.pids)
    assert peer.idle_resident_mb() > 1
    assert peer.version()[0].isdigit()


def test_given_a_core_when_a_peer_is_started_on_it_then_all_its_processes_stay_there(peer: Peer) -> None:
    assert {tuple(psutil.Process(pid).cpu_affinity()) for pid in peer.pids} == {(CORE,)}


@each_peer
def test_given_a_peer_when_its_block_ends_in_an_error_then_no_process_of_it_is_left(name: str, tmp_path: Path) -> None:
    pids: list[int] = []

    with pytest.raises(ZeroDivisionError), installed(name).start(tmp_path / "peer") as peer:
        pids = peer.pids
        raise ZeroDivisionError

    assert pids
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@each_peer
def test_given_no_data_when_a_peer_starts_cold_then_the_first_acknowledged_write_is_timed(
    name: str, tmp_path: Path
) -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}

    elapsed_s = installed(name).cold_start_s(tmp_path / "peer")

    assert elapsed_s > 0
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@each_peer
def test_given_a_peer_when_its_durability_is_asked_for_then_it_says_what_it_promises_and_what_it_cannot(
    name: str,
) -> None:
    assert "flush" in PEERS[name].durability
    assert set(PEERS[name].unable) <= {"page-cache", "fsync"}
    assert all(PEERS[name].unable.values())


def test_given_no_nats_server_when_asked_for_it_then_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(nats_jetstream, "SEARCH_PATH", "/nowhere")

    assert "scripts/fetch_peers.sh" in (PEERS["nats"].missing() or "")


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@given(st.lists(st.integers(0, 10_000), max_size=8))
def test_given_acknowledgements_in_any_pieces_when_counted_then_none_is_lost_or_counted_twice(cuts: list[int]) -> None:
    data = b"".join(b'MSG _INBOX 1 30\r\n{"stream":"s","seq":%d}\r\n' % number for number in range(50))
    counter = nats_load._Acknowledgements()

    assert sum(counter.count_in(piece) for piece in pieces_of(data, cuts)) == 50


@given(st.lists(st.integers(0, 10_000), max_size=8))
def test_given_confirms_in_any_pieces_when_counted_then_none_is_lost_or_counted_twice(cuts: list[int]) -> None:
    ids = b"".join(number.to_bytes(8) for number in range(7))
    body = (3).to_bytes(2) + (1).to_bytes(2) + b"\1" + (7).to_bytes(4) + ids
    data = (len(body).to_bytes(4) + body) * 30
    counter = rabbitmq_load._Confirms()

    assert sum(counter.count_in(piece) for piece in pieces_of(data, cuts)) == 7 * 30


def test_given_an_error_of_jetstream_when_acknowledgements_are_counted_then_it_is_raised() -> None:
    refusal = b'MSG _INBOX 1 60\r\n{"error":{"code":503,"description":"no space"},"stream":"s","seq":0}\r\n'

    with pytest.raises(RuntimeError, match="no space"):
        nats_load._Acknowledgements().count_in(refusal)


def test_given_a_refused_publish_when_confirms_are_counted_then_it_is_raised() -> None:
    publish_error = (19).to_bytes(4) + (4).to_bytes(2) + (1).to_bytes(2) + b"\1" + (1).to_bytes(4) + bytes(10)

    with pytest.raises(rabbitmq_load.Refused, match="key 4"):
        rabbitmq_load._Confirms().count_in(publish_error)
