"""Two brokers prove to each other that they know the cluster's key, without saying it (SCRAM-SHA-256, RFC 5802).

Both ends add a nonce of their own, so nothing that was said on one connection is worth anything on another; each end
signs what both said, so neither goes on with somebody who only pretends. Nothing is encrypted, and what follows on the
connection is not signed: who can write into other people's connections is kept out by the network, or by TLS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId

MECHANISM = "SCRAM-SHA-256"
# RFC 7677's least. A key of 32 random bytes is not guessed, however fast a guess is.
ITERATIONS = 4096
_BROKER = re.compile(r"broker-(0|[1-9][0-9]{0,9})")
_MAX_BROKER_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who this broker is, and the key that proves it."""

    broker_id: BrokerId
    cluster_key: str = field(repr=False)


class ClientProof:
    """The side that connects: `first`, then `final` for what came back, then `check`. Raises BrokerError."""

    def __init__(self, credentials: Credentials) -> None:
        self._scram = _scramp().ScramClient([MECHANISM], f"broker-{credentials.broker_id}", credentials.cluster_key)

    def first(self) -> bytes:
        return _bytes(self._scram.get_client_first())

    def final(self, server_first: bytes) -> bytes:
        with _proving():
            self._scram.set_server_first(_text(server_first))
            if int(self._scram.iterations) != ITERATIONS:
                # Computing for whoever asks for millions would stop this broker for seconds.
                raise _failed(f"{self._scram.iterations} iterations, expected {ITERATIONS}")
            return _bytes(self._scram.get_client_final())

    def check(self, server_final: bytes) -> None:
        """Whether the other side knows the key as well."""
        with _proving():
            self._scram.set_server_final(_text(server_final))


class ServerProof:
    """The side that is connected to: `first` for what came, then `final`. Raises BrokerError."""

    def __init__(self, verifier: Verifier) -> None:
        self._broker_id: BrokerId | None = None
        self._scram = verifier.mechanism.make_server(self._look_up)
        self._verifier = verifier

    def _look_up(self, user: str) -> tuple[bytes, bytes, bytes, int] | None:
        found = _BROKER.fullmatch(user)
        if found is None or int(found[1]) > _MAX_BROKER_ID:
            return None
        self._broker_id = BrokerId(int(found[1]))
        return self._verifier.secrets

    def first(self, client_first: bytes) -> bytes:
        with _proving():
            self._scram.set_client_first(_text(client_first))
            return _bytes(self._scram.get_server_first())

    def final(self, client_final: bytes) -> tuple[BrokerId, bytes]:
        """Who the other side is, and what to tell it."""
        with _proving():
            self._scram.set_client_final(_text(client_final))
            assert self._broker_id is not None
            return self._broker_id, _bytes(self._scram.get_server_final())


class Verifier:
    """What follows from the key, computed once for all connections."""

    __slots__ = ("mechanism", "secrets")

    def __init__(self, cluster_key: str) -> None:
        self.mechanism = _scramp().ScramMechanism(MECHANISM)
        self.secrets: tuple[bytes, bytes, bytes, int] = self.mechanism.make_auth_info(
            cluster_key, iteration_count=ITERATIONS
        )


def _scramp() -> Any:
    """Imported when it is needed: a broker that is alone starts without it, a tenth faster."""
    import scramp

    return scramp


@contextmanager
def _proving() -> Iterator[None]:
    try:
        yield
    except _scramp().ScramException as error:
        raise _failed(str(error)) from None


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise _failed("not UTF-8") from None


def _bytes(message: str) -> bytes:
    return message.encode()


def _failed(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"the cluster's key was not proven: {reason}")
