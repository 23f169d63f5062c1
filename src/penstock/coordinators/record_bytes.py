"""Keys and values of a coordinator's records: an int16, then fields that it says the layout of, as in Kafka.

In a key the int16 is the kind of record, in a value it is the version.
"""

from __future__ import annotations

from typing import TypeVar

from penstock.core.errors import MalformedRequest
from penstock.protocol.codec import Data

AnyData = TypeVar("AnyData", bound=Data)


class BadRecord(ValueError):
    """Bytes that are no record of a coordinator; the message says what is wrong with them."""


def leading_number(data: bytes, name: str) -> int:
    """The int16; `name` is for the complaint."""
    if len(data) < 2:
        raise BadRecord(f"the {name} of a record has {len(data)} bytes, not even its version")
    return int.from_bytes(data[:2], "big", signed=True)


def decode_after_number(layout: type[AnyData], data: bytes, version: int) -> AnyData:
    """Bytes that follow the last field are ignored, as in Kafka."""
    try:
        return layout.decode(memoryview(data)[2:], version)
    except MalformedRequest as error:
        raise BadRecord(str(error)) from None
