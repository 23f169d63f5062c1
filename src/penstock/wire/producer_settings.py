"""Settings of a producer, by the names that Java's producer and librdkafka have for them.

What is not in KEYS is refused by whoever parses them. What is in WITHOUT_EFFECT is taken and does nothing: it tunes
queues and timers that this producer does not have, and whoever gives it has what it is given for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.protocol.batch import Codec
from penstock.wire.errors import BadSettings

BUFFER_BYTES = 32 << 20
BATCH_BYTES = 1_000_000
MAX_IN_FLIGHT = 5  # batches of a producer that a broker remembers, and knows again when they come twice
DELIVERY_TIMEOUT_MS = TRANSACTION_TIMEOUT_MS = 300_000

_INT32_MAX = (1 << 31) - 1
_CODECS = {codec.name.lower(): codec for codec in Codec}
_LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131_072, 22)}
# What a setting is called here, and by whom it is called otherwise.
_ALIASES = {
    "compression.codec": "compression.type",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.max.bytes": "max.request.size",
    "message.timeout.ms": "delivery.timeout.ms",
}
_KBYTES = "queue.buffering.max.kbytes"
WITHOUT_EFFECT = frozenset(
    {
        "batch.num.messages",
        "linger.ms",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "sticky.partitioning.linger.ms",
    }
)
KEYS = (
    frozenset(
        {
            "batch.size",
            "buffer.memory",
            "compression.level",
            "compression.type",
            "delivery.timeout.ms",
            "max.in.flight.requests.per.connection",
            "max.request.size",
            "transaction.timeout.ms",
            _KBYTES,
        }
    )
    | _ALIASES.keys()
    | WITHOUT_EFFECT
)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """`batch_bytes` is what a batch of several records has at most, `max_bytes` one of a single record.

    Both are before compression. `buffer_bytes` bounds what is gathered and what is not acknowledged, together.
    """

    batch_bytes: int = BATCH_BYTES
    max_bytes: int = BUFFER_BYTES
    buffer_bytes: int = BUFFER_BYTES
    codec: Codec = Codec.NONE
    level: int | None = None  # None: the codec's default
    max_in_flight: int = MAX_IN_FLIGHT
    delivery_timeout_s: float = DELIVERY_TIMEOUT_MS / 1_000
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS

    @classmethod
    def parse(cls, values: Mapping[str, str], *, is_transactional: bool) -> ProducerSettings:
        """Of settings that are in KEYS. Raises BadSettings."""
        read = _Values(values)
        for key in WITHOUT_EFFECT & values.keys():
            read.amount(key)
        buffer_bytes = read.buffer_bytes()
        max_bytes = min(read.number("max.request.size", buffer_bytes), buffer_bytes)
        codec = read.codec()
        return cls(
            batch_bytes=min(read.number("batch.size", BATCH_BYTES), max_bytes),
            max_bytes=max_bytes,
            buffer_bytes=buffer_bytes,
            codec=codec,
            level=read.level(codec),
            max_in_flight=read.number("max.in.flight.requests.per.connection", MAX_IN_FLIGHT, MAX_IN_FLIGHT),
            delivery_timeout_s=read.delivery_timeout_ms(is_transactional) / 1_000,
            transaction_timeout_ms=read.transaction_timeout_ms(),
        )


class _Values:
    """By the name that a setting has here; errors have the name by which it was given."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._given = {_ALIASES.get(key, key): key for key in values}
        self._values = {_ALIASES.get(key, key): value.strip() for key, value in values.items()}
        for key in values:
            if key in _ALIASES and _ALIASES[key] in values:
                raise BadSettings(key, f"is another name of {_ALIASES[key]}: give one of them")

    def _name(self, key: str) -> str:
        return self._given.get(key, key)

    def number(self, key: str, default: int, at_most: int = _INT32_MAX) -> int:
        text = self._values.get(key, str(default))
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= at_most):
            allowed = "a number above 0" if at_most == _INT32_MAX else f"1 to {at_most}"
            raise BadSettings(self._name(key), f'takes {allowed}, not "{text}"')
        return int(text)

    def amount(self, key: str) -> None:
        """Checked, and then not used."""
        try:
            float(self._values[key])
        except ValueError:
            raise BadSettings(key, f'takes a number, not "{self._values[key]}"') from None

    def buffer_bytes(self) -> int:
        if _KBYTES not in self._values:
            return self.number("buffer.memory", BUFFER_BYTES)
        if "buffer.memory" in self._values:
            raise BadSettings(_KBYTES, "is another name of buffer.memory, in KiB: give one of them")
        return self.number(_KBYTES, BUFFER_BYTES >> 10, _INT32_MAX >> 10) << 10

    def transaction_timeout_ms(self) -> int:
        return self.number("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)

    def delivery_timeout_ms(self, is_transactional: bool) -> int:
        """Of a transactional producer no longer than a transaction may be open: it would deliver what is aborted."""
        if not is_transactional:
            return self.number("delivery.timeout.ms", DELIVERY_TIMEOUT_MS)
        longest_ms = self.transaction_timeout_ms()
        timeout_ms = self.number("delivery.timeout.ms", min(DELIVERY_TIMEOUT_MS, longest_ms))
        if timeout_ms > longest_ms:
            raise BadSettings(
                self._name("delivery.timeout.ms"), f"cannot be above transaction.timeout.ms, which is {longest_ms}"
            )
        return timeout_ms

    def codec(self) -> Codec:
        text = self._values.get("compression.type", "none").lower()
        if text not in _CODECS:
            raise BadSettings(self._name("compression.type"), f'takes {", ".join(_CODECS)}, not "{text}"')
        return _CODECS[text]

    def level(self, codec: Codec) -> int | None:
        text = self._values.get("compression.level", "-1")
        if text == "-1":
            return None
        if codec not in _LEVELS:
            raise BadSettings("compression.level", f"is for {', '.join(each.name.lower() for each in _LEVELS)}")
        lowest, highest = _LEVELS[codec]
        try:
            level = int(text)
        except ValueError:
            level = lowest - 1
        if not lowest <= level <= highest:
            raise BadSettings(
                "compression.level", f'takes {lowest} to {highest} for {codec.name.lower()}, not "{text}"'
            )
        return level
