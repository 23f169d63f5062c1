"""A socket with TLS around it."""

from __future__ import annotations

import socket
import ssl
from functools import lru_cache

from penstock.wire.errors import BadSettings
from penstock.wire.settings import Address, Tls


def secured(channel: socket.socket, address: Address, tls: Tls) -> ssl.SSLSocket:
    """Raises OSError, of which ssl.SSLError is one, when the two do not come to an agreement."""
    return _context(tls).wrap_socket(channel, server_hostname=address.host)


@lru_cache(maxsize=8)  # the system's authorities take tens of milliseconds to read
def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        raise BadSettings("ssl.ca.location", f'"{tls.ca}" cannot be read: {error.strerror or error}') from None
    context.check_hostname = tls.checks_name and tls.checks_certificate
    context.verify_mode = ssl.CERT_REQUIRED if tls.checks_certificate else ssl.CERT_NONE
    if tls.certificate is not None:
        try:
            # A key that is encrypted would have OpenSSL ask the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password=tls.key_password or "")
        except OSError as error:
            which = f'"{tls.certificate}"' + (f' with the key "{tls.key}"' if tls.key else "")
            why = "ssl.key.password does not fit" if _is_about_password(error) else error.strerror or error
            raise BadSettings("ssl.certificate.location", f"{which} cannot be used: {why}") from None
    return context


def _is_about_password(error: OSError) -> bool:
    return isinstance(error, ssl.SSLError) and (error.reason or "") in ("BAD_DECRYPT", "BAD_PASSWORD_READ", "")
