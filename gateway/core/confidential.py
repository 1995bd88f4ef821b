"""Encrypts what is kept of requests and responses: how, which parts of commands, records and events that are, and what
becomes of those that cannot be decrypted. It knows no store.

Theory of operation
-------------------
A store, a journal and a fast tier keep what they are given. Values are sealed on the way in (`sealed`) and opened on
the way out (`opened`), and in between a sealed value stands in the place of the clear one. So the table moves sealed
values without reading them, and a change of a record that cannot be opened loses nothing of it.

*A response* keeps its status and the digest of its version. Its reason and headers are one sealed header; its body is
sealed by itself. Both are associated with operation, token and part.

*What outlives its attempt* is associated with operation and part: a retry keeps the key, a takeover and a dispatch keep
the probe's target, and the reference to what was made is kept until another one is known. All attempts of an operation
are of one request, so there is nothing that could be moved from one attempt to another and matter.

*An audit* is associated with its change and its row: nobody is given another one's reasons.

*An event* is sealed as far as a sink includes the key, the reference or the response, for that sink. Why it was not
published is sealed, too: consumers quote what they refuse.

An opened record has the sealed one beside it (`Record.sealed`). What goes back to a store, or to a fast tier, is always
that. Clear values of before encryption was switched on are left as they are.
"""

from __future__ import annotations

import hmac
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from gateway.core import immutable
from gateway.core.identity.body import framed
from gateway.core.message import Headers, StoredResponse, pack_headers, unpack_headers
from gateway.core.operation import (
    EVENT_OF,
    Applied,
    Audit,
    Command,
    Complete,
    Event,
    Identity,
    OutcomeCommand,
    ProbeTarget,
    Record,
    RequestInfo,
    Result,
    SealedRequest,
    Snapshot,
    audit_of,
    operation_id_of,
)

# -- sealing -----------------------------------------------------------------------------------------------------------
#
# Encrypts what is stored of requests and responses, so that a copy of the store shows nothing of it.
#
# The form of the sealed bytes: a random nonce of 96 bits, then the ciphertext and tag of AES-256-GCM. The caller gives
# the *associated data*: what the bytes belong to. It is authenticated with them, so bytes that are moved to another
# place cannot be opened there.
#
# Each owner has its own key, derived from the configured one (HKDF-Expand, RFC 5869 section 2.3), so that random
# nonces never run out under one key (NIST SP 800-38D section 8.3 allows 2^32). The first `OWNER_BYTES` of the
# associated data name the owner: an operation, nearly always.
#
# A sealed *value* also says the id of its key. It begins with `SEALED`, a control character with which no clear value
# begins that may stand in its place: no header, path, target or key does. So clear values of a store in which
# encryption was switched on later stay readable.

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
        self.current_id: Final = keys[0].id
        self._random_bytes = random_bytes
        self._cipher = lru_cache(_CIPHERS_MAX)(self._derived)

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
        key_id, nonce = self.current_id, self._random_bytes(_NONCE_BYTES)
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


# -- what is sealed ----------------------------------------------------------------------------------------------------

C = TypeVar("C", bound=Command)
K = TypeVar("K", bound=Record | OutcomeCommand)
P = TypeVar("P")

# The header that all other headers are in. No HTTP message has a header of this name (RFC 9110 section 5.6.2).
_HEADERS: Final = SEALED + b"headers"
# Those of a response whose headers were cut: they cannot be opened.
_CUT_HEADERS: Final = ((_HEADERS, SEALED),)
# How a value begins that has to be opened. No key, target or reference is empty: one that is was cut to nothing.
_TEXT: Final = (SEALED_TEXT, "")
_BYTES: Final = (SEALED, b"")

_Known = Mapping[int, Any]
"""Clear values by the `id` of the sealed objects that were made of them: those need not be decrypted again."""
_NOTHING: Final[_Known] = MappingProxyType({})


class Sealing:
    """Seals with the current key of a ring, and opens with all of them. Without a ring it seals nothing, but still
    recognises what is sealed: that cannot be opened then."""

    def __init__(
        self,
        ring: KeyRing | None = None,
        on_unreadable: Callable[[UUID, str], None] = lambda _operation_id, _why: None,
    ) -> None:
        """`on_unreadable` gets the operation and the cause, without any content, each time a record is met that cannot
        be opened."""
        self.ring: Final = ring
        self._on_unreadable = on_unreadable

    # -- commands and records ------------------------------------------------------------------------------------------

    def sealed(self, command: C) -> C:
        ring, changed = self.ring, dict[str, Any]()
        granted = command.granted if isinstance(command, Complete) else None
        if granted is not None and granted.sealed is not None:
            changed["granted"] = granted.sealed
        if ring is not None:
            operation_id = operation_id_of(command)
            token = command.token if isinstance(command, Complete) else getattr(command, "read_token", 0)
            for name in _PARTS_OF[type(command)]:
                if (part := getattr(command, name)) is not None:
                    changed[name] = _PARTS[name].seal(ring, part, operation_id, token)
            if (audit := audit_of(command)) is not None:
                event = EVENT_OF[type(cast(Command, command))]
                changed["audit"] = self.seal(TEXTS, audit, of_audit(operation_id, event, token))
        return _changed(command, changed)

    def opened(self, record: Record, known: _Known = _NOTHING) -> Record:
        """The record in clear, with the sealed one beside it. What cannot be opened is missing: of a response, all but
        its status. Such a response is one that was not stored."""
        if not is_sealed(record):
            return record
        operation_id, response, clear = record.identity.operation_id, record.response, dict[str, Any]()
        try:
            for name in _OF_OPERATION:
                part = getattr(record, name)
                clear[name] = known.get(id(part)) or self._opened(name, part, operation_id, record.token)
        except Unopenable as error:
            clear = {**dict.fromkeys(_OF_OPERATION), "identity": replace(record.identity, key=None)}
            self._on_unreadable(operation_id, str(error))
        if response is not None:
            response = known.get(id(response)) or self._response_or_status(response, operation_id, record.token)
        return replace(record, **clear, response=response, sealed=record)

    def opened_copy(self, record: Record) -> Record:
        """As `opened`, for a record of which there is another copy. Raises `Unopenable`, and reports nothing."""
        if not is_sealed(record):
            return record
        place = (record.identity.operation_id, record.token)
        clear: dict[str, Any] = {name: self._opened(name, getattr(record, name), *place) for name in _PARTS}
        return replace(record, **clear, sealed=record)

    def _opened(self, name: str, part: Any, operation_id: UUID, token: int) -> Any:
        return None if part is None else _PARTS[name].open(self.ring, part, operation_id, token)

    def opened_snapshot(self, snapshot: Snapshot) -> Snapshot:
        record = snapshot.record
        if record is None or (clear := self.opened(record)) is record:
            return snapshot
        return Snapshot(clear, snapshot.now_us)

    def opened_result(self, result: Result, command: Command, sealed: Command) -> Result:
        """The result of a command that was sealed for the store, in clear."""
        record = result.snapshot.record
        if record is None or not is_sealed(record):
            return result
        known = _known(command, sealed) if isinstance(result, Applied) and sealed is not command else _NOTHING
        return replace(result, snapshot=Snapshot(self.opened(record, known), result.snapshot.now_us))

    def opened_outcome(self, command: OutcomeCommand) -> OutcomeCommand:
        """A command that a journal kept, in clear; of a response that cannot be opened, the status."""
        try:
            return self.whole_outcome(command)
        except Unopenable as error:
            self._on_unreadable(command.operation_id, str(error))
            clear: dict[str, Any] = dict.fromkeys(_PARTS_OF[type(command)])
            if isinstance(command, Complete):
                clear["response"] = command.response.status_alone
            return _changed(command, clear)

    def whole_outcome(self, command: OutcomeCommand) -> OutcomeCommand:
        """As `opened_outcome`. Raises `Unopenable`, and reports nothing."""
        place, names = (command.operation_id, command.token), _PARTS_OF[type(command)]
        return _changed(command, {name: self._opened(name, getattr(command, name), *place) for name in names})

    def is_old(self, value: bytes | str) -> bool:
        """Whether a value is clear, or sealed with another key than the current one. Without a key nothing is."""
        if self.ring is None:
            return False
        return value[:1] not in (SEALED, SEALED_TEXT) or key_id_of(value) != self.ring.current_id

    def _response_or_status(self, response: StoredResponse, operation_id: UUID, token: int) -> StoredResponse:
        try:
            return _opened_response(self.ring, response, operation_id, token)
        except Unopenable as error:
            self._on_unreadable(operation_id, str(error))
            return response.status_alone

    # -- audits --------------------------------------------------------------------------------------------------------

    def seal(self, form: Form, part: P, *bound: Any) -> P:
        """The part as it is kept, bound to this."""
        return part if self.ring is None or form.value(part) is None else cast(P, form.seal(self.ring, part, *bound))

    def shown(self, form: Form, text: str, *bound: Any) -> str:
        """Undo `seal`, for a text. One that cannot be opened says why in its place."""
        try:
            return cast(str, form.open(self.ring, text, *bound))
        except Unopenable as error:
            return f"({error})"

    def opened_texts(self, entry: P, associated: bytes, operation_id: UUID | None = None) -> P:
        """Undo `seal` of `TEXTS` in whatever has them, of this operation or of none. What cannot be opened says why in
        its place."""
        who, why = cast(Any, entry).who, cast(Any, entry).why
        try:
            audit = _opened_texts(self.ring, Audit(who, why), associated)
        except Unopenable as error:
            if operation_id is not None:
                self._on_unreadable(operation_id, str(error))
            audit = Audit("", f"({error})")
        return _changed(entry, {"who": audit.who, "why": audit.why})

    # -- events --------------------------------------------------------------------------------------------------------

    @property
    def seals(self) -> bool:
        """Whether what is written from now on is sealed."""
        return self.ring is not None

    def sealed_event(self, content: bytes, event_id: str, sink: str) -> bytes:
        """The confidential part of an event for a sink. Only where `seals`."""
        if self.ring is None:
            raise ValueError("there is no key to seal with")
        return self.ring.seal_value(content, _of_event(event_id, sink))

    def opened_event(self, sealed: bytes, event_id: str, sink: str) -> bytes:
        """Undo `sealed_event`. Raises `Unopenable`."""
        return open_value(self.ring, sealed, _of_event(event_id, sink))


class Resealing(Sealing):
    """Opens, and seals again with the current key. What is under that key already is opened, too, because another key
    may have had its id, and stays as it is; so a pass that was interrupted is simply repeated. What cannot be opened
    stays as it is, with one of the `reasons`."""

    def __init__(self, sealing: Sealing) -> None:
        """The keys of `sealing`."""
        super().__init__(sealing.ring)
        self.reasons: list[str] = []

    def resealed(self, kept: K) -> K:
        """A record as it is stored, or what a journal keeps, with every part under the current key; the same object if
        all of them are."""
        place = (kept.identity.operation_id if isinstance(kept, Record) else kept.operation_id, kept.token)
        changed: dict[str, Any] = {}
        for name in _PARTS_OF[type(kept)]:
            part = getattr(kept, name)
            if part is not None and (again := self.again(_PARTS[name], part, *place)) is not part:
                changed[name] = again
        return _changed(kept, changed)

    def resealed_request(self, kept: SealedRequest, operation_id: UUID) -> SealedRequest:
        """As `resealed`, for a kept request."""
        if (ring := self.ring) is None:
            return kept
        associated = of_request(operation_id, kept.acceptance_id)
        try:
            content = ring.open(kept.key_id, kept.sealed, associated)
        except Unopenable as error:
            self.reasons.append(str(error))
            return kept
        is_new = kept.key_id == ring.current_id
        return kept if is_new else SealedRequest(kept.acceptance_id, *ring.seal(content, associated))

    def again(self, form: Form, part: P, *bound: Any) -> P:
        """As `resealed`, for one part."""
        if self.ring is None or (value := form.value(part)) is None:
            return part
        try:
            clear = form.open(self.ring, part, *bound)
            return cast(P, form.seal(self.ring, clear, *bound)) if self.is_old(value) else part
        except Unopenable as error:
            self.reasons.append(str(error))
            return part


NO_SEALING: Final = Sealing()
"""Nothing is encrypted, and what is cannot be read."""


def kept_headers(packed: bytes) -> Headers:
    """The headers that a store has packed. Of a response whose headers were cut, the status is known."""
    try:
        return unpack_headers(packed)
    except ValueError:
        return _CUT_HEADERS


def is_sealed(record: Record) -> bool:
    request, response, key, probe = record.request, record.response, record.identity.key, record.probe
    return (
        (request is not None and request.path[:1] == SEALED_TEXT)
        or (response is not None and is_sealed_response(response))
        or (key is not None and key[:1] in _TEXT)
        or (probe is not None and probe.target[:1] in _BYTES)
        or (record.resource is not None and record.resource[:1] in _TEXT)
    )


def sealed_by(
    identity: Identity | None = None,
    probe: ProbeTarget | None = None,
    request: RequestInfo | None = None,
    response: StoredResponse | None = None,
    resource: str | None = None,
) -> str | None:
    """The ids of the keys that any of this is sealed with, in order and separated by a space; None if nothing is."""
    values: list[bytes | str] = []
    if request is not None and request.path[:1] == SEALED_TEXT:
        values.append(request.path)
    if response is not None and is_sealed_response(response):
        values.append(response.headers[0][1])
    if identity is not None and identity.key is not None and identity.key[:1] == SEALED_TEXT:
        values.append(identity.key)
    if probe is not None and probe.target[:1] == SEALED:
        values.append(probe.target)
    if resource is not None and resource[:1] == SEALED_TEXT:
        values.append(resource)
    return " ".join(sorted(filter(None, set(map(key_id_of, values))))) or None if values else None


def is_sealed_response(response: StoredResponse) -> bool:
    # A value alone proves nothing: a service may send any.
    return bool(response.headers) and response.headers[0][0] == _HEADERS


def _changed(kept: P, changed: Mapping[str, Any]) -> P:
    return cast(P, replace(cast(Any, kept), **changed)) if changed else kept


def _known(command: Command, sealed: Command) -> _Known:
    pairs = [(getattr(sealed, name), getattr(command, name)) for name in _PARTS_OF[type(command)]]
    granted, kept = getattr(command, "granted", None), getattr(sealed, "granted", None)
    if granted is not None and kept is not None:
        pairs += ((getattr(kept, name), getattr(granted, name)) for name in _OF_OPERATION)
    # What a journal kept came sealed, and is the same object in both commands: its clear value is not known.
    return {id(part): clear for part, clear in pairs if part is not clear}


# -- the parts ---------------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """How something is kept. `value` of it is what it is sealed to, something else where it is clear, and None where it
    has nothing confidential. `seal` and `open` get a ring, the thing, and what it is bound to: a part of records and
    commands to its operation and token, others to their associated data. `open` raises `Unopenable`, and leaves what is
    clear as it is."""

    value: Callable[[Any], bytes | str | None]
    seal: Callable[..., Any]
    open: Callable[..., Any]


def _sealed_identity(ring: KeyRing, identity: Identity, operation_id: UUID, _: int) -> Identity:
    if identity.key is None:
        return identity
    content = identity.key.encode("utf-8", "surrogatepass")
    return replace(identity, key=ring.seal_text(content, _of_operation(operation_id, b"key")))


def _opened_identity(ring: KeyRing | None, identity: Identity, operation_id: UUID, _: int) -> Identity:
    key = identity.key
    if key is None or key[:1] not in _TEXT:
        return identity
    content = open_value(ring, key, _of_operation(operation_id, b"key"))
    return replace(identity, key=content.decode("utf-8", "surrogatepass"))


def _sealed_probe(ring: KeyRing, probe: ProbeTarget, operation_id: UUID, _: int) -> ProbeTarget:
    content = pack_headers(((probe.target, probe.host),))
    return ProbeTarget(ring.seal_value(content, _of_operation(operation_id, b"probe")), b"")


def _opened_probe(ring: KeyRing | None, probe: ProbeTarget, operation_id: UUID, _: int) -> ProbeTarget:
    if probe.target[:1] not in _BYTES:
        return probe
    return ProbeTarget(*_unpacked(open_value(ring, probe.target, _of_operation(operation_id, b"probe")))[0])


def _sealed_info(ring: KeyRing, request: RequestInfo, operation_id: UUID, _: int) -> RequestInfo:
    content = pack_headers(((request.host.encode(), request.path.encode()),))
    return replace(request, host="", path=ring.seal_text(content, _of_operation(operation_id, b"request")))


def _opened_info(ring: KeyRing | None, request: RequestInfo, operation_id: UUID, _: int) -> RequestInfo:
    if request.path[:1] != SEALED_TEXT:
        return request
    ((host, path),) = _unpacked(open_value(ring, request.path, _of_operation(operation_id, b"request")))
    return replace(request, host=host.decode(), path=path.decode())


def _sealed_resource(ring: KeyRing, resource: str, operation_id: UUID, _: int) -> str:
    """One that is sealed already, because it comes from a journal, stays as it is; so does a response."""
    if resource[:1] == SEALED_TEXT:
        return resource
    return ring.seal_text(resource.encode(), _of_operation(operation_id, b"resource"))


def _opened_resource(ring: KeyRing | None, resource: str, operation_id: UUID, _: int) -> str:
    if resource[:1] not in _TEXT:
        return resource
    return open_value(ring, resource, _of_operation(operation_id, b"resource")).decode()


def _sealed_response(ring: KeyRing, response: StoredResponse, operation_id: UUID, token: int) -> StoredResponse:
    body = response.body
    if is_sealed_response(response):
        return response
    content = pack_headers(((b"", response.reason), *response.headers))
    headers = ((_HEADERS, ring.seal_value(content, _of_attempt(operation_id, token, b"headers"))),)
    if body is not None:
        body = ring.seal_value(body, _of_attempt(operation_id, token, b"body"))
    return StoredResponse(response.status, b"", headers, body, response.version)


def _opened_response(ring: KeyRing | None, response: StoredResponse, operation_id: UUID, token: int) -> StoredResponse:
    body = response.body
    if not is_sealed_response(response):
        return response
    content = open_value(ring, response.headers[0][1], _of_attempt(operation_id, token, b"headers"))
    (_, reason), *headers = _unpacked(content)
    if body is not None:
        body = open_value(ring, body, _of_attempt(operation_id, token, b"body"))
    return StoredResponse(response.status, reason, tuple(headers), body, response.version)


def _value_of_response(response: StoredResponse) -> bytes | None:
    if is_sealed_response(response):
        return response.headers[0][1]
    return b"" if response.headers or response.reason or response.body else None


_PARTS: Final[Mapping[str, Form]] = {
    "identity": Form(lambda identity: identity.key, _sealed_identity, _opened_identity),
    "probe": Form(lambda probe: probe.target, _sealed_probe, _opened_probe),
    "request": Form(lambda request: request.path, _sealed_info, _opened_info),
    "resource": Form(lambda resource: resource, _sealed_resource, _opened_resource),
    "response": Form(_value_of_response, _sealed_response, _opened_response),
}
"""By the names of their fields."""
_OF_OPERATION: Final = tuple(name for name in _PARTS if name != "response")
_PARTS_OF: Final[Mapping[type, tuple[str, ...]]] = {
    kind: tuple(each.name for each in fields(kind) if each.name in _PARTS) for kind in (Record, *get_args(Command))
}


def of_request(operation_id: UUID, acceptance_id: UUID) -> bytes:
    return operation_id.bytes + acceptance_id.bytes


def _sealed_texts(ring: KeyRing, audit: Audit, associated: bytes) -> Audit:
    """Both texts as one, bound to its row: in the place of `who` is a random name, for two may be of one change."""
    row = ring.random_name()
    return Audit(row, ring.seal_text(pack_headers(((encoded(audit.who), encoded(audit.why)),)), associated + _row(row)))


def _opened_texts(ring: KeyRing | None, audit: Audit, associated: bytes) -> Audit:
    if audit.why[:1] != SEALED_TEXT:
        return audit
    ((who, why),) = _unpacked(open_value(ring, audit.why, associated + _row(audit.who)))
    return Audit(who.decode(), why.decode())


def _sealed_failure(ring: KeyRing, why: str, sink: str, event_id: str) -> str:
    return f"{ring.seal_text(encoded(why), _of_failure(event_id, sink))} {event_id}"


def _opened_failure(ring: KeyRing | None, why: str, sink: str, event_id: str | None) -> str:
    if why[:1] != SEALED_TEXT:
        return why
    sealed, _, named = why.partition(" ")
    return open_value(ring, sealed, _of_failure(named if event_id is None else event_id, sink)).decode()


TEXTS: Final = Form(lambda audit: audit.why, _sealed_texts, _opened_texts)
"""Who made a change, and why, in an `Audit`."""
TEXT: Final = Form(
    lambda text: text,
    lambda ring, text, associated: ring.seal_text(encoded(text), associated),
    lambda ring, text, associated: open_value(ring, text, associated).decode() if text[:1] == SEALED_TEXT else text,
)
FAILURE: Final = Form(lambda why: why or None, _sealed_failure, _opened_failure)
"""Why an event was not published: of this sink and event, or, with None, of the event that the text names. The id
stands behind it, because a list of sinks has no other."""


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


# Associated data begins with the owner.


def _of_operation(operation_id: UUID, part: bytes) -> bytes:
    return b"%b operation %b" % (operation_id.bytes, part)


def _of_attempt(operation_id: UUID, token: int, part: bytes) -> bytes:
    return b"%b attempt %d %b" % (operation_id.bytes, token, part)


def of_audit(operation_id: UUID, event: Event, token: int) -> bytes:
    bound = 0 if event in (Event.PURGE, Event.ERASE) else token
    return b"%b audit %b %d" % (operation_id.bytes, event.value.encode(), bound)


def _row(name: str) -> bytes:
    return framed(b"row", name.encode())


def _of_event(event_id: str, sink: str) -> bytes:
    return event_id.encode() + framed(b"event", sink.encode())


def _of_failure(event_id: str, sink: str) -> bytes:
    return encoded(event_id) + framed(b"failure", sink.encode())


def of_pause(service: str, operation: str, is_resumed: bool) -> bytes:
    return framed(b"resume" if is_resumed else b"pause", service.encode(), operation.encode())


def of_suspension(service: str, sink: str) -> bytes:
    return framed(b"suspension", service.encode(), sink.encode())


def _unpacked(packed: bytes) -> Headers:
    """Undo `pack_headers`. Raises `Unopenable` if a newer program packed it otherwise."""
    try:
        return unpack_headers(packed)
    except ValueError:
        raise Unopenable("its format is unknown to this version of the gateway") from None
