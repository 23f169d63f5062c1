"""The cluster in Prometheus's words, as this broker's image has it: what it leads, and what is wrong with partitions.

Under-replicated partitions and those below min.insync.replicas are counted by their leaders, as in Kafka, so that their
sum over all brokers is that of the cluster. A partition without a leader has nobody to count it but the controller.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from penstock.core.topic_config import topic_config
from penstock.handlers.context import Broker


def cluster_families(broker: Broker) -> Iterator[Metric]:
    image = broker.image
    is_controller = image.controller_id == broker.node_id
    led = held = lagging = too_few = offline = moving = 0
    for topic in list(image.topics.values()):
        min_isr = topic_config(topic.configs, broker.config).min_insync_replicas
        for partition in topic.partitions:
            leader = image.leader_of(partition)
            held += broker.node_id in partition.replicas
            offline += leader is None and is_controller
            if leader == broker.node_id:
                led += 1
                lagging += any(replica not in partition.isr for replica in partition.original)
                too_few += len(partition.isr) < min(min_isr, partition.replication_factor)
                moving += partition.is_reassigned
    words = {
        "penstock_active_controller": ("Whether this broker is the controller.", int(is_controller)),
        "penstock_brokers": ("Brokers that are alive.", len(image.sessions)),
        "penstock_replicas": ("Partitions that this broker holds.", held),
        "penstock_leaders": ("Partitions that this broker leads.", led),
        "penstock_under_replicated_partitions": ("Partitions led here with replicas that are not in sync.", lagging),
        "penstock_under_min_isr_partitions": ("Partitions led here that refuse acks=all.", too_few),
        "penstock_reassigned_partitions": ("Partitions led here that are being moved.", moving),
        "penstock_offline_partitions": ("Partitions without a leader; counted by the controller.", offline),
    }
    for name, (help_text, value) in words.items():
        yield GaugeMetricFamily(name, help_text, value=value)
