"""Stored values survive a round trip, carry their version, and are refused when this release cannot read them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import BrokerId, TopicId
from penstock.metadata import records
from penstock.metadata.image import ClusterImage
from penstock.metadata.records import (
    BrokerConfigsRecord,
    BrokerRecord,
    ClusterKeyRecord,
    ClusterRecord,
    ControllerRecord,
    Endpoint,
    FeaturesRecord,
    InvalidMetadata,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
    VersionedRecord,
)

EXAMPLES: list[VersionedRecord] = [
    ClusterRecord(cluster_id="abc"),
    ClusterKeyRecord(key="c2VjcmV0"),
    ControllerRecord(broker_id=BrokerId(1), epoch=3),
    BrokerRecord(
        broker_id=BrokerId(1),
        epoch=4,
        listeners=(Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9092),),
        host="machine",
        rack=None,
        internal=Endpoint(name="INTERNAL", host="127.0.0.1", port=40000),
    ),
    TopicRecord(name="orders", topic_id="AAAAAAAAAAAAAAAAAAAAAQ", partition_count=2, configs={"retention.ms": "1"}),
    PartitionRecord(replicas=(BrokerId(1), BrokerId(2)), isr=(BrokerId(1),), leader=None, leader_epoch=7),
    ProducerIdsRecord(next_producer_id=2000),
    BrokerConfigsRecord(configs={"num.partitions": "3"}),
    FeaturesRecord.of({"penstock.version": 1}),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_given_a_record_when_stored_and_read_then_it_is_the_same(record: VersionedRecord) -> None:
    stored = records.encode(record)

    assert json.loads(stored)["version"] == 1
    assert records.decode(type(record), "key", stored) == record


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_given_a_value_of_a_newer_release_when_read_then_refused_by_key_and_version(record: VersionedRecord) -> None:
    known = type(record).VERSION
    newer = json.dumps({**json.loads(records.encode(record)), "version": known + 1}).encode()
    of_another_shape = b'{"version": 9, "replicas": "changed beyond recognition"}'

    with pytest.raises(InvalidMetadata, match=f"'some/key' has version {known + 1}, this release reads up to {known}"):
        records.decode(type(record), "some/key", newer)
    with pytest.raises(InvalidMetadata, match="version 9"):
        records.decode(type(record), "some/key", of_another_shape)


@pytest.mark.parametrize(("level", "version"), [(1, 1), (2, 2)])
def test_given_features_that_the_first_release_must_not_meet_when_stored_then_it_cannot_read_them(
    level: int, version: int
) -> None:
    record = FeaturesRecord.of({"penstock.version": level})

    assert json.loads(records.encode(record))["version"] == version
    assert records.decode(FeaturesRecord, "features", records.encode(record)) == record


def test_given_a_field_added_within_the_version_when_read_then_it_is_ignored() -> None:
    stored = b'{"version": 1, "next_producer_id": 5, "added_later": [1, 2]}'

    assert records.decode(ProducerIdsRecord, "producer-ids", stored) == ProducerIdsRecord(next_producer_id=5)


def test_given_the_clusters_key_when_printed_then_it_is_not_shown() -> None:
    record = ClusterKeyRecord(key="c2VjcmV0")
    image = ClusterImage(cluster_key=record.key)

    for shown in (repr(record), str(record), str(record.__rich_repr__()), repr(image), f"{image}"):
        assert "c2VjcmV0" not in shown


@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff\xfe", b'{"version": 1}', b"[]", b'{"version": "x"}'])
def test_given_a_damaged_value_when_read_then_refused_by_key(damaged: bytes) -> None:
    with pytest.raises(InvalidMetadata, match="'producer-ids' is damaged"):
        records.decode(ProducerIdsRecord, "producer-ids", damaged)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 10**6))
def test_given_a_partition_key_when_parsed_then_topic_id_and_number_come_back(raw: bytes, partition: int) -> None:
    key = records.partition_key(TopicId(raw), partition)

    assert records.parse_partition_key(key) == (raw, partition)
    assert key.startswith(records.PARTITIONS_PREFIX)


@pytest.mark.parametrize("broker_id", [None, BrokerId(0), BrokerId(17)])
def test_given_a_broker_configs_key_when_parsed_then_the_broker_comes_back(broker_id: BrokerId | None) -> None:
    assert records.parse_broker_configs_key(records.broker_configs_key(broker_id)) == broker_id
