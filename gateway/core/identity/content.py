"""What a caller asks for, whatever its key: the digest by which a repeat under another key is recognised.

It covers the caller and the operation name, and either all that the fingerprint compares or the values at some places
of the JSON body. Two requests of different callers, services or operation names never share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.framing import framed
from gateway.core.identity.canonical import Body, encode_json, parse_json
from gateway.core.identity.fingerprint import Digests, Fingerprinter
from gateway.core.identity.media import parse_media_type
from gateway.core.identity.pointer import MISSING, Pointer, resolve
from gateway.core.message import Headers, header_values
from gateway.core.operation import Content, Identity

DISTINCT: Final = b"idempotency-distinct"
# As a word, and as a Boolean of RFC 9651 section 3.3.6.
_TRUE: Final = (b"true", b"?1")


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """How a route treats a request that a caller sent before under another key.

    `by` are the places of the body that make it the same, None for all that the fingerprint compares. `refuses`: it is
    refused, and not only counted.
    """

    within_us: int
    refuses: bool
    by: tuple[Pointer, ...] | None = None

    def values_of(self, headers: Headers, body: Body) -> bytes | None:
        """The values that make the request the same, framed; None where one is absent or null.

        Takes time in proportion to the body. Empty where the fingerprint decides.
        """
        if self.by is None:
            return b""
        return _values(headers, body, self.by)

    def content_of(
        self,
        service: str,
        identity: Identity,
        headers: Headers,
        fingerprinter: Fingerprinter,
        digests: Digests,
        values: bytes | None,
    ) -> Content | None:
        """The content of a request; None where it lacks a value that makes it the same as others."""
        if values is None:
            return None
        caller = framed(service.encode(), identity.operation.encode(), identity.scope_digest)
        asked = framed(b"fingerprint", digests.canonical) if self.by is None else framed(b"values", values)
        return Content(fingerprinter.content(caller, asked), self.within_us, is_distinct(headers))


def is_distinct(headers: Headers) -> bool:
    """Whether the caller says that its request is no repeat, as far as that is clear."""
    values = header_values(headers, DISTINCT)
    return len(values) == 1 and values[0].strip(b" \t").lower() in _TRUE


def _values(headers: Headers, body: Body, pointers: Sequence[Pointer]) -> bytes | None:
    types = header_values(headers, b"content-type")
    media = parse_media_type(types[0].strip(b" \t")) if len(types) == 1 else None
    if media is None or not media.is_json or header_values(headers, b"content-encoding"):
        return None
    document = parse_json(body)
    if document is MISSING:
        return None
    found = [resolve(document, pointer) for pointer in pointers]
    if any(value is MISSING or value is None for value in found):
        return None
    return framed(*map(encode_json, found))
