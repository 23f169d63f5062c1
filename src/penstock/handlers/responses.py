"""A response message as the parts of a frame: size, header, body, with file spans left as they are."""

from __future__ import annotations

import struct
from typing import cast

from penstock.net.connection import Part
from penstock.protocol.codec import Response
from penstock.protocol.frames import RequestHeader, has_flexible_response_header, response_header

_SIZE = struct.Struct(">i")


def response_frame(header: RequestHeader, response: Response) -> list[Part]:
    version = header.api_version
    flexible = has_flexible_response_header(response.API_KEY, version, response.FLEXIBLE_SINCE)
    prefix = response_header(header.correlation_id, flexible=flexible)
    # The spans that our handlers put into a response are all spans of files.
    parts = cast(list[Part], response.encode_parts(version))
    size = sum(len(part) if isinstance(part, (bytes, bytearray)) else part.length for part in parts)
    parts.insert(0, _SIZE.pack(len(prefix) + size) + prefix)
    return parts
