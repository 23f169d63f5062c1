"""Where the broker listens, what it tells its clients, and who may reach it."""

from __future__ import annotations

import pytest

from penstock.core.config import BrokerConfig, set_assignments
from penstock.core.config_values import ConfigError
from penstock.core.listeners import Listener, is_loopback, parse_listener, rebind


def a_config(*settings: str) -> BrokerConfig:
    return BrokerConfig(set_assignments(settings))


def test_given_no_settings_then_the_broker_listens_on_loopback_and_says_so() -> None:
    config = BrokerConfig()

    assert config.listeners == config.advertised_listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092),)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("PLAINTEXT://127.0.0.1:9092", "127.0.0.1", 9092),
        ("PLAINTEXT://:0", "", 0),
        ("PLAINTEXT://[::1]:19092", "::1", 19092),
        ("PLAINTEXT://broker-1.example.org:65535", "broker-1.example.org", 65535),
    ],
)
def test_given_a_listener_then_it_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    listener = parse_listener(text)

    assert listener == Listener("PLAINTEXT", host, port)
    assert str(listener) == text


@pytest.mark.parametrize("text", ["", "127.0.0.1:9092", "PLAINTEXT://h", "PLAINTEXT://h:65536", "PLAINTEXT://::1:9092"])
def test_given_something_else_then_it_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME://host:port"):
        parse_listener(text)


def test_given_several_names_then_each_needs_a_protocol_and_gets_its_own_advertised_address() -> None:
    names = "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT"
    listeners = "listeners=IN://127.0.0.1:9092,OUT://127.0.0.1:0"

    config = a_config(names, listeners, "advertised.listeners=OUT://broker.example.org:9093")

    assert [str(listener) for listener in config.advertised_listeners] == [
        "IN://127.0.0.1:9092",
        "OUT://broker.example.org:9093",
    ]
    with pytest.raises(ConfigError, match=r"IN has no protocol.*IN:PLAINTEXT"):
        a_config(listeners)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["listeners=PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2"], "two listeners"),
        (["listeners=SSL://127.0.0.1:1"], "SSL has no protocol"),
        (["listener.security.protocol.map=PLAINTEXT:SSL"], "PLAINTEXT:SSL"),
        (
            [
                "advertised.listeners=OTHER://127.0.0.1:1",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            ],
            "OTHER, which is not in listeners",
        ),
    ],
)
def test_given_listeners_that_do_not_fit_together_then_they_are_refused(settings: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        a_config(*settings)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "192.0.2.1", "[::]", "broker.example.org"])
def test_given_an_address_that_others_can_reach_then_it_must_be_wanted(host: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        a_config(f"listeners=PLAINTEXT://{host}:9092")

    assert a_config(f"listeners=PLAINTEXT://{host}:9092", "penstock.insecure=true").listeners


def test_given_an_open_http_address_then_it_must_be_wanted_too() -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        a_config("penstock.http.host=0.0.0.0")


def test_given_an_open_address_for_brokers_then_it_must_be_wanted_too() -> None:
    with pytest.raises(ConfigError, match=r"penstock.internal.host.*--insecure"):
        a_config("penstock.internal.host=0.0.0.0")


def test_given_no_address_for_brokers_then_it_is_that_of_the_first_listener() -> None:
    config = a_config(
        "listeners=A://127.0.0.5:1,B://127.0.0.1:2", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"
    )

    assert config.internal_listener == config.advertised_internal_listener == Listener("INTERNAL", "127.0.0.5", 0)


def test_given_an_address_for_brokers_on_all_addresses_then_they_are_told_the_machines_name() -> None:
    config = a_config("penstock.internal.host=0.0.0.0", "penstock.insecure=true", "penstock.host=box7")

    assert config.internal_listener.host == "0.0.0.0"
    assert config.advertised_internal_listener.host == "box7"


def test_given_the_brokers_listeners_name_for_clients_then_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose another one"):
        a_config("listeners=INTERNAL://127.0.0.1:1", "listener.security.protocol.map=INTERNAL:PLAINTEXT")


def test_given_a_listener_on_all_addresses_then_clients_are_told_the_machines_name() -> None:
    config = a_config("listeners=PLAINTEXT://0.0.0.0:9092", "penstock.insecure=true", "penstock.host=box7")

    assert config.advertised_listeners == (Listener("PLAINTEXT", "box7", 9092),)


def test_given_flags_for_host_and_port_then_they_change_the_first_listener_only() -> None:
    listeners = ("IN://127.0.0.1:1", "OUT://127.0.0.1:2")

    assert rebind(listeners, None, 0) == ("IN://127.0.0.1:0", "OUT://127.0.0.1:2")
    assert rebind(listeners, "::1", None) == ("IN://[::1]:1", "OUT://127.0.0.1:2")


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("127.example.org", False),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
        ("10.0.0.1", False),
        ("::", False),
        ("", False),
    ],
)
def test_given_a_host_then_only_addresses_of_this_machine_alone_are_loopback(host: str, is_one: bool) -> None:
    assert is_loopback(host) is is_one
