"""The fingerprint of a request: whether a repeat under a used key is the same request.

A fingerprint has two digests. The canonical one covers what the route's settings compare; the raw one always covers the
same parts, as they came, and stays comparable when the settings change. Both are plain SHA-256 first and keyed
afterwards, so that comparing under several keys costs one HMAC each and never another pass over the body.

The recipe identifies the settings that made a canonical digest; digests of different recipes are not comparable. A
mistake here may only make equal requests look different (nothing is executed), never the other way round.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final
from uuid import UUID

from gateway.core.framing import digest, framed
from gateway.core.identity.canonical import (
    Body,
    canonical_document,
    canonical_form,
    canonical_json,
    parse_json,
    sha256_of,
)
from gateway.core.identity.difference import FIXED, UNNAMED, Parts, differences, members_of, pack
from gateway.core.identity.media import MediaType, parse_media_type
from gateway.core.identity.multipart import canonical_multipart
from gateway.core.identity.pointer import MISSING, Pointer, format_pointer
from gateway.core.immutable import immutable
from gateway.core.message import HOP_BY_HOP, Headers, RequestHead, header_values, list_members, values_by_name
from gateway.core.operation import Fingerprint

ALGORITHM: Final = b"2"
"""Raise it whenever a canonical form or the framing changes; the raw digest must never change.

Do not raise it for a change that gives some requests a digest that no request had before, such as refusing one more
form: at worst a retry from before is taken for another request, and all others stay comparable.
"""

RECIPE_BYTES: Final = 16
CONTENT_BYTES: Final = 16
SECRET_BYTES_MIN: Final = 16
# Two digests of 32 bytes and a dictionary entry each.
_REMEMBERED_MAX: Final = 4096
# A cache of head frames. A route has few distinct ones, unless it has ids in the path.
_FRAMES_MAX: Final = 256
_FRAME_BYTES_MAX: Final = 1024

# Pointers and digests of values.
Members = tuple[tuple[str, bytes], ...]

_ALWAYS = frozenset((b"host", b"content-type", b"content-encoding"))

METHOD_OVERRIDES: Final = (b"x-http-method", b"x-http-method-override", b"x-method-override")
"""Headers that mean another method to the services that know them: compared wherever they are sent."""
TARGET_OVERRIDES: Final = (b"x-original-url", b"x-rewrite-url")
"""Likewise another target: IIS puts the original there when it rewrites one, and some frameworks read it from there."""
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
_KINDS: Final = (
    (b"method overrides", METHOD_OVERRIDES),
    (b"target overrides", TARGET_OVERRIDES),
    (b"conditions", CONDITIONS),
)

# Headers that a client, or a hop, changes from one try to the next; framing and credentials.
_NEVER = HOP_BY_HOP | frozenset(
    (
        b"amz-sdk-invocation-id",
        b"amz-sdk-request",
        b"authorization",
        b"b3",
        b"baggage",
        b"content-length",
        b"date",
        b"expect",
        b"forwarded",
        b"idempotency-key",
        b"prefer",
        b"request-id",
        b"sentry-trace",
        b"svix-req-id",
        b"svix-retry-count",
        b"svix-signature",
        b"svix-timestamp",
        b"traceparent",
        b"tracestate",
        b"uber-trace-id",
        b"user-agent",
        b"via",
        b"webhook-signature",
        b"webhook-timestamp",
        b"x-amzn-trace-id",
        b"x-cloud-trace-context",
        b"x-correlation-id",
        b"x-request-id",
        b"x-retry-count",
        b"x-stainless-retry-count",
        b"x-stripe-client-telemetry",
    )
)
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
    """What makes two requests of a route the same. ValueError where the settings contradict each other.

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
        if self.ignore and self.only:
            raise ValueError("ignore and only exclude each other")
        if (self.ignore or self.only or self.defaults) and self.body not in (BodyForm.AUTO, BodyForm.JSON):
            raise ValueError(f"ignore, only and defaults are about JSON, not about {self.body}")
        if () in self.ignore or () in self.only:
            raise ValueError("a pointer names the whole document")
        for name in self.headers:
            if not may_be_fingerprinted(name):
                raise ValueError(f"{name.decode('latin-1')} changes from one try to the next")
        ignore, only = sorted({*self.ignore}), sorted({*self.only})
        headers = sorted({name.lower() for name in self.headers} - _ALWAYS)
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
    canonical = canonical_json(text.encode())
    if canonical is None or canonical[:1] in (b"{", b"["):
        raise ValueError("a default is a string, a number, true, false or null")
    return canonical


@dataclass(frozen=True, slots=True)
class FingerprintKey:
    """`key_id` is stored with the record, the secret never."""

    key_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.key_id:
            raise ValueError("the key id is empty")
        if len(self.secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the secret is shorter than {SECRET_BYTES_MIN} bytes")


@immutable
class Digests:
    """The unkeyed digests of one request. Do not store or log them: they can be used to guess a body."""

    canonical: bytes = field(repr=False)
    parts: Parts = field(repr=False)
    raw: bytes = field(repr=False)


class Fingerprinter:
    """Takes fingerprints for one route, under the current key and the retired ones.

    It caches canonical digests by raw digest, because a retry is mostly the same bytes again. The raw digest covers
    all that the canonical one depends on, unless the route lists headers; then the cache is not used.
    """

    def __init__(
        self, spec: FingerprintSpec, current: FingerprintKey | None = None, retired: Sequence[FingerprintKey] = ()
    ) -> None:
        self.spec = spec
        keys: dict[str, FingerprintKey | None] = {"" if current is None else current.key_id: current}
        for key in retired:
            if key.key_id in keys:
                raise ValueError(f"two keys have the id {key.key_id}")
            keys[key.key_id] = key
        # Records from before the first key was introduced stay comparable.
        keys.setdefault("", None)
        # Unkeyed, like `Digests`.
        self._canonical_of: dict[bytes, tuple[bytes, Parts]] = {}
        self._frames: dict[tuple[object, ...], _Frame] = {}
        self._digested = (*_ALWAYS, *spec.headers)
        self._keys = [(key_id, _recipe(spec, key), None if key is None else key.secret) for key_id, key in keys.items()]

    def digests(self, head: RequestHead, body: Body, body_sha256: bytes | None = None) -> Digests:
        """The digests of a request, in time proportional to the body, which must not change meanwhile.

        `body_sha256` is the body's digest if it is known already, for example from hashing it while it arrived.
        """
        frame = self._frame_of(head)
        content = sha256_of(body) if body_sha256 is None else body_sha256
        raw = frame.raw(content)
        if self.spec.headers or self.spec.explains:
            return Digests(*frame.canonical(body, content), raw)
        found = self._canonical_of.get(raw)
        if found is None:
            found = frame.canonical(body, content)
            if len(self._canonical_of) >= _REMEMBERED_MAX:
                self._canonical_of.clear()
            self._canonical_of[raw] = found
        return Digests(*found, raw)

    def _frame_of(self, head: RequestHead) -> _Frame:
        by_name = values_by_name(head.headers)
        alike: tuple[object, ...] = (
            head.method,
            head.target,
            *[tuple(by_name.get(name, ())) for name in self._digested],
        )
        if not DEFINING.isdisjoint(by_name):
            alike = (*alike, *[(name, *by_name[name]) for name in sorted(DEFINING.intersection(by_name))])
        frame = self._frames.get(alike)
        if frame is None:
            frame = _Frame(self.spec, head)
            if frame.size_bytes <= _FRAME_BYTES_MAX:
                if len(self._frames) >= _FRAMES_MAX:
                    self._frames.clear()
                self._frames[alike] = frame
        return frame

    def fingerprint(self, digests: Digests) -> Fingerprint:
        """The fingerprint to record."""
        return self._under(digests, 0)

    def alternatives(self, digests: Digests) -> list[Fingerprint]:
        """The fingerprint to record, then those that the same request would have under the retired keys."""
        return [self._under(digests, index) for index in range(len(self._keys))]

    def with_parts(self, fingerprint: Fingerprint, digests: Digests, operation_id: UUID) -> Fingerprint:
        """The current fingerprint of these digests as a record of this operation keeps it."""
        secret = self._keys[0][2] or b""
        return Fingerprint(
            fingerprint.recipe,
            fingerprint.digest,
            fingerprint.raw,
            fingerprint.key_id,
            pack(digests.parts, secret, operation_id),
        )

    def differences(self, digests: Digests, recorded: Fingerprint, operation_id: UUID) -> list[str]:
        """In what a request differs from the recorded one of its operation, as far as that can be known."""
        for key_id, recipe, secret in self._keys:
            if key_id == recorded.key_id:
                is_same_recipe = recipe == recorded.recipe
                return differences(
                    digests.parts, recorded.parts, secret or b"", operation_id, is_same_recipe=is_same_recipe
                )
        return []

    def content(self, caller: bytes, content: bytes) -> bytes:
        """The digest of what a caller asks for, under the oldest key: the one that gateways share while keys change."""
        inner = digest(b"content", caller, content)
        secret = next((secret for _, _, secret in reversed(self._keys) if secret is not None), None)
        return (inner if secret is None else _keyed(secret, inner))[:CONTENT_BYTES]

    def _under(self, digests: Digests, index: int) -> Fingerprint:
        key_id, recipe, secret = self._keys[index]
        if secret is None:
            return Fingerprint(recipe, digests.canonical, digests.raw)
        return Fingerprint(recipe, _keyed(secret, digests.canonical), _keyed(secret, digests.raw), key_id)


class _Frame:
    """What is digested of a head, framed: shared by all requests whose heads agree in it."""

    __slots__ = (
        "_before_canonical",
        "_before_raw",
        "_codings",
        "_head",
        "_listed",
        "_media",
        "_names",
        "_parts",
        "_spec",
        "_types",
    )

    def __init__(self, spec: FingerprintSpec, head: RequestHead) -> None:
        host = _stripped(head.headers, b"host")
        types = _stripped(head.headers, b"content-type")
        codings = _stripped(head.headers, b"content-encoding")
        self._spec = spec
        self._types = types
        self._media = parse_media_type(types[0]) if len(types) == 1 else None
        self._codings = codings
        kinds = _kinds(head.headers)
        defining = _defining(kinds)
        lower_host = framed(*[value.lower() for value in host])
        self._head = framed(spec.settings, head.method, head.target, lower_host) + defining
        self._before_canonical: dict[BodyForm, bytes] = {}
        raw = framed(b"raw request", head.method, head.target, framed(*host), framed(*types), framed(*codings))
        self._before_raw = raw + defining
        listed = [framed(name, *_stripped(head.headers, name)) for name in spec.headers]
        # The rest depends on the body's form.
        self._listed = framed(*listed)
        methods, targets, conditions = kinds
        parts = (
            framed(head.method, methods),
            framed(head.target, targets),
            lower_host,
            framed(*list_members(codings)),
            conditions,
        )
        self._parts = tuple(part and sha256(part).digest() for part in (*parts, *listed))
        self._names = (*FIXED, *[f"header:{name.decode('latin-1')}" for name in spec.headers])
        if conditions:
            sent = " ".join([f"header:{name.decode()}" for name in CONDITIONS if header_values(head.headers, name)])
            self._names = tuple([sent if name == UNNAMED else name for name in self._names])

    @property
    def size_bytes(self) -> int:
        """About how much of the head it holds."""
        return len(self._before_raw) + len(self._listed)

    def raw(self, content: bytes) -> bytes:
        """The digest over the parts as they came. `content` is the body's SHA-256."""
        return sha256(self._before_raw + framed(content)).digest()

    def canonical(self, body: Body, content: bytes) -> tuple[bytes, Parts]:
        """The digest over what the settings compare, and the parts that it covers."""
        form, canonical_body, members = _canonical_body(self._spec, self._media, bool(self._codings), body)
        before = self._before_canonical.get(form)
        if before is None:
            before = self._before_canonical[form] = self._framed_in(form)
        compared = content if canonical_body is None else canonical_body
        media = sha256(_canonical_media(self._types, self._media, form)).digest()
        fixed = len(FIXED) - 2
        values = (*self._parts[:fixed], media, form.encode() + b" " + compared, *self._parts[fixed:])
        return sha256(before + framed(compared)).digest(), Parts(self._names, values, members)

    def _framed_in(self, form: BodyForm) -> bytes:
        tag = framed(b"canonical request")
        media = _canonical_media(self._types, self._media, form)
        return tag + self._head + framed(media, framed(*list_members(self._codings)), self._listed, form.encode())


def _stripped(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip(b" \t") for value in header_values(headers, name)]


def _defining(kinds: Sequence[bytes]) -> bytes:
    """One more part for headers that override the method, one for the target, one for conditions; mostly none.

    The other parts are fixed in number and the framing is injective. So a request with such a part never shares a
    digest with one without, wherever the part stands, and requests without keep the digests that they had before.
    """
    tagged = zip((b"method overrides", b"target overrides", b"conditions"), kinds, strict=True)
    return b"".join([framed(framed(tag) + values) for tag, values in tagged if values])


def _kinds(headers: Headers) -> tuple[bytes, bytes, bytes]:
    """The values of the headers of each kind, framed; empty where there are none."""
    by_name = values_by_name(headers)
    if DEFINING.isdisjoint(by_name):
        return b"", b"", b""
    conditions = [framed(name, *_stripped(headers, name)) for name in CONDITIONS if name in by_name]
    return _overriding(headers, METHOD_OVERRIDES), _overriding(headers, TARGET_OVERRIDES), framed(*conditions)


def _overriding(headers: Headers, names: Sequence[bytes]) -> bytes:
    values = [_stripped(headers, name) for name in names]
    return framed(*[framed(*each) for each in values]) if any(values) else b""


def _canonical_body(
    spec: FingerprintSpec, media: MediaType | None, is_coded: bool, body: Body
) -> tuple[BodyForm, bytes | None, Members]:
    """The body's form, its digest in that form (None where that is the digest of the bytes), and the members that
    explain a mismatch."""
    form = _form_of(media) if spec.body is BodyForm.AUTO else spec.body
    members: Members = ()
    if form is BodyForm.NONE:
        return form, b"", members
    canonical: bytes | None = None
    # Bodies with a content coding are not decoded.
    if not is_coded:
        match form:
            case BodyForm.JSON:
                document = parse_json(body)
                if document is not MISSING:
                    canonical = canonical_document(document, ignore=spec.ignore, only=spec.only, defaults=spec.defaults)
                    members = members_of(document, spec.only) if spec.explains else ()
            case BodyForm.FORM:
                canonical = canonical_form(body)
            case BodyForm.MULTIPART:
                boundary = media.boundary if media is not None else None
                canonical = None if boundary is None else canonical_multipart(body, boundary)
            case _:
                pass
    if canonical is None:
        return BodyForm.RAW, None, members
    return form, sha256(canonical).digest(), members


def _form_of(media: MediaType | None) -> BodyForm:
    if media is None:
        return BodyForm.RAW
    if media.is_json:
        return BodyForm.JSON
    if media.is_form:
        return BodyForm.FORM
    return BodyForm.MULTIPART if media.is_form_data else BodyForm.RAW


def _canonical_media(types: Sequence[bytes], media: MediaType | None, form: BodyForm) -> bytes:
    if media is None:
        return framed(b"as sent", *types)
    # In the raw form the bytes cannot be read without the boundary; the canonical parts no longer depend on it.
    kept = [pair for pair in media.meaning if form is not BodyForm.MULTIPART or pair[0] != b"boundary"]
    return framed(b"parsed", media.essence, *[framed(*pair) for pair in kept])


def _recipe(spec: FingerprintSpec, key: FingerprintKey | None) -> bytes:
    """The recipe covers the secret too: another secret under the same id is another recipe, not another request."""
    share = b"" if key is None else framed(key.key_id.encode(), _keyed(key.secret, b"recipe"))
    return digest(b"recipe", ALGORITHM, spec.settings, share)[:RECIPE_BYTES]


def _keyed(secret: bytes, inner: bytes) -> bytes:
    return hmac.digest(secret, inner, "sha256")
