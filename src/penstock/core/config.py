"""The broker's configuration: an immutable answer to "what is this key, and who said so?".

A value comes from the highest layer that has it: dynamic (AlterConfigs), flag, --set, environment, file, default. All
layers are checked, also where a higher one wins: a mistake must not wait for the day when the flag is left out.
Reading files and the environment is not done here; see penstock.cli.serve.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from penstock.core.config_keys import BROKER_KEYS
from penstock.core.config_values import ConfigError, ConfigValue, Key, nearest, to_text
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.listeners import INTERNAL_LISTENER, Listener, advertised, is_loopback, parse_listeners, reachable
from penstock.core.log_keys import TOPIC_KEYS
from penstock.core.metadata_address import parse_metadata_address

ENVIRONMENT_PREFIX = "PENSTOCK_"
# Set for one broker by `penstock broker drain`, read by the controller.
DRAINING_KEY = "penstock.broker.draining"

# Variables with our prefix that are not keys: those of the tools and the tests, and those that Kubernetes sets in every
# container next to a service named "penstock".
_NOT_KEYS = re.compile(r"PENSTOCK_(BOOTSTRAP|PURE_RECORDS|TEST_.*|PORT(_.*)?|(.*_)?SERVICE_(HOST|PORT)(_.*)?)")


class ConfigSource(IntEnum):
    """Who set a value; the numbers are those of DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One of the places that a value is looked for in."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """What DescribeConfigs says of a key. `synonyms` are all places that have a value, the one that counts first."""

    key: Key
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name` is to be `text`, says `origin`: a flag, a variable, a file, in words for a message."""

    name: str
    text: str
    origin: str


class BrokerConfig:
    """Every key has a value here; `int`, `str` and the others also tell the type checker which type it has."""

    def __init__(
        self,
        assignments: Iterable[Assignment] = (),
        *,
        dynamic_defaults: Mapping[str, str] | None = None,
        dynamic: Mapping[str, str] | None = None,
    ) -> None:
        """`assignments` in rising precedence. Raises ConfigError with a message that names key, value and origin."""
        self._assignments = tuple(assignments)
        self._texts: dict[ConfigSource, dict[builtins.str, builtins.str]] = {
            ConfigSource.STATIC_BROKER_CONFIG: {},
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: dict(dynamic_defaults or {}),
            ConfigSource.DYNAMIC_BROKER_CONFIG: dict(dynamic or {}),
        }
        self._values: dict[builtins.str, ConfigValue] = {key.name: key.default for key in BROKER_KEYS.values()}
        for assignment in self._assignments:
            self._values[assignment.name] = _parse_assignment(assignment)
            self._texts[ConfigSource.STATIC_BROKER_CONFIG][assignment.name] = assignment.text
        for overrides in (dynamic_defaults or {}, dynamic or {}):
            for name, text in overrides.items():
                self._values[name] = validate_broker_config(name, text)
        self._check_together()

    def with_dynamic(
        self, defaults: Mapping[builtins.str, builtins.str], own: Mapping[builtins.str, builtins.str]
    ) -> BrokerConfig:
        """This configuration under the overrides of the metadata store: for all brokers, and for this one."""
        return BrokerConfig(self._assignments, dynamic_defaults=defaults, dynamic=own)

    def as_node(self, node_id: builtins.int) -> BrokerConfig:
        """This configuration with the id that the broker has, said or not."""
        kept = Assignment("node.id", str(node_id), "the data directory")
        return BrokerConfig((kept, *self._assignments))

    def _check_together(self) -> None:
        for source in (ConfigSource.STATIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG):
            if DRAINING_KEY in self._texts[source]:
                raise ConfigError(f"{DRAINING_KEY} is set for one broker while it runs: penstock broker drain ID")
        log_dirs = self["log.dirs"]
        if isinstance(log_dirs, tuple) and len(log_dirs) != 1:
            raise ConfigError("log.dirs has several directories, but a broker has one: run one broker for each")
        hosts = [listener.host for listener in self.listeners]
        hosts.append(self.optional_str("penstock.http.host") or hosts[0])
        assert self.advertised_listeners
        if self["penstock.metadata"] is not None:
            parse_metadata_address(self.str("penstock.metadata"))
        for host in hosts:
            if not is_loopback(host) and not self.bool("penstock.insecure"):
                raise ConfigError(
                    f'"{host}" can be reached from other machines, and this broker asks no client who it is: '
                    "listen on 127.0.0.1, or say --insecure (penstock.insecure=true) where the network is trusted"
                )
        if not self.internal_listener.is_loopback and not self.bool("penstock.insecure"):
            raise ConfigError(
                f'"{self.internal_listener.host}" (penstock.internal.host) can be reached from other machines, and '
                "what brokers say to each other is not encrypted: say --insecure where the network is trusted"
            )

    def __getitem__(self, name: builtins.str) -> ConfigValue:
        return self._values[name]

    def __iter__(self) -> Iterator[builtins.str]:
        return iter(self._values)

    def int(self, name: builtins.str) -> builtins.int:
        value = self._values[name]
        assert isinstance(value, int) and not isinstance(value, bool), name
        return value

    def float(self, name: builtins.str) -> builtins.float:
        value = self._values[name]
        assert isinstance(value, float), name
        return value

    def bool(self, name: builtins.str) -> builtins.bool:
        value = self._values[name]
        assert isinstance(value, bool), name
        return value

    def str(self, name: builtins.str) -> builtins.str:
        value = self._values[name]
        assert isinstance(value, str), name
        return value

    def optional_int(self, name: builtins.str) -> builtins.int | None:
        """As `int`, for a key that may have no value."""
        return None if self._values[name] is None else self.int(name)

    def optional_str(self, name: builtins.str) -> builtins.str | None:
        """As `str`, for a key that may have no value."""
        return None if self._values[name] is None else self.str(name)

    def list(self, name: builtins.str) -> tuple[builtins.str, ...]:
        value = self._values[name]
        assert isinstance(value, tuple), name
        return value

    @cached_property
    def listeners(self) -> tuple[Listener, ...]:
        return parse_listeners(self.list("listeners"), self.list("listener.security.protocol.map"))

    @cached_property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        """One per listener, in the same order. Port 0 is to be replaced by the port that the listener got."""
        texts = self._values["advertised.listeners"]
        assert texts is None or isinstance(texts, tuple)
        return advertised(self.listeners, texts, self.list("listener.security.protocol.map"), self._machine)

    @cached_property
    def internal_listener(self) -> Listener:
        """Where the other brokers of the cluster reach this one."""
        host = self.optional_str("penstock.internal.host")
        return Listener(
            INTERNAL_LISTENER, self.listeners[0].host if host is None else host, self.int("penstock.internal.port")
        )

    @property
    def advertised_internal_listener(self) -> Listener:
        return reachable(self.internal_listener, self._machine)

    @property
    def _machine(self) -> builtins.str:
        return self.optional_str("penstock.host") or "localhost"

    @property
    def data_dir(self) -> builtins.str:
        log_dirs = self._values["log.dirs"]
        return log_dirs[0] if isinstance(log_dirs, tuple) else self.str("log.dir")

    def entry(self, name: builtins.str) -> ConfigEntry:
        synonyms = self.synonyms(name)
        first = synonyms[0]
        return ConfigEntry(BROKER_KEYS[name], first.value, first.source, synonyms)

    def entries(self) -> tuple[ConfigEntry, ...]:
        return tuple(self.entry(name) for name in sorted(BROKER_KEYS))

    def synonyms(self, name: builtins.str) -> tuple[ConfigSynonym, ...]:
        """Everything that was said about a key, in falling precedence; the default is the last."""
        said = [
            ConfigSynonym(name, self._texts[source][name], source)
            for source in sorted(self._texts)
            if name in self._texts[source]
        ]
        default = to_text(BROKER_KEYS[name].default)
        return (*said, ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG))


def _parse_assignment(assignment: Assignment) -> ConfigValue:
    name, text, origin = assignment.name, assignment.text, assignment.origin
    key = BROKER_KEYS.get(name)
    if key is None:
        raise ConfigError(f'unknown key "{name}" (from {origin}){_hint(name)}')
    try:
        return key.parse(text)
    except ConfigError as refused:
        raise ConfigError(f'{name}="{text}" (from {origin}): {refused}') from None


def _hint(name: str) -> str:
    if name in TOPIC_KEYS and TOPIC_KEYS[name].broker_defaults:
        return f': it is a key of topics, whose default for all topics is "{TOPIC_KEYS[name].broker_defaults[0].name}"'
    guess = nearest(name, BROKER_KEYS)
    return f'; did you mean "{guess}"?' if guess else "; docs/configuration.md lists all keys"


def validate_broker_config(name: str, text: str) -> ConfigValue:
    """The value of a dynamic override, or BrokerError for a client that asked for it."""
    key = BROKER_KEYS.get(name)
    if key is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f'unknown broker key "{name}"{_hint(name)}')
    if not key.dynamic:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f'"{name}" cannot change while the broker runs')
    try:
        return key.parse(text)
    except ConfigError as refused:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f'{name}="{text}": {refused}') from None


def environment_name(key_name: str) -> str:
    return ENVIRONMENT_PREFIX + key_name.upper().replace(".", "_")


def environment_assignments(environment: Mapping[str, str]) -> tuple[Assignment, ...]:
    """The keys that the environment sets; a variable with our prefix that is no key is refused."""
    names = {environment_name(name): name for name in BROKER_KEYS}
    assignments = []
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or _NOT_KEYS.fullmatch(variable):
            continue
        if variable not in names:
            guess = nearest(variable, names)
            raise ConfigError(
                f"unknown environment variable {variable}" + (f"; did you mean {guess}?" if guess else "")
            )
        assignments.append(Assignment(names[variable], text, f"environment variable {variable}"))
    return tuple(assignments)


def file_assignments(document: Mapping[str, object], path: str) -> tuple[Assignment, ...]:
    """The keys of a TOML document; `[log] segment.bytes = 1` and `"log.segment.bytes" = 1` say the same."""
    assignments: dict[str, Assignment] = {}
    for name, value in _flatten(document):
        if name in assignments:
            raise ConfigError(f'"{name}" is set twice in {path}')
        try:
            text = to_text(value)
        except ConfigError as refused:
            raise ConfigError(f'"{name}" in {path}: {refused}') from None
        assert text is not None  # TOML has no null
        assignments[name] = Assignment(name, text, path)
    return tuple(assignments.values())


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def set_assignments(texts: Iterable[str]) -> tuple[Assignment, ...]:
    """The `KEY=VALUE` of --set."""
    assignments = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f'--set takes KEY=VALUE, not "{text}"')
        assignments.append(Assignment(name.strip(), value.strip(), "--set"))
    return tuple(assignments)
