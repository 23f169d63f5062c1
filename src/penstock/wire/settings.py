"""Settings of a client, by the names that Kafka's clients have for them: librdkafka's and, where simple, Java's.

Values come as text or as numbers. What is not known is refused by name: a setting that is silently ignored may be the
one that somebody relies on. Settings are plain values, so that a driver can hand them to its workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from penstock.core.config_values import nearest
from penstock.wire.errors import BadSettings

DEFAULT_CLIENT_ID = "penstock"
_MAX_PORT = 65535
_JAAS = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_JAAS_ESCAPED = re.compile(r"\\(.)")

KEYS = (
    "bootstrap.servers",
    "client.id",
    "default.api.timeout.ms",
    "enable.ssl.certificate.verification",
    "fetch.max.wait.ms",
    "max.partition.fetch.bytes",
    "request.timeout.ms",
    "retry.backoff.ms",
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.location",
    "ssl.truststore.type",
)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Login:
    mechanism: Mechanism
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths are of PEM files. Without a CA of its own the system's are trusted."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_name: bool = True
    checks_certificate: bool = True


@dataclass(frozen=True, slots=True)
class ClientSettings:
    bootstrap: tuple[Address, ...]
    client_id: str = DEFAULT_CLIENT_ID
    request_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    # How long something is tried that makes no progress.
    api_timeout_s: float = 60.0
    retry_backoff_s: float = 0.1
    fetch_bytes: int = 4 << 20
    fetch_wait_ms: int = 500
    tls: Tls | None = None
    login: Login | None = None

    @property
    def security_protocol(self) -> str:
        secured = "SSL" if self.tls is not None else "PLAINTEXT"
        return secured if self.login is None else f"SASL_{secured}"

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> ClientSettings:
        """Raises BadSettings."""
        for key in values:
            if key not in KEYS:
                guess = nearest(key, KEYS)
                raise BadSettings(key, f"is not a setting{f': did you mean {guess}?' if guess else ''}")
        read = _Values({key: _text(value) for key, value in values.items()})
        if "bootstrap.servers" not in values:
            raise BadSettings("bootstrap.servers", "is missing: it takes HOST:PORT, several with commas")
        secured, with_login = read.security()
        settings = cls(
            bootstrap=addresses(read.text("bootstrap.servers")),
            client_id=read.text("client.id", DEFAULT_CLIENT_ID),
            request_timeout_s=read.seconds("request.timeout.ms", 30_000),
            connect_timeout_s=read.seconds("socket.connection.setup.timeout.ms", 10_000),
            api_timeout_s=read.seconds("default.api.timeout.ms", 60_000),
            retry_backoff_s=read.seconds("retry.backoff.ms", 100),
            fetch_bytes=read.number("max.partition.fetch.bytes", 4 << 20),
            fetch_wait_ms=read.number("fetch.max.wait.ms", 500),
            tls=read.tls() if secured else None,
            login=read.login() if with_login else None,
        )
        if settings.fetch_wait_ms >= settings.request_timeout_s * 1_000:
            raise BadSettings("fetch.max.wait.ms", "must be below request.timeout.ms, or no answer ever comes in time")
        return settings


def addresses(bootstrap: str) -> tuple[Address, ...]:
    """Of `HOST:PORT,HOST:PORT`. Raises BadSettings."""
    found = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) <= _MAX_PORT):
            raise BadSettings("bootstrap.servers", f'takes HOST:PORT, not "{address}"')
        found.append(Address(host.strip("[]"), int(port)))
    return tuple(found)


class _Values:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, key: str, default: str = "") -> str:
        return self._values.get(key, default)

    def first(self, *keys: str) -> str | None:
        """Of the names that one thing has."""
        return next((self._values[key] for key in keys if self._values.get(key)), None)

    def number(self, key: str, default: int) -> int:
        text = self._values.get(key, str(default))
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
            raise BadSettings(key, f'takes a number above 0, not "{text}"')
        return int(text)

    def seconds(self, key: str, default_ms: int) -> float:
        return self.number(key, default_ms) / 1_000

    def flag(self, key: str, default: bool) -> bool:
        text = self._values.get(key, str(default)).lower()
        if text not in ("true", "false"):
            raise BadSettings(key, f'takes true or false, not "{text}"')
        return text == "true"

    def security(self) -> tuple[bool, bool]:
        """Whether with TLS, and whether with a login."""
        protocol = self.text("security.protocol", "PLAINTEXT").upper()
        known = {"PLAINTEXT": (False, False), "SSL": (True, False)}
        known |= {"SASL_PLAINTEXT": (False, True), "SASL_SSL": (True, True)}
        if protocol not in known:
            raise BadSettings("security.protocol", f'takes {", ".join(known)}, not "{protocol}"')
        return known[protocol]

    def tls(self) -> Tls:
        for store in ("ssl.truststore", "ssl.keystore"):
            kind = self.text(f"{store}.type", "JKS").upper()
            if self.text(f"{store}.location") and kind != "PEM":
                raise BadSettings(f"{store}.type", f"takes PEM here, not {kind}: keytool and openssl can convert it")
        algorithm = self.text("ssl.endpoint.identification.algorithm", "https").lower()
        if algorithm not in ("https", "none", ""):
            raise BadSettings("ssl.endpoint.identification.algorithm", f'takes https or none, not "{algorithm}"')
        # A PEM key store has the certificate and its key in one file.
        certificate = self.first("ssl.certificate.location", "ssl.keystore.location")
        return Tls(
            ca=self.first("ssl.ca.location", "ssl.truststore.location"),
            certificate=certificate,
            key=self.first("ssl.key.location"),
            key_password=self.first("ssl.key.password"),
            checks_name=algorithm == "https",
            checks_certificate=self.flag("enable.ssl.certificate.verification", True),
        )

    def login(self) -> Login:
        name = self.first("sasl.mechanism", "sasl.mechanisms")
        if name is None:
            raise BadSettings("sasl.mechanism", f"is missing: it takes {', '.join(Mechanism)}")
        if name not in list(Mechanism):
            raise BadSettings("sasl.mechanism", f'takes {", ".join(Mechanism)}, not "{name}"')
        in_jaas = {key: _JAAS_ESCAPED.sub(r"\1", text) for key, text in _JAAS.findall(self.text("sasl.jaas.config"))}
        username, password = (self.text(f"sasl.{key}") or in_jaas.get(key, "") for key in ("username", "password"))
        if not (username and password):
            missing = "sasl.password" if username else "sasl.username"
            raise BadSettings(missing, "is missing: a login takes both, or sasl.jaas.config with both in it")
        return Login(Mechanism(name), username, password)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
