"""The fingerprint of a request: whether a repeat under a used key is the same request, and in what it differs.

A fingerprint has two digests. The canonical one covers what the route's settings compare; the raw one always covers the
same parts, as they came, and stays comparable when the settings change. Both are plain SHA-256 first and keyed
afterwards, so that comparing under several keys costs one HMAC each and never another pass over the body.

The recipe identifies the settings that made a canonical digest; digests of different recipes are not comparable. A
mistake here may only make equal requests look different (nothing is executed), never the other way round.

The canonical digest is over digests of single parts. A record keeps four bytes for each of those, too, so that a repeat
with another request can learn which part is another one; they decide nothing. Each is keyed with the fingerprint's
secret and the operation id, so that equal parts of two operations cannot be recognised by them, nor guesses tested
without the secret. Members of a JSON document are found again by a digest of their pointer, so no name is kept: one
that the second document lacks is reported as a change of the value that held it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from itertools import repeat
from operator import methodcaller
from typing import Any, Final
from uuid import UUID

from gateway.core import immutable
from gateway.core.identity.body import (
    MISSING,
    Body,
    Pointer,
    canonical_document,
    canonical_form,
    canonical_multipart,
    digest,
    encode_json,
    format_pointer,
    framed,
    parse_json,
    parse_media_type,
    resolve,
    sha256_of,
)
from gateway.core.message import (
    HOP_BY_HOP,
    METHOD_OVERRIDES,
    TARGET_OVERRIDES,
    Headers,
    RequestHead,
    header_values,
    list_members,
)
from gateway.core.operation import Content, Fingerprint, Identity

ALGORITHM: Final = b"3"
"""Raise it whenever a canonical form or the framing changes; the raw digest must never change.

Do not raise it for a change that gives some requests a digest that no request had before, such as refusing one more
form: at worst a retry from before is taken for another request, and all others stay comparable.
"""

RECIPE_BYTES: Final = 16
CONTENT_BYTES: Final = 16
# A cache of requests: a few digests of 32 bytes and a dictionary entry each.
_REMEMBERED_MAX: Final = 4096
# A cache of head frames. A route has few distinct ones, unless it has ids in the path.
_FRAMES_MAX: Final = 256
_FRAME_BYTES_MAX: Final = 1024

# What is explained of a document.
MEMBERS_MAX: Final = 64
LEVELS_MAX: Final = 4
# A longer name is not worth showing, and one that is not printable cannot be: half of a surrogate pair has no encoding.
# Such a member counts as a part of the value that holds it.
_NAME_CHARACTERS_MAX: Final = 128

_PART_BYTES: Final = 4
_MEMBER_BYTES: Final = 2 * _PART_BYTES
# Of a part that a request does not have, as most do not have all of them.
_NONE: Final = bytes(_PART_BYTES)

_UNNAMED: Final = "conditions"
"""The headers that make a request another one wherever they are sent, as a part. Where it has any, it is called by
their names, with blanks between."""
# The parts that are comparable under every recipe; those of the route's headers come next, and then two more.
_ALWAYS: Final = ("method", "target", "host", "header:content-encoding", _UNNAMED)
_BODY: Final = "body"
_LAST: Final = ("media_type", _BODY)
# In which order differences are told; the rest stands before the body.
_ORDER: Final = {name: place for place, name in enumerate(("method", "target", "host", "media_type"))}

# Before a SHA-256, as `framed` writes it.
_DIGEST_LENGTH: Final = (32).to_bytes(8, "big")

# Pointers and digests of values.
Members = tuple[tuple[str, bytes], ...]

DISTINCT: Final = b"idempotency-distinct"
# As a word, and as a Boolean of RFC 9651 section 3.3.6.
_TRUE: Final = (b"true", b"?1")

_strip: Final = methodcaller("strip", b" \t")

_DIGESTED: Final = (b"host", b"content-type", b"content-encoding")

CONDITIONS: Final = (
    # RFC 9110 sections 13.1, 14.2 and 14.5: under which condition, and on which part.
    b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range", b"range",
    b"content-range",
    # WebDAV, RFC 4918 section 10; RFC 6638 section 8.3.
    b"if", b"depth", b"destination", b"lock-token", b"overwrite", b"if-schedule-tag-match",
    # Resumable uploads, of the IETF and of tus: which part of what the body is.
    b"upload-complete", b"upload-concat", b"upload-defer-length", b"upload-length", b"upload-metadata",
    b"upload-offset",
    # Object stores, of which a copy has no body.
    b"x-amz-copy-source", b"x-amz-copy-source-if-match", b"x-amz-copy-source-if-modified-since",
    b"x-amz-copy-source-if-none-match", b"x-amz-copy-source-if-unmodified-since", b"x-amz-copy-source-range",
    b"x-goog-copy-source", b"x-goog-if-generation-match", b"x-goog-if-metageneration-match",
    b"x-ms-copy-source", b"x-ms-if-tags", b"x-ms-lease-id", b"x-ms-range", b"x-ms-source-if-match",
    b"x-ms-source-if-modified-since", b"x-ms-source-if-none-match", b"x-ms-source-if-unmodified-since",
    b"x-ms-source-range",
    # Where one target has many operations: AWS, SOAP 1.1, server actions of Next.js.
    b"x-amz-target", b"soapaction", b"next-action",
)  # fmt: skip
"""Headers by which a request with the same body means something else: compared wherever they are sent."""
DEFINING: Final = frozenset((*METHOD_OVERRIDES, *TARGET_OVERRIDES, *CONDITIONS))
"""The headers of all three kinds."""
_KINDS: Final = (METHOD_OVERRIDES, TARGET_OVERRIDES, CONDITIONS)

# Headers that a client, or a hop, changes from one try to the next; framing and credentials.
_NEVER = HOP_BY_HOP | frozenset(
    (
        b"amz-sdk-invocation-id", b"amz-sdk-request", b"authorization", b"b3", b"baggage", b"content-length", b"date",
        b"expect", b"forwarded", b"idempotency-key", b"prefer", b"request-id", b"sentry-trace", b"svix-req-id",
        b"svix-retry-count", b"svix-signature", b"svix-timestamp", b"traceparent", b"tracestate", b"uber-trace-id",
        b"user-agent", b"via", b"webhook-signature", b"webhook-timestamp", b"x-amzn-trace-id",
        b"x-cloud-trace-context", b"x-correlation-id", b"x-request-id", b"x-retry-count", b"x-stainless-retry-count",
        b"x-stripe-client-telemetry",
    )
)  # fmt: skip
_NEVER_PREFIXES = (b"accept", b"x-b3-", b"x-datadog-", b"x-envoy-", b"x-forwarded-", b"idempotency-", b"idempotent-")


class BodyForm(StrEnum):
    """How bodies are compared. `AUTO` goes by the media type, and is `RAW` where that has no form of its own."""

    AUTO = "auto"
    JSON = "json"
    FORM = "form"
    MULTIPART = "multipart"
    RAW = "raw"
    NONE = "none"


def may_be_fingerprinted(name: bytes) -> bool:
    """Whether a header may be part of the fingerprint: not if it differs between two tries of one request."""
    lowered = name.lower()
    return lowered not in _NEVER and not lowered.startswith(_NEVER_PREFIXES)


@dataclass(frozen=True, slots=True)
class FingerprintSpec:
    """What makes two requests of a route the same. Its settings agree, which the configuration has checked.

    `ignore` and `only` apply to JSON documents; a body without a canonical form is compared whole in spite of them.
    The order of headers and pointers is irrelevant. `defaults` are members with the JSON text of the value that counts
    where they are absent. `explains`: a mismatch is explained by members of the document, too; that changes no
    fingerprint.
    """

    body: BodyForm = BodyForm.AUTO
    ignore: tuple[Pointer, ...] = ()
    only: tuple[Pointer, ...] = ()
    headers: tuple[bytes, ...] = ()
    defaults: tuple[tuple[Pointer, str], ...] = ()
    explains: bool = field(default=False, compare=False)
    settings: bytes = field(init=False, repr=False, compare=False)
    """The framed settings, for the recipe."""

    def __post_init__(self) -> None:
        ignore, only = sorted({*self.ignore}), sorted({*self.only})
        headers = sorted({name.lower() for name in self.headers} - {*_DIGESTED})
        settings = framed(
            self.body.encode(), framed(*map(_pointer, ignore)), framed(*map(_pointer, only)), framed(*headers)
        )
        defaults = sorted({*self.defaults})
        if defaults:
            settings += framed(*[framed(_pointer(at), _default(text)) for at, text in defaults])
        for name_, value in (("ignore", ignore), ("only", only), ("headers", headers), ("defaults", defaults)):
            object.__setattr__(self, name_, tuple(value))
        object.__setattr__(self, "settings", settings)


def _pointer(pointer: Pointer) -> bytes:
    return format_pointer(pointer).encode("utf-8", "surrogatepass")


def _default(text: str) -> bytes:
    """A default in canonical form. ValueError where it is not a string, a number, true, false or null."""
    value = parse_json(text.encode())
    if value is MISSING or isinstance(value, dict | list):
        raise ValueError("a default is a string, a number, true, false or null")
    return encode_json(value)


@dataclass(frozen=True, slots=True)
class FingerprintKey:
    """`key_id` is stored with the record, the secret never."""

    key_id: str
    secret: bytes = field(repr=False)


@immutable
class Digests:
    """What is compared of one request, unkeyed: do not store or log it, because it can be used to guess a body.

    `values` are digests of the parts called `names`, empty for a part that the request does not have. `members` are
    pointers and digests of values of its document, parents before their children. `fingerprints` are the
    `alternatives` of the one who took it.
    """

    canonical: bytes = field(repr=False)
    raw: bytes = field(repr=False)
    names: tuple[str, ...]
    values: tuple[bytes, ...] = field(repr=False)
    members: Members = field(repr=False)
    fingerprints: Sequence[Fingerprint] = field(default=(), repr=False, compare=False)


class Fingerprinter:
    """Takes fingerprints for one route, under the current key and the retired ones.

    It caches digests by the raw one, because a retry is mostly the same bytes again. The raw digest covers all that the
    others depend on, unless the route lists headers; then the cache is not used.
    """

    def __init__(
        self, spec: FingerprintSpec, current: FingerprintKey | None = None, retired: Sequence[FingerprintKey] = ()
    ) -> None:
        self.spec = spec
        keys: dict[str, FingerprintKey | None] = {"" if current is None else current.key_id: current}
        for key in retired:
            keys[key.key_id] = key
        # Records from before the first key was introduced stay comparable.
        keys.setdefault("", None)
        self._digests_of: dict[bytes, Digests] = {}
        self._remembers = not (spec.headers or spec.explains)
        self._frames: dict[tuple[object, ...], _Frame] = {}
        self._digested = (*_DIGESTED, *spec.headers)
        # The recipe and the secret of each key, the current one first.
        self._keys = {key_id: (_recipe(spec, key), None if key is None else key.secret) for key_id, key in keys.items()}

    def digests(self, head: RequestHead, body: Body, body_sha256: bytes | None = None) -> Digests:
        """The digests of a request, in time proportional to the body, which must not change meanwhile.

        `body_sha256` is the body's digest if it is known already, for example from hashing it while it arrived.
        """
        by_name = head.headers.by_name
        alike = (head.method, head.target, *map(tuple, map(by_name.get, self._digested, repeat(()))))
        is_plain = DEFINING.isdisjoint(by_name)
        frame = self._frames.get(alike) if is_plain else None
        if frame is None:
            frame = _Frame(self.spec, head, by_name, is_plain=is_plain)
            if is_plain and frame.size_bytes <= _FRAME_BYTES_MAX:
                if len(self._frames) >= _FRAMES_MAX:
                    self._frames.clear()
                self._frames[alike] = frame
        content = body_sha256 or (sha256(body).digest() if isinstance(body, bytes) else sha256_of(body))
        raw = sha256(frame.before_raw + content).digest()
        found = self._digests_of.get(raw)
        if found is None:
            found = frame.digests(body, content, raw)
            found = replace(found, fingerprints=self.alternatives(found))
            if self._remembers:
                if len(self._digests_of) >= _REMEMBERED_MAX:
                    self._digests_of.clear()
                self._digests_of[raw] = found
        return found

    def alternatives(self, digests: Digests) -> list[Fingerprint]:
        """The fingerprint to record, then those that the same request would have under the retired keys."""
        made: list[Fingerprint] = []
        for key_id, (recipe, secret) in self._keys.items():
            canonical, raw = digests.canonical, digests.raw
            if secret is not None:
                canonical, raw = _keyed(secret, canonical), _keyed(secret, raw)
            made.append(Fingerprint(recipe, canonical, raw, key_id))
        return made

    def with_parts(self, fingerprint: Fingerprint, digests: Digests | None, operation_id: UUID) -> Fingerprint:
        """The fingerprint as a record of this operation keeps it: with what explains a mismatch, where there are
        digests. First comes a digest of no part, which shows with which secret the others were made."""
        if digests is None:
            return fingerprint
        _, secret = self._keys[fingerprint.key_id]
        # Nobody is shown this key, and what is hashed with it is cut: nothing could be extended, so it comes first.
        key = sha256(b"parts" + (secret or b"") + operation_id.bytes).digest()
        packed = [sha256(key).digest()[:_PART_BYTES]]
        for place, value in enumerate(digests.values):
            packed.append(sha256(key + b"%d " % place + value).digest()[:_PART_BYTES] if value else _NONE)
        for pointer, value in digests.members:
            path = sha256(pointer.encode("utf-8", "surrogatepass")).digest()
            packed.append(sha256(key + b"pointer" + path).digest()[:_PART_BYTES])
            packed.append(sha256(key + b"value" + path + value).digest()[:_PART_BYTES])
        parts = b"".join(packed)
        return Fingerprint(fingerprint.recipe, fingerprint.digest, fingerprint.raw, fingerprint.key_id, parts)

    def differences(self, digests: Digests, recorded: Fingerprint, operation_id: UUID) -> list[str]:
        """In what a request differs from the recorded one of its operation, as far as that can be known."""
        if recorded.key_id not in self._keys:
            return []
        recipe, _ = self._keys[recorded.key_id]
        known = len(digests.names) if recipe == recorded.recipe else len(_ALWAYS)
        ours = self.with_parts(recorded, digests, operation_id).parts
        return _differences(digests, ours, recorded.parts, known)

    def content(self, caller: bytes, content: bytes) -> bytes:
        """The digest of what a caller asks for, under the oldest key: the one that gateways share while keys change."""
        inner = digest(b"content", caller, content)
        secret = next((secret for _, secret in reversed(self._keys.values()) if secret is not None), None)
        return (inner if secret is None else _keyed(secret, inner))[:CONTENT_BYTES]


class _Frame:
    """What is digested of a head: shared by all requests whose heads agree in it."""

    __slots__ = ("_before", "_is_coded", "_names", "_spec", "_type", "_values", "before_raw", "size_bytes")

    def __init__(
        self, spec: FingerprintSpec, head: RequestHead, by_name: Mapping[bytes, Sequence[bytes]], *, is_plain: bool
    ) -> None:
        """`is_plain`: it has no header of `DEFINING`, as most do not."""
        host, types, codings = [tuple(map(_strip, by_name.get(name, ()))) for name in _DIGESTED]
        method, target, conditions = head.method, head.target, b""
        names: tuple[str, ...] = _ALWAYS
        raw = framed(b"raw request", method, target, framed(*host), framed(*types), framed(*codings))
        if not is_plain:
            # Of each kind the headers that there are.
            kinds = [
                framed(*[framed(name, *map(_strip, by_name[name])) for name in names if name in by_name])
                for names in _KINDS
            ]
            methods, targets, conditions = kinds
            # One part more than others have.
            raw += framed(framed(*kinds))
            # No method or target reads like one of these.
            method = framed(method, methods) if methods else method
            target = framed(target, targets) if targets else target
            sent = " ".join([f"header:{name.decode()}" for name in CONDITIONS if name in by_name])
            names = (*_ALWAYS[:-1], sent or _UNNAMED)
        hosts = host[0].lower() if len(host) == 1 and host[0] else framed(*map(bytes.lower, host))
        parts = [method, target, hosts, framed(*list_members(codings)) if codings else b"", conditions]
        if spec.headers:
            parts += [framed(name, *map(_strip, by_name.get(name, ()))) for name in spec.headers]
            names = (*names, *[f"header:{name.decode('latin-1')}" for name in spec.headers])
        self._spec, self._type, self._is_coded, self._names = spec, _content_type(types), bool(codings), names + _LAST
        self._values = tuple([part and sha256(part).digest() for part in parts])
        self._before = framed(b"canonical request", spec.settings, *self._values)
        self.before_raw = raw + _DIGEST_LENGTH
        self.size_bytes = len(raw) + sum(map(len, parts))

    def digests(self, body: Body, content: bytes, raw: bytes) -> Digests:
        """The digests over what the settings compare. `content` is the body's SHA-256, `raw` the digest of all."""
        form, compared, members = self._compared(body, content)
        # In the raw form the bytes cannot be read without the boundary; the canonical parts do not depend on it.
        media = self._type.unbounded if form is BodyForm.MULTIPART else self._type.digest
        # Of another form, equal bytes are another body.
        last = form.encode() + b" " + compared
        canonical = sha256(self._before + framed(media, last)).digest()
        return Digests(canonical, raw, self._names, (*self._values, media, last), members)

    def _compared(self, body: Body, content: bytes) -> tuple[BodyForm, bytes, Members]:
        """The body's form, its digest in that form, and the members that explain a mismatch."""
        spec = self._spec
        form = self._type.form if spec.body is BodyForm.AUTO else spec.body
        canonical: bytes | None = None
        members: Members = ()
        if form is BodyForm.NONE:
            return form, b"", members
        # Bodies with a content coding are not decoded.
        if not self._is_coded:
            match form:
                case BodyForm.JSON:
                    document = parse_json(body)
                    if document is not MISSING:
                        canonical = canonical_document(
                            document, ignore=spec.ignore, only=spec.only, defaults=spec.defaults
                        )
                        members = members_of(document, spec.only) if spec.explains else ()
                case BodyForm.FORM:
                    canonical = canonical_form(body)
                case BodyForm.MULTIPART:
                    boundary = self._type.boundary
                    canonical = None if boundary is None else canonical_multipart(body, boundary)
                case _:
                    pass
        return (BodyForm.RAW, content, members) if canonical is None else (form, sha256(canonical).digest(), members)


@immutable
class _ContentType:
    """What is compared of the values of `Content-Type`: a digest of what they mean, and one without the boundary."""

    form: BodyForm
    boundary: bytes | None
    digest: bytes
    unbounded: bytes


@lru_cache(256)
def _content_type(types: tuple[bytes, ...]) -> _ContentType:
    media = parse_media_type(types[0]) if len(types) == 1 else None
    if media is None:
        sent = sha256(framed(b"as sent", *types)).digest()
        return _ContentType(BodyForm.RAW, None, sent, sent)
    form = BodyForm.JSON if media.is_json else BodyForm.FORM if media.is_form else BodyForm.RAW
    if media.is_form_data:
        form = BodyForm.MULTIPART
    whole, unbounded = [
        sha256(framed(b"parsed", media.essence, *[framed(*pair) for pair in media.meaning if pair[0] != left])).digest()
        for left in (None, b"boundary")
    ]
    return _ContentType(form, media.boundary, whole, unbounded)


def _recipe(spec: FingerprintSpec, key: FingerprintKey | None) -> bytes:
    """The recipe covers the secret too: another secret under the same id is another recipe, not another request."""
    share = b"" if key is None else framed(key.key_id.encode(), _keyed(key.secret, b"recipe"))
    return digest(b"recipe", ALGORITHM, spec.settings, share)[:RECIPE_BYTES]


def _keyed(secret: bytes, inner: bytes) -> bytes:
    return hmac.digest(secret, inner, "sha256")


def _differences(digests: Digests, ours: bytes, kept: bytes, known: int) -> list[str]:
    """By what two requests packed; `known` of their parts are comparable."""
    end = _PART_BYTES * (1 + known)
    if len(kept) < end or kept[:_PART_BYTES] != ours[:_PART_BYTES]:
        return []
    found: list[str] = []
    for names, at in zip(digests.names, range(_PART_BYTES, end, _PART_BYTES), strict=False):
        if ours[at : at + _PART_BYTES] != kept[at : at + _PART_BYTES]:
            found += names.split()
    found.sort(key=_place)
    if _BODY in found:
        found += _different_members(digests, ours[end:], kept[end:])
    return found


def _place(name: str) -> int:
    return len(_ORDER) + 1 if name == _BODY else _ORDER.get(name, len(_ORDER))


def _different_members(digests: Digests, ours: bytes, kept: bytes) -> Iterator[str]:
    entries = {
        kept[at : at + _PART_BYTES]: kept[at + _PART_BYTES : at + _MEMBER_BYTES]
        for at in range(0, len(kept), _MEMBER_BYTES)
    }
    if not entries:
        return
    is_cut = len(kept) >= MEMBERS_MAX * _MEMBER_BYTES
    different: list[str] = []
    for number, (pointer, _) in enumerate(digests.members):
        entry = ours[number * _MEMBER_BYTES : (number + 1) * _MEMBER_BYTES]
        path, value = entry[:_PART_BYTES], entry[_PART_BYTES:]
        # Of a document with more members, it is not known which others there were.
        if entries.get(path, value if is_cut else None) != value:
            different.append(pointer)
    for pointer in different:
        # Only the innermost: what holds it differs with it.
        if not any(other.startswith(f"{pointer}/") for other in different):
            yield f"{_BODY}:{pointer}"


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
        types = header_values(headers, b"content-type")
        media = parse_media_type(types[0].strip(b" \t")) if len(types) == 1 else None
        if media is None or not media.is_json or header_values(headers, b"content-encoding"):
            return None
        document = parse_json(body)
        if document is MISSING:
            return None
        found = [resolve(document, pointer) for pointer in self.by]
        if any(value is MISSING or value is None for value in found):
            return None
        return framed(*map(encode_json, found))

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
