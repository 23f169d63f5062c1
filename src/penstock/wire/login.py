"""How a connection says who it is: SASL with PLAIN or SCRAM, in SaslAuthenticate (KIP-152).

When a broker wants logins to be renewed (KIP-368) it closes the connection in the end; whoever reads begins a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.wire.errors import NotAuthenticated, check, reason
from penstock.wire.settings import Login, Mechanism

if TYPE_CHECKING:
    from penstock.wire.connection import Connection

_WITH_HEADERS_SINCE = 1


def log_in(connection: Connection, login: Login) -> None:
    """Raises NotAuthenticated."""
    try:
        _shake_hands(connection, login)
        if login.mechanism is Mechanism.PLAIN:
            _say(connection, b"\0".join((b"", login.username.encode(), login.password.encode())))
        else:
            _log_in_with_scram(connection, login)
    except BrokerError as refused:
        raise NotAuthenticated(
            f'the broker at {connection.address} refuses "{login.username}" ({login.mechanism}): {reason(refused)}'
        ) from None


def _shake_hands(connection: Connection, login: Login) -> None:
    request = SaslHandshakeRequest(mechanism=login.mechanism)
    answer = connection.ask(request, SaslHandshakeResponse, needed=_WITH_HEADERS_SINCE)
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        raise NotAuthenticated(f"the broker at {connection.address} has no {login.mechanism}: it knows {offered}")
    check(answer.error_code)


def _say(connection: Connection, words: bytes) -> bytes:
    answer = connection.ask(SaslAuthenticateRequest(auth_bytes=words), SaslAuthenticateResponse)
    check(answer.error_code, answer.error_message)
    return bytes(answer.auth_bytes)


def _log_in_with_scram(connection: Connection, login: Login) -> None:
    import scramp  # which takes a tenth of a second

    scram = scramp.ScramClient([login.mechanism], login.username, login.password)
    try:
        scram.set_server_first(_say(connection, scram.get_client_first().encode()).decode())
        scram.set_server_final(_say(connection, scram.get_client_final().encode()).decode())
    except (scramp.ScramException, UnicodeDecodeError) as error:
        # The broker proves that it knows the password as well.
        raise NotAuthenticated(f"the broker at {connection.address} does not know the password: {error}") from None
