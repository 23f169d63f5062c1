"""The whole way: a topic is archived, loses its records, comes back as another topic, and all have the same records."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from penstock.spark.pipelines.audit import audit
from penstock.spark.pipelines.audit_report import page
from penstock.spark.pipelines.replay import replay
from tests.spark.archiving import PARTITIONS, archived_to, some_records
from tests.spark.piping import create, fill, read
from tests.testkit import BrokerProcess


def test_given_an_archived_topic_whose_records_are_deleted_when_it_is_replayed_then_audit_says_equal(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    anew, home = f"{topic_name}-anew", str(tmp_path / "archive")
    create(broker.bootstrap, topic_name, anew, partitions=PARTITIONS, config={"retention.ms": "-1"})
    fill(broker.bootstrap, topic_name, some_records(200))
    before = read(broker.bootstrap, topic_name)
    archived_to(spark, broker.bootstrap, topic_name, home)
    delete_records(broker.bootstrap, topic_name)

    ended = replay(spark, archive=home, bootstrap=broker.bootstrap, to=anew, rows_per_chunk=80)
    result = audit(spark, archive=home, bootstrap=broker.bootstrap, replayed_to=anew)
    without_replay = audit(spark, archive=home, bootstrap=broker.bootstrap)

    assert ended.rows == 200
    assert read(broker.bootstrap, anew) == before
    assert result.is_equal, str(result)
    not_compared = f"{topic_name}: nothing was compared with the broker: they have no offsets in common"
    assert str(result).splitlines() == ["equal: 2 partitions, 200 archived records", not_compared]
    assert without_replay.differences == [not_compared]
    assert str(without_replay).splitlines() == ["1 differences: 2 partitions, 200 archived records", not_compared]
    assert [each.retired for each in result.partitions] == [100, 100]
    assert [each.is_in_order for each in result.replayed] == [True, True]
    assert '<h1 class="equal">' in page(result) and json.dumps(result.to_json())


def delete_records(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ends = [TopicPartition(topic, partition, -1) for partition in range(PARTITIONS)]
    for deleted in admin.delete_records(ends).values():
        deleted.result(20)
