"""What the machine itself can do in this run: the limits that every figure of the suite is read against."""

import itertools
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from bench.percentiles import latency_figures
from bench.report import Row

Answer = TypeVar("Answer")
Argument = TypeVar("Argument")

# Not fork: it would copy the locks of librdkafka's threads in whatever state they are.
SPAWN = get_context("spawn")
RECEIVE_BUFFER_BYTES = 1 << 20
LOOPBACK_S = 1.0
SENDFILE_BYTES = 512 << 20  # far more than a processor's caches, as a log is
SENDFILE_CHUNK_BYTES = 1 << 20
FDATASYNC_APPEND_BYTES = 16 << 10
FDATASYNC_COUNT = 1_000
PAGE_CACHE_CHUNK_BYTES = 1 << 20
PAGE_CACHE_CHUNKS = 1_024


def in_own_process(function: Callable[..., Answer], *arguments: object) -> Answer:
    """Runs a client in a fresh process, which shares neither an interpreter lock nor a warm state with another."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        return pool.submit(function, *arguments).result()


def loopback_row(scenario: str, chunk_bytes: int, directory: Path, repeat: int) -> Row:
    del directory
    return _speed_row(scenario, [sent_from_memory(chunk_bytes).mb_per_s for _ in range(repeat)])


def sendfile_row(directory: Path, repeat: int) -> Row:
    """The same from a file in the page cache, by sendfile: what a fetch over loopback costs without any broker."""
    with sendfile_probe(directory) as path:
        speeds = [sent_by_sendfile(path).mb_per_s for _ in range(repeat)]
    return _speed_row("sendfile-1m", speeds)


@contextmanager
def sendfile_probe(directory: Path) -> Iterator[Path]:
    """A file in the page cache."""
    path = directory / "sendfile-probe"
    path.write_bytes(os.urandom(SENDFILE_BYTES))
    try:
        yield path
    finally:
        path.unlink()


@dataclass(frozen=True, slots=True)
class Sent:
    """What came over, and what that cost the sender."""

    mb_per_s: float
    cpu_s_per_gb: float


def sent_by_sendfile(path: Path) -> Sent:
    return _received(_sendfile_until_closed, path)


def sent_from_memory(chunk_bytes: int) -> Sent:
    return _received(_send_until_closed, chunk_bytes)


def page_cache_row(directory: Path, repeat: int) -> Row:
    """Sequential writes into the page cache: the limit of an append without fdatasync."""
    # A virtual machine's memory is slow when it is touched for the first time, so the first repetition does not count.
    return _speed_row("page-cache", [_page_cache_mb_per_s(directory) for _ in range(repeat + 1)][1:])


def fdatasync_row(directory: Path, repeat: int) -> Row:
    """How long the disk takes to make one append durable: the floor of acks=all on a flushed topic."""
    return Row("fdatasync", "machine", latency_figures(_fdatasync_latencies_ms(directory, FDATASYNC_COUNT * repeat)))


def _speed_row(scenario: str, speeds: list[float]) -> Row:
    return Row(scenario, "machine", {"mb_per_s": statistics.median(speeds)}, (min(speeds), max(speeds)))


def _received(send: Callable[[int, Argument], None], argument: Argument) -> Sent:
    """One process sends as fast as it can, this one receives; the clock starts at the first byte.

    Each has a core of its own, as a broker and its client have: on one core they would only take turns, which in a
    virtual machine is faster than waking each other. That this process is pinned to one already does not matter.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        here, there = SPAWN.Pipe()
        sender = SPAWN.Process(target=_on_first_core, args=(there, send, server.getsockname()[1], argument))
        sender.start()
        connection, _ = server.accept()
    buffer = bytearray(RECEIVE_BUFFER_BYTES)
    with connection, _last_core():
        connection.recv_into(buffer)
        received_bytes, started = 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - started) < LOOPBACK_S:
            received_bytes += connection.recv_into(buffer)
    sender_cpu_s: float = here.recv()
    sender.join()
    # The sender's clock runs a little longer, from its first byte to the end of the connection.
    return Sent(received_bytes / elapsed_s / 1e6, sender_cpu_s / (received_bytes / 1e9))


@contextmanager
def _last_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _on_first_core(parent: Connection, send: Callable[[int, Argument], None], port: int, argument: Argument) -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a parent on the last core would have it stay there
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before = time.process_time()
    send(port, argument)
    parent.send(time.process_time() - before)


def _send_until_closed(port: int, chunk_bytes: int) -> None:
    chunk = memoryview(bytearray(chunk_bytes))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        try:
            while True:
                connection.sendall(chunk)
        except ConnectionError:
            return


def _sendfile_until_closed(port: int, path: Path) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection, path.open("rb") as file:
        try:
            for position in itertools.cycle(range(0, SENDFILE_BYTES, SENDFILE_CHUNK_BYTES)):
                end = position + SENDFILE_CHUNK_BYTES
                while position < end:
                    position += os.sendfile(connection.fileno(), file.fileno(), position, end - position)
        except ConnectionError:
            return


def _fdatasync_latencies_ms(directory: Path, count: int) -> list[float]:
    path = directory / "fdatasync-probe"
    payload = bytes(FDATASYNC_APPEND_BYTES)
    latencies: list[float] = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(count):
            started = time.perf_counter()
            os.write(descriptor, payload)
            os.fdatasync(descriptor)
            latencies.append((time.perf_counter() - started) * 1_000)
    finally:
        os.close(descriptor)
        path.unlink()
    return latencies


def _page_cache_mb_per_s(directory: Path) -> float:
    path = directory / "page-cache-probe"
    payload = bytes(PAGE_CACHE_CHUNK_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        started = time.perf_counter()
        for _ in range(PAGE_CACHE_CHUNKS):
            os.write(descriptor, payload)
        elapsed_s = time.perf_counter() - started
    finally:
        os.close(descriptor)
        path.unlink()
    return PAGE_CACHE_CHUNKS * PAGE_CACHE_CHUNK_BYTES / elapsed_s / 1e6
