"""Configuration over the wire: described with its sources, altered, in force at once, kept over restarts."""

from __future__ import annotations

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)
from tests.testkit import Broker, RawClient
from tests.testkit.asking import a_batch, create_topic, produce

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = range(1, 6)


def describe(
    client: RawClient, resource_type: int, name: str, *keys: str, version: int = 4, **options: bool
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], **options)
    (result,) = client.exchange(request, version, DescribeConfigsResponse).results
    return result


def described(client: RawClient, resource_type: int, name: str, key: str) -> DescribeConfigsResourceResult:
    (row,) = describe(client, resource_type, name, key, include_synonyms=True, include_documentation=True).configs
    return row


def change(
    client: RawClient, resource_type: int, name: str, *changes: tuple[str, int, str | None], version: int = 1
) -> int:
    resource = IncrementalAlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            IncrementallyAlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (row,) = client.exchange(request, version, IncrementalAlterConfigsResponse).responses
    assert (row.resource_type, row.resource_name) == (resource_type, name)
    assert (row.error_message is None) == (row.error_code == 0)
    return row.error_code


def replace(client: RawClient, name: str, version: int = 2, **configs: str) -> int:
    resource = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=name,
        configs=[AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    request = AlterConfigsRequest(resources=[resource])
    (row,) = client.exchange(request, version, AlterConfigsResponse).responses
    return row.error_code


@pytest.mark.parametrize("version", range(1, 5))
def test_given_any_version_when_a_topic_is_described_then_all_keys_come_with_their_source(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, retention_ms=4321)

        result = describe(client, TOPIC, topic_name, version=version)

        rows = {row.name: row for row in result.configs}
        assert (result.error_code, result.resource_name) == (0, topic_name)
        assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("4321", DYNAMIC_TOPIC)
        assert rows["segment.bytes"].config_source == DEFAULT
        assert len(rows) > 20
        assert not any(row.synonyms for row in result.configs)


def test_given_a_key_when_described_then_synonyms_type_and_documentation_come_if_asked(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, segment_bytes=2_000_000)

        row = described(client, TOPIC, topic_name, "segment.bytes")
        (bare,) = describe(client, TOPIC, topic_name, "segment.bytes").configs

        assert [(synonym.name, synonym.source) for synonym in row.synonyms] == [
            ("segment.bytes", DYNAMIC_TOPIC),
            ("log.segment.bytes", DEFAULT),
        ]
        assert row.config_type == 3
        assert row.documentation
        assert (bare.documentation, bare.synonyms) == (None, [])
        assert not row.read_only


def test_given_this_broker_when_described_then_static_keys_are_read_only(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        node_id = described(client, BROKER, "1", "node.id")
        listeners = described(client, BROKER, "1", "listeners")
        partitions = described(client, BROKER, "1", "num.partitions")

        assert (node_id.value, node_id.read_only) == ("1", True)
        assert listeners.config_source == STATIC
        assert not partitions.read_only


def test_given_resources_we_do_not_have_when_described_then_each_gets_its_code(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        assert describe(client, TOPIC, "no-such-topic").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert describe(client, TOPIC, "no/topic").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert describe(client, BROKER, "99").error_code == ErrorCode.INVALID_REQUEST
        assert describe(client, BROKER_LOGGER, "1").error_code == ErrorCode.INVALID_REQUEST
        assert describe(client, BROKER, "").error_code == 0


@pytest.mark.parametrize("version", range(2))
def test_given_any_version_when_keys_are_changed_then_others_stay(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, retention_ms=1000)

        code = change(
            client,
            TOPIC,
            topic_name,
            ("segment.ms", SET, "60000"),
            ("cleanup.policy", APPEND, "compact"),
            version=version,
        )

        assert code == 0
        assert described(client, TOPIC, topic_name, "retention.ms").value == "1000"
        assert described(client, TOPIC, topic_name, "segment.ms").value == "60000"
        assert described(client, TOPIC, topic_name, "cleanup.policy").value == "delete,compact"
        assert change(client, TOPIC, topic_name, ("retention.ms", DELETE, None)) == 0
        assert described(client, TOPIC, topic_name, "retention.ms").config_source != DYNAMIC_TOPIC


@pytest.mark.parametrize("version", range(3))
def test_given_any_version_when_all_keys_are_replaced_then_others_go_back_to_their_default(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, retention_ms=1000)

        assert replace(client, topic_name, version, segment_ms="60000") == 0

        assert described(client, TOPIC, topic_name, "segment.ms").value == "60000"
        assert described(client, TOPIC, topic_name, "retention.ms").config_source != DYNAMIC_TOPIC


def test_given_bad_changes_when_asked_then_refused_and_nothing_changes(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        good = ("segment.ms", SET, "60000")

        assert change(client, TOPIC, topic_name, good, ("retention.ms", SET, "soon")) == ErrorCode.INVALID_CONFIG
        assert change(client, TOPIC, topic_name, good, ("retention.msec", SET, "1")) == ErrorCode.INVALID_CONFIG
        assert change(client, TOPIC, topic_name, good, ("retention.ms", APPEND, "1")) == ErrorCode.INVALID_CONFIG
        assert change(client, TOPIC, topic_name, good, ("retention.ms", SET, None)) == ErrorCode.INVALID_REQUEST
        assert change(client, TOPIC, topic_name, good, ("retention.ms", 77, "1")) == ErrorCode.INVALID_REQUEST
        assert change(client, TOPIC, "no-such-topic", good) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert change(client, BROKER, "1", ("node.id", SET, "2")) == ErrorCode.INVALID_REQUEST
        assert change(client, BROKER_LOGGER, "1", ("x", SET, "DEBUG")) == ErrorCode.INVALID_REQUEST
        assert described(client, TOPIC, topic_name, "segment.ms").config_source != DYNAMIC_TOPIC


def test_given_a_smaller_message_limit_when_set_then_the_next_produce_meets_it(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        assert produce(client, topic_name, a_batch(bytes(5000))).error_code == 0

        assert change(client, TOPIC, topic_name, ("max.message.bytes", SET, "1000")) == 0

        assert produce(client, topic_name, a_batch(bytes(5000))).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_given_broker_defaults_when_changed_then_topics_and_restarts_see_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Broker.start(tmp_path_factory.mktemp("configured") / "data") as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "orders")
            assert change(client, BROKER, "", ("log.retention.ms", SET, "111"), ("num.partitions", SET, "3")) == 0
            assert change(client, BROKER, "1", ("log.retention.ms", SET, "222")) == 0
        broker.kill()
        broker.restart()

        with RawClient(broker.address) as client:
            row = described(client, TOPIC, "orders", "retention.ms")
            (default,) = describe(client, BROKER, "", "log.retention.ms").configs

            assert row.value == "222"
            assert [synonym.source for synonym in row.synonyms][:2] == [DYNAMIC_BROKER, DYNAMIC_DEFAULT]
            assert (default.value, default.config_source) == ("111", DYNAMIC_DEFAULT)
            assert described(client, BROKER, "1", "num.partitions").value == "3"
