"""Transactions in Prometheus's words: how many there are, how they end, and whether any keeps readers waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.coordinators.transaction.state import ONGOING
from penstock.handlers.context import Broker


def transaction_families(broker: Broker) -> Iterator[Metric]:
    yield from _coordinated(broker)
    yield from _ended(broker)
    yield _keeping_readers_waiting(broker)


def _coordinated(broker: Broker) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "penstock_transactional_ids", "Transactional ids that this broker coordinates.", labels=["state"]
    )
    counts: Counter[str] = Counter()
    now_ms = broker.clock.now_ms()
    oldest_ms, markers_pending = now_ms, 0
    for shard in broker.transactions.shards():
        machine = shard.machine
        for transaction in [] if machine is None else list(machine.transactions.values()):
            record, markers = transaction.record, transaction.markers
            counts[record.status.kafka_name] += 1
            if record.status is ONGOING:
                oldest_ms = min(oldest_ms, record.start_ms)
            if markers is not None:
                markers_pending += len(markers.partitions)
    for state, count in sorted(counts.items()):
        states.add_metric([state], count)
    yield states
    yield GaugeMetricFamily(
        "penstock_transactions_open", "Transactions that are open.", value=counts[ONGOING.kafka_name]
    )
    yield GaugeMetricFamily(
        "penstock_transaction_oldest_open_seconds",
        "Since the oldest open transaction began; 0 when there is none.",
        value=(now_ms - oldest_ms) / 1000,
    )
    yield GaugeMetricFamily(
        "penstock_transaction_markers_pending",
        "Partitions of transactions that are decided and not complete.",
        value=markers_pending,
    )
    loading = sum(shard.machine is None for shard in broker.transactions.shards())
    yield GaugeMetricFamily("penstock_transaction_partitions_loading", "Coordinators not loaded yet.", value=loading)


def _ended(broker: Broker) -> Iterator[Metric]:
    words = {
        "commits": "Transactions committed.",
        "aborts": "Transactions aborted, for whatever reason.",
        "timeouts": "Transactions aborted because they took longer than their transaction.timeout.ms.",
        "verification_failures": "Writes refused because they belong to no open transaction.",
    }
    for field, help_text in words.items():
        value = getattr(broker.transactions.transaction_metrics, field)
        yield CounterMetricFamily(f"penstock_transaction_{field}", help_text, value=value)
    words = {
        "records_loaded": "Records read to rebuild transactional ids.",
        "records_skipped": "Records of __transaction_state that made no sense.",
    }
    for field, help_text in words.items():
        value = getattr(broker.transactions.metrics, field)
        yield CounterMetricFamily(f"penstock_transaction_{field}", help_text, value=value)


def _keeping_readers_waiting(broker: Broker) -> Metric:
    """Only of partitions with an open transaction: nearly all have none, and nothing to say."""
    lag = GaugeMetricFamily(
        "penstock_last_stable_offset_lag",
        "Committed offsets that readers with read_committed have to wait for, where a transaction is open.",
        labels=["topic", "partition"],
    )
    for partition in broker.partitions.all():
        first_open = partition.log.producers.transactions.first_open_offset()
        if first_open is not None:
            topic, index = partition.topic_partition
            lag.add_metric([topic, str(index)], max(0, partition.high_watermark.offset - first_open))
    return lag
