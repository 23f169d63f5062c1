"""Addresses the broker binds, and addresses it tells its clients: `NAME://host:port`, as in Kafka.

Nothing asks a client who it is yet, so an address that other machines can reach must be wanted in so many words
(`penstock.insecure`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

from penstock.core.config_values import ConfigError

_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_]+)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s]*):(?P<port>[0-9]{1,5})")
_PROTOCOLS = ("PLAINTEXT",)
_ALL_ADDRESSES = ("", "0.0.0.0", "::")
# The listener that every broker has besides those for clients; only other brokers are served on it.
INTERNAL_LISTENER = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Listener:
    """`host` has no brackets; empty means all addresses. Port 0 is for the operating system to choose."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def is_on_all_addresses(self) -> bool:
        return self.host in _ALL_ADDRESSES


def is_loopback(host: str) -> bool:
    """A name may stand for any address, but for the one that means this machine everywhere."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def parse_listener(text: str) -> Listener:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f'"{text}" is not a listener: expected NAME://host:port, as in PLAINTEXT://127.0.0.1:9092')
    return Listener(match["name"].upper(), match["host"].strip("[]"), int(match["port"]))


def parse_listeners(texts: Iterable[str], protocol_map: Sequence[str]) -> tuple[Listener, ...]:
    """Listeners with different names, each of a protocol that the broker speaks."""
    listeners = tuple(parse_listener(text) for text in texts)
    protocols = _parse_protocol_map(protocol_map)
    names = [listener.name for listener in listeners]
    for name in names:
        if name == INTERNAL_LISTENER:
            raise ConfigError(
                f"{name} is the name of the listener for other brokers (penstock.internal.port): choose another one"
            )
        if names.count(name) > 1:
            raise ConfigError(f"two listeners have the name {name}; listener.security.protocol.map makes more names")
        if name not in protocols:
            raise ConfigError(
                f'the listener name {name} has no protocol: add "{name}:PLAINTEXT" to listener.security.protocol.map'
            )
    return listeners


def _parse_protocol_map(pairs: Sequence[str]) -> dict[str, str]:
    protocols = {}
    for pair in pairs:
        name, separator, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not name or not separator or protocol not in _PROTOCOLS:
            raise ConfigError(
                f'"{pair}" in listener.security.protocol.map: expected NAME:PROTOCOL with one of {_PROTOCOLS}'
            )
        protocols[name] = protocol
    return protocols


def advertised(
    listeners: tuple[Listener, ...], texts: Iterable[str] | None, protocol_map: Sequence[str], machine: str
) -> tuple[Listener, ...]:
    """What clients are told, one per listener and in their order; `machine` stands in for "all addresses"."""
    given = {listener.name: listener for listener in parse_listeners(texts or (), protocol_map)}
    for name in given.keys() - {listener.name for listener in listeners}:
        raise ConfigError(f"advertised.listeners names {name}, which is not in listeners")
    return tuple(reachable(given.get(listener.name, listener), machine) for listener in listeners)


def reachable(listener: Listener, machine: str) -> Listener:
    """As others can be told of it; `machine` stands in for "all addresses"."""
    return replace(listener, host=machine) if listener.is_on_all_addresses else listener


def rebind(texts: Sequence[str], host: str | None, port: int | None) -> tuple[str, ...]:
    """The listeners with another host or port for the first, which is what the flags --host and --port change."""
    first = parse_listener(texts[0])
    bound = replace(
        first, host=first.host if host is None else host.strip("[]"), port=first.port if port is None else port
    )
    return (str(bound), *texts[1:])
