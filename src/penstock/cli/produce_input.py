"""From lines of input to records to produce.

A line is a value, a key and a value with a separator between, or a JSON object. The JSON is what `penstock consume
--format json` prints, so a topic can be copied through a pipe or kept in a file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# As confluent-kafka takes them; our values are always bytes.
Headers = list[tuple[str, str | bytes | None]]


class BadLine(ValueError):
    """A line that is no record; the message says why."""


@dataclass(frozen=True, slots=True)
class InputRecord:
    """What one line asks for; None for the partition or the timestamp leaves the choice to the client."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


LineParser = Callable[[bytes], InputRecord]


def value_line(line: bytes) -> InputRecord:
    return InputRecord(value=line)


def keyed_line(separator: bytes) -> LineParser:
    def parse(line: bytes) -> InputRecord:
        key, found, value = line.partition(separator)
        if not found:
            raise BadLine(f"no key: the separator {separator.decode()!r} is not in it")
        return InputRecord(value=value, key=key)

    return parse


def json_line(line: bytes) -> InputRecord:
    """`key` and `value` are text, or JSON that is sent as text; `key_base64` and `value_base64` are any bytes."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadLine("not a JSON object")
    if not document.keys() & {"value", "value_base64"}:
        raise BadLine('it has no "value"; a record without one says "value": null')
    return InputRecord(
        value=_bytes(document, "value"),
        key=_bytes(document, "key"),
        headers=_headers(document.get("headers")),
        partition=_number(document, "partition"),
        timestamp_ms=_number(document, "timestamp"),
    )


def _bytes(document: Mapping[str, object], field: str) -> bytes | None:
    encoded = document.get(f"{field}_base64")
    if encoded is None:
        return to_bytes(document.get(field))
    try:
        return base64.b64decode(str(encoded), validate=True)
    except ValueError:
        raise BadLine(f'"{field}_base64" is not base64') from None


def to_bytes(value: object) -> bytes | None:
    """Text as it is, no value as none, everything else as compact JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers(headers: object) -> Headers | None:
    """An object, or a list of [name, value] where a name repeats; a value may be {"base64": ...}."""
    if headers is None:
        return None
    listed = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(listed, list) or not all(_is_header(header) for header in listed):
        raise BadLine('"headers" is neither an object nor a list of [name, value]')
    return [(name, _header_value(value)) for name, value in listed]


def _is_header(header: object) -> bool:
    return isinstance(header, list | tuple) and len(header) == 2 and isinstance(header[0], str)


def _header_value(value: object) -> bytes | None:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _bytes({"header_base64": value["base64"]}, "header")
    return to_bytes(value)


def _number(document: Mapping[str, object], field: str) -> int | None:
    value = document.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadLine(f'"{field}" is not a whole number')
    return value
