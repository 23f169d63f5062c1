"""Every scenario by name, in the order they run: the machine, the client's own ceilings, then each broker."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.testkit.broker_process import BrokerProcess

from bench import (
    brokers,
    compaction,
    failover,
    groups,
    librdkafka,
    lifecycle,
    machine,
    many_replicas,
    raw_fetch,
    raw_produce,
    replicated,
    spark,
    transactions,
)
from bench.report import Row

MACHINE: Mapping[str, Callable[[Path, int], Row]] = {
    "loopback-16k": partial(machine.loopback_row, "loopback-16k", 16 << 10),
    "loopback-64k": partial(machine.loopback_row, "loopback-64k", 64 << 10),
    "loopback-1m": partial(machine.loopback_row, "loopback-1m", 1 << 20),
    "sendfile-1m": machine.sendfile_row,
    "page-cache": machine.page_cache_row,
    "fdatasync": machine.fdatasync_row,
}

CEILINGS: Mapping[str, Callable[[int], Row]] = {
    **{each.name: partial(raw_produce.produce_ceiling_row, each) for each in raw_produce.THROUGHPUT},
    raw_fetch.NAME: raw_fetch.fetch_ceiling_row,
    **{each.name: partial(raw_produce.latency_floor_row, each) for each in raw_produce.LATENCY},
}

# These share one running broker: a broker in use is not a fresh one, and Kafka's compiler needs the practice.
ON_A_BROKER: Mapping[str, Callable[[BrokerProcess, str, int], list[Row]]] = {
    **{each.name: partial(raw_produce.produce_rows, each) for each in raw_produce.THROUGHPUT},
    raw_fetch.NAME: raw_fetch.fetch_rows,
    **{each.name: partial(raw_produce.latency_rows, each) for each in raw_produce.LATENCY},
    "groups": groups.groups_rows,
    transactions.SERIAL_NAME: transactions.serial_rows,
    transactions.FETCH_NAME: transactions.fetch_rows,
    **{f"confluent-{each.name}": partial(librdkafka.confluent_rows, each) for each in librdkafka.LOADS},
}

WITH_OWN_BROKERS: Mapping[str, Callable[[str, Path, int], list[Row]]] = {
    "cold-start": lifecycle.cold_start_rows,
    "partitions-10k": lifecycle.partitions_rows,
    "recovery": lifecycle.recovery_rows,
    transactions.IDS_NAME: transactions.ids_rows,
    compaction.SPEED_NAME: compaction.compaction_rows,
    compaction.LATENCY_NAME: compaction.latency_rows,
    replicated.NAME: replicated.replicated_rows,
    failover.HANDOVER_NAME: failover.handover_rows,
    **{name: partial(failover.failover_rows, name, settings) for name, settings in failover.SESSIONS.items()},
    many_replicas.NAME: many_replicas.cluster_rows,
    spark.NAME: spark.spark_rows,
}

NAMES = tuple(dict.fromkeys([*MACHINE, *ON_A_BROKER, *WITH_OWN_BROKERS]))


def rows(wanted: Sequence[str], systems: Sequence[str], repeat: int, data_root: Path) -> Iterator[Row]:
    """Yields each row as soon as it is measured."""
    with brokers.scratch(data_root) as directory:
        for name in _both(MACHINE, wanted):
            yield MACHINE[name](directory, repeat)
    for name in _both(CEILINGS, wanted):
        yield CEILINGS[name](repeat)
    for system in systems:
        with brokers.scratch(data_root) as directory:
            yield from _broker_rows(wanted, system, repeat, directory)


def _broker_rows(wanted: Sequence[str], system: str, repeat: int, directory: Path) -> Iterator[Row]:
    if on_a_broker := _both(ON_A_BROKER, wanted):
        with brokers.start(system, directory / "shared") as broker:
            for name in on_a_broker:
                yield from _tried(name, system, partial(ON_A_BROKER[name], broker, system, repeat))
    for name in _both(WITH_OWN_BROKERS, wanted):
        yield from _tried(name, system, partial(WITH_OWN_BROKERS[name], system, directory / name, repeat))


def _both(table: Mapping[str, object], wanted: Sequence[str]) -> list[str]:
    return [name for name in table if name in wanted]


def _tried(name: str, system: str, scenario: Callable[[], list[Row]]) -> list[Row]:
    """A broker that fails in one scenario is measured in the others; the failure is a row, and fails its promises."""
    try:
        return scenario()
    except Exception as error:
        traceback.print_exception(error)
        return [Row(name, system, {}, failure=f"{type(error).__name__}: {error}".splitlines()[0])]
