"""The cluster image: folding changes in equals reading everything, and old images never change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.ids import BrokerId, TopicId, TopicPartition, topic_id_to_text
from penstock.metadata import records
from penstock.metadata.image import EMPTY_IMAGE, NO_CHANGE, ClusterImage, PartitionChange, difference
from penstock.metadata.records import (
    BrokerConfigsRecord,
    BrokerRecord,
    InvalidMetadata,
    PartitionRecord,
    TopicRecord,
    VersionedRecord,
)
from penstock.metadata.store import Change, Changes, Entry, Snapshot

ONE, TWO = BrokerId(1), BrokerId(2)
OLD_ID, NEW_ID = TopicId(bytes(15) + b"\1"), TopicId(bytes(15) + b"\2")


def put(key: str, record: VersionedRecord, revision: int) -> Change:
    return Change(key, records.encode(record), revision)


def partition(topic_id: TopicId, number: int, revision: int, leader_epoch: int = 0) -> Change:
    record = PartitionRecord(replicas=(ONE,), isr=(ONE,), leader=ONE, leader_epoch=leader_epoch)
    return put(records.partition_key(topic_id, number), record, revision)


def topic(name: str, topic_id: TopicId, count: int, revision: int, **configs: str) -> Change:
    record = TopicRecord(name=name, topic_id=topic_id_to_text(topic_id), partition_count=count, configs=configs)
    return put(records.topic_key(name), record, revision)


def image_of(*changes: Change) -> ClusterImage:
    image, _ = EMPTY_IMAGE.apply(Changes(max(change.mod_revision for change in changes), changes))
    return image


def test_given_partitions_without_their_topic_when_folded_then_nothing_is_visible() -> None:
    image, delta = EMPTY_IMAGE.apply(Changes(1, (partition(OLD_ID, 0, 1), partition(OLD_ID, 1, 1))))

    assert image.topics == {}
    assert not delta
    assert set(image.unclaimed_partitions[OLD_ID]) == {0, 1}


def test_given_unclaimed_partitions_when_the_topic_key_comes_then_all_become_visible_at_once() -> None:
    before = image_of(partition(OLD_ID, 0, 1), partition(OLD_ID, 1, 1))

    image, delta = before.apply(Changes(2, (topic("orders", OLD_ID, 2, 2),)))

    created = image.topics["orders"]
    assert image.topic_by_id(OLD_ID) is created
    assert [state.leader for state in created.partitions] == [ONE, ONE]
    assert image.unclaimed_partitions == {}
    assert delta.topics_created == (created,)
    assert [change.topic_partition for change in delta.partitions_changed] == [("orders", 0), ("orders", 1)]
    assert before.topics == {}


def test_given_a_topic_when_its_key_is_deleted_then_its_partitions_are_nobodys() -> None:
    before = image_of(partition(OLD_ID, 0, 1), topic("orders", OLD_ID, 1, 1))

    image, delta = before.apply(Changes(2, (Change("topics/orders", None, 2),)))

    assert (image.topics, image.topics_by_id) == ({}, {})
    assert delta.topics_deleted == (before.topics["orders"],)
    assert set(image.unclaimed_partitions[OLD_ID]) == {0}
    assert before.partition(TopicPartition("orders", 0)) is not None


def test_given_a_topic_deleted_and_created_anew_in_one_fold_then_it_is_another_topic() -> None:
    before = image_of(partition(OLD_ID, 0, 1), topic("orders", OLD_ID, 1, 1))

    image, delta = before.apply(
        Changes(
            3,
            (
                Change("topics/orders", None, 2),
                Change(records.partition_key(OLD_ID, 0), None, 2),
                partition(NEW_ID, 0, 3),
                topic("orders", NEW_ID, 1, 3),
            ),
        )
    )

    assert image.topics["orders"].topic_id == NEW_ID
    assert image.topic_by_id(OLD_ID) is None
    assert delta.topics_deleted == (before.topics["orders"],)
    assert delta.topics_created == (image.topics["orders"],)
    assert [change.before for change in delta.partitions_changed] == [None]
    assert image.unclaimed_partitions == {}


def test_given_more_partitions_when_folded_then_only_the_new_ones_are_reported() -> None:
    before = image_of(partition(OLD_ID, 0, 1), topic("orders", OLD_ID, 1, 1))

    image, delta = before.apply(Changes(2, (partition(OLD_ID, 1, 2), topic("orders", OLD_ID, 2, 2))))

    assert len(image.topics["orders"].partitions) == 2
    assert delta.topics_created == delta.topics_deleted == ()
    assert [change.topic_partition.partition for change in delta.partitions_changed] == [1]


def test_given_a_new_leader_epoch_when_folded_then_other_partitions_are_shared_not_copied() -> None:
    before = image_of(partition(OLD_ID, 0, 1), partition(OLD_ID, 1, 1), topic("orders", OLD_ID, 2, 1))

    image, delta = before.apply(Changes(2, (partition(OLD_ID, 1, 2, leader_epoch=5),)))

    old, new = before.topics["orders"].partitions, image.topics["orders"].partitions
    assert new[0] is old[0]
    assert (new[1].leader_epoch, new[1].mod_revision) == (5, 2)
    assert delta.partitions_changed == (PartitionChange(TopicPartition("orders", 1), OLD_ID, old[1], new[1]),)


def test_given_new_configs_when_folded_then_they_are_reported_without_partition_changes() -> None:
    before = image_of(partition(OLD_ID, 0, 1), topic("orders", OLD_ID, 1, 1))

    image, delta = before.apply(Changes(2, (topic("orders", OLD_ID, 1, 2, **{"retention.ms": "5"}),)))

    assert image.topics["orders"].configs == {"retention.ms": "5"}
    assert delta.topic_configs_changed == (image.topics["orders"],)
    assert delta.partitions_changed == ()


def test_given_a_topic_that_lacks_a_partition_when_folded_then_it_is_refused_by_name() -> None:
    with pytest.raises(InvalidMetadata, match="'orders' lacks its partition 1"):
        image_of(partition(OLD_ID, 0, 1), topic("orders", OLD_ID, 2, 1))


def test_given_brokers_and_their_configs_when_folded_then_the_image_has_them() -> None:
    broker = BrokerRecord(broker_id=ONE, epoch=1, listeners=(), host="machine")
    image = image_of(
        put("brokers/1", broker, 1), put("broker-configs/default", BrokerConfigsRecord(configs={"a": "1"}), 1)
    )

    assert image.brokers == {ONE: broker}
    assert image.broker_configs == {None: {"a": "1"}}
    assert image.mod_revisions == {"brokers/1": 1, "broker-configs/default": 1}
    gone, delta = image.apply(Changes(2, (Change("brokers/1", None, 2), Change("broker-configs/default", None, 2))))
    assert (gone.brokers, gone.broker_configs, gone.mod_revisions) == ({}, {}, {})
    assert delta.brokers_changed
    assert delta.broker_configs_changed


def test_given_a_partition_outside_the_topic_when_asked_then_none() -> None:
    image = image_of(partition(OLD_ID, 0, 1), topic("orders", OLD_ID, 1, 1))

    assert image.partition(TopicPartition("orders", 1)) is None
    assert image.partition(TopicPartition("orders", -1)) is None
    assert image.partition(TopicPartition("other", 0)) is None


IDS = [TopicId(bytes(15) + bytes([number])) for number in range(1, 4)]


@st.composite
def histories(draw: st.DrawFn) -> list[list[Change]]:
    """Batches of changes that keep the order of writes: partitions before their topic, the topic gone before them."""
    stored: dict[TopicId, int] = {}
    named: dict[str, TopicId] = {}
    batches: list[list[Change]] = [[]]
    for revision in range(1, draw(st.integers(2, 26))):
        name = draw(st.sampled_from(["a", "b"]))
        unused = [topic_id for topic_id in IDS if topic_id not in named.values()]
        action = draw(st.sampled_from(["store", "claim", "drop", "elect", "clean", "cut"]))
        if action == "store" and unused:
            topic_id = draw(st.sampled_from(unused))
            batches[-1].append(partition(topic_id, stored.get(topic_id, 0), revision))
            stored[topic_id] = stored.get(topic_id, 0) + 1
        elif action == "claim":
            topic_id = named.get(name) or draw(st.sampled_from(unused))
            count = draw(st.integers(0, stored.get(topic_id, 0)))
            batches[-1].append(topic(name, topic_id, count, revision, x=str(draw(st.integers(0, 1)))))
            named[name] = topic_id
        elif action == "drop" and name in named:
            del named[name]
            batches[-1].append(Change(records.topic_key(name), None, revision))
        elif action == "elect" and stored:
            topic_id = draw(st.sampled_from(sorted(stored)))
            batches[-1].append(partition(topic_id, draw(st.integers(0, stored[topic_id] - 1)), revision, revision))
        elif action == "clean":
            for topic_id in [topic_id for topic_id in unused if topic_id in stored]:
                for number in range(stored.pop(topic_id)):
                    batches[-1].append(Change(records.partition_key(topic_id, number), None, revision))
        elif action == "cut":
            batches.append([])
    return batches


@given(histories())
@settings(max_examples=200, deadline=None)
def test_given_any_history_when_folded_batch_by_batch_then_it_equals_reading_everything(
    batches: list[list[Change]],
) -> None:
    image = EMPTY_IMAGE
    content: dict[str, Entry] = {}
    for batch in batches:
        if not batch:
            continue
        for change in batch:
            if change.value is None:
                content.pop(change.key, None)
            else:
                content[change.key] = Entry(change.key, change.value, change.mod_revision)
        before, revision = image, batch[-1].mod_revision
        image, delta = before.apply(Changes(revision, tuple(batch)))

        read = ClusterImage.of(Snapshot(revision, tuple(content[key] for key in sorted(content))))
        assert image == read
        assert set_of(delta) == set_of(difference(before, read))
        assert difference(image, read) == NO_CHANGE


def set_of(delta: object) -> list[object]:
    """A delta without the order within its lists."""
    values = [getattr(delta, name) for name in type(delta).__slots__]  # type: ignore[attr-defined]
    return [sorted(map(repr, value)) if isinstance(value, tuple) else value for value in values]
