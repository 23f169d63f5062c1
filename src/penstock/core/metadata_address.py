"""Where the metadata is kept, as `--metadata` says it: a file of SQLite, or a cluster of etcd.

    sqlite:PATH
    etcd://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],.../PREFIX
    etcds://...?ca=FILE&cert=FILE&key=FILE

`etcds` is TLS. A message about an address never repeats its password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.core.config_values import ConfigError

ETCD_PORT = 2379
DEFAULT_PREFIX = "penstock"
# The prefix is in front of every key, and a transaction with hundreds of keys has to fit into a request of etcd's.
MAX_PREFIX_CHARACTERS = 100

_ENDPOINT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_EXPECTED = "expected sqlite:PATH or etcd://HOST:PORT,HOST:PORT/PREFIX (etcds:// for TLS)"
_TLS_FILES = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    path: str


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """`endpoints` are host:port. Without a CA file TLS trusts the authorities that gRPC comes with."""

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


def parse_metadata_address(text: str) -> SqliteAddress | EtcdAddress:
    scheme, separator, rest = text.partition(":")
    if scheme == "sqlite" and separator:
        if not rest:
            raise ConfigError("sqlite: needs a path, as in sqlite:/var/lib/penstock/metadata.db")
        return SqliteAddress(rest)
    if scheme in ("etcd", "etcds") and rest.startswith("//"):
        return _parse_etcd(text)
    if "@" in text:
        raise ConfigError(f"not a metadata address: {_EXPECTED}")
    raise ConfigError(f'"{text}" is not a metadata address: {_EXPECTED}')


def _parse_etcd(text: str) -> EtcdAddress:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise ConfigError(f"not an address of etcd: {error}") from None
    if parts.fragment:
        raise ConfigError('an address of etcd has no "#": in a password it is written as %23')
    credentials, at, endpoints = parts.netloc.rpartition("@")
    user, colon, password = credentials.partition(":")
    if at and not (user and colon and password):
        raise ConfigError("etcd wants both a user and a password: etcd://USER:PASSWORD@HOST:PORT/PREFIX")
    ca_file, cert_file, key_file = _tls_files(parts.scheme, parts.query)
    return EtcdAddress(
        endpoints=_endpoints(endpoints),
        prefix=_prefix(parts.path),
        user=unquote(user) if at else None,
        password=unquote(password),
        tls=parts.scheme == "etcds",
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
    )


def _endpoints(text: str) -> tuple[str, ...]:
    endpoints = []
    for endpoint in text.split(","):
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None or int(match["port"] or ETCD_PORT) not in range(1, 65536):
            raise ConfigError(
                f'"{endpoint}" is not an endpoint of etcd: expected HOST:PORT, with commas between several'
            )
        endpoints.append(f"{match['host']}:{int(match['port'] or ETCD_PORT)}")
    if len(set(endpoints)) != len(endpoints):
        raise ConfigError(f'"{text}" names an endpoint of etcd twice')
    return tuple(endpoints)


def _prefix(path: str) -> str:
    prefix = path.strip("/")
    if not prefix:
        return DEFAULT_PREFIX
    if len(prefix) > MAX_PREFIX_CHARACTERS or not _PREFIX.fullmatch(prefix):
        raise ConfigError(
            f'"{prefix}" cannot be a prefix of keys in etcd: letters, digits, ".", "_", "-", with single "/" between, '
            f"at most {MAX_PREFIX_CHARACTERS} characters"
        )
    return prefix


def _tls_files(scheme: str, query: str) -> tuple[str | None, str | None, str | None]:
    files = dict(parse_qsl(query, keep_blank_values=True))
    for name, path in files.items():
        if name not in _TLS_FILES:
            raise ConfigError(f'unknown option "{name}" of an etcd address: there are {", ".join(_TLS_FILES)}')
        if not path:
            raise ConfigError(f'the option "{name}" of an etcd address needs a file')
    if files and scheme != "etcds":
        raise ConfigError(f"{', '.join(files)}: files for TLS need an address that begins with etcds://")
    if ("cert" in files) != ("key" in files):
        raise ConfigError("cert and key go together: a certificate of this broker, and the key to it")
    return files.get("ca"), files.get("cert"), files.get("key")
