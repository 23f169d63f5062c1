"""Requests and responses: structs that know their API, their versions, and how to become bytes and back.

One class serves all versions of a message. A field that a version lacks is dropped by encoding and has its default
after decoding. The code for a version is generated at its first use (`compiler`), so starting up costs nothing. Data is
laid out in the same way, but lies inside a message or in a record of a log.

Whatever bytes arrive, decoding returns a message or raises MalformedRequest, nothing else.
"""

from __future__ import annotations

from struct import error as StructError
from typing import Any, ClassVar, Self

from penstock.core.errors import MalformedRequest
from penstock.protocol.compiler import Decoder, Encoder, compile_decoder, compile_encoder
from penstock.protocol.primitives import BytesLike, RecordsSpan
from penstock.protocol.schema import ALL_VERSIONS, Struct, Versions

NEVER_FLEXIBLE = ALL_VERSIONS.last + 1
NO_API_KEY = -1


class Message(Struct):
    NAME: ClassVar[str]
    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int]
    _decoders: ClassVar[dict[int, Decoder]]
    _encoders: ClassVar[dict[int, Encoder]]

    @classmethod
    def _describe(cls, name: str, api_key: int, versions: Versions, flexible_since: int) -> None:
        cls.NAME = name
        cls.API_KEY = api_key
        cls.MIN_VERSION, cls.MAX_VERSION = versions
        cls.FLEXIBLE_SINCE = flexible_since
        cls._decoders = {}
        cls._encoders = {}

    @classmethod
    def decode(cls, body: BytesLike, version: int) -> Self:
        """The message that `body`, what follows the header, begins with; bytes after it are ignored, as in Kafka."""
        return cls.decode_prefix(body, version)[0]

    @classmethod
    def decode_prefix(cls, body: BytesLike, version: int) -> tuple[Self, int]:
        """The message, and how many bytes of `body` it takes."""
        decoder = cls._decoders.get(version) or cls._new_decoder(version)
        view = memoryview(body)
        try:
            return decoder(view, 0, len(view))
        except (IndexError, StructError):
            raise MalformedRequest(f"{cls.__name__} v{version}: {len(view)} bytes, but it goes on") from None
        except MemoryError:
            raise MalformedRequest(f"{cls.__name__} v{version}: {len(view)} bytes are too much to decode") from None

    def encode(self, version: int) -> bytes:
        """The body, without a header."""
        return b"".join(self._encode(version)[0])

    def encode_parts(self, version: int) -> list[bytes | RecordsSpan]:
        """As `encode`, in pieces: records that are not bytes stand between the bytes for the transport to send."""
        pieces, spans = self._encode(version)
        parts: list[bytes | RecordsSpan] = []
        start = 0
        for span in spans:
            parts += (b"".join(pieces[start:span]), pieces[span])
            start = span + 1
        if start < len(pieces):
            parts.append(b"".join(pieces[start:]))
        return parts

    def _encode(self, version: int) -> tuple[list[Any], list[int]]:
        """The pieces, and the indexes of those that are not bytes."""
        encoder = self._encoders.get(version) or self._new_encoder(version)
        pieces: list[Any] = []
        spans: list[int] = []
        try:
            encoder(self, pieces, spans)
        except Exception as error:
            error.add_note(f"while encoding {type(self).__name__} v{version}")
            raise
        return pieces, spans

    @classmethod
    def _new_decoder(cls, version: int) -> Decoder:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise MalformedRequest(f"{cls.NAME} v{version} is not supported")
        decoder = cls._decoders[version] = compile_decoder(cls, version, flexible=version >= cls.FLEXIBLE_SINCE)
        return decoder

    @classmethod
    def _new_encoder(cls, version: int) -> Encoder:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise ValueError(f"{cls.NAME} v{version} is not supported")
        encoder = cls._encoders[version] = compile_encoder(cls, version, flexible=version >= cls.FLEXIBLE_SINCE)
        return encoder


class Request(Message):
    """`class FooRequest(Request, api_key=7, versions="0-3", flexible=2)`

    `advertised_from` is the lowest version that ApiVersions names, when that is not the lowest one we know.
    """

    ADVERTISED_MIN_VERSION: ClassVar[int]

    def __init_subclass__(
        cls, *, api_key: int, versions: str, flexible: int = NEVER_FLEXIBLE, advertised_from: int | None = None
    ) -> None:
        cls._describe(cls.__name__.removesuffix("Request"), api_key, Versions.parse(versions), flexible)
        cls.ADVERTISED_MIN_VERSION = cls.MIN_VERSION if advertised_from is None else advertised_from


class Response(Message):
    """`class FooResponse(Response, to=FooRequest)`: a response has the versions of its request."""

    def __init_subclass__(cls, *, to: type[Request]) -> None:
        cls._describe(to.NAME, to.API_KEY, Versions(to.MIN_VERSION, to.MAX_VERSION), to.FLEXIBLE_SINCE)


class Data(Message):
    """`class Foo(Data, versions="0-3", flexible=2)`: stands after an int16 that says which version it has."""

    def __init_subclass__(cls, *, versions: str = "0", flexible: int = NEVER_FLEXIBLE) -> None:
        cls._describe(cls.__name__, NO_API_KEY, Versions.parse(versions), flexible)

    @classmethod
    def encode_fields_of(cls, source: object, version: int, *, prefix: int | None = None) -> bytes:
        """The layout filled from any object that has its fields by name. `prefix` is for what is not its version."""
        encoder = cls._encoders.get(version) or cls._new_encoder(version)
        pieces: list[Any] = [(version if prefix is None else prefix).to_bytes(2, "big")]
        encoder(source, pieces, [])
        return b"".join(pieces)
