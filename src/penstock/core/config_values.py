"""What a configuration key is, and how its text becomes a value.

Every value reaches the broker as text (a flag, an environment variable, a request) or as a TOML value that is turned
into text first, so there is one parser and one set of messages. A refusal always says which values are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

ConfigValue = bool | int | float | str | tuple[str, ...] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_NUMBER = re.compile(r"[+-]?[0-9]+")


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is for the person who wrote it."""


class ConfigType(IntEnum):
    """Kafka's types of configuration values; the numbers are those of DescribeConfigs."""

    BOOL = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Scope(IntEnum):
    """Who has the key."""

    BROKER = 0
    TOPIC = 1


@dataclass(frozen=True, slots=True)
class BrokerDefault:
    """A broker key that gives a topic key its default; `unit_ms` turns its hours or minutes into milliseconds."""

    name: str
    unit_ms: int = 1


@dataclass(frozen=True, slots=True)
class Key:
    """One row of the table.

    `at_least` and `at_most` bound numbers; `choices` are the only texts allowed for a string, or for each element of a
    list, and `pattern` is what each element matches. A key whose default is None may be left without a value, never set
    to nothing. `in_effect` is False for Kafka's keys that are accepted and shown but change nothing in this version.
    `kafka_default` is given where our default is another one than Kafka's.
    """

    name: str
    type: ConfigType
    default: ConfigValue
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    may_be_empty: bool = False
    dynamic: bool = False
    sensitive: bool = False
    in_effect: bool = True
    kafka_default: str | None = None
    scope: Scope = Scope.BROKER
    broker_defaults: tuple[BrokerDefault, ...] = ()

    def parse(self, text: str) -> ConfigValue:
        """The value, or ConfigError with the reason alone; who calls it knows where the text came from."""
        value = _PARSERS[self.type](text.strip())
        if value is None or not self._allows(value):
            raise ConfigError(f"expected {self.allowed()}")
        return value

    def _allows(self, value: ConfigValue) -> bool:
        if isinstance(value, tuple):
            return self._allows_list(value)
        if isinstance(value, str):
            return value in self.choices if self.choices else bool(value) or self.may_be_empty
        if isinstance(value, bool) or value is None:
            return True
        lowest, highest = self.bounds()
        return lowest <= value <= highest

    def _allows_list(self, elements: tuple[str, ...]) -> bool:
        if not elements:
            return self.may_be_empty
        if len(set(elements)) != len(elements) or not all(elements):
            return False
        if self.pattern is not None and not all(re.fullmatch(self.pattern, element) for element in elements):
            return False
        return not self.choices or all(element in self.choices for element in elements)

    def bounds(self) -> tuple[float, float]:
        """The lowest and highest number allowed, those of the type included."""
        if self.type is ConfigType.DOUBLE:
            lowest, highest = -float("inf"), float("inf")
        else:
            highest = INT_MAX if self.type is ConfigType.INT else LONG_MAX
            lowest = -highest - 1
        return (
            lowest if self.at_least is None else self.at_least,
            highest if self.at_most is None else self.at_most,
        )

    def allowed(self) -> str:
        """The allowed values in words, for messages and for the documentation."""
        if self.type is ConfigType.BOOL:
            return "true or false"
        if self.type is ConfigType.STRING:
            return f"one of {', '.join(self.choices)}" if self.choices else "text"
        if self.type is ConfigType.LIST:
            listed = f"different elements of {', '.join(self.choices)}" if self.choices else "different elements"
            if self.pattern is not None:
                listed += f" that match {self.pattern}"
            return f"a list with commas of {listed}" + (", or nothing" if self.may_be_empty else "")
        return f"{_NUMBER_NAMES[self.type]} {self._range()}"

    def _range(self) -> str:
        lowest, highest = self.bounds()
        if self.at_most is None and self.at_least is not None:
            return f"of at least {lowest}"
        return f"from {lowest} to {highest}"


_NUMBER_NAMES = {
    ConfigType.INT: "a whole number",
    ConfigType.LONG: "a whole number",
    ConfigType.DOUBLE: "a number",
}


def _parse_bool(text: str) -> ConfigValue:
    return {"true": True, "false": False}.get(text.lower())


def _parse_whole(text: str) -> ConfigValue:
    return int(text) if _NUMBER.fullmatch(text) and len(text) <= 20 else None


def _parse_double(text: str) -> ConfigValue:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_list(text: str) -> ConfigValue:
    return tuple(element.strip() for element in text.split(",")) if text else ()


_PARSERS: dict[ConfigType, Callable[[str], ConfigValue]] = {
    ConfigType.BOOL: _parse_bool,
    ConfigType.STRING: str,
    ConfigType.INT: _parse_whole,
    ConfigType.LONG: _parse_whole,
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: _parse_list,
}


def to_text(value: object) -> str | None:
    """How a value is written in a request, a flag or the documentation; None stays None: no value."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return ",".join(to_text(element) or "" for element in value)
    raise ConfigError(f"a {type(value).__name__} cannot be the value of a key")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, or None when nothing is close."""
    from difflib import get_close_matches

    matches = get_close_matches(name, list(names), n=1, cutoff=0.6)
    return matches[0] if matches else None
