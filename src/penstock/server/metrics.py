"""The broker's numbers in Prometheus's words, gathered only when somebody scrapes them.

This runs in a thread beside the event loop, so every collection is copied (which is atomic) before it is walked.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.core.errors import ErrorCode
from penstock.core.metrics import LATENCY_BUCKETS_S, ApiMetrics
from penstock.handlers.context import Broker
from penstock.handlers.internal_registry import INTERNAL_APIS
from penstock.net.listener import Listener
from penstock.server.cluster_metrics import cluster_families
from penstock.server.group_metrics import group_families
from penstock.server.transaction_metrics import transaction_families


class BrokerCollector(Collector):
    def __init__(self, broker: Broker, listeners: Iterable[Listener]) -> None:
        self._broker = broker
        self._listeners = list(listeners)

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("penstock_info", "The broker's version and identity.", labels=["version", "node_id"])
        info.add_metric([__version__, str(self._broker.node_id)], 1)
        yield info
        yield from cluster_families(self._broker)
        yield from self._topics()
        yield from self._requests()
        yield from self._logs()
        yield from self._cleaner()
        yield from self._connections()
        yield from group_families(self._broker)
        yield from transaction_families(self._broker)
        memory_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield GaugeMetricFamily(
            "penstock_memory_peak_bytes", "Largest resident memory so far.", value=memory_kib * 1024
        )

    def _topics(self) -> Iterator[Metric]:
        words = {
            "bytes_in": "Bytes of records appended.",
            "records_in": "Records appended.",
            "bytes_out": "Bytes of records sent to consumers.",
            "records_out": "Records sent to consumers (estimated from bytes where an answer ends inside a batch).",
            "produce_errors": "Appends that failed.",
            "fetch_errors": "Reads that failed.",
        }
        for field, help_text in words.items():
            family = CounterMetricFamily(f"penstock_topic_{field}", help_text, labels=["topic"])
            for topic, metrics in list(self._broker.partitions.topic_metrics.items()):
                family.add_metric([topic], getattr(metrics, field))
            yield family

    def _requests(self) -> Iterator[Metric]:
        latency = HistogramMetricFamily(
            "penstock_request_seconds", "From a request's arrival to its answer.", labels=["api"]
        )
        requests = CounterMetricFamily("penstock_requests", "Requests received.", labels=["api"])
        errors = CounterMetricFamily("penstock_request_errors", "Error codes sent.", labels=["api", "error"])
        for key, metrics in self._broker.api_metrics.items():
            name = INTERNAL_APIS[key].name
            requests.add_metric([name], metrics.requests)
            latency.add_metric([name], _cumulative(metrics), metrics.latency.sum_s)
            for code, count in list(metrics.errors.items()):
                errors.add_metric([name, ErrorCode(code).name], count)
        yield requests
        yield latency
        yield errors
        yield CounterMetricFamily(
            "penstock_requests_with_trailing_bytes",
            "Requests with bytes after their last field.",
            value=sum(metrics.requests_with_trailing_bytes for metrics in self._broker.api_metrics.values()),
        )
        yield GaugeMetricFamily(
            "penstock_fetch_sessions", "Incremental fetch sessions.", value=len(self._broker.fetch_sessions)
        )

    def _logs(self) -> Iterator[Metric]:
        labels = ["topic", "partition"]
        size = GaugeMetricFamily("penstock_log_size_bytes", "Size of a partition's log.", labels=labels)
        start = GaugeMetricFamily("penstock_log_start_offset", "First offset of a partition.", labels=labels)
        end = GaugeMetricFamily("penstock_log_end_offset", "Next offset of a partition.", labels=labels)
        committed = GaugeMetricFamily("penstock_high_watermark", "First uncommitted offset.", labels=labels)
        for partition in self._broker.partitions.all():
            topic, index = partition.topic_partition
            values = [topic, str(index)]
            size.add_metric(values, partition.log.size_bytes)
            start.add_metric(values, partition.log.log_start_offset)
            end.add_metric(values, partition.log.log_end_offset)
            committed.add_metric(values, partition.high_watermark.offset)
        yield size
        yield start
        yield end
        yield committed

    def _cleaner(self) -> Iterator[Metric]:
        metrics = self._broker.partitions.cleaner_metrics
        counters = {
            "runs": "Rounds of compaction.",
            "bytes_read": "Bytes that compaction read, in both of its passes.",
            "bytes_written": "Bytes that compaction wrote.",
            "restarts": "Times that compaction died and began anew.",
        }
        for field, help_text in counters.items():
            yield CounterMetricFamily(f"penstock_cleaner_{field}", help_text, value=getattr(metrics, field))
        gauges = {
            "uncleanable_partitions": "Partitions that cannot be compacted until a restart; the log says why.",
            "max_dirty_ratio": "Share of the dirtiest log that is new since it was compacted.",
        }
        for field, help_text in gauges.items():
            yield GaugeMetricFamily(f"penstock_cleaner_{field}", help_text, value=getattr(metrics, field))
        if metrics.last_run_ms is not None:
            yield GaugeMetricFamily(
                "penstock_cleaner_seconds_since_last_run",
                "Since compaction last looked for work.",
                value=(self._broker.clock.monotonic_ms() - metrics.last_run_ms) / 1000,
            )

    def _connections(self) -> Iterator[Metric]:
        now = GaugeMetricFamily("penstock_connections", "Open connections.", labels=["listener"])
        words = {
            "accepted": "Connections accepted.",
            "closed": "Connections closed.",
            "refused": "Connections over a limit, closed at once.",
            "malformed": "Connections closed because of bytes that are no request.",
            "received_bytes": "Bytes received, of connections that are still open as well.",
            "sent_bytes": "Bytes sent, of connections that are still open as well.",
        }
        families = {
            field: CounterMetricFamily(f"penstock_connection_{field}", help_text, labels=["listener"])
            for field, help_text in words.items()
        }
        for listener in self._listeners:
            now.add_metric([listener.name], len(listener.connections))
            for field, family in families.items():
                value = getattr(listener.counters, field)
                if field.endswith("_bytes"):
                    value += sum(getattr(connection, field) for connection in list(listener.connections))
                family.add_metric([listener.name], value)
        yield now
        yield from families.values()


def _cumulative(metrics: ApiMetrics) -> list[tuple[str, float]]:
    """Prometheus's buckets count everything up to their bound."""
    total, rows = 0, []
    for bound, count in zip((*LATENCY_BUCKETS_S, None), metrics.latency.counts, strict=True):
        total += count
        rows.append(("+Inf" if bound is None else str(bound), float(total)))
    return rows


def render(broker: Broker, listeners: Iterable[Listener]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(broker, listeners))
    return generate_latest(registry)
