"""Consumer groups in Prometheus's words: how many there are, and how far each is behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.core.errors import BrokerError
from penstock.handlers.context import Broker


def group_families(broker: Broker) -> Iterator[Metric]:
    labels = ["group", "topic", "partition"]
    offset = GaugeMetricFamily("penstock_group_offset", "The offset that a group has committed.", labels=labels)
    lag = GaugeMetricFamily("penstock_group_lag", "Records that a group has not committed yet.", labels=labels)
    states = GaugeMetricFamily("penstock_groups", "Groups that this broker coordinates.", labels=["state"])
    counts: Counter[str] = Counter()
    for shard in broker.groups.shards():
        machine = shard.machine
        if machine is None:
            continue
        for group in list(machine.groups.values()):
            counts[machine.state_name(group)] += 1
            for (topic, index), committed in list(group.offsets.items()):
                values = [group.group_id, topic, str(index)]
                offset.add_metric(values, committed.offset)
                end = _end_offset(broker, topic, index)
                if end is not None:
                    lag.add_metric(values, max(0, end - committed.offset))
    for state, count in sorted(counts.items()):
        states.add_metric([state], count)
    yield states
    yield offset
    yield lag
    metrics = broker.groups.metrics
    yield CounterMetricFamily(
        "penstock_group_records_loaded", "Records read to rebuild groups.", value=metrics.records_loaded
    )
    yield CounterMetricFamily(
        "penstock_group_records_skipped",
        "Records of __consumer_offsets that made no sense.",
        value=metrics.records_skipped,
    )
    loading = sum(shard.machine is None for shard in broker.groups.shards())
    yield GaugeMetricFamily("penstock_group_partitions_loading", "Coordinators not loaded yet.", value=loading)


def _end_offset(broker: Broker, topic: str, index: int) -> int | None:
    """None where another broker leads the partition, which knows it."""
    try:
        return broker.partitions.find(topic, index).high_watermark.offset
    except BrokerError:
        return None
