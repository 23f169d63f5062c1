"""`--metadata`: what is understood, and what is refused with a reason."""

from __future__ import annotations

import pytest

from penstock.core.config import Assignment, BrokerConfig
from penstock.core.config_values import ConfigError
from penstock.core.metadata_address import EtcdAddress, SqliteAddress, parse_metadata_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("sqlite:metadata.db", SqliteAddress("metadata.db")),
        ("sqlite:/var/lib/penstock/metadata.db", SqliteAddress("/var/lib/penstock/metadata.db")),
        ("etcd://one", EtcdAddress(("one:2379",))),
        ("etcd://one:1,10.0.0.2:2,[::1]:3/", EtcdAddress(("one:1", "10.0.0.2:2", "[::1]:3"))),
        ("etcd://one/a/b.c-d_e", EtcdAddress(("one:2379",), prefix="a/b.c-d_e")),
        ("etcd://me:p%40ss%3A@one/a", EtcdAddress(("one:2379",), prefix="a", user="me", password="p@ss:")),
        ("etcds://one/a", EtcdAddress(("one:2379",), prefix="a", tls=True)),
        (
            "etcds://one/a?ca=/ca.pem&cert=c.pem&key=k.pem",
            EtcdAddress(("one:2379",), prefix="a", tls=True, ca_file="/ca.pem", cert_file="c.pem", key_file="k.pem"),
        ),
    ],
)
def test_given_an_address_when_parsed_then_every_part_is_found(text: str, address: SqliteAddress | EtcdAddress) -> None:
    assert parse_metadata_address(text) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected sqlite:PATH or etcd://"),
        ("metadata.db", "expected sqlite:PATH or etcd://"),
        ("etcd:one:2379", "expected sqlite:PATH or etcd://"),
        ("http://one:2379", "expected sqlite:PATH or etcd://"),
        ("sqlite:", "needs a path"),
        ("etcd:///prefix", '"" is not an endpoint'),
        ("etcd://one,,two", '"" is not an endpoint'),
        ("etcd://one:0", '"one:0" is not an endpoint'),
        ("etcd://one:65536", '"one:65536" is not an endpoint'),
        ("etcd://one:port", '"one:port" is not an endpoint'),
        ("etcd://one:1,one:1", "twice"),
        ("etcd://me@one", "both a user and a password"),
        ("etcd://me:@one", "both a user and a password"),
        ("etcd://:secret@one", "both a user and a password"),
        ("etcd://one/a b", "cannot be a prefix"),
        ("etcd://one/a//b", "cannot be a prefix"),
        ("etcd://one/" + "a" * 101, "at most 100 characters"),
        ("etcd://one/é", "cannot be a prefix"),
        ("etcd://one/a#b", "%23"),
        ("etcd://one/a?ca=f", "etcds://"),
        ("etcds://one/a?cert=f", "cert and key go together"),
        ("etcds://one/a?ca=", "needs a file"),
        ("etcds://one/a?cacert=f", 'unknown option "cacert"'),
        ("etcd://[::1/a", "not an address of etcd"),
    ],
)
def test_given_a_mistake_when_parsed_then_told_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_metadata_address(text)

    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "text", ["etcd:/me:secret@one", "etcd://me:secret@one:x", "etcd://me:secret@one/ ", "x:secret@y"]
)
def test_given_a_password_in_a_bad_address_when_refused_then_it_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_metadata_address(text)

    assert "secret" not in str(refused.value)


def test_given_a_bad_address_when_configured_then_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="metadata address"):
        BrokerConfig([Assignment("penstock.metadata", "zookeeper:2181", "--metadata")])


def test_given_a_password_when_the_configuration_is_described_then_it_is_a_secret() -> None:
    config = BrokerConfig([Assignment("penstock.metadata", "etcd://me:secret@one", "--metadata")])

    assert config.entry("penstock.metadata").key.sensitive
    assert "secret" not in repr(parse_metadata_address(config.str("penstock.metadata")))
