"""What brokers say only to each other, on the internal listener: not Kafka's, and unknown on every other listener.

The keys are far above Kafka's, which count up from 0. A message goes from one broker to another, perhaps of the next
release: fields are added with a new version, or tagged.
"""

from __future__ import annotations

from typing import Final

from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import bytestring, int16, int64, string


class AskControllerRequest(Request, api_key=20_001, versions="0", flexible=0):
    """A command for the controller (`controller/command_codec.py`), and on whose behalf it is given."""

    command: str = string()
    principal: str = string()
    body: bytes = bytestring()


class AskControllerResponse(Response, to=AskControllerRequest):
    """`revision` is one of the metadata store at which the answer holds: whoever asked waits until it has seen that."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    revision: int = int64()
    body: bytes = bytestring()


INTERNAL_MESSAGES: Final[tuple[tuple[type[Request], type[Response]], ...]] = (
    (AskControllerRequest, AskControllerResponse),
)
