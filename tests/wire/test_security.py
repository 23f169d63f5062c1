"""TLS and logins, against Apache Kafka, or skipped without its jars: our broker has no listener that wants them yet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.core.ids import TopicPartition
from penstock.wire.errors import BadSettings, NotAuthenticated, Unreachable, WireError
from penstock.wire.offsets import latest
from tests.testkit import RawClient, eventually
from tests.testkit.asking import a_batch, create_usable_topic, produce
from tests.testkit.java import require_jars
from tests.wire.producing import a_producer, numbered, rows, values_in
from tests.wire.reading import UNCOMMITTED, a_client, offsets_and_values
from tests.wire.secured_kafka import KEY_PASSWORD, PASSWORD, USER, SecuredKafka

# One worker starts it for all.
pytestmark = pytest.mark.xdist_group("secured-kafka")

TOPIC = "orders"

Settings = dict[str, Any]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    require_jars()
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl, which is not installed")
    with SecuredKafka.start(tmp_path_factory.mktemp("secured") / "data") as broker:
        broker.add_scram_user()
        with RawClient(broker.address) as raw:
            create_usable_topic(raw, TOPIC, retention_ms=-1)
            assert produce(raw, TOPIC, a_batch(b"one", b"two")).error_code == 0
        yield broker


def with_certificate(kafka: SecuredKafka, **settings: Any) -> Settings:
    return {
        "security_protocol": "SSL",
        "ssl_ca_location": kafka.directory / "ca.pem",
        "ssl_certificate_location": kafka.directory / "client.pem",
        "ssl_key_location": kafka.directory / "client.key",
        "ssl_key_password": KEY_PASSWORD,
        **settings,
    }


def with_login(mechanism: str, protocol: str = "SASL_PLAINTEXT", **settings: Any) -> Settings:
    return {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_username": USER,
        "sasl_password": PASSWORD,
        **settings,
    }


def read_all(kafka: SecuredKafka, settings: Settings, host: str = "127.0.0.1") -> dict[int, bytes | None]:
    port = kafka.bootstrap_of(settings["security_protocol"]).rpartition(":")[2]
    with a_client(f"{host}:{port}", **settings) as cluster:
        (end,) = latest(cluster, [TopicPartition(TOPIC, 0)]).values()
        return offsets_and_values(cluster, TOPIC, 0, end)


def refusal(kafka: SecuredKafka, settings: Settings, error: type[WireError], host: str = "127.0.0.1") -> str:
    with pytest.raises(error) as refused:
        read_all(kafka, settings, host)
    return str(refused.value)


def test_given_tls_with_certificates_of_both_sides_then_records_are_read(kafka: SecuredKafka) -> None:
    assert read_all(kafka, with_certificate(kafka)) == {0: b"one", 1: b"two"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_given_tls_and_a_login_then_records_are_read(kafka: SecuredKafka, mechanism: str) -> None:
    settings = with_login(mechanism, "SASL_SSL", ssl_ca_location=kafka.directory / "ca.pem")

    assert read_all(kafka, settings) == {0: b"one", 1: b"two"}


def test_given_a_login_without_tls_then_records_are_read(kafka: SecuredKafka) -> None:
    assert read_all(kafka, with_login("SCRAM-SHA-512")) == {0: b"one", 1: b"two"}


def test_given_transactions_on_kafka_when_read_over_tls_then_committed_readers_see_just_the_committed(
    kafka: SecuredKafka, topic_name: str
) -> None:
    with RawClient(kafka.address) as raw:
        create_usable_topic(raw, topic_name)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic_name, "log_level": 0})
    producer.init_transactions(60)
    for number, end in enumerate((producer.abort_transaction, producer.commit_transaction) * 2):
        producer.begin_transaction()
        producer.produce(topic_name, b"%d" % number, partition=0)
        producer.flush(60)  # an abort throws away what was not sent
        end(60)

    partition = TopicPartition(topic_name, 0)
    settings = with_login("PLAIN", "SASL_SSL", ssl_ca_location=kafka.directory / "ca.pem")
    with a_client(kafka.bootstrap_of("SASL_SSL"), **settings) as cluster:
        eventually(lambda: latest(cluster, [partition]) == {partition: 8}, 30)  # with markers

        assert offsets_and_values(cluster, topic_name, 0, 8) == {2: b"1", 6: b"3"}
        uncommitted = offsets_and_values(cluster, topic_name, 0, 8, isolation=UNCOMMITTED)
        assert uncommitted == {0: b"0", 2: b"1", 4: b"2", 6: b"3"}


def test_given_tls_and_a_login_when_a_producer_writes_many_batches_then_they_are_there_in_order(
    kafka: SecuredKafka, topic_name: str
) -> None:
    with RawClient(kafka.address) as raw:
        create_usable_topic(raw, topic_name)
    settings = with_login("SCRAM-SHA-256", "SASL_SSL", ssl_ca_location=kafka.directory / "ca.pem")
    bootstrap = kafka.bootstrap_of("SASL_SSL")

    with a_producer(bootstrap, topic_name, settings, batch_size=400) as producer:
        producer.fence()
        producer.put(topic_name, 1, rows(*numbered(0, 2_000)))
        producer.commit()

    with a_client(bootstrap, **settings) as cluster:
        eventually(lambda: values_in(cluster, topic_name) == numbered(0, 2_000), 30)


def test_given_certificates_that_do_not_fit_then_it_is_said_which(kafka: SecuredKafka) -> None:
    another = refusal(
        kafka, with_certificate(kafka, ssl_ca_location=kafka.directory / "another-ca.pem"), NotAuthenticated
    )
    other_name = refusal(kafka, with_certificate(kafka), NotAuthenticated, host="localhost")
    no_file = refusal(kafka, with_certificate(kafka, ssl_ca_location="/nowhere.pem"), BadSettings)
    wrong_password = refusal(kafka, with_certificate(kafka, ssl_key_password="guessed"), BadSettings)
    none_of_ours = refusal(
        kafka, {"security_protocol": "SSL", "ssl_ca_location": kafka.directory / "ca.pem"}, NotAuthenticated
    )

    assert "is not trusted: " in another
    assert "localhost" in other_name
    assert no_file.startswith('ssl.ca.location "/nowhere.pem" cannot be read')
    assert "ssl.key.password does not fit" in wrong_password
    assert none_of_ours.startswith(f"the broker at {kafka.bootstrap_of('SSL')} does not trust us: ")
    # The name does not have to fit where nobody asks that it does.
    settings = with_certificate(kafka, ssl_endpoint_identification_algorithm="none")
    assert read_all(kafka, settings, host="localhost") == {0: b"one", 1: b"two"}


def test_given_logins_that_do_not_fit_then_the_broker_and_its_reason_are_named(kafka: SecuredKafka) -> None:
    with_tls = {"ssl_ca_location": kafka.directory / "ca.pem"}
    plain = refusal(kafka, with_login("PLAIN", "SASL_SSL", sasl_password="x", **with_tls), NotAuthenticated)
    scram = refusal(kafka, with_login("SCRAM-SHA-512", sasl_password="x"), NotAuthenticated)
    mechanism = refusal(kafka, with_login("PLAIN"), NotAuthenticated)

    assert plain.startswith(f'the broker at {kafka.bootstrap_of("SASL_SSL")} refuses "alice" (PLAIN): ')
    assert scram.startswith(f'the broker at {kafka.bootstrap_of("SASL_PLAINTEXT")} refuses "alice" (SCRAM-SHA-512): ')
    assert mechanism.endswith("has no PLAIN: it knows SCRAM-SHA-512")


def test_given_the_wrong_protocol_for_a_port_then_the_one_that_was_tried_is_named(kafka: SecuredKafka) -> None:
    for protocol, port, error in (
        ("PLAINTEXT", "SSL", Unreachable),
        ("PLAINTEXT", "SASL_PLAINTEXT", Unreachable),
        ("SSL", "SASL_PLAINTEXT", Unreachable),
    ):
        with (
            pytest.raises(error, match=r"TLS|login"),
            a_client(kafka.bootstrap_of(port), security_protocol=protocol, request_timeout_ms=5_000) as cluster,
        ):
            cluster.nodes()
