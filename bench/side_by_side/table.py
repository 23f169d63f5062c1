"""Every row of the benchmark with its goal, in the order of the result: what was promised before it was measured."""

from collections.abc import Sequence
from functools import partial

from bench.raw_produce import ACKS_ALL
from bench.side_by_side import clusters, compacting, coordination, limits, reading, starting
from bench.side_by_side.effort import FULL, Effort
from bench.side_by_side.latency import CONSUMERS_COUNT, EndToEnd, acknowledgement, end_to_end
from bench.side_by_side.library_clients import CLIENTS, library_throughput
from bench.side_by_side.loads import LOADS, VOLUME_BYTES, Load
from bench.side_by_side.raw_throughput import raw_throughput
from bench.side_by_side.rows import (
    AT_LEAST,
    AT_MOST,
    FSYNC,
    KAFKA,
    MACHINE,
    PENSTOCK,
    STUB,
    Goal,
    Row,
    Scenario,
)
from bench.side_by_side.single_records import single_records

THROUGHPUT = Goal(AT_LEAST, 1.3)
CPU = Goal(AT_MOST, 0.5)
LATENCY = Goal(AT_MOST, 0.5)
AS_MUCH = Goal(AT_LEAST, 1.0)
FIFTH = Goal(AT_MOST, 0.2)
FLUSHED_ACKNOWLEDGEMENT = Goal(AT_MOST, 1.0, under=10)
OF_THE_MACHINE = Goal(AT_LEAST, 0.8, of=MACHINE)

SIZE_ON_DISK = ("1kb-1p-none", "1kb-1p-lz4")
LOADED = "1kb-12p-none"


def scenarios(effort: Effort = FULL) -> list[Scenario]:
    return [
        *_limits(effort),
        *(_raw(load, effort) for load in LOADS),
        *(_single(connections, effort) for connections in (1, 8, 64)),
        *_latencies(effort),
        *_reading(effort),
        *_coordination(effort),
        *(_library(name, load, effort) for name in CLIENTS for load in LOADS),
        *_alone(effort),
        *_clusters(effort),
    ]


def _limits(effort: Effort) -> list[Scenario]:
    systems = (PENSTOCK, KAFKA, MACHINE)
    loopback = (
        Row("limit-loopback", "mb_per_s", "MB/s"),
        Row("limit-loopback-cpu", "cpu_s_per_gb", "CPU s/GB", higher_is_better=False),
    )
    bulk = (
        Row("bulk-fetch", "mb_per_s", "MB/s", OF_THE_MACHINE),
        Row("bulk-fetch-cpu", "cpu_s_per_gb", "CPU s/GB", higher_is_better=False),
    )
    return [
        Scenario(loopback, limits.loopback, (MACHINE,)),
        *_client_limits(effort),
        Scenario(bulk, partial(reading.bulk_fetch, effort.volume_bytes), systems),
    ]


def _client_limits(effort: Effort) -> list[Scenario]:
    """The raw client against a server that only counts."""
    rows = [("produce", "mb_per_s", "MB/s"), ("fetch", "mb_per_s", "MB/s"), ("single", "requests_per_s", "requests/s")]
    work = [
        partial(limits.client_produces, effort.count(60_000)),
        partial(limits.client_fetches, effort.counts_share),
        partial(limits.client_single_records, effort.count(240_000)),
    ]
    return [
        Scenario((Row(f"limit-client-{name}", figure, unit),), each, (STUB,))
        for (name, figure, unit), each in zip(rows, work, strict=True)
    ]


def _raw(load: Load, effort: Effort) -> Scenario:
    rows = [
        Row(f"produce-raw-{load.name}", "produce_mb_per_s", "MB/s", THROUGHPUT),
        Row(f"consume-raw-{load.name}", "consume_mb_per_s", "MB/s", THROUGHPUT),
        Row(f"cpu-in-raw-{load.name}", "produce_cpu_s_per_gb", "CPU s/GB", CPU, higher_is_better=False),
        Row(f"cpu-out-raw-{load.name}", "consume_cpu_s_per_gb", "CPU s/GB", CPU, higher_is_better=False),
    ]
    if load.name == LOADED:
        rows.append(Row("memory-loaded", "peak_mb", "MB", higher_is_better=False))
    if load.name in SIZE_ON_DISK:
        rows.append(Row(f"size-on-disk-{load.name}", "disk_mb_per_gb", "MB per GB", higher_is_better=False))
    return Scenario(tuple(rows), partial(raw_throughput, load, effort.volume_bytes))


def _single(connections: int, effort: Effort) -> Scenario:
    rows = (
        Row(f"single-record-{connections}c", "requests_per_s", "requests/s", AS_MUCH),
        Row(f"single-record-{connections}c-cpu", "cpu_us_each", "CPU us each", higher_is_better=False),
    )
    return Scenario(rows, partial(single_records, connections, effort.count(120_000)))


def _latencies(effort: Effort) -> list[Scenario]:
    found = []
    for messages_per_s in (1_000, 20_000):
        for acks, acks_name in ((1, "1"), (ACKS_ALL, "all")):
            name = f"{messages_per_s}-acks-{acks_name}"
            judged = ("p50", "p99") if messages_per_s == 1_000 else ()
            work = partial(end_to_end, EndToEnd(messages_per_s, acks, effort.seconds))
            found.append(Scenario(_percentiles("latency", name, judged), work, (PENSTOCK, KAFKA, STUB)))
    flushed = Row("ack-p99-1000-fsync", "p99_ms", "ms", FLUSHED_ACKNOWLEDGEMENT, False, FSYNC)
    others = [Row(f"ack-{each}-1000-fsync", f"{each}_ms", "ms", None, False, FSYNC) for each in ("p50", "p99.9")]
    found.append(Scenario((flushed, *others), partial(acknowledgement, effort.seconds, flushed=True)))
    return found


def _percentiles(kind: str, name: str, judged: Sequence[str] = ()) -> tuple[Row, ...]:
    return tuple(
        Row(f"{kind}-{each}-{name}", f"{each}_ms", "ms", LATENCY if each in judged else None, higher_is_better=False)
        for each in ("p50", "p99", "p99.9")
    )


def _reading(effort: Effort) -> list[Scenario]:
    catch_up = (
        Row("catch-up-read", "mb_per_s", "MB/s"),
        Row("catch-up-write-p99", "write_p99_ms", "ms", higher_is_better=False),
    )
    fan_out = (
        Row(f"fan-out-{CONSUMERS_COUNT}", "mb_per_s", "MB/s"),
        Row(f"fan-out-{CONSUMERS_COUNT}-cpu", "cpu_s_per_gb", "CPU s/GB", higher_is_better=False),
    )
    live = EndToEnd(1_000, 1, effort.seconds, CONSUMERS_COUNT)
    return [
        Scenario(catch_up, partial(reading.catch_up, effort.volume_bytes)),
        Scenario(fan_out, partial(reading.fan_out, effort.volume_bytes // 4)),
        Scenario(_percentiles("fan-out", f"{CONSUMERS_COUNT}-live"), partial(end_to_end, live)),
    ]


def _coordination(effort: Effort) -> list[Scenario]:
    rebalance = Row("group-rebalance-200", "rebalanced_s", "s", higher_is_better=False)
    serial = coordination.serial_transactions
    return [
        Scenario(
            (Row("transactions", "commits_per_s", "commits/s"),), partial(serial, effort.count(1_500), flushed=False)
        ),
        Scenario(
            (Row("transactions-fsync", "commits_per_s", "commits/s", durability=FSYNC),),
            partial(serial, effort.count(500), flushed=True),
        ),
        Scenario((rebalance,), coordination.rebalance),
    ]


def _library(name: str, load: Load, effort: Effort) -> Scenario:
    rows = tuple(
        Row(f"{kind}-{name}-{load.name}", f"{kind}_mb_per_s", "MB/s", THROUGHPUT, is_library_client=True)
        for kind in ("produce", "consume")
    )
    work = partial(library_throughput, name, effort.counts_share, load=load)
    # A client starts anew each time, and the brokers have had their practice with the raw client.
    return Scenario(rows, work, (PENSTOCK, KAFKA, STUB), warm_up=False)


def _alone(effort: Effort) -> list[Scenario]:
    """One broker that a scenario starts for itself."""
    cold = (
        Row("cold-start", "first_write_s", "s", FIFTH, higher_is_better=False),
        Row("memory-idle", "idle_mb", "MB", FIFTH, higher_is_better=False),
    )
    recovery = (Row("recovery", "s_per_gib", "s/GiB", higher_is_better=False),)
    volume_bytes = int(starting.GIB * effort.volume_bytes / VOLUME_BYTES)
    compaction = (Row("compaction", "mb_per_s", "MB/s", AS_MUCH),)
    return [
        Scenario(cold, partial(starting.in_own_directory, starting.cold_start), warm_up=False),
        _partitions(effort.count(1_000), "1000", None),
        _partitions(effort.count(10_000), "10000", 1),
        Scenario(
            recovery,
            partial(starting.in_own_directory, partial(starting.recovery, volume_bytes)),
            warm_up=False,
        ),
        Scenario(compaction, partial(compacting.compaction, effort.count(400_000) // 160 * 160)),
    ]


def _partitions(count: int, name: str, repeat_at_most: int | None) -> Scenario:
    rows = tuple(
        Row(f"partitions-{name}-{what}", figure, unit, higher_is_better=False)
        for what, figure, unit in (
            ("create", "created_s", "s"),
            ("restart", "restarted_s", "s"),
            ("memory", "resident_mb", "MB"),
            ("disk", "disk_mb", "MB"),
        )
    )
    work = partial(starting.in_own_directory, partial(starting.many_partitions, count))
    return Scenario(rows, work, warm_up=False, repeat_at_most=repeat_at_most)


def _clusters(effort: Effort) -> list[Scenario]:
    replicated = (
        Row("replicated-3", "mb_per_s", "MB/s"),
        Row("replicated-3-cpu", "cpu_s_per_gb", "CPU s/GB", higher_is_better=False),
    )
    failover = (Row("failover", "failover_s", "s", LATENCY, higher_is_better=False),)
    return [
        Scenario(replicated, partial(clusters.replicated_produce, effort.count(16_000))),
        Scenario(failover, clusters.failover_time),
    ]
