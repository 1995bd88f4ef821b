"""Encrypts what is stored of a caller's request, so that a copy of the store shows nothing of it.

Owns the keys of `secrets.encryption` and the form of the sealed bytes: a random nonce of 96 bits, then the ciphertext
and tag of AES-256-GCM. It does not know what it encrypts. The caller gives the *associated data*: what the bytes belong
to. It is authenticated with them, so bytes that are moved to another place cannot be opened there.

Each associated data has its own key, derived from the configured one (HKDF-Expand, RFC 5869 section 2.3), so that
random nonces never run out under one key (NIST SP 800-38D section 8.3 allows 2^32).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.core.framing import framed
from gateway.core.immutable import immutable

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
# Names the form of the sealed bytes: another form needs another label.
_LABEL: Final = b"idempotency-gateway sealed 1"


class Unopenable(Exception):
    """Sealed bytes cannot be opened. The text names the cause and never contains any of the content."""


@immutable
class EncryptionKey:
    """A key with the id by which stored bytes name it. Raises ValueError unless it has `KEY_BYTES`."""

    id: str
    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"encryption key '{self.id}' has {len(self.key)} bytes instead of {KEY_BYTES}")

    def __repr__(self) -> str:
        return f"EncryptionKey(id={self.id!r})"


class KeyRing:
    """The configured keys. The first one seals, all of them open."""

    def __init__(self, keys: Sequence[EncryptionKey], random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` returns that many bytes, fit for cryptography. Raises ValueError on no key and on one id for
        two."""
        self._by_id = {key.id: key.key for key in keys}
        if not keys or len(self._by_id) < len(keys):
            raise ValueError("a key ring needs at least one key, and different ids")
        self._current = keys[0]
        self._random_bytes = random_bytes

    def seal(self, content: bytes, associated: bytes) -> tuple[str, bytes]:
        """The id of the key and the sealed bytes. Runs some microseconds, and about one millisecond for some MiB."""
        nonce = self._random_bytes(_NONCE_BYTES)
        return self._current.id, nonce + _cipher(self._current.key, associated).encrypt(nonce, content, associated)

    def open(self, key_id: str, sealed: bytes, associated: bytes) -> bytes:
        """The content of bytes that were sealed with the same associated data. Raises `Unopenable`."""
        key = self._by_id.get(key_id)
        if key is None:
            raise Unopenable(f"it is encrypted with key '{key_id}', which is not configured")
        try:
            return _cipher(key, associated).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated)
        except (InvalidTag, ValueError):
            # ValueError: the nonce is too short.
            raise Unopenable(
                f"it was changed, it belongs to another operation, or key '{key_id}' is another key than it was"
            ) from None


def _cipher(key: bytes, associated: bytes) -> AESGCM:
    """The cipher under the key that is derived for this associated data."""
    return AESGCM(hmac.digest(key, framed(_LABEL, associated) + b"\x01", "sha256"))
