"""Altering the configuration of topics and brokers."""

from __future__ import annotations

import pytest
from tests.machines.controlled_cluster import ONE, ACluster

from penstock.controller.commands import (
    AlterConfigs,
    AlterOperation,
    ChangeConfigs,
    ConfigChange,
    ConfigResource,
    ReplaceConfigs,
    ResourceType,
)
from penstock.core.errors import ErrorCode

SET, DELETE, APPEND, SUBTRACT = AlterOperation


def test_given_a_transcript_of_changes_when_applied_then_only_overrides_are_kept() -> None:
    cluster = ACluster(ONE)
    cluster.create("orders")
    transcript: list[tuple[tuple[tuple[str, AlterOperation, str | None], ...], dict[str, str]]] = [
        ((("retention.ms", SET, "5"),), {"retention.ms": "5"}),
        ((("retention.ms", DELETE, None), ("segment.bytes", SET, "2000000")), {"segment.bytes": "2000000"}),
        ((("segment.bytes", DELETE, "ignored"), ("never.heard.of", DELETE, None)), {}),
        ((("cleanup.policy", APPEND, "compact"),), {"cleanup.policy": "delete,compact"}),
        ((("cleanup.policy", APPEND, "delete"),), {"cleanup.policy": "delete,compact"}),
        ((("cleanup.policy", SUBTRACT, "delete"),), {"cleanup.policy": "compact"}),
    ]

    for changes, expected in transcript:
        error = cluster.alter_topic("orders", *changes)

        assert error is None
        assert cluster.image.topics["orders"].configs == expected


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("never.heard.of", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("never.heard.of", SUBTRACT, "1"), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", APPEND, None), ErrorCode.INVALID_REQUEST),
        (("cleanup.policy", SET, "delete,sometimes"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
def test_given_a_bad_change_when_asked_then_refused_and_good_ones_with_it(
    change: tuple[str, AlterOperation, str | None], code: ErrorCode
) -> None:
    cluster = ACluster(ONE)
    cluster.create("orders")

    error = cluster.alter_topic("orders", ("segment.ms", SET, "5000"), change)

    assert error is not None
    assert error.code is code
    assert cluster.image.topics["orders"].configs == {}


def test_given_replacement_when_altered_then_other_overrides_are_gone() -> None:
    cluster = ACluster(ONE)
    cluster.create("orders", configs=(("retention.ms", "1"), ("segment.ms", "5000")))
    orders = ConfigResource(ResourceType.TOPIC, "orders")

    (result,) = cluster.ask(AlterConfigs((ReplaceConfigs(orders, (("retention.ms", "2"),)),)))

    assert result.error is None
    assert cluster.image.topics["orders"].configs == {"retention.ms": "2"}


def test_given_validate_only_when_altered_then_answered_but_not_written() -> None:
    cluster = ACluster(ONE)
    cluster.create("orders")
    orders = ConfigResource(ResourceType.TOPIC, "orders")

    good, bad = (
        cluster.ask(AlterConfigs((ReplaceConfigs(orders, (("retention.ms", value),)),), validate_only=True))
        for value in ("2", "soon")
    )

    assert good[0].error is None
    assert bad[0].error is not None
    assert cluster.image.topics["orders"].configs == {}


def test_given_brokers_when_their_configs_are_altered_then_the_image_has_them_per_broker_and_for_all() -> None:
    cluster = ACluster(ONE)
    change = (ConfigChange("num.partitions", SET, "7"),)

    results = cluster.ask(
        AlterConfigs(
            (
                ChangeConfigs(ConfigResource(ResourceType.BROKER, ""), change),
                ChangeConfigs(ConfigResource(ResourceType.BROKER, "1"), change),
            )
        )
    )

    assert [result.error for result in results] == [None, None]
    assert cluster.image.broker_configs == {None: {"num.partitions": "7"}, ONE: {"num.partitions": "7"}}


@pytest.mark.parametrize(
    ("resource", "name", "code"),
    [
        (ConfigResource(ResourceType.BROKER, "1"), "log.dir", ErrorCode.INVALID_REQUEST),
        (ConfigResource(ResourceType.BROKER, "1"), "no.such.key", ErrorCode.INVALID_CONFIG),
        (ConfigResource(ResourceType.BROKER, "1"), "num.partitions", ErrorCode.INVALID_CONFIG),
        (ConfigResource(ResourceType.BROKER, "9"), "num.partitions", ErrorCode.INVALID_REQUEST),
        (ConfigResource(ResourceType.BROKER, "one"), "num.partitions", ErrorCode.INVALID_REQUEST),
        (ConfigResource(ResourceType.TOPIC, "missing"), "retention.ms", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ConfigResource(8, "1"), "x", ErrorCode.INVALID_REQUEST),
        (ConfigResource(99, ""), "x", ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
def test_given_a_bad_resource_or_key_when_altered_then_refused(
    resource: ConfigResource, name: str, code: ErrorCode
) -> None:
    cluster = ACluster(ONE)

    (result,) = cluster.ask(AlterConfigs((ChangeConfigs(resource, (ConfigChange(name, SET, "not a number"),)),)))

    assert result.error is not None
    assert result.error.code is code


def test_given_a_resource_or_key_twice_when_altered_then_refused() -> None:
    cluster = ACluster(ONE)
    cluster.create("orders")
    orders = ConfigResource(ResourceType.TOPIC, "orders")
    once = ChangeConfigs(orders, (ConfigChange("retention.ms", SET, "1"),))

    twice = cluster.ask(AlterConfigs((once, once)))
    error = cluster.alter_topic("orders", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))

    assert [result.error and result.error.code for result in twice] == [ErrorCode.INVALID_REQUEST] * 2
    assert error is not None
    assert error.code is ErrorCode.INVALID_REQUEST
