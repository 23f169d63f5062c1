"""Throughput through client libraries: confluent-kafka, and the tools that Kafka has for its own Java client.

Both run on one core, so they are what limits most of these rows: that is why each is measured against the stub as
well. The Java tool starts a virtual machine for every run, whose start is in its processor time but not in its rate.
"""

import re
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.testkit.broker_process import BrokerProcess
from tests.testkit.java import CLASS_PATH

from bench import brokers, librdkafka, process
from bench.measuring import measure
from bench.payloads import values
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.loads import Load
from bench.side_by_side.rows import CLIENT_CPU_SHARE, STUB, Figures, Once
from bench.side_by_side.stub_broker import StubBroker, load_argument

CONFLUENT_COUNTS = {"100b": 800_000, "1kb": 300_000, "10kb": 40_000}
JAVA_COUNTS = {"100b": 2_000_000, "1kb": 400_000, "10kb": 40_000}
DIFFERENT_VALUES = 1_000
JAVA_TIMEOUT_S = 300
JAVA_OPTIONS = ("-Xms256m", "-Xmx512m")
_RECORDS_PER_S = re.compile(r"([\d.,]+) records/sec")


@dataclass(frozen=True, slots=True)
class Spent:
    """What a client took, and what it cost the broker; the rate is the client's own."""

    messages_per_s: float
    client_cpu_share: float
    broker_cpu_s: float


# A client: the broker, the topic, and how many messages.
Client = Callable[[BrokerProcess, str, Load, int], Spent]


@contextmanager
def library_throughput(
    name: str, counts_share: float, laboratory: Laboratory, system: str, *, load: Load
) -> Iterator[Once]:
    """Writes and reads back; the stub keeps nothing and has everything."""
    counts, produce, consume = CLIENTS[name]
    count = max(10_000, int(counts[load.size] * counts_share))
    with _broker(laboratory, system, load) as broker:
        topic_name = f"{name}-{load.name}"
        yield lambda: _write_and_read(broker, system, laboratory.topic(topic_name), load, count, produce, consume)


@contextmanager
def _broker(laboratory: Laboratory, system: str, load: Load) -> Iterator[BrokerProcess]:
    if system != STUB:
        yield laboratory.broker(system)
        return
    with brokers.scratch() as directory:
        arguments = [load_argument(load)]
        with StubBroker.start(directory / STUB, arguments=arguments, launcher=laboratory.broker_launcher) as broker:
            yield broker


def _write_and_read(
    broker: BrokerProcess, system: str, topic: str, load: Load, count: int, produce: Client, consume: Client
) -> Figures:
    if system != STUB:
        brokers.create_topic(broker, topic, load.partitions_count, brokers.NO_FLUSH)
    spent = {"produce": produce(broker, topic, load, count), "consume": consume(broker, topic, load, count)}
    if system != STUB:
        brokers.delete_topic(broker, topic)
    figures: dict[str, float] = {}
    for kind, each in spent.items():
        mb_per_s = f"{kind}_mb_per_s"
        figures[mb_per_s] = each.messages_per_s * load.value_bytes / 1e6
        figures[f"{mb_per_s}.{CLIENT_CPU_SHARE}"] = each.client_cpu_share
        figures[f"{kind}_cpu_s_per_gb"] = each.broker_cpu_s / (count * load.value_bytes / 1e9)
    return figures


# confluent-kafka


def _confluent(work: Callable[..., object]) -> Client:
    def client(broker: BrokerProcess, topic: str, load: Load, count: int) -> Spent:
        whole = count // librdkafka.BATCH_MESSAGES * librdkafka.BATCH_MESSAGES
        messages = librdkafka.Messages(load.name, load.value_bytes, whole, load.partitions_count, load.codec)
        run = measure(broker, work, broker.bootstrap, topic, messages)  # type: ignore[arg-type]
        return Spent(whole / run.elapsed_s, run.client_cpu_s / run.elapsed_s, run.broker_cpu_s)

    return client


# The Java client's tools


def _java_produce(broker: BrokerProcess, topic: str, load: Load, count: int) -> Spent:
    payloads = broker.data.with_name(f"values-{load.size}.txt")
    if not payloads.exists():
        payloads.write_bytes(b"\n".join(values(load.value_bytes, DIFFERENT_VALUES)))
    properties = ["acks=1", f"compression.type={load.codec}"]
    arguments = ["--num-records", str(count), "--throughput", "-1", "--payload-file", str(payloads)]
    arguments += ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--command-property", *properties]
    said, spent = _run_tool(broker, "ProducerPerformance", arguments)
    return Spent(float(_RECORDS_PER_S.findall(said)[-1].replace(",", "")), *spent)


def _java_consume(broker: BrokerProcess, topic: str, load: Load, count: int) -> Spent:
    arguments = ["--num-records", str(count), "--bootstrap-server", broker.bootstrap, "--topic", topic]
    said, spent = _run_tool(broker, "ConsumerPerformance", [*arguments, "--hide-header"])
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    columns = said.strip().splitlines()[-1].split(",")
    # Without the time until the group has its assignment, which says nothing about throughput.
    records_per_s_while_fetching = -1
    return Spent(float(columns[records_per_s_while_fetching]), *spent)


def _run_tool(broker: BrokerProcess, tool: str, arguments: Sequence[str]) -> tuple[str, tuple[float, float]]:
    command = ["java", *JAVA_OPTIONS, "-cp", CLASS_PATH, f"org.apache.kafka.tools.{tool}", *arguments]
    broker_before, client_before, started = process.cpu_s(broker.pid), _children_cpu_s(), time.perf_counter()
    ran = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S)
    elapsed_s = time.perf_counter() - started
    assert ran.returncode == 0, f"{tool} ended with {ran.returncode}: {(ran.stderr or ran.stdout)[-500:]}"
    share = (_children_cpu_s() - client_before) / elapsed_s
    return ran.stdout, (share, process.cpu_s(broker.pid) - broker_before)


def _children_cpu_s() -> float:
    """Of those that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


CLIENTS: dict[str, tuple[dict[str, int], Client, Client]] = {
    "confluent": (CONFLUENT_COUNTS, _confluent(librdkafka.produce), _confluent(librdkafka.consume)),
    "java": (JAVA_COUNTS, _java_produce, _java_consume),
}
