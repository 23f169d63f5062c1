"""What options a sink takes, and what it says about those that it does not."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.protocol.compression import Codec
from penstock.spark.errors import BadOption
from penstock.spark.sink_errors import BadColumns
from penstock.spark.sink_options import Kind, SinkOptions
from penstock.spark.sink_schema import check_schema
from penstock.wire.producer_settings import ProducerSettings
from penstock.wire.settings import Address

BROKER = {"kafka.bootstrap.servers": "somewhere:9092"}


def parsed(kind: Kind = Kind.STREAM, /, **options: str) -> SinkOptions:
    return SinkOptions.parse({**BROKER, **{name.replace("__", "."): value for name, value in options.items()}}, kind)


def test_given_nothing_but_a_broker_when_options_are_read_then_streams_are_exactly_once_and_batches_are_not() -> None:
    stream, batch = parsed(Kind.STREAM), parsed(Kind.BATCH)

    assert (stream.exactly_once, batch.exactly_once) == (True, False)
    assert (stream.topic, stream.write_id, stream.marker_topic) == (None, None, "penstock-spark-commits")
    assert stream.client.bootstrap == (Address("somewhere", 9092),)


def test_given_names_in_any_case_when_options_are_read_then_they_are_found() -> None:
    found = SinkOptions.parse({**BROKER, "EXACTLYONCE": "False", "Topic": "t", "markertopic": "M"}, Kind.STREAM)

    assert (found.exactly_once, found.topic, found.marker_topic) == (False, "t", "M")


def test_given_a_named_batch_when_options_are_read_then_it_is_exactly_once() -> None:
    assert parsed(Kind.BATCH, writeId="friday").exactly_once


def test_given_settings_of_kafka_when_options_are_read_then_client_and_producer_have_theirs() -> None:
    found = parsed(
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__jaas__config='org.apache.PlainLoginModule required username="ann" password="secret";',
        kafka__ssl__truststore__location="/ca.pem",
        kafka__ssl__truststore__type="PEM",
        kafka__compression__type="zstd",
        kafka__default__api__timeout__ms="5000",
        kafka__request__timeout__ms="7000",
        kafka__linger__ms="5",
    )

    assert (found.client.api_timeout_s, found.client.request_timeout_s) == (5.0, 7.0)
    assert found.client.security_protocol == "SASL_SSL"
    assert found.producer == ProducerSettings(codec=Codec.ZSTD)
    assert "secret" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (Kind.STREAM, {"topik": "t"}, ["topik", "did you mean topic?"]),
        (Kind.STREAM, {"exactlyOnec": "true"}, ["exactlyonec", "did you mean exactlyOnce?"]),
        (Kind.STREAM, {"exactlyOnce": "yes"}, ["exactlyOnce", "true or false", '"yes"']),
        (Kind.STREAM, {"subscribe": "t"}, ["subscribe"]),
        (Kind.STREAM, {"path": "/tmp/x"}, ["path", "option topic"]),
        (Kind.STREAM, {"topic": " "}, ["topic", "empty"]),
        (Kind.STREAM, {"writeId": "x"}, ["writeId", "checkpoint"]),
        (Kind.BATCH, {"writeId": "x", "exactlyOnce": "false"}, ["writeId", "exactlyOnce=true"]),
        (Kind.BATCH, {"writeId": "ä" * 101}, ["writeId", "200", "202"]),
        (Kind.STREAM, {"linger.ms": "5"}, ["linger.ms", "did you mean kafka.linger.ms?"]),
        (Kind.STREAM, {"bootstrap.servers": "x:1"}, ["did you mean kafka.bootstrap.servers?"]),
        (Kind.STREAM, {"kafka.liger.ms": "5"}, ["kafka.liger.ms", "did you mean kafka.linger.ms?"]),
        (Kind.STREAM, {"kafka.zzz": "5"}, ["kafka.zzz", "not a setting"]),
        (Kind.STREAM, {"kafka.acks": "1"}, ["kafka.acks", "exactlyOnce decides"]),
        (Kind.STREAM, {"kafka.transactional.id": "mine"}, ["kafka.transactional.id"]),
        (Kind.STREAM, {"kafka.enable.idempotence": "false"}, ["kafka.enable.idempotence"]),
        (Kind.STREAM, {"kafka.retries": "0"}, ["kafka.retries", "kafka.delivery.timeout.ms"]),
        (Kind.STREAM, {"kafka.partitioner": "random"}, ["kafka.partitioner", "column partition"]),
        (Kind.STREAM, {"kafka.max.block.ms": "5"}, ["kafka.max.block.ms", "kafka.default.api.timeout.ms"]),
        (Kind.STREAM, {"kafka.socket.nagle.disable": "true"}, ["kafka.socket.nagle.disable", "not a setting"]),
        (Kind.STREAM, {"kafka.bach.size": "5"}, ["kafka.bach.size", "did you mean kafka.batch.size?"]),
        (Kind.STREAM, {"kafka.fetch.max.wait.ms": "5"}, ["kafka.fetch.max.wait.ms"]),
        (Kind.STREAM, {"kafka.request.timeout.ms": "soon"}, ["kafka.request.timeout.ms", '"soon"']),
        (Kind.STREAM, {"kafka.bootstrap.servers": "nowhere"}, ["kafka.bootstrap.servers", "HOST:PORT"]),
    ],
)
def test_given_options_that_cannot_be_when_they_are_read_then_one_sentence_says_why(
    kind: Kind, options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(BadOption) as refused:
        SinkOptions.parse({**BROKER, **options}, kind)

    for word in words:
        assert word in str(refused.value)


def test_given_no_broker_when_options_are_read_then_it_is_missed() -> None:
    with pytest.raises(BadOption, match=r"kafka\.bootstrap\.servers is missing"):
        SinkOptions.parse({"topic": "t"}, Kind.STREAM)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka__compression__type": "brotli"}, ["kafka.compression.type", "brotli", "zstd"]),
        ({"kafka__compression__codec": "brotli"}, ["kafka.compression.codec"]),
        ({"kafka__linger__ms": "soon"}, ["kafka.linger.ms", '"soon"']),
        ({"kafka__max__in__flight": "9"}, ["kafka.max.in.flight", "1 to 5"]),
        ({"kafka__delivery__timeout__ms": "900000"}, ["kafka.delivery.timeout.ms", "transaction.timeout.ms"]),
        ({"kafka__message__timeout__ms": "900000"}, ["kafka.message.timeout.ms", "transaction.timeout.ms"]),
        (
            {"kafka__max__request__size": "5", "kafka__message__max__bytes": "6"},
            ["kafka.message.max.bytes", "another name"],
        ),
    ],
)
def test_given_values_that_the_producer_does_not_take_when_options_are_read_then_the_setting_is_named(
    options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(BadOption) as refused:
        parsed(**options)

    for word in words:
        assert word in str(refused.value)


def test_given_at_least_once_when_deliveries_may_take_longer_than_transactions_then_that_is_no_matter() -> None:
    found = parsed(exactlyOnce="false", kafka__delivery__timeout__ms="900000")

    assert found.producer.delivery_timeout_s == 900


def test_given_short_transactions_when_nothing_is_said_of_deliveries_then_those_are_as_short() -> None:
    found = parsed(kafka__transaction__timeout__ms="20000")

    assert (found.producer.transaction_timeout_ms, found.producer.delivery_timeout_s) == (20_000, 20)


HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_given_all_columns_when_they_are_checked_then_they_are_taken() -> None:
    check_schema(schema(value=StringType()), "t")
    check_schema(
        schema(
            topic=StringType(),
            partition=IntegerType(),
            key=BinaryType(),
            value=BinaryType(),
            headers=HEADERS,
            timestamp=TimestampType(),
        ),
        None,
    )


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        (schema(key=StringType()), "t", ["no column value"]),
        (schema(), "t", ["no column value"]),
        (schema(value=StringType()), None, ["no topic", "option topic"]),
        (schema(value=StringType(), offset=LongType()), "t", ['"offset"', "to_json"]),
        (schema(value=StringType(), Key=StringType()), "t", ['"Key"', "did you mean key?"]),
        (schema(value=IntegerType()), "t", ['"value" is int', "string or binary"]),
        (schema(value=StringType(), partition=LongType()), "t", ['"partition" is bigint', "must be int"]),
        (schema(value=StringType(), timestamp=TimestampNTZType()), "t", ['"timestamp" is timestamp_ntz']),
        (schema(value=StringType(), topic=BinaryType()), None, ['"topic" is binary']),
        (schema(value=StringType(), headers=ArrayType(StringType())), "t", ['"headers" is array<string>']),
        (
            StructType([StructField("value", StringType()), StructField("value", StringType())]),
            "t",
            ['"value" is there 2 times'],
        ),
    ],
)
def test_given_columns_that_cannot_be_records_when_they_are_checked_then_one_sentence_says_why(
    columns: StructType, topic: str | None, words: list[str]
) -> None:
    with pytest.raises(BadColumns) as refused:
        check_schema(columns, topic)

    for word in words:
        assert word in str(refused.value)
