"""In what two requests differ, by short digests of their parts; never by what the parts hold.

A record keeps a few bytes for each part of its request beside the fingerprint, so that a repeat with another request
can learn which part is another one. They decide nothing: the fingerprint does.

Each digest is keyed with the fingerprint's secret and the operation id, and cut to four bytes. So equal parts of two
operations cannot be recognised by them, and without the secret they cannot be used to test guesses; only without a
`fingerprint_key` can they, like the fingerprint itself.

Members of a JSON document are found again by a digest of their pointer, so no name is kept. A member that the second
document lacks is therefore reported as a change of the value that held it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from gateway.core.identity.canonical import encode_json
from gateway.core.identity.pointer import MISSING, Pointer, format_pointer, resolve
from gateway.core.immutable import immutable

MEMBERS_MAX: Final = 64
LEVELS_MAX: Final = 4
# A longer name is not worth showing, and one that is not printable cannot be: half of a surrogate pair has no encoding.
# Such a member counts as a part of the value that holds it.
_NAME_CHARACTERS_MAX: Final = 128

_DIGEST_BYTES: Final = 4
_MEMBER_BYTES: Final = 2 * _DIGEST_BYTES
# The first digest is of no part: it shows whether both sides were made with the same secret.
_HEAD_DIGESTS: Final = 1
# Of a part that a request does not have, as most do not have all of them.
_NONE: Final = bytes(_DIGEST_BYTES)

UNNAMED: Final = "conditions"
"""The headers that make a request another one wherever they are sent, as a part. Where it has any, it is called by
their names, with blanks between."""
FIXED: Final = ("method", "target", "host", "header:content-encoding", UNNAMED, "media_type", "body")
"""The parts of every request, in the order in which their digests are kept; then the headers of the route."""
# The digests of these are comparable under every recipe: the others depend on the route's settings.
_ALWAYS: Final = 5
BODY: Final = "body"
_ORDER: Final = {name: place for place, name in enumerate(("method", "target", "host", "media_type"))}


@immutable
class Parts:
    """What is compared of one request: a short text for each part, and the members of its document.

    Unkeyed: do not store or log it. `members` are pointers and digests of values, parents before their children.
    """

    names: tuple[str, ...]
    values: tuple[bytes, ...]
    members: tuple[tuple[str, bytes], ...] = ()


def pack(parts: Parts, secret: bytes, operation_id: UUID) -> bytes:
    """What a record keeps."""
    key = _key(secret, operation_id)
    digests = [_digest(key, b"", b""), *_digests(key, parts.values)]
    for pointer, value in parts.members:
        digests += _member(key, pointer, value)
    return b"".join(digests)


def differences(parts: Parts, packed: bytes, secret: bytes, operation_id: UUID, *, is_same_recipe: bool) -> list[str]:
    """In what a request differs from the one whose digests a record keeps, as far as that can be known."""
    key = _key(secret, operation_id)
    kept = [packed[start : start + _DIGEST_BYTES] for start in range(0, len(packed), _DIGEST_BYTES)]
    known = len(parts.names) if is_same_recipe else _ALWAYS
    if len(kept) < _HEAD_DIGESTS + known or kept[0] != _digest(key, b"", b""):
        return []
    ours = _digests(key, parts.values[:known])
    compared = zip(parts.names, ours, kept[_HEAD_DIGESTS:], strict=False)
    found = [name for names, digest, other in compared if digest != other for name in names.split()]
    found.sort(key=_place)
    if BODY in found:
        found += _different_members(parts, packed[_DIGEST_BYTES * (_HEAD_DIGESTS + known) :], key)
    return found


def _place(name: str) -> int:
    return len(_ORDER) + 1 if name == BODY else _ORDER.get(name, len(_ORDER))


def _different_members(parts: Parts, packed: bytes, key: bytes) -> Iterator[str]:
    entries = [packed[start : start + _MEMBER_BYTES] for start in range(0, len(packed), _MEMBER_BYTES)]
    if not entries:
        return
    kept = {entry[:_DIGEST_BYTES]: entry[_DIGEST_BYTES:] for entry in entries}
    different: list[str] = []
    for pointer, value in parts.members:
        path, digest = _member(key, pointer, value)
        # Of a document with more members, it is not known which others there were.
        if kept.get(path, digest if len(entries) >= MEMBERS_MAX else None) != digest:
            different.append(pointer)
    for pointer in different:
        # Only the innermost: what holds it differs with it.
        if not any(other.startswith(f"{pointer}/") for other in different):
            yield f"{BODY}:{pointer}"


def members_of(document: Any, only: Sequence[Pointer] = ()) -> tuple[tuple[str, bytes], ...]:
    """The first members of a parsed document, level by level and by name, with digests of their values.

    With `only`, those at and below these places. Elements of an array are not distinguished.
    """
    found: list[tuple[str, bytes]] = []
    level: list[tuple[Pointer, Any]] = [((), document)]
    if only:
        roots = [(pointer, resolve(document, pointer)) for pointer in only]
        level = [(pointer, value) for pointer, value in roots if value is not MISSING]
        found = [(format_pointer(pointer), sha256(encode_json(value)).digest()) for pointer, value in level]
    while level and len(found) < MEMBERS_MAX:
        below = [
            ((*pointer, name), value)
            for pointer, holder in level
            if isinstance(holder, dict) and len(pointer) < LEVELS_MAX
            for name, value in sorted(holder.items())
            if len(name) <= _NAME_CHARACTERS_MAX and name.isprintable()
        ]
        level = below[: MEMBERS_MAX - len(found)]
        found += [(format_pointer(pointer), sha256(encode_json(value)).digest()) for pointer, value in level]
    return tuple(found)


def _key(secret: bytes, operation_id: UUID) -> bytes:
    return hmac.digest(secret, b"parts" + operation_id.bytes, "sha256")


def _digests(key: bytes, values: Sequence[bytes]) -> list[bytes]:
    """As `_digest`, of values that are distinguished by their places. Every new key comes here."""
    return [
        sha256(key + b"%d " % place + value).digest()[:_DIGEST_BYTES] if value else _NONE
        for place, value in enumerate(values)
    ]


def _digest(key: bytes, what: bytes, value: bytes) -> bytes:
    # A prefix of a hash shows nothing that could be extended, so the key may simply come first.
    return sha256(key + what + value).digest()[:_DIGEST_BYTES]


def _member(key: bytes, pointer: str, value: bytes) -> tuple[bytes, bytes]:
    path = sha256(pointer.encode("utf-8", "surrogatepass")).digest()
    return _digest(key, b"pointer", path), _digest(key, b"value", path + value)
