"""Certificates, keys and authorities from PEM files.

Owns what is said of a file that cannot be used: which one it is, and what is wrong with it.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

_CERTIFICATE: Final = b"CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"


class PemError(OSError):
    """A file that cannot be used. The text names it."""


def load_chain(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Let `context` show this certificate. Raises `PemError`."""
    _expect(cert, _CERTIFICATE, "certificate")
    _expect(key, _KEY, "private key")

    def refuse_passphrase() -> str:
        # Without this OpenSSL asks on the terminal and waits.
        raise PemError(f"{key} is encrypted; a key without a passphrase is needed")

    try:
        context.load_cert_chain(cert, key, refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise PemError(f"{key} is the key of another certificate than {cert}") from None
        raise PemError(f"{cert} with {key}: {_reason(error)}") from None


def believing(ca: Path | None) -> ssl.SSLContext:
    """A client's context that believes these authorities, or the system's. Raises `PemError`."""
    if ca is not None:
        _expect(ca, _CERTIFICATE, "certificate")
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
    except ssl.SSLError as error:
        raise PemError(f"{ca}: {_reason(error)}") from None


def _expect(path: Path, mark: bytes, what: str) -> None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PemError(f"{path}: {error.strerror}") from None
    if mark not in content:
        raise PemError(f"{path} holds no {what} in PEM")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
