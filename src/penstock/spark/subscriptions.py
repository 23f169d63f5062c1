"""Which partitions a query reads: those of named topics, those of topics that match, or just these."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.ids import TopicPartition
from penstock.spark.errors import BadOffsets, BadOption
from penstock.spark.offsets_json import parse_partitions


@dataclass(frozen=True, slots=True)
class Topics:
    names: tuple[str, ...]

    def reads(self, partition: TopicPartition) -> bool:
        return partition.topic in self.names

    def __str__(self) -> str:
        return f"topic{'s' if len(self.names) > 1 else ''} {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """The whole name has to match."""

    regex: str

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.regex, name) is not None

    def reads(self, partition: TopicPartition) -> bool:
        return self.matches(partition.topic)

    def __str__(self) -> str:
        return f"topics that match {self.regex}"


@dataclass(frozen=True, slots=True)
class Partitions:
    partitions: tuple[TopicPartition, ...]

    def reads(self, partition: TopicPartition) -> bool:
        return partition in self.partitions

    def __str__(self) -> str:
        return f"partition{'s' if len(self.partitions) > 1 else ''} {', '.join(map(str, self.partitions))}"


Subscription = Topics | Pattern | Partitions


def parse_subscribe(text: str) -> Topics:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise BadOption("subscribe", f'names no topic: "{text}"')
    return Topics(names)


def parse_pattern(text: str) -> Pattern:
    if not text:
        raise BadOption("subscribePattern", "is empty")
    try:
        re.compile(text)
    except re.error as error:
        raise BadOption("subscribePattern", f'is not a regular expression: {error}, in "{text}"') from None
    return Pattern(text)


def parse_assign(text: str) -> Partitions:
    try:
        return Partitions(tuple(parse_partitions(text, "assign")))
    except BadOffsets as bad:
        raise BadOption("assign", f'takes JSON as {{"topic": [0, 1]}}: {bad}') from None


PARSERS: dict[str, Callable[[str], Subscription]] = {
    "subscribe": parse_subscribe,
    "subscribePattern": parse_pattern,
    "assign": parse_assign,
}
