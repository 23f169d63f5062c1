"""Brokers without Kafka's protocol in the rows that they can have: one stream, and a raw client for their own one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bench.peers import PEERS, Peer
from bench.side_by_side.effort import Effort
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.loads import SIZES
from bench.side_by_side.rows import PAGE_CACHE, Figures, Once, Prepare, Scenario

# One repetition on a peer that runs.
Work = Callable[[Effort, Peer], Figures]


def missing() -> dict[str, str]:
    """Those that cannot be had here, and why."""
    return {name: reason for name, kind in PEERS.items() if (reason := kind.missing())}


def versions() -> dict[str, str]:
    return {
        name: f"missing: {reason}" if (reason := kind.missing()) else kind.version() for name, kind in PEERS.items()
    }


def with_peers(scenario: Scenario, effort: Effort) -> Scenario:
    """The scenario with the same work for the peers, where its first row is one that they can have."""
    name = scenario.rows[0].name
    if name == "cold-start":
        return replace(scenario, peers=dict.fromkeys(PEERS, _cold_start))
    work = _WORK.get(name)
    if work is None or any(row.durability != PAGE_CACHE for row in scenario.rows):
        return scenario
    prepare: Prepare = partial(_running, partial(work, effort))
    return replace(scenario, peers=dict.fromkeys(PEERS, prepare))


@contextmanager
def _running(work: Callable[[Peer], Figures], laboratory: Laboratory, system: str) -> Iterator[Once]:
    with (
        laboratory.directory(system) as directory,
        PEERS[system].start(directory, laboratory.cores.broker) as peer,
    ):
        yield lambda: work(peer)


@contextmanager
def _cold_start(laboratory: Laboratory, system: str) -> Iterator[Once]:
    yield lambda: _cold_start_once(laboratory, system)


def _cold_start_once(laboratory: Laboratory, system: str) -> Figures:
    with laboratory.own_directory(system) as directory:
        first_write_s = PEERS[system].cold_start_s(directory / "cold", laboratory.cores.broker)
        with PEERS[system].start(directory / "idle", laboratory.cores.broker) as peer:
            return {"first_write_s": first_write_s, "idle_mb": peer.idle_resident_mb()}


def _throughput(value_bytes: int, effort: Effort, peer: Peer) -> Figures:
    produced, consumed = (work(value_bytes, effort.volume_bytes) for work in (peer.produce, peer.consume))
    return {
        "produce_mb_per_s": produced.mb_per_s,
        "produce_cpu_s_per_gb": produced.cpu_s_per_gb,
        "consume_mb_per_s": consumed.mb_per_s,
        "consume_cpu_s_per_gb": consumed.cpu_s_per_gb,
    }


def _latency(messages_per_s: int, effort: Effort, peer: Peer) -> Figures:
    return peer.latency(messages_per_s, effort.seconds)


# By the first row of the scenario. A peer's acknowledgement is that of its only node, as acks=1 is.
_WORK: dict[str, Work] = {
    **{f"produce-raw-{size}-1p-none": partial(_throughput, value_bytes) for size, value_bytes in SIZES.items()},
    **{f"latency-p50-{rate}-acks-1": partial(_latency, rate) for rate in (1_000, 20_000)},
}
