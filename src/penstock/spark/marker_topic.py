"""The topic that markers are written to: made when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.spark.errors import BadOption
from penstock.spark.markers import PARTITIONS
from penstock.spark.sink_options import SinkOptions
from penstock.wire.cluster import Cluster, Topic
from penstock.wire.errors import UnknownTopic
from penstock.wire.patience import Patience

_REPLICAS = 3
_CREATED_WITHIN_S = 30.0
_CONFIG = {
    "cleanup.policy": "compact",
    # A worker that knows nothing reads all that is not compacted yet, which the last segment never is.
    "segment.bytes": str(8 << 20),
}
# What says who the client is; the rest is about producers.
_ABOUT_CONNECTIONS = ("bootstrap.servers", "client.id", "security.", "sasl.", "ssl.", "enable.ssl.")


def ensure_marker_topic(cluster: Cluster, options: SinkOptions) -> None:
    """Raises BadOption, WireError."""
    name = options.marker_topic
    try:
        topic = cluster.look_up([name])[name]
    except UnknownTopic:
        _create(name, len(cluster.nodes()), options.producer)
        topic = _looked_up(cluster, name)
    if len(topic.leaders) < PARTITIONS:
        raise BadOption(
            "markerTopic",
            f'"{name}" has {len(topic.leaders)} partitions, and needs {PARTITIONS}: name one that is not there, and it '
            "is made",
        )


def _create(name: str, brokers: int, settings: Mapping[str, str]) -> None:
    admin = AdminClient({key: value for key, value in settings.items() if key.startswith(_ABOUT_CONNECTIONS)})
    wanted = NewTopic(name, num_partitions=PARTITIONS, replication_factor=min(_REPLICAS, brokers), config=_CONFIG)
    try:
        admin.create_topics([wanted], request_timeout=_CREATED_WITHIN_S)[name].result()
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:  # somebody else was quicker
            raise BadOption("markerTopic", f'"{name}" could not be created: {error.str()}') from None


def _looked_up(cluster: Cluster, name: str) -> Topic:
    patience = Patience(cluster.settings)
    while True:
        try:
            return cluster.look_up([name])[name]
        except UnknownTopic as error:
            patience.after(f'looking for markerTopic "{name}"', error)
