"""One timed run of a client against a broker, and the row that several of them make."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.testkit.broker_process import BrokerProcess

from bench import process
from bench.machine import in_own_process
from bench.replay import Exchange, Replayed, replay
from bench.report import Row
from bench.stub import stub


@dataclass(frozen=True, slots=True)
class Run:
    """A client's run, and what it cost the broker, or all of them together."""

    elapsed_s: float
    client_cpu_s: float
    broker_cpu_s: float
    peak_resident_mb: float


def measure(broker: BrokerProcess, client: Callable[..., Replayed], *arguments: object) -> Run:
    """Runs the client in a process of its own."""
    return measure_all([broker], client, *arguments)


def measure_all(brokers: Sequence[BrokerProcess], client: Callable[..., Replayed], *arguments: object) -> Run:
    """The same of brokers that work together: the time of all, the memory of the largest."""
    pids = [broker.pid for broker in brokers]
    for pid in pids:
        process.forget_peak(pid)
    cpu_before = sum(map(process.cpu_s, pids))
    replayed = in_own_process(client, *arguments)
    brokers_cpu_s = sum(map(process.cpu_s, pids)) - cpu_before
    return Run(replayed.elapsed_s, replayed.client_cpu_s, brokers_cpu_s, max(map(process.peak_resident_mb, pids)))


def throughput_row(scenario: str, system: str, figure: str, runs: list[Run], count: int, item_bytes: int) -> Row:
    """In each run `count` items of `item_bytes` went over the wire; `figure` counts their bytes or the items."""
    volume_mb = count * item_bytes / 1e6
    amount = volume_mb if figure == "mb_per_s" else count
    speeds = [amount / run.elapsed_s for run in runs]
    broker_cpu_s = statistics.median(run.broker_cpu_s for run in runs)
    figures = {
        figure: statistics.median(speeds),
        "mb_per_s": statistics.median(volume_mb / run.elapsed_s for run in runs),
        "cpu_s_per_gb": broker_cpu_s / volume_mb * 1e3,
        "cpu_us_each": broker_cpu_s / count * 1e6,
        "peak_resident_mb": max(run.peak_resident_mb for run in runs),
        "client_cpu_share": statistics.median(run.client_cpu_s / run.elapsed_s for run in runs),
    }
    return Row(scenario, system, figures, (min(speeds), max(speeds)))


def ceiling_row(
    scenario: str, figure: str, exchanges: list[Exchange], response: bytes, repeat: int, count: int, item_bytes: int
) -> Row:
    """The same client against the stub: no broker can be measured faster than this."""
    with stub(exchanges[0].request_size, response) as address:
        each = count // len(exchanges)
        replays = [in_own_process(replay, address, exchanges, each) for _ in range(repeat)]
    speeds = [count * (item_bytes / 1e6 if figure == "mb_per_s" else 1) / each.elapsed_s for each in replays]
    return Row(scenario, "stub", {figure: statistics.median(speeds)}, (min(speeds), max(speeds)))
