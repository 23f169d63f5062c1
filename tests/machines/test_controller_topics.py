"""Creating topics, deleting them and adding partitions: who gets which code, and what a crash may leave."""

from __future__ import annotations

import hashlib

import pytest
from tests.machines.controlled_cluster import ONE, TWO, ACluster

from penstock.controller.commands import (
    CreatedTopic,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    RemoveUnclaimedPartitions,
    TopicReference,
)
from penstock.controller.machine import handle
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import NO_TOPIC_ID, BrokerId, TopicId


def test_given_a_new_topic_when_created_then_it_has_id_partitions_and_configs() -> None:
    cluster = ACluster(ONE)

    (result,) = cluster.ask(CreateTopics((NewTopic("orders", 3, 1, configs=(("retention.ms", "1000"),)),)))

    topic = cluster.image.topics["orders"]
    assert result.outcome == CreatedTopic(topic.topic_id, 3, 1, {"retention.ms": "1000"})
    assert topic.topic_id != NO_TOPIC_ID
    assert topic.configs == {"retention.ms": "1000"}
    assert len(topic.partitions) == 3
    for state in topic.partitions:
        assert (state.replicas, state.isr, state.leader) == ((ONE,), (ONE,), ONE)
        assert (state.leader_epoch, state.partition_epoch, state.state) == (0, 0, "active")


def test_given_minus_one_when_created_then_the_brokers_defaults_count() -> None:
    cluster = ACluster(ONE, TWO, num_partitions="4", default_replication_factor="2")

    topic = cluster.create("orders", -1, -1)

    assert len(topic.partitions) == 4
    assert {len(state.replicas) for state in topic.partitions} == {2}


def test_given_validate_only_when_created_then_answered_alike_but_nothing_is_written() -> None:
    cluster = ACluster(ONE)

    (result,) = cluster.ask(CreateTopics((NewTopic("orders", 3, 1),), validate_only=True))

    assert isinstance(result.outcome, CreatedTopic)
    assert result.outcome.partition_count == 3
    assert cluster.image.topics == {}


def test_given_a_recreated_topic_when_compared_then_its_id_is_new() -> None:
    cluster = ACluster(ONE)
    old = cluster.create("orders")
    cluster.ask(DeleteTopics((TopicReference("orders"),)))

    new = cluster.create("orders")

    assert new.topic_id != old.topic_id
    assert cluster.image.topic_by_id(old.topic_id) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../../etc/x", "a/b", "a\0b", "x" * 250, "ünïcode", "a b", "a\n", "a:b", "\ufffd"]
)
def test_given_an_illegal_name_when_created_then_invalid_topic(name: str) -> None:
    assert ACluster(ONE).refuses(NewTopic(name, 1, 1)) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 249, "...", "-", "__consumer_offsets"])
def test_given_a_legal_name_when_created_then_it_exists(name: str) -> None:
    assert ACluster(ONE).create(name).name == name


def test_given_names_that_metrics_cannot_tell_apart_when_created_then_the_second_is_refused() -> None:
    cluster = ACluster(ONE)
    cluster.create("a.b")

    assert cluster.refuses(NewTopic("a_b", 1, 1)) is ErrorCode.INVALID_TOPIC_EXCEPTION
    results = cluster.ask(CreateTopics((NewTopic("c_d", 1, 1), NewTopic("c.d", 1, 1), NewTopic("cd", 1, 1))))

    assert [isinstance(result.outcome, CreatedTopic) for result in results] == [True, False, True]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", -5, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", 10**9, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", 10_001, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, 32_767), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, 1, configs=(("retention.mss", "1"),)), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", 1, 1, configs=(("retention.ms", "soon"),)), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", 1, 1, configs=(("retention.ms", None),)), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", 1, 1, configs=(("retention.ms", "1"), ("retention.ms", "2"))), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", 1, -1, assignments=((0, (ONE,)),)), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", -1, 1, assignments=((0, (ONE,)),)), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", assignments=((0, (ONE,)), (2, (ONE,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments=((0, (ONE,)), (0, (ONE,)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments=((1, (ONE,)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments=((0, (ONE, ONE)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments=((0, (BrokerId(9),)),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments=((0, ()),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments=((0, (ONE,)), (1, (ONE, TWO)))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=str,
)
def test_given_a_bad_topic_when_created_then_refused_with_kafkas_code(topic: NewTopic, code: ErrorCode) -> None:
    assert ACluster(ONE, TWO).refuses(topic) is code


def test_given_an_existing_topic_when_created_again_then_refused() -> None:
    cluster = ACluster(ONE)
    cluster.create("orders")

    assert cluster.refuses(NewTopic("orders", 1, 1)) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_given_a_name_twice_in_one_request_when_created_then_neither_but_the_others_are() -> None:
    cluster = ACluster(ONE)

    results = cluster.ask(CreateTopics((NewTopic("a", 1, 1), NewTopic("b", 1, 1), NewTopic("a", 2, 1))))

    codes = [result.outcome.code if isinstance(result.outcome, BrokerError) else None for result in results]
    assert codes == [ErrorCode.INVALID_REQUEST, None, ErrorCode.INVALID_REQUEST]
    assert set(cluster.image.topics) == {"b"}


def test_given_too_many_partitions_over_all_topics_of_a_request_when_created_then_the_rest_is_refused() -> None:
    cluster = ACluster(ONE, penstock_max_topic_partitions="10")

    results = cluster.ask(CreateTopics((NewTopic("a", 6, 1), NewTopic("b", 6, 1), NewTopic("c", 4, 1))))

    assert [isinstance(result.outcome, CreatedTopic) for result in results] == [True, False, True]


def test_given_assignments_when_created_then_replicas_are_as_asked() -> None:
    cluster = ACluster(ONE, TWO)

    topic = cluster.create("orders", -1, -1, assignments=((1, (TWO, ONE)), (0, (ONE, TWO))))

    assert [state.replicas for state in topic.partitions] == [(ONE, TWO), (TWO, ONE)]
    assert [state.leader for state in topic.partitions] == [ONE, TWO]


def test_given_no_brokers_when_created_then_refused() -> None:
    assert ACluster().refuses(NewTopic("orders", 1, 1)) is ErrorCode.INVALID_REPLICATION_FACTOR


def test_given_many_partitions_when_created_then_no_transaction_is_beyond_the_stores_limits() -> None:
    cluster = ACluster(ONE)
    before = cluster.transactions

    topic = cluster.create("orders", 1_000)

    assert len(topic.partitions) == 1_000
    assert cluster.transactions - before == 11


@pytest.mark.parametrize("deleting", [False, True])
def test_given_a_crash_between_transactions_when_restarted_then_the_topic_is_whole_or_absent(deleting: bool) -> None:
    for survived in range(5):
        cluster = ACluster(ONE)
        if deleting:
            cluster.create("orders", 450)
        cluster.stop_after = cluster.transactions + survived
        with pytest.raises(InterruptedError):
            if deleting:
                cluster.ask(DeleteTopics((TopicReference("orders"),)))
            else:
                cluster.create("orders", 450)
        cluster.stop_after = None

        removed = cluster.ask(RemoveUnclaimedPartitions())

        assert (removed > 0) == (survived > 0)
        assert ("orders" in cluster.image.topics) == (deleting and survived == 0)
        assert cluster.image.unclaimed_partitions == {}
        if not deleting:
            assert set(cluster.content) == {"brokers/1", "sessions/1"}


def test_given_an_attempt_that_got_through_when_the_same_command_is_tried_again_then_it_is_no_error() -> None:
    cluster = ACluster(ONE)
    command = CreateTopics((NewTopic("a.b", 1, 1), NewTopic("c", 1, 1)))
    cluster.ask(command)
    seed = hashlib.blake2b(b"%d" % cluster._commands, digest_size=16).digest()

    again = handle(command, cluster.image, cluster.config, seed)

    assert all(isinstance(result.outcome, CreatedTopic) for result in again.reply)
    assert again.transactions == ()


def test_given_topics_when_deleted_by_name_and_by_id_then_both_are_gone() -> None:
    cluster = ACluster(ONE)
    first, second = cluster.create("first"), cluster.create("second", 3)

    results = cluster.ask(DeleteTopics((TopicReference("first"), TopicReference(topic_id=second.topic_id))))

    assert [result.error for result in results] == [None, None]
    assert results[0].reference == TopicReference("first", first.topic_id)
    assert results[1].reference == TopicReference("second", second.topic_id)
    assert set(cluster.content) == {"brokers/1", "sessions/1"}


def test_given_unknown_or_repeated_topics_when_deleted_then_each_gets_its_code() -> None:
    cluster = ACluster(ONE)
    topic = cluster.create("orders")
    cluster.create("twice")
    references = (
        TopicReference("missing"),
        TopicReference(topic_id=TopicId(bytes(16))),
        TopicReference("orders", topic.topic_id),
        TopicReference(),
        TopicReference("twice"),
        TopicReference("twice"),
    )

    results = cluster.ask(DeleteTopics(references))

    assert [result.error and result.error.code for result in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        *[ErrorCode.INVALID_REQUEST] * 4,
    ]
    assert set(cluster.image.topics) == {"orders", "twice"}


def test_given_a_topic_named_by_name_and_by_id_when_deleted_then_it_goes_once() -> None:
    cluster = ACluster(ONE)
    topic = cluster.create("orders")

    results = cluster.ask(DeleteTopics((TopicReference("orders"), TopicReference(topic_id=topic.topic_id))))

    assert [result.error and result.error.code for result in results] == [None, ErrorCode.INVALID_REQUEST]
    assert cluster.image.topics == {}


def test_given_more_partitions_when_created_then_the_old_ones_stay_as_they_are() -> None:
    cluster = ACluster(ONE, TWO)
    before = cluster.create("orders", 2, 2)

    (result,) = cluster.ask(CreatePartitions((MorePartitions("orders", 5),)))

    after = cluster.image.topics["orders"]
    assert result.error is None
    assert after.partitions[:2] == before.partitions
    assert after.topic_id == before.topic_id
    assert [len(state.replicas) for state in after.partitions] == [2] * 5


def test_given_assignments_when_partitions_are_added_then_replicas_are_as_asked() -> None:
    cluster = ACluster(ONE, TWO)
    cluster.create("orders", 1, 1)

    (result,) = cluster.ask(CreatePartitions((MorePartitions("orders", 3, ((TWO,), (ONE,))),)))

    assert result.error is None
    assert [cluster.partition("orders", number).replicas for number in (1, 2)] == [(TWO,), (ONE,)]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (MorePartitions("missing", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (MorePartitions("orders", 2), ErrorCode.INVALID_PARTITIONS),
        (MorePartitions("orders", 1), ErrorCode.INVALID_PARTITIONS),
        (MorePartitions("orders", 0), ErrorCode.INVALID_PARTITIONS),
        (MorePartitions("orders", -1), ErrorCode.INVALID_PARTITIONS),
        (MorePartitions("orders", 10_001), ErrorCode.INVALID_PARTITIONS),
        (MorePartitions("orders", 3, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("orders", 3, ((ONE,), (ONE,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("orders", 3, ((ONE, TWO),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("orders", 3, ((BrokerId(9),),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=str,
)
def test_given_a_bad_request_for_partitions_when_asked_then_refused(more: MorePartitions, code: ErrorCode) -> None:
    cluster = ACluster(ONE, TWO)
    cluster.create("orders", 2)
    before = cluster.image

    (result,) = cluster.ask(CreatePartitions((more,)))

    assert result.error is not None
    assert result.error.code is code
    assert cluster.image == before


def test_given_validate_only_or_a_repeated_topic_when_partitions_are_added_then_nothing_changes() -> None:
    cluster = ACluster(ONE)
    cluster.create("orders")

    (valid,) = cluster.ask(CreatePartitions((MorePartitions("orders", 3),), validate_only=True))
    repeated = cluster.ask(CreatePartitions((MorePartitions("orders", 3), MorePartitions("orders", 4))))

    assert valid.error is None
    assert [result.error and result.error.code for result in repeated] == [ErrorCode.INVALID_REQUEST] * 2
    assert len(cluster.image.topics["orders"].partitions) == 1
