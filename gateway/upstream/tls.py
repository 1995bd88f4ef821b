"""Certificates, keys and authorities from PEM files.

Owns the error messages for files that cannot be used: which file it is, and what is wrong with it.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

_CERTIFICATE: Final = b"CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
_REVOCATIONS: Final = b"X509 CRL-----"
# X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
_OUT_OF_DATE: Final = frozenset((9, 10))


class PemError(OSError):
    """A file that cannot be used. The message names it."""


def load_chain(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Load this certificate and its key into `context`. Raises `PemError`."""
    _expect(cert, _CERTIFICATE, "certificate")
    _expect(key, _KEY, "private key")

    def refuse_passphrase() -> str:
        # Without this, OpenSSL prompts on the terminal and waits.
        raise PemError(f"{key} is encrypted; a key without a passphrase is needed")

    try:
        context.load_cert_chain(cert, key, refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise PemError(f"{key} is the key of another certificate than {cert}") from None
        raise PemError(f"{cert} with {key}: {_reason(error)}") from None


def check_dates(cert: Path, key: Path) -> None:
    """Raises `PemError` where a peer would refuse this certificate today for its dates, or where `load_chain` does.

    It makes an in-memory handshake with a peer that trusts just this certificate.
    """
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_chain(serving, cert, key)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(to_client, to_server), serving.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in _OUT_OF_DATE:
                raise PemError(f"{cert}: {error.verify_message}") from None
            return


def client_context(ca: Path | None) -> ssl.SSLContext:
    """A client's context that trusts these authorities, or the system's. Raises `PemError`."""
    if ca is not None:
        _expect(ca, _CERTIFICATE, "certificate")
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
    except ssl.SSLError as error:
        raise PemError(f"{ca}: {_reason(error)}") from None


def tls_context(ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """A context that verifies the upstream, against `ca` or else the system's roots, and presents `cert` if given.

    Raises OSError when a file cannot be read or used.
    """
    context = client_context(ca)
    context.set_alpn_protocols(["http/1.1"])
    if cert is not None and key is not None:
        load_chain(context, cert, key)
    return context


def ask_for_certificates(context: ssl.SSLContext, ca: Path, *, is_required: bool) -> None:
    """Ask the clients of a server for certificates of these authorities. Raises `PemError`.

    One that is not valid ends the handshake. There are no tickets to resume a session by, so that each connection shows
    its certificate anew.
    """
    _expect(ca, _CERTIFICATE, "certificate")
    if _REVOCATIONS in ca.read_bytes():
        # OpenSSL would load it and not look into it; with the flag to do so, one that is out of date refuses everybody.
        raise PemError(
            f"{ca} holds a revocation list, and those are not checked: remove it, issue certificates that expire soon, "
            "and have an authorising service refuse callers at once (authorize)"
        )
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise PemError(f"{ca}: {_reason(error)}") from None
    context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def _expect(path: Path, mark: bytes, what: str) -> None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PemError(f"{path}: {error.strerror}") from None
    if mark not in content:
        raise PemError(f"{path} holds no {what} in PEM")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
