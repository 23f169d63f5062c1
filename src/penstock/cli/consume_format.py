"""How `penstock consume` prints a record: as bytes, so that what is not text comes through unharmed."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.config_values import nearest

NULL = b"null"
_NO_TIMESTAMP = -1
_FIELD = re.compile(r"\{([a-z_]*)\}")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class OutputRecord:
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Formatter = Callable[[OutputRecord], bytes]


class BadFormat(ValueError):
    """A --format that means nothing; the message says what would."""


def formatter(text: str) -> Formatter:
    """`value`, `key-value`, `json`, or a text with {fields}."""
    named = NAMED_FORMATS.get(text)
    if named is not None:
        return named
    if "{" not in text:
        guess = nearest(text, NAMED_FORMATS)
        hint = f"; did you mean {guess}?" if guess else ""
        raise BadFormat(f'"{text}" is neither one of {", ".join(NAMED_FORMATS)} nor a text with {{fields}}{hint}')
    return _template(text)


def _value(record: OutputRecord) -> bytes:
    return _or_null(record.value)


def _key_value(record: OutputRecord) -> bytes:
    return _or_null(record.key) + b"\t" + _or_null(record.value)


def _or_null(data: bytes | None) -> bytes:
    return NULL if data is None else data


def _json(record: OutputRecord) -> bytes:
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp_ms == _NO_TIMESTAMP else record.timestamp_ms,
    }
    document |= _json_bytes("key", record.key) | _json_bytes("value", record.value)
    document["headers"] = [[name, _json_header(value)] for name, value in record.headers]
    return json.dumps(document, ensure_ascii=False).encode()


def _json_bytes(field: str, data: bytes | None) -> dict[str, object]:
    """Text as it is; what is not UTF-8 under another name, which `produce --json` knows."""
    text = _text(data)
    if data is not None and text is None:
        return {f"{field}_base64": base64.b64encode(data).decode()}
    return {field: text}


def _json_header(data: bytes | None) -> object:
    text = _text(data)
    return {"base64": base64.b64encode(data).decode()} if data is not None and text is None else text


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


NAMED_FORMATS: dict[str, Formatter] = {"value": _value, "key-value": _key_value, "json": _json}

FIELDS: dict[str, Formatter] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp_ms,
    "key": lambda record: _or_null(record.key),
    "value": _value,
    "headers": lambda record: b",".join(name.encode() + b"=" + _or_null(value) for name, value in record.headers),
    "key_bytes": lambda record: b"%d" % len(record.key or b""),
    "value_bytes": lambda record: b"%d" % len(record.value or b""),
}


def _template(text: str) -> Formatter:
    """Texts and field names alternate in what the pattern splits."""
    parts: list[Formatter] = []
    for index, piece in enumerate(_FIELD.split(text)):
        if index % 2 == 0:
            parts.append(_constant(_unescape(piece)))
        elif piece in FIELDS:
            parts.append(FIELDS[piece])
        else:
            guess = nearest(piece, FIELDS)
            hint = f"did you mean {{{guess}}}?" if guess else f"fields are {', '.join(FIELDS)}"
            raise BadFormat(f"no field {{{piece}}}; {hint}")
    return lambda record: b"".join([part(record) for part in parts])


def _constant(text: str) -> Formatter:
    data = text.encode()
    return lambda record: data


def _unescape(text: str) -> str:
    return re.sub(r"\\[nt0\\]", lambda match: _ESCAPES[match.group()], text)
