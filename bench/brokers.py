"""The brokers under measurement, as processes, and the administration that the scenarios need.

Both come from the tests' kit; only what would falsify a measurement is set otherwise here.
"""

import base64
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.testkit import Broker, Cluster, KafkaBroker
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.kafka_cluster import KafkaCluster
from tests.testkit.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent
DATA_ROOT = ROOT / ".data" / "bench"
START_TIMEOUT_S = 120
ADMIN_TIMEOUT_S = 60

# What kafka-server-start.sh passes; the tests' JVM is tuned to start fast, which would slow it down here.
KAFKA_JVM_OPTIONS = (
    *("-server", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15"),
)

# Kafka's "never": acknowledgement from the page cache whatever acks says.
NO_FLUSH = {"flush.messages": str(2**63 - 1)}
FLUSH_EACH = {"flush.messages": "1"}
# Prepared batches have timestamps of long ago: a broker that looks for what is out of date would find all of them.
KEPT_FOR_EVER = {"retention.ms": "-1"}
# So that the space of one repetition is free before the next. Kafka looks at the broker's setting here, not a topic's.
DELETE_DELAY_MS = 100
# Kafka acknowledges a new topic, and says that it is started, a little before every partition is led.
NOT_YET_LED = (
    *(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION),
    *(KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH),
)


class Penstock(Broker):
    """Penstock with time enough to recover."""

    START_TIMEOUT_S = START_TIMEOUT_S
    STOP_TIMEOUT_S = START_TIMEOUT_S


class PenstockCluster(Cluster):
    """Brokers of Penstock with its own session timeout, where none is asked for."""

    BROKER = Penstock

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        super().__init__(directory, settings)
        if "broker.session.timeout.ms" not in settings:
            del self._settings["broker.session.timeout.ms"]


class ApacheKafka(KafkaBroker):
    """Apache Kafka with the heap, collector and compiler of its own start script."""

    START_TIMEOUT_S = START_TIMEOUT_S
    STOP_TIMEOUT_S = START_TIMEOUT_S

    def _command(self) -> list[str]:
        java, *arguments = super()._command()
        return [java, *KAFKA_JVM_OPTIONS, *(argument for argument in arguments if not argument.startswith("-X"))]


class ApacheKafkaCluster(KafkaCluster):
    """Nodes of Apache Kafka that are broker and controller at once."""

    BROKER = ApacheKafka


SYSTEMS: Mapping[str, type[BrokerProcess]] = {"penstock": Penstock, "kafka": ApacheKafka}


@contextmanager
def scratch(root: Path = DATA_ROOT) -> Iterator[Path]:
    """A directory on the disk under measurement, gone afterwards."""
    root.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def start(system: str, directory: Path, **settings: Any) -> BrokerProcess:
    return SYSTEMS[system].start(directory / system, log_segment_delete_delay_ms=DELETE_DELAY_MS, **settings)


def admin_client(broker: BrokerProcess) -> AdminClient:
    """To be kept in a name until its futures are done: they are forgotten with it."""
    silent = 0
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": silent})


def create_topic(
    broker: BrokerProcess,
    topic: str,
    partitions_count: int,
    configs: Mapping[str, str],
    replicas: Sequence[Sequence[int]] = (),
) -> bytes:
    """Returns the topic id when every partition has a leader. `replicas`: of each partition, the first leads."""
    admin = admin_client(broker)
    kept = {**KEPT_FOR_EVER, **configs}
    if replicas:
        assignment = [list(each) for each in replicas]
        wanted = NewTopic(topic, partitions_count, replica_assignment=assignment, config=kept)
    else:
        wanted = NewTopic(topic, partitions_count, 1, config=kept)
    admin.create_topics([wanted])[topic].result(ADMIN_TIMEOUT_S)
    return eventually(
        lambda: _topic_id_when_led(admin, topic), ADMIN_TIMEOUT_S, f"{topic} has partitions without a leader"
    )


def _topic_id_when_led(admin: AdminClient, topic: str) -> bytes:
    """Nothing while a partition has no leader."""
    not_yet = b""
    try:
        description = admin.describe_topics(TopicCollection([topic]))[topic].result(ADMIN_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() not in NOT_YET_LED:
            raise
        return not_yet
    led = all(partition.leader is not None for partition in description.partitions)
    return _uuid_bytes(description.topic_id) if led else not_yet


def _uuid_bytes(uuid: Uuid) -> bytes:
    # Its text is what Kafka prints: base64 for URLs, without the padding.
    return base64.urlsafe_b64decode(f"{uuid}==")


def delete_topic(broker: BrokerProcess, topic: str) -> None:
    """Returns when its files are gone: freed pages are never written back, so what comes next meets an idle disk."""
    admin = admin_client(broker)
    admin.delete_topics([topic])[topic].result(ADMIN_TIMEOUT_S)
    await_deleted(broker, topic)


def await_deleted(broker: BrokerProcess, topic: str) -> None:
    eventually(
        lambda: not any(broker.data.glob(f"{topic}-*")), ADMIN_TIMEOUT_S, f"the files of {topic} are still there"
    )


def end_offsets(broker: BrokerProcess, topic: str, partitions_count: int) -> list[int]:
    """The end offset of every partition, once all of them are answered."""
    admin = admin_client(broker)
    partitions = [TopicPartition(topic, partition) for partition in range(partitions_count)]
    return eventually(
        lambda: _end_offsets_when_led(admin, partitions), ADMIN_TIMEOUT_S, f"{topic} is not led everywhere"
    )


def _end_offsets_when_led(admin: AdminClient, partitions: list[TopicPartition]) -> list[int]:
    """Nothing while a partition answers that it has no leader yet."""
    answers = admin.list_offsets({partition: OffsetSpec.latest() for partition in partitions})
    try:
        return [answers[partition].result(ADMIN_TIMEOUT_S).offset for partition in partitions]
    except KafkaException as error:
        if error.args[0].code() not in NOT_YET_LED:
            raise
        return []
