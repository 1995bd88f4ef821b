"""Which parts of commands, records and events are encrypted where they are kept, and what becomes of those that cannot
be decrypted.

Owns the parts and their associated data; `sealing` owns keys and form. It knows no store.

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

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.framing import framed
from gateway.core.message import Headers, StoredResponse, pack_headers, unpack_headers
from gateway.core.operation import (
    EVENT_OF,
    Abandon,
    Accept,
    Applied,
    Audit,
    Claim,
    Command,
    Complete,
    Disprove,
    Erase,
    Event,
    Identity,
    ProbeTarget,
    Prove,
    Purge,
    Record,
    Reinstate,
    RequestInfo,
    Requeue,
    Result,
    Snapshot,
    Takeover,
    Withdraw,
)
from gateway.core.sealing import SEALED, SEALED_TEXT, KeyRing, Unopenable, key_id_of, open_value

C = TypeVar("C", bound=Command)

# The header that all other headers are in. No HTTP message has a header of this name (RFC 9110 section 5.6.2).
_HEADERS: Final = SEALED + b"headers"
# Those of a response whose headers were cut: they cannot be opened.
_CUT_HEADERS: Final = ((_HEADERS, SEALED),)
# How a value begins that has to be opened. No key, target or reference is empty: one that is was cut to nothing.
_TEXT: Final = (SEALED_TEXT, "")
_BYTES: Final = (SEALED, b"")
# Commands with an audit, but no other confidential part.
_AUDITED: Final = (Disprove, Reinstate, Requeue, Withdraw, Purge, Erase)

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
        """The command as a store or a journal keeps it."""
        ring = self.ring
        found: Any = command
        if isinstance(command, Complete):
            granted = command.granted
            if ring is None and (granted is None or granted.sealed is None):
                return command
            found = replace(
                command,
                response=self._sealed_response(command.response, command.operation_id, command.token),
                resource=sealed_resource(ring, command.resource, command.operation_id),
                granted=granted if granted is None or granted.sealed is None else granted.sealed,
            )
        elif ring is None:
            return command
        elif isinstance(command, Claim | Accept):
            operation_id = command.identity.operation_id
            found = replace(
                command,
                identity=sealed_identity(ring, command.identity),
                probe=sealed_probe(ring, command.probe, operation_id),
                request=sealed_request(ring, command.request, operation_id),
            )
        elif isinstance(command, Takeover):
            found = replace(command, request=sealed_request(ring, command.request, command.operation_id))
        elif isinstance(command, Prove):
            response = self._sealed_response(command.response, command.operation_id, command.read_token)
            resource = sealed_resource(ring, command.resource, command.operation_id)
            found = replace(command, response=response, resource=resource, audit=self._sealed_audit(command))
        elif isinstance(command, Abandon):
            found = replace(command, resource=sealed_resource(ring, command.resource, command.operation_id))
        elif isinstance(command, _AUDITED):
            found = replace(command, audit=self._sealed_audit(command))
        result: C = found
        return result

    def opened(self, record: Record, known: _Known = _NOTHING) -> Record:
        """The record in clear, with the sealed one beside it. What cannot be opened is missing: of a response, all but
        its status. Such a response is one that was not stored."""
        if not is_sealed(record):
            return record
        identity, probe, request, response = record.identity, record.probe, record.request, record.response
        resource = record.resource
        operation_id = identity.operation_id
        try:
            identity = known.get(id(identity)) or self._opened_identity(identity)
            probe = known.get(id(probe)) or self._opened_probe(probe, operation_id)
            request = known.get(id(request)) or self._opened_request(request, operation_id)
            resource = known.get(id(resource)) or self._opened_resource(resource, operation_id)
        except Unopenable as error:
            identity, probe, request, resource = replace(record.identity, key=None), None, None, None
            self._on_unreadable(operation_id, str(error))
        if response is not None:
            response = known.get(id(response)) or self._response_or_status(response, operation_id, record.token)
        return replace(
            record,
            identity=identity,
            probe=probe,
            request=request,
            response=response,
            resource=resource,
            sealed=record,
        )

    def opened_copy(self, record: Record) -> Record:
        """As `opened`, for a record of which there is another copy. Raises `Unopenable`, and reports nothing."""
        if not is_sealed(record):
            return record
        operation_id, response = record.identity.operation_id, record.response
        return replace(
            record,
            identity=self._opened_identity(record.identity),
            probe=self._opened_probe(record.probe, operation_id),
            response=None if response is None else self.opened_response(response, operation_id, record.token),
            resource=self._opened_resource(record.resource, operation_id),
            sealed=record,
        )

    def opened_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with its record in clear."""
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

    def opened_outcome(self, command: C) -> C:
        """A command that a journal kept, in clear; of a response that cannot be opened, the status."""
        try:
            return self.whole_outcome(command)
        except Unopenable as error:
            found: Any = command
            if isinstance(command, Complete | Abandon):
                self._on_unreadable(command.operation_id, str(error))
                found = replace(command, resource=None)
            if isinstance(command, Complete):
                found = replace(found, response=_status_alone(command.response))
            result: C = found
            return result

    def whole_outcome(self, command: C) -> C:
        """As `opened_outcome`. Raises `Unopenable`, and reports nothing."""
        found: Any = command
        if isinstance(command, Complete | Abandon):
            found = replace(command, resource=self._opened_resource(command.resource, command.operation_id))
        if isinstance(command, Complete):
            response = self.opened_response(command.response, command.operation_id, command.token)
            found = replace(found, response=response)
        result: C = found
        return result

    def is_old(self, value: bytes | str) -> bool:
        """Whether a value is clear, or sealed with another key than the current one. Without a key nothing is."""
        if self.ring is None:
            return False
        return value[:1] not in (SEALED, SEALED_TEXT) or key_id_of(value) != self.ring.current_id

    # -- responses -----------------------------------------------------------------------------------------------------

    def _sealed_response(self, response: StoredResponse, operation_id: UUID, token: int) -> StoredResponse:
        """A response that is sealed already, because it comes from a journal, stays as it is."""
        ring, headers, body = self.ring, response.headers, response.body
        if ring is None or is_sealed_response(response):
            return response
        content = pack_headers(((b"", response.reason), *headers))
        kept = ((_HEADERS, ring.seal_value(content, _of_attempt(operation_id, token, b"headers"))),)
        if body is not None:
            body = ring.seal_value(body, _of_attempt(operation_id, token, b"body"))
        return StoredResponse(response.status, b"", kept, body, response.version)

    def _response_or_status(self, response: StoredResponse, operation_id: UUID, token: int) -> StoredResponse:
        try:
            return self.opened_response(response, operation_id, token)
        except Unopenable as error:
            self._on_unreadable(operation_id, str(error))
            return _status_alone(response)

    def opened_response(self, response: StoredResponse, operation_id: UUID, token: int) -> StoredResponse:
        """The response in clear. Raises `Unopenable`."""
        if not is_sealed_response(response):
            return response
        body = response.body
        (_, value), *_ = response.headers
        content = open_value(self.ring, value, _of_attempt(operation_id, token, b"headers"))
        (_, reason), *headers = _unpacked(content)
        if body is not None:
            body = open_value(self.ring, body, _of_attempt(operation_id, token, b"body"))
        return StoredResponse(response.status, reason, tuple(headers), body, response.version)

    # -- what was written with the claim -------------------------------------------------------------------------------

    def _opened_identity(self, identity: Identity) -> Identity:
        key = identity.key
        if key is None or key[:1] not in _TEXT:
            return identity
        content = open_value(self.ring, key, _of_operation(identity.operation_id, b"key"))
        return replace(identity, key=content.decode("utf-8", "surrogatepass"))

    def _opened_probe(self, probe: ProbeTarget | None, operation_id: UUID) -> ProbeTarget | None:
        if probe is None or probe.target[:1] not in _BYTES:
            return probe
        content = open_value(self.ring, probe.target, _of_operation(operation_id, b"probe"))
        ((target, host),) = _unpacked(content)
        return ProbeTarget(target, host)

    def _opened_request(self, request: RequestInfo | None, operation_id: UUID) -> RequestInfo | None:
        if request is None or request.path[:1] != SEALED_TEXT:
            return request
        content = open_value(self.ring, request.path, _of_operation(operation_id, b"request"))
        ((host, path),) = _unpacked(content)
        return replace(request, host=host.decode(), path=path.decode())

    def _opened_resource(self, resource: str | None, operation_id: UUID) -> str | None:
        if resource is None or resource[:1] not in _TEXT:
            return resource
        return open_value(self.ring, resource, _of_operation(operation_id, b"resource")).decode()

    # -- audits --------------------------------------------------------------------------------------------------------

    def _sealed_audit(self, command: Prove | Disprove | Reinstate | Requeue | Withdraw | Purge | Erase) -> Audit | None:
        if command.audit is None:
            return None
        if self.ring is None:
            return command.audit
        token = None if isinstance(command, Purge | Erase) else command.read_token
        associated = of_audit(command.operation_id, EVENT_OF[type(command)], token)
        return sealed_texts(self.ring, command.audit, associated)

    def sealed_pause(self, audit: Audit, service: str, operation: str, *, is_resumed: bool) -> Audit:
        """The audit of a pause or of its end."""
        return audit if self.ring is None else sealed_texts(self.ring, audit, of_pause(service, operation, is_resumed))

    def opened_pause(self, audit: Audit, service: str, operation: str, *, is_resumed: bool) -> Audit:
        """Undo `sealed_pause`. One that cannot be opened says why in its place."""
        try:
            return opened_texts(self.ring, audit, of_pause(service, operation, is_resumed))
        except Unopenable as error:
            return Audit("", f"({error})")

    def sealed_suspension(self, why: str, service: str, sink: str) -> str:
        """Why a sink is suspended."""
        return why if self.ring is None else self.ring.seal_text(encoded(why), of_suspension(service, sink))

    def opened_suspension(self, why: str, service: str, sink: str) -> str:
        """Undo `sealed_suspension`. One that cannot be opened says why in its place."""
        try:
            return opened_text(self.ring, why, of_suspension(service, sink))
        except Unopenable as error:
            return f"({error})"

    def opened_audit(self, audit: Audit, operation_id: UUID, event: Event, token: int) -> Audit:
        """An audit of an operation in clear. One that cannot be opened says why in its place."""
        bound = None if event in (Event.PURGE, Event.ERASE) else token
        try:
            return opened_texts(self.ring, audit, of_audit(operation_id, event, bound))
        except Unopenable as error:
            self._on_unreadable(operation_id, str(error))
            return Audit("", f"({error})")

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

    def sealed_failure(self, why: str, event_id: str, sink: str) -> str:
        """Why an event was not published. The event's id stands behind it, because a list of sinks has no other."""
        if self.ring is None or not why:
            return why
        return sealed_failure(self.ring, why, event_id, sink)

    def opened_failure(self, why: str, sink: str, event_id: str | None = None) -> str:
        """Undo `sealed_failure`, for this event or, with None, for the one that the text names. A text that cannot be
        opened says why in its place."""
        try:
            return opened_failure(self.ring, why, sink, event_id)
        except Unopenable as error:
            return f"({error})"


NO_SEALING: Final = Sealing()
"""Nothing is encrypted, and what is cannot be read."""


def kept_headers(packed: bytes) -> Headers:
    """The headers that a store has packed. Of a response whose headers were cut, the status is known."""
    try:
        return unpack_headers(packed)
    except ValueError:
        return _CUT_HEADERS


def is_sealed(record: Record) -> bool:
    """Whether anything in the record is sealed."""
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


def _status_alone(response: StoredResponse) -> StoredResponse:
    return StoredResponse(response.status, b"", (), None, response.version)


def _known(command: Command, sealed: Any) -> _Known:
    known: dict[int, Any] = {}
    match command:
        case Claim() | Accept():
            known[id(sealed.identity)] = command.identity
            known[id(sealed.probe)] = command.probe
            known[id(sealed.request)] = command.request
        case Takeover():
            known[id(sealed.request)] = command.request
        case Complete():
            known[id(sealed.response)] = command.response
            known[id(sealed.resource)] = command.resource
            granted = command.granted
            if granted is not None and sealed.granted is not None:
                known[id(sealed.granted.identity)] = granted.identity
                known[id(sealed.granted.probe)] = granted.probe
                known[id(sealed.granted.request)] = granted.request
        case Prove():
            known[id(sealed.response)] = command.response
            known[id(sealed.resource)] = command.resource
        case Abandon():
            known[id(sealed.resource)] = command.resource
    # What a journal kept came sealed, and is the same object in both commands: its clear value is not known.
    return {sealed_id: clear for sealed_id, clear in known.items() if id(clear) != sealed_id}


def sealed_identity(ring: KeyRing, identity: Identity) -> Identity:
    if identity.key is None:
        return identity
    content = identity.key.encode("utf-8", "surrogatepass")
    return replace(identity, key=ring.seal_text(content, _of_operation(identity.operation_id, b"key")))


def sealed_probe(ring: KeyRing, probe: ProbeTarget | None, operation_id: UUID) -> ProbeTarget | None:
    if probe is None:
        return None
    content = pack_headers(((probe.target, probe.host),))
    return ProbeTarget(ring.seal_value(content, _of_operation(operation_id, b"probe")), b"")


def sealed_resource(ring: KeyRing | None, resource: str | None, operation_id: UUID) -> str | None:
    """One that is sealed already, because it comes from a journal, stays as it is."""
    if ring is None or resource is None or resource[:1] == SEALED_TEXT:
        return resource
    return ring.seal_text(resource.encode(), _of_operation(operation_id, b"resource"))


def sealed_request(ring: KeyRing, request: RequestInfo | None, operation_id: UUID) -> RequestInfo | None:
    if request is None:
        return None
    content = pack_headers(((request.host.encode(), request.path.encode()),))
    sealed = ring.seal_text(content, _of_operation(operation_id, b"request"))
    return RequestInfo(request.method, "", sealed, request.request_id, request.trace_id)


def of_request(operation_id: UUID, acceptance_id: UUID) -> bytes:
    """The associated data of a kept request."""
    return operation_id.bytes + acceptance_id.bytes


def sealed_texts(ring: KeyRing, audit: Audit, associated: bytes) -> Audit:
    """Both texts as one, bound to its row: in the place of `who` is a random name, for two may be of one change."""
    row = ring.random_name()
    return Audit(row, ring.seal_text(pack_headers(((encoded(audit.who), encoded(audit.why)),)), associated + _row(row)))


def opened_texts(ring: KeyRing | None, audit: Audit, associated: bytes) -> Audit:
    """Undo `sealed_texts`. Raises `Unopenable`."""
    if audit.why[:1] != SEALED_TEXT:
        return audit
    ((who, why),) = _unpacked(open_value(ring, audit.why, associated + _row(audit.who)))
    return Audit(who.decode(), why.decode())


def opened_text(ring: KeyRing | None, text: str, associated: bytes) -> str:
    """Raises `Unopenable`."""
    return text if text[:1] != SEALED_TEXT else open_value(ring, text, associated).decode()


def sealed_failure(ring: KeyRing, why: str, event_id: str, sink: str) -> str:
    return f"{ring.seal_text(encoded(why), _of_failure(event_id, sink))} {event_id}"


def opened_failure(ring: KeyRing | None, why: str, sink: str, event_id: str | None) -> str:
    """Undo `sealed_failure`; `event_id` as in `Sealing.opened_failure`. Raises `Unopenable`."""
    if why[:1] != SEALED_TEXT:
        return why
    sealed, _, named = why.partition(" ")
    return open_value(ring, sealed, _of_failure(named if event_id is None else event_id, sink)).decode()


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


# Associated data begins with the owner (`sealing`).


def _of_operation(operation_id: UUID, part: bytes) -> bytes:
    return b"%b operation %b" % (operation_id.bytes, part)


def _of_attempt(operation_id: UUID, token: int, part: bytes) -> bytes:
    return b"%b attempt %d %b" % (operation_id.bytes, token, part)


def of_audit(operation_id: UUID, event: Event, token: int | None) -> bytes:
    return b"%b audit %b %d" % (operation_id.bytes, event.value.encode(), token or 0)


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
