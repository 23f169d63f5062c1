"""The topics that a pipeline reads or writes, looked at before anything runs.

A wrong name, address or password is one sentence on the driver then, and not a stack trace from an executor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock.core.errors import BrokerError
from penstock.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.spark.pipelines.errors import PipelineError
from penstock.wire.cluster import Cluster, Topic
from penstock.wire.errors import Refused, check, reason
from penstock.wire.producer_settings import KEYS as PRODUCER_KEYS
from penstock.wire.settings import KEYS, ClientSettings

_TOPIC_RESOURCE = 2


@dataclass(frozen=True, slots=True)
class Brokers:
    """`kafka` is settings of the client, without the prefix that Spark wants for them."""

    bootstrap: str
    kafka: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> ClientSettings:
        """Without those that only producers have. Raises BadSettings."""
        ours = {key: value for key, value in self.kafka.items() if key in KEYS or key not in PRODUCER_KEYS}
        return ClientSettings.parse({"bootstrap.servers": self.bootstrap, **ours})

    def options(self) -> dict[str, str]:
        return {f"kafka.{key}": value for key, value in {"bootstrap.servers": self.bootstrap, **self.kafka}.items()}

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """As they are now. Raises WireError: UnknownTopic with all that are missing, Unreachable..."""
        with closing(Cluster(self.settings())) as cluster:
            return cluster.look_up(names)

    def partitions_of(self, topics: Sequence[str]) -> dict[str, int]:
        """How many each topic has. Raises WireError."""
        return {name: len(topic.leaders) for name, topic in self.topics(topics).items()}

    def config_of(self, topic: str) -> dict[str, str]:
        """Of a topic that is there, as the broker goes by it. Raises WireError."""
        request = DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic)]
        )
        with closing(Cluster(self.settings())) as cluster:
            (found,) = cluster.ask_any(request, DescribeConfigsResponse).results
        try:
            check(found.error_code, found.error_message)
        except BrokerError as refused:
            raise Refused(f'configuration of topic "{topic}": {reason(refused)}') from None
        return {entry.name: entry.value or "" for entry in found.configs}


def read_options(max_per_batch: int | None, skip_lost: bool) -> dict[str, str]:
    """As all pipelines read: with headers, and to an end where records are gone, unless those may be skipped."""
    options = {"includeHeaders": "true", "failOnDataLoss": str(not skip_lost).lower()}
    return options if max_per_batch is None else {**options, "maxOffsetsPerTrigger": str(max_per_batch)}


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Topics to read. `options` are further ones of the format, such as startingOffsets or failOnDataLoss."""

    brokers: Brokers
    topics: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> dict[str, int]:
        """How many partitions each topic has. Raises PipelineError, WireError."""
        if not self.topics:
            raise PipelineError("no topic was named")
        return self.brokers.partitions_of(self.topics)

    def stream(self, spark: SparkSession) -> DataFrame:
        reader: DataStreamReader = spark.readStream.format("penstock")
        return reader.options(**self._all_options()).load()

    def table(self, spark: SparkSession) -> DataFrame:
        """What is there now."""
        reader: DataFrameReader = spark.read.format("penstock")
        return reader.options(**self._all_options()).load()

    def _all_options(self) -> dict[str, str]:
        return self.brokers.options() | {"subscribe": ",".join(self.topics)} | dict(self.options)
