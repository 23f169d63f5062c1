"""Settings by Kafka's names, and what is said about those that cannot be."""

from __future__ import annotations

import pickle

import pytest

from penstock.wire.errors import BadSettings, NoAnswer, OffsetsLost
from penstock.wire.settings import Address, ClientSettings, Login, Mechanism, Tls

SERVERS = {"bootstrap.servers": "one:9092, [::1]:9093"}


def test_given_nothing_but_servers_then_the_rest_is_the_default() -> None:
    settings = ClientSettings.parse(SERVERS)

    assert settings == ClientSettings(bootstrap=(Address("one", 9092), Address("::1", 9093)))
    assert settings.security_protocol == "PLAINTEXT"


def test_given_numbers_as_text_or_as_numbers_then_they_are_taken() -> None:
    settings = ClientSettings.parse(
        {**SERVERS, "request.timeout.ms": 1_500, "default.api.timeout.ms": "250", "max.partition.fetch.bytes": "1000"}
    )

    assert (settings.request_timeout_s, settings.api_timeout_s, settings.fetch_bytes) == (1.5, 0.25, 1_000)


def test_given_the_names_of_java_and_of_librdkafka_then_they_say_the_same() -> None:
    of_librdkafka = {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "me",
        "sasl.password": 'a"b\\c',
    }
    of_java = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "/ca.pem",
        "ssl.truststore.type": "PEM",
        "ssl.endpoint.identification.algorithm": "",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b\\\\c";',
    }

    settings = ClientSettings.parse({**SERVERS, **of_librdkafka})

    assert settings == ClientSettings.parse({**SERVERS, **of_java})
    assert settings.tls == Tls(ca="/ca.pem", checks_name=False)
    assert settings.login == Login(Mechanism.SCRAM_SHA_256, "me", 'a"b\\c')
    assert settings.security_protocol == "SASL_SSL"
    assert 'a"b' not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "bootstrap.servers is missing: it takes HOST:PORT, several with commas"),
        ({"bootstrap.servers": "localhost"}, 'bootstrap.servers takes HOST:PORT, not "localhost"'),
        ({"bootstrap.servers": "one:9092,two:99999"}, 'bootstrap.servers takes HOST:PORT, not "two:99999"'),
        ({**SERVERS, "request.timout.ms": 5}, "request.timout.ms is not a setting: did you mean request.timeout.ms?"),
        ({**SERVERS, "xyz": 5}, "xyz is not a setting"),
        ({**SERVERS, "request.timeout.ms": "soon"}, 'request.timeout.ms takes a number above 0, not "soon"'),
        ({**SERVERS, "request.timeout.ms": 400}, "fetch.max.wait.ms must be below request.timeout.ms"),
        ({**SERVERS, "security.protocol": "TLS"}, "security.protocol takes PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({**SERVERS, "security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        (
            {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism takes PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, not",
        ),
        (
            {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me"},
            "sasl.password is missing",
        ),
        (
            {**SERVERS, "security.protocol": "SSL", "ssl.truststore.location": "/trust.jks"},
            "ssl.truststore.type takes PEM here, not JKS",
        ),
    ],
)
def test_given_settings_that_cannot_be_then_the_first_is_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(BadSettings) as refused:
        ClientSettings.parse(values)

    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    "error", [BadSettings("key", "is wrong"), NoAnswer("nobody", "one:9092"), OffsetsLost("orders", 1, 5, 7, 9)]
)
def test_given_an_error_of_a_worker_when_it_goes_to_another_process_then_it_is_the_same(error: Exception) -> None:
    arrived = pickle.loads(pickle.dumps(error))

    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))
