"""Transactions through a raw client: what a commit costs, what open ones hold, and what reading committed data costs.

A transaction is a single record, and the next one begins when the end of the last is answered: nothing is shared, so
the rate tells the time from begin to end. Plain idempotent produce is done the same way, in turns with it.
"""

import resource
import socket
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.testkit.broker_process import BrokerProcess

from bench import brokers, process, wire
from bench.machine import in_own_process
from bench.measuring import Run, measure, throughput_row
from bench.replay import Exchange, Replayed, replay, success
from bench.report import Row

SERIAL_NAME, IDS_NAME, FETCH_NAME = "transactions", "transactional-ids-1k", "fetch-committed"
UNCOMMITTED_NAME = "fetch-uncommitted"
STATE_TOPIC = "__transaction_state"
RECORD_BYTES = 100
TIMEOUT_MS = 60_000
IDS_COUNT = 1_000
IDLE_S = 2.0
PATIENCE_S = 30
# Its coordinator is being made or loaded; the transaction before is being ended (a broker that adds partitions itself
# says NOT_ENOUGH_REPLICAS for that).
COORDINATOR_COMES = (14, 15, 16)
BEING_ENDED = (51, 19)

# A log whose every MiB looks the same, so that all answers have one size: the last of four transactions is aborted.
BATCH_BYTES = 16_384
BATCHES_PER_TRANSACTION = 16
TRANSACTIONS_PER_FETCH = 4
MARKER_BYTES, MARKER_OFFSETS = 78, 1
FETCH_BYTES = TRANSACTIONS_PER_FETCH * (BATCHES_PER_TRANSACTION * BATCH_BYTES + MARKER_BYTES)
FETCHES = 512
FETCH_REQUESTS = 1_024
PAIRS_PER_REPETITION = 5
FETCH_WINDOW = 4


# The clients' records are of another year than the coordinator's markers, which would be a reason to roll.
ONE_SEGMENT = {"segment.ms": str(2**63 - 1)}


@dataclass(frozen=True, slots=True)
class Serial:
    """One producer on one partition; `version` is that of its transactions, 0 for a producer that has none."""

    name: str
    version: int
    flushed: bool
    count: int

    @property
    def configs(self) -> Mapping[str, str]:
        return brokers.FLUSH_EACH if self.flushed else brokers.NO_FLUSH


IN_TURNS = (
    Serial("transactions-flushed", 1, True, 1_000),
    Serial("transactions-flushed-v2", 2, True, 1_000),
    Serial("idempotent-flushed", 0, True, 2_000),
    Serial("transactions-page-cache", 1, False, 2_000),
    Serial("transactions-page-cache-v2", 2, False, 2_000),
    Serial("idempotent-page-cache", 0, False, 4_000),
)


# Serial


def serial_rows(broker: BrokerProcess, system: str, repeat: int) -> list[Row]:
    runs: dict[str, list[Run]] = {scenario.name: [] for scenario in IN_TURNS}
    in_own_process(first_producer, broker.address)
    for repetition in range(repeat + 1):
        for scenario in IN_TURNS:
            topic = f"bench-{scenario.name}-{repetition}"
            brokers.create_topic(broker, topic, 1, {**scenario.configs, **ONE_SEGMENT})
            flush_coordinator(broker, scenario.configs)
            run = measure(broker, serial, broker.address, topic, scenario)
            if repetition:  # the first one warms up
                runs[scenario.name].append(run)
            _check_end_offset(broker, topic, scenario)
            brokers.delete_topic(broker, topic)
    flush_coordinator(broker, brokers.FLUSH_EACH)
    return [_serial_row(scenario, system, runs[scenario.name]) for scenario in IN_TURNS]


def _serial_row(scenario: Serial, system: str, runs: list[Run]) -> Row:
    rates = [scenario.count / run.elapsed_s for run in runs]
    figures = {
        "commits_per_s" if scenario.version else "requests_per_s": statistics.median(rates),
        "cpu_us_each": statistics.median(run.broker_cpu_s for run in runs) / scenario.count * 1e6,
        "client_cpu_share": statistics.median(run.client_cpu_s / run.elapsed_s for run in runs),
    }
    return Row(scenario.name, system, figures, (min(rates), max(rates)))


def flush_coordinator(broker: BrokerProcess, configs: Mapping[str, str]) -> None:
    """Whether the coordinator's own log is acknowledged from the disk or from the page cache."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    wanted = ConfigResource(ResourceType.TOPIC, STATE_TOPIC, incremental_configs=entries)
    admin = brokers.admin_client(broker)
    [altered] = admin.incremental_alter_configs([wanted]).values()
    altered.result(brokers.ADMIN_TIMEOUT_S)


def _check_end_offset(broker: BrokerProcess, topic: str, scenario: Serial) -> None:
    """A transaction is a record and a marker."""
    expected = scenario.count * (2 if scenario.version else 1)
    stored = brokers.end_offsets(broker, topic, 1)
    assert stored == [expected], f"{topic} ends at {stored}, not at {expected}"


def serial(address: tuple[str, int], topic: str, scenario: Serial) -> Replayed:
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(connection, topic, scenario.version)
        client.init(f"bench-{topic}".encode() if scenario.version else b"")
        batch = wire.batch_of([bytes(RECORD_BYTES)])
        cpu_before, started = _cpu_s(), time.perf_counter()
        for _ in range(scenario.count):
            if scenario.version:
                client.begin()
                client.produce([batch])
                client.end(commits=True)
            else:
                client.produce([batch])
        elapsed_s = time.perf_counter() - started
        return Replayed(elapsed_s, _cpu_s() - cpu_before)


def first_producer(address: tuple[str, int]) -> None:
    """Has the coordinator's topic created."""
    with socket.create_connection(address) as connection:
        Client(connection, "", 1).init(b"bench-first")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Client:
    """A producer on one connection that asks, waits for the answer, and asks again if that says so."""

    def __init__(self, connection: socket.socket, topic: str, version: int) -> None:
        self._connection = connection
        self._topic = topic
        self._version = version
        self._producer = wire.NOBODY
        self._sequence = 0

    def init(self, transactional_id: bytes) -> None:
        if transactional_id:
            wire.exchange(self._connection, wire.find_coordinator_request(transactional_id))
        request = wire.init_producer_id_request(transactional_id, TIMEOUT_MS)
        response = self._ask(request, wire.PRODUCER_ERROR_POSITION, (*COORDINATOR_COMES, *BEING_ENDED), pause_s=0.05)
        self._producer = wire.given_producer(response, transactional_id)
        self._sequence = 0

    def begin(self) -> None:
        """In version 2 the partition's leader does that, when it gets the first batch (KIP-890)."""
        if self._version == 1:
            request = wire.add_partitions_request(self._producer, self._topic, 0)
            self._ask(request, wire.add_partitions_error_position(self._topic), BEING_ENDED)

    def produce(self, batches: list[wire.Batch]) -> None:
        """The first is answered before the others follow, as with a client that has to ask again."""
        error_position = wire.produce_error_position(self._topic)
        first, *others = [self._numbered(batch) for batch in batches]
        self._ask(first, error_position, BEING_ENDED)
        self._connection.sendall(b"".join(others))
        for _ in others:
            response = wire.next_response(self._connection)
            assert not wire.int16_at(response, error_position), response.hex(" ")

    def _numbered(self, batch: wire.Batch) -> bytes:
        numbered = wire.numbered(batch, self._producer, self._sequence)
        self._sequence += batch.records_count
        acks_all, version = -1, 12 if self._version == 2 else wire.PRODUCE_VERSION
        return wire.produce_request(self._topic, 0, numbered, acks_all, self._producer.transactional_id, version)

    def end(self, *, commits: bool) -> None:
        version = 5 if self._version == 2 else 4
        request = wire.end_txn_request(self._producer, version, commits=commits)
        response = self._ask(request, wire.PRODUCER_ERROR_POSITION, ())
        if self._version == 2:
            self._producer = wire.given_producer(response, self._producer.transactional_id)
            self._sequence = 0

    def _ask(self, request: bytes, error_position: int, retried: tuple[int, ...], pause_s: float = 0) -> bytes:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            response = wire.exchange(self._connection, request)
            error_code = wire.int16_at(response, error_position)
            if not error_code:
                return response
            if error_code not in retried or time.monotonic() > deadline:
                raise RuntimeError(f"a request was answered with error code {error_code}")
            time.sleep(pause_s)


# Memory


def ids_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    """What the broker's process grows by; a first transactional id has the coordinator made."""
    del repeat  # memory is much the same every time
    topic = "bench-transactional-ids"
    with brokers.start(system, directory) as broker:
        brokers.create_topic(broker, topic, 1, brokers.NO_FLUSH)
        in_own_process(open_transactions, broker.address, topic, 0, 1)
        time.sleep(IDLE_S)
        before_mb = process.resident_mb(broker.pid)
        in_own_process(open_transactions, broker.address, topic, 1, IDS_COUNT)
        time.sleep(IDLE_S)
        grown_mb = process.resident_mb(broker.pid) - before_mb
    return [Row(IDS_NAME, system, {"grown_mb": grown_mb})]


def open_transactions(address: tuple[str, int], topic: str, first: int, count: int) -> None:
    """Each with a record, and none of them ends."""
    batch = wire.batch_of([bytes(RECORD_BYTES)])
    with socket.create_connection(address) as connection:
        for number in range(first, first + count):
            client = Client(connection, topic, 1)
            client.init(b"bench-open-%04d" % number)
            client.begin()
            client.produce([batch])


# Reading


def fetch_rows(broker: BrokerProcess, system: str, repeat: int) -> list[Row]:
    topic = "bench-fetch-committed"
    topic_id = brokers.create_topic(broker, topic, 1, {**brokers.NO_FLUSH, **ONE_SEGMENT})
    in_own_process(fill, broker.address, topic)
    levels = {FETCH_NAME: wire.READ_COMMITTED, UNCOMMITTED_NAME: 0}
    exchanges = {name: _fetch_exchange(broker.address, topic_id, level) for name, level in levels.items()}
    runs: dict[str, list[Run]] = {name: [] for name in exchanges}
    for pair in range(repeat * PAIRS_PER_REPETITION):
        for name in exchanges if pair % 2 else reversed(exchanges):
            runs[name].append(measure(broker, replay, broker.address, [exchanges[name]], FETCH_REQUESTS))
    brokers.delete_topic(broker, topic)
    rows = [throughput_row(name, system, "mb_per_s", runs[name], FETCH_REQUESTS, FETCH_BYTES) for name in exchanges]
    # Of neighbours: the machine is not the same for long.
    shares = [
        plain.elapsed_s / committed.elapsed_s
        for committed, plain in zip(runs[FETCH_NAME], runs[UNCOMMITTED_NAME], strict=True)
    ]
    shared = Row(
        FETCH_NAME, system, {**rows[0].figures, "uncommitted_share": statistics.median(shares)}, rows[0].spread
    )
    return [shared, rows[1]]


def fill(address: tuple[str, int], topic: str) -> None:
    batch = wire.batch_of_size(BATCH_BYTES, 1_000)
    with socket.create_connection(address) as connection:
        client = Client(connection, topic, 2)
        client.init(b"bench-fill")
        for _ in range(FETCHES):
            for left in reversed(range(TRANSACTIONS_PER_FETCH)):
                client.begin()
                client.produce([batch] * BATCHES_PER_TRANSACTION)
                client.end(commits=left > 0)
        # Refused until the last transaction is complete.
        client.init(b"bench-fill")


def _fetch_exchange(address: tuple[str, int], topic_id: bytes, isolation_level: int) -> Exchange:
    """The fetches of the whole log, each tried once, which also warms the broker up."""
    records_per_batch = wire.batch_of_size(BATCH_BYTES, 1_000).records_count
    offsets_per_fetch = TRANSACTIONS_PER_FETCH * (BATCHES_PER_TRANSACTION * records_per_batch + MARKER_OFFSETS)
    requests = [
        wire.fetch_request(topic_id, 0, number * offsets_per_fetch, FETCH_BYTES, isolation_level)
        for number in range(FETCHES)
    ]
    # The length of a compact array is one more than its elements; null is 0.
    aborted = 1 + 1 if isolation_level == wire.READ_COMMITTED else 0
    with socket.create_connection(address) as connection:
        responses = [_checked(wire.exchange(connection, request), aborted) for request in requests]
    assert len({len(response) for response in responses}) == 1, "the answers have different sizes"
    no_errors = success(responses[0], (wire.FETCH_ERROR_POSITION, wire.FETCH_PARTITION_ERROR_POSITION))
    return Exchange(b"".join(requests), len(requests[0]), len(responses[0]), no_errors, FETCH_WINDOW)


def _checked(response: bytes, aborted: int) -> bytes:
    found = wire.int16_at(response, wire.FETCH_PARTITION_ERROR_POSITION), response[wire.FETCH_ABORTED_POSITION]
    assert found == (0, aborted), f"error code and aborted transactions are {found}, not (0, {aborted})"
    assert len(response) > FETCH_BYTES, f"only {len(response)} bytes"
    return response
