"""Encrypts what is stored of requests and responses, so that a copy of the store shows nothing of it.

Owns the keys of `secrets.encryption` and the form of the sealed bytes: a random nonce of 96 bits, then the ciphertext
and tag of AES-256-GCM. It does not know what it encrypts. The caller gives the *associated data*: what the bytes belong
to. It is authenticated with them, so bytes that are moved to another place cannot be opened there.

Each owner has its own key, derived from the configured one (HKDF-Expand, RFC 5869 section 2.3), so that random nonces
never run out under one key (NIST SP 800-38D section 8.3 allows 2^32). The first `OWNER_BYTES` of the associated data
name the owner: an operation, nearly always.

A sealed *value* also says the id of its key. It begins with `SEALED`, a control character with which no clear value
begins that may stand in its place: no header, path, target or key does. So clear values of a store in which encryption
was switched on later stay readable.
"""

from __future__ import annotations

import hmac
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from gateway.core.framing import framed
from gateway.core.immutable import immutable

KEY_BYTES: Final = 32
OWNER_BYTES: Final = 16
SEALED: Final = b"\x01"
SEALED_TEXT: Final = SEALED.decode()
_NONCE_BYTES: Final = 12
_BLOCK_BYTES: Final = 16
_KEY_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
# What ends the id of the key in a value.
_END: Final = ":"
# Derived keys that a ring keeps: a claim, its completion and the first replays follow one another.
_CIPHERS_MAX: Final = 1024
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
    """The configured keys. The first one seals, all of them open.

    While the ring is in use it can `learn` those that others will seal with.
    """

    def __init__(self, keys: Sequence[EncryptionKey], random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` returns that many bytes, fit for cryptography. Raises ValueError on no key and on one id for
        two."""
        self._by_id = {key.id: key.key for key in keys}
        if not keys or len(self._by_id) < len(keys):
            raise ValueError("a key ring needs at least one key, and different ids")
        self._current_id = keys[0].id
        self._random_bytes = random_bytes
        self._cipher = lru_cache(_CIPHERS_MAX)(self._derived)

    @property
    def current_id(self) -> str:
        return self._current_id

    def learn(self, keys: Sequence[EncryptionKey]) -> None:
        """Open what is sealed with these, too. Raises ValueError, and learns none, if one has the id of another key."""
        for key in keys:
            if self._by_id.get(key.id, key.key) != key.key:
                raise ValueError(f"key '{key.id}' is another key than it was; give a new key a new id")
        self._by_id |= {key.id: key.key for key in keys}

    def random_name(self) -> str:
        """Distinguishes what has no name of its own."""
        return self._random_bytes(OWNER_BYTES).hex()

    def seal(self, content: bytes, associated: bytes) -> tuple[str, bytes]:
        """The id of the key and the sealed bytes. Runs some microseconds, and about one millisecond for some MiB."""
        key_id, nonce = self._current_id, self._random_bytes(_NONCE_BYTES)
        return key_id, nonce + self._cipher(key_id, associated[:OWNER_BYTES]).encrypt(nonce, content, associated)

    def open(self, key_id: str, sealed: bytes | memoryview, associated: bytes) -> bytes:
        """The content of bytes that were sealed with the same associated data. Raises `Unopenable`."""
        if key_id not in self._by_id:
            raise _without_key(key_id)
        cipher = self._cipher(key_id, associated[:OWNER_BYTES])
        try:
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated)
        except (InvalidTag, ValueError):
            # ValueError: the nonce is too short.
            raise Unopenable(
                f"it was changed, it belongs to another operation, or key '{key_id}' is another key than it was"
            ) from None

    def seal_value(self, content: bytes, associated: bytes) -> bytes:
        key_id, sealed = self.seal(content, associated)
        return f"{SEALED_TEXT}{key_id}{_END}".encode() + sealed

    def seal_text(self, content: bytes, associated: bytes) -> str:
        """The content as a sealed value for a place that holds text: one word of ASCII behind `SEALED_TEXT`."""
        key_id, sealed = self.seal(content, associated)
        return f"{SEALED_TEXT}{key_id}{_END}{b2a_base64(sealed, newline=False).decode()}"

    def _derived(self, key_id: str, owner: bytes) -> AESGCM:
        """The cipher under the key of this owner."""
        return AESGCM(hmac.digest(self._by_id[key_id], framed(_LABEL, owner) + b"\x01", "sha256"))


class FileCipher:
    """Encrypts one file that nobody but this process reads, so that parts of it can be read by their offsets.

    AES-256 in counter mode, under a key of its own that exists in memory alone. Changes of the file are not noticed.
    """

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._algorithm = AES256(random_bytes(KEY_BYTES))

    def apply(self, data: bytes | memoryview, offset: int) -> bytes:
        """Encrypt what is to be written at this offset, or decrypt what was read there."""
        block, skipped = divmod(offset, _BLOCK_BYTES)
        encryptor = Cipher(self._algorithm, CTR(block.to_bytes(_BLOCK_BYTES, "big"))).encryptor()
        encryptor.update(bytes(skipped))
        return encryptor.update(data)


def open_value(ring: KeyRing | None, value: bytes | str, associated: bytes) -> bytes:
    """The content of a value that was sealed with the same associated data; without a ring, no key is configured.

    Raises `Unopenable`.
    """
    key_id, end = _named(value)
    if ring is None:
        raise _without_key(key_id)
    if isinstance(value, bytes):
        return ring.open(key_id, memoryview(value)[end:], associated)
    try:
        sealed = a2b_base64(value[end:], strict_mode=True)
    except ValueError:
        raise Unopenable("it was changed or cut") from None
    return ring.open(key_id, sealed, associated)


def key_id_of(value: bytes | str) -> str | None:
    """The id of the key of a sealed value; None if that was cut."""
    try:
        return _named(value)[0]
    except Unopenable:
        return None


def is_key_id(text: str) -> bool:
    return _KEY_ID.fullmatch(text.encode()) is not None


def _named(value: bytes | str) -> tuple[str, int]:
    """The key id of a value that begins with `SEALED`, and where its sealed bytes begin."""
    end = value.find(_END) if isinstance(value, str) else value.find(_END.encode())
    name = value[1 : max(end, 1)]
    key_id = _key_id(name if isinstance(name, bytes) else name.encode())
    if key_id is None:
        # It is named in logs and metrics, so it must not be of anybody's making.
        raise Unopenable("it was changed or cut")
    return key_id, end + 1


@lru_cache(_CIPHERS_MAX)
def _key_id(name: bytes) -> str | None:
    return name.decode() if _KEY_ID.fullmatch(name) else None


def _without_key(key_id: str) -> Unopenable:
    return Unopenable(f"it is encrypted with key '{key_id}', which is not configured")
