"""What operators do about operations: look, list, resolve, purge, erase. Knows neither HTTP nor terminals.

Theory of operation
-------------------
*Nothing is decided twice.* What may happen to a record stands in `core.lifecycle`; here is only which command an
operator's wish is, and why a wish has none. A resolution is fenced on the token that was read: whoever acted in
between wins, and the operator is told.

*A wish may be repeated.* The id of a resolution is derived from all that the operator said and from the token. So the
same command given again, by whoever did not see its answer, is recognised as the same one, and so is the repeat after
an answer of the store was lost.

*"Nothing happened" has a time.* A request of the last attempt may still be under way after its lease. Before the
route's settle time is over the wish is refused, unless it is forced.

Every change carries its audit into the durable store, in the same atomic change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar, assert_never
from uuid import UUID

from gateway.admin.policy import Policies, Terms, without_peer
from gateway.admin.view import ago, moment, span
from gateway.core.framing import digest
from gateway.core.identity import operation_id_of
from gateway.core.key import Key, KeyFault, find_key, needs_body
from gateway.core.message import Headers, ResponseHead
from gateway.core.operation import (
    Applied,
    Audit,
    Command,
    Disprove,
    Erase,
    Event,
    Prove,
    Purge,
    Record,
    Result,
    Snapshot,
    State,
    microseconds,
)
from gateway.core.outcome import Meaning, declared_retention_seconds, meaning_of
from gateway.core.replay import is_event_stream, stored_response
from gateway.core.scope import Scope, scope_of
from gateway.proxy.structured_fields import unquote
from gateway.store.base import AuditEntry, Indefinite, NotApplied, Query, Store

T = TypeVar("T")

PAGE_SIZE_MAX: Final = 500
WHY_CHARACTERS_MAX: Final = 1000
WHO_CHARACTERS_MAX: Final = 128

_CALL_SECONDS: Final = 15.0
# How long a command whose answer was lost is repeated before the operator is asked to.
_PATIENCE_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.5


class Refusal(StrEnum):
    """Why a wish has no command."""

    UNKNOWN = "unknown"  # nothing is remembered under this id
    STATE = "state"  # the record is not in a state for it
    MOVED = "moved"  # the record is not the one that was looked at
    EARLY = "early"  # it cannot be known yet
    ANSWER = "answer"  # by the route's rules this answer ends nothing
    UNSURE = "unsure"  # what it means has to be confirmed


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed. `text` says why and what to do."""

    reason: Refusal
    text: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Changed:
    """It is in the record, by this command or by the same one given before. `notes` are what else there is to know.

    `drops_owed` are purged operations of which the fast tier could not be told.
    """

    text: str
    snapshot: Snapshot
    notes: tuple[str, ...] = ()
    drops_owed: int = 0


@dataclass(frozen=True, slots=True)
class Completed:
    """The operator knows that it happened, and brings the service's answer."""

    head: ResponseHead
    body: bytes


@dataclass(frozen=True, slots=True)
class NeverHappened:
    """The operator knows that nothing happened."""


Finding = Completed | NeverHappened


@dataclass(frozen=True, slots=True)
class Inspected:
    """All that is known of an operation."""

    operation_id: UUID
    snapshot: Snapshot
    audits: tuple[AuditEntry, ...]
    terms: Terms | None


class CannotIdentify(ValueError):
    """No operation can be found from what was given. The text says what is missing and quotes no key."""


class Operations:
    """What operators do, on one store.

    `store` has what stands before the durable record, so that purges reach the copies; `drops_owed` counts those that
    did not. `cache_seconds` is how long a gateway may answer from its memory without hearing of a purge, 0 where it
    hears at once.
    """

    def __init__(
        self,
        store: Store,
        policies: Policies,
        *,
        drops_owed: Callable[[], int] = lambda: 0,
        cache_seconds: float = 0.0,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self.policies = policies
        self._drops_owed = drops_owed
        self._cache_seconds = cache_seconds
        self._patience_seconds = patience_seconds

    # -- looking ------------------------------------------------------------------------------------------------------

    def identify(self, route_name: str, headers: Headers, body: bytes | None) -> UUID:
        """The operation of a request, found as for the request itself, but for where it comes from.

        Raises `CannotIdentify`.
        """
        route = self.policies.named(route_name)
        if route is None:
            names = ", ".join(sorted(route.name for route in self.policies.routes))
            raise CannotIdentify(f"there is no route {route_name!r}; the configuration has {names}")
        if body is None and needs_body(route.key):
            raise CannotIdentify(f"the key of route {route_name} is in the body of the request: give that too")
        key = find_key(route.key, headers, body, unquote)
        if isinstance(key, KeyFault):
            raise CannotIdentify(key.detail)
        scope = scope_of(without_peer(route.scope), headers, None)
        if not isinstance(scope, Scope):
            raise CannotIdentify(f"the caller of route {route_name} is not identified: {scope.detail}")
        if not isinstance(key, Key):
            raise CannotIdentify(f"these headers have no key for route {route_name}")
        return operation_id_of(self.policies.service, route.operation, scope.digest, key.digest)

    async def inspect(self, operation_id: UUID) -> Inspected:
        """Everything known of one operation."""
        snapshot = await self._read(operation_id)
        audits = await _bounded(self._store.audits(operation_id))
        terms = None if snapshot.record is None else self.policies.terms_of(snapshot.record)
        return Inspected(operation_id, snapshot, tuple(audits), terms)

    async def pages(self, query: Query, limit: int | None = None) -> AsyncIterator[list[Snapshot]]:
        """What fits, page by page in the order of operation ids, up to `limit` in all. `query.limit` is a page's."""
        left = limit
        while left is None or left > 0:
            size = query.limit if left is None else min(query.limit, left)
            page = await self.page(replace(query, limit=size))
            if page:
                yield page
            if len(page) < size:
                return
            left = None if left is None else left - len(page)
            query = replace(query, after=_last_id(page))

    async def page(self, query: Query) -> list[Snapshot]:
        """One page."""
        return await _bounded(self._store.find(query))

    # -- resolving ----------------------------------------------------------------------------------------------------

    async def resolve(
        self, operation_id: UUID, finding: Finding, audit: Audit, *, is_forced: bool = False, token: int | None = None
    ) -> Changed | Refused:
        """End the doubt about an operation. `token`: only if it is still this one that is in doubt.

        Raises `NotApplied`, `Indefinite` (give the same command again), `Rejected`.
        """
        snapshot = await self._read(operation_id)
        record = snapshot.record
        if record is None:
            return _unknown(operation_id, snapshot)
        terms = self.policies.terms_of(record)
        command = _resolution(record, finding, audit, terms)
        if record.resolution_id == command.resolution_id:
            return Changed(f"It was resolved so already, by the same command, {_when(snapshot)}.", snapshot)
        if token is not None and token != record.token:
            return _moved(token, snapshot)
        if record.state is not State.IN_DOUBT:
            return _nothing_to_resolve(snapshot)
        objection = None if is_forced else _objection(finding, snapshot, terms)
        if objection is not None:
            return objection
        result, _ = await self._say(command)
        if isinstance(result, Applied):
            return Changed(_resolved(command, result.snapshot), result.snapshot, self._notes_on(record, command))
        after = result.snapshot.record
        if after is None:
            return _unknown(operation_id, result.snapshot)
        if after.state is State.IN_DOUBT:
            return _moved(record.token, result.snapshot)
        return _nothing_to_resolve(result.snapshot)

    def _notes_on(self, record: Record, command: Prove | Disprove) -> tuple[str, ...]:
        notes = []
        if self.policies.named(record.identity.route) is None:
            notes.append(
                f"Its route {record.identity.route} is not in the configuration: the longest times of the routes that "
                "it may have been were used."
            )
        if isinstance(command, Prove) and command.response.body is None:
            notes.append(
                "The body is too long for the route, or a stream: only status and header fields were recorded, and "
                "repeats are told so (response-not-stored)."
            )
        return tuple(notes)

    # -- dropping -----------------------------------------------------------------------------------------------------

    async def purge(self, operation_id: UUID, audit: Audit) -> Changed | Refused:
        """Drop the answer and remember the key. Raises as `resolve`."""
        result, _ = await self._say(Purge(operation_id, audit))
        snapshot = result.snapshot
        if snapshot.record is None:
            return _unknown(operation_id, snapshot)
        if isinstance(result, Applied):
            text = "Its answer is dropped. The key is remembered, so that it does not run again"
            return self._dropped(f"{text}, until {moment(snapshot.record.remember_until_us)}.", snapshot)
        match snapshot.record.state:
            case State.TOMBSTONE:
                text = "Its answer is no longer kept; there is nothing to purge."
            case State.RELEASED:
                text = "It has no answer: nothing happened. To forget the key as well, erase it."
            case State.CLAIMED:
                text = f"It is being executed by {snapshot.record.holder}; there is no answer to purge yet."
            case _:
                text = "It is in doubt and has no answer to purge. Doubt cannot be purged: resolve it."
        return Refused(Refusal.STATE, text, snapshot)

    async def erase(self, operation_id: UUID, audit: Audit, *, is_sure: bool) -> Changed | Refused:
        """Forget the key, so that a request with it runs again. Raises as `resolve`."""
        snapshot = await self._read(operation_id)
        if snapshot.state in (State.RELEASED, State.TOMBSTONE) and not is_sure:
            return Refused(Refusal.UNSURE, _ERASING, snapshot)
        before = snapshot.record
        # Also when nothing is there: an erasure whose answer was lost may still owe a drop of copies.
        result, was_lost = await self._say(Erase(operation_id, audit))
        snapshot, after = result.snapshot, result.snapshot.record
        is_gone = before is not None and (after is None or after.token != before.token)
        if isinstance(result, Applied) or (was_lost and is_gone):
            return self._dropped("The key is forgotten: the next request with it runs.", snapshot)
        match snapshot.state:
            case State.ABSENT:
                return _unknown(operation_id, snapshot)
            case State.COMPLETED:
                text = "It has an answer, and is not erased while it has: purge it first."
            case State.CLAIMED:
                text = "It is being executed, and cannot be erased."
            case State.IN_DOUBT:
                text = "It is in doubt, and doubt cannot be erased: resolve it first."
            case _:
                text = "It changed meanwhile; look again."
        return Refused(Refusal.STATE, text, snapshot)

    def _dropped(self, text: str, snapshot: Snapshot) -> Changed:
        notes, owed = [], self._drops_owed()
        if owed:
            notes.append(
                f"The fast tier could not be reached: {owed} drops of copies are owed. Until it takes them, gateways "
                "may still answer from a copy. Give the same command again when it is back."
            )
        elif self._cache_seconds:
            notes.append(f"Running gateways may answer from their memory for {self._cache_seconds:g} s more.")
        return Changed(text, snapshot, tuple(notes), owed)

    # -- the store ----------------------------------------------------------------------------------------------------

    async def _read(self, operation_id: UUID) -> Snapshot:
        return await _bounded(self._store.read(operation_id))

    async def _say(self, command: Command) -> tuple[Result, bool]:
        """Apply, again and again where no answer comes; and whether one did not. Raises `NotApplied`, `Indefinite`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_seconds
        was_lost = False
        while True:
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    return await self._store.apply(command), was_lost
            except (Indefinite, TimeoutError):
                was_lost = True
            except NotApplied:
                # After a lost answer this says nothing of the try before.
                if not was_lost:
                    raise
            if loop.time() >= until:
                raise Indefinite(
                    "no answer came from the durable store: it is not known whether the change was recorded. Give the "
                    "same command again to know; it is not done twice"
                )
            await asyncio.sleep(_PAUSE_SECONDS)


_ERASING: Final = (
    "To erase is to forget the key: a request with it runs again, and what it did may happen a second time. Say yes to "
    "confirm that no caller will repeat it."
)


def audit_by(who: str, why: str) -> Audit:
    """Who acts and why, as it is written down. Raises ValueError with what is wrong."""
    who, why = who.strip(), why.strip()
    if not who or not why:
        raise ValueError("say who acts and why; both are written down")
    for name, text, characters_max in (("who", who, WHO_CHARACTERS_MAX), ("why", why, WHY_CHARACTERS_MAX)):
        if len(text) > characters_max or not text.isprintable():
            raise ValueError(f"{name} is a line of at most {characters_max} printable characters")
    return Audit(who, why)


async def _bounded(call: Awaitable[T]) -> T:
    """A read within its time. Raises `NotApplied`."""
    try:
        async with asyncio.timeout(_CALL_SECONDS):
            return await call
    except (TimeoutError, Indefinite) as error:
        raise NotApplied(f"the durable store did not answer within {_CALL_SECONDS:g} s") from error


def _last_id(page: list[Snapshot]) -> UUID:
    record = page[-1].record
    if record is None:
        raise RuntimeError("a store found a record that is absent")
    return record.identity.operation_id


def _resolution(record: Record, finding: Finding, audit: Audit, terms: Terms) -> Prove | Disprove:
    """The command that says this of this record. Its id is that of everything said: a repeat is the same command."""
    operation_id, said = record.identity.operation_id, [audit.who.encode(), audit.why.encode()]
    match finding:
        case Completed(head, body):
            is_kept = len(body) <= terms.keep.body_bytes_max and not is_event_stream(head.headers)
            # A protected route has no method whose answers have no body.
            response = stored_response(b"POST", head, body if is_kept else None, terms.keep)
            said += [b"%d" % head.status, head.reason, *(part for field in head.headers for part in field), body]
            declared = declared_retention_seconds(head.headers)
            replay_us = terms.replay_us if declared is None else microseconds(declared)
            remember_us = max(replay_us, terms.remember_us)
            resolution_id = _resolution_id(operation_id, record.token, Event.PROVE, said)
            return Prove(operation_id, record.token, resolution_id, response, replay_us, remember_us, audit)
        case NeverHappened():
            resolution_id = _resolution_id(operation_id, record.token, Event.DISPROVE, said)
            return Disprove(operation_id, record.token, resolution_id, terms.remember_us, audit)
        case _:
            assert_never(finding)


def _resolution_id(operation_id: UUID, token: int, event: Event, said: list[bytes]) -> UUID:
    parts = (b"resolution", operation_id.bytes, b"%d" % token, event.encode(), *said)
    return UUID(bytes=digest(*parts)[:16], version=5)


def _objection(finding: Finding, snapshot: Snapshot, terms: Terms) -> Refused | None:
    """What speaks against this finding about a record in doubt, and can be overruled."""
    record = snapshot.record
    if record is None:
        return None
    match finding:
        case NeverHappened():
            settled_us = record.lease_until_us + terms.settle_us
            if settled_us <= snapshot.now_us:
                return None
            text = (
                f"A request of the last attempt may still arrive until {moment(settled_us)} (for "
                f"{span(settled_us - snapshot.now_us)} more): that nothing happened cannot be known before. Wait until "
                "then, or force it if you know more than the gateway."
            )
            return Refused(Refusal.EARLY, text, snapshot)
        case Completed(head):
            if terms.status is None:
                return None
            meaning = meaning_of(head.status, head.headers, terms.status, carries_doubt=record.carries_doubt)
            if meaning is Meaning.FINAL:
                return None
            said = "that nothing happened" if meaning is Meaning.RETRYABLE else "nothing certain about what happened"
            text = (
                f"On route {record.identity.route} an answer with status {head.status} says {said}; recorded, it would "
                "be replayed for ever. Bring the answer of what happened, resolve it as never happened, or force it."
            )
            return Refused(Refusal.ANSWER, text, snapshot)
        case _:
            assert_never(finding)


def _resolved(command: Prove | Disprove, snapshot: Snapshot) -> str:
    record = snapshot.record
    if isinstance(command, Disprove):
        return "Resolved: nothing happened. The next request with this key runs."
    until = "" if record is None else f" until {moment(record.replay_until_us)}"
    return f"Resolved: it completed with status {command.response.status}. Repeats get this answer{until}."


def _unknown(operation_id: UUID, snapshot: Snapshot) -> Refused:
    text = (
        f"Nothing is remembered of operation {operation_id}: it never began, is forgotten, or belongs to another "
        "service or store. Check the id."
    )
    return Refused(Refusal.UNKNOWN, text, snapshot)


def _moved(token: int, snapshot: Snapshot) -> Refused:
    now = "" if snapshot.record is None else f", and is now {snapshot.record.token} ({snapshot.record.state})"
    text = f"The operation went on: the token that was looked at was {token}{now}. Nothing was changed. Look again."
    return Refused(Refusal.MOVED, text, snapshot)


_BY_EVENT: Final[Mapping[Event, str]] = {
    Event.PROVE: "It was resolved already",
    Event.COMPLETE: "It completed already",
    Event.DISPROVE: "It was resolved already, as never happened",
    Event.RELEASE: "It is known already that nothing happened",
    Event.FORGET: "It is known already that nothing happened",
}


def _nothing_to_resolve(snapshot: Snapshot) -> Refused:
    record = snapshot.record
    if record is None:
        raise ValueError("a record that is absent has a text of its own")
    done = _BY_EVENT.get(record.last_event, "It completed already")
    match record.state:
        case State.CLAIMED:
            lease_us = record.lease_until_us - snapshot.now_us
            text = (
                f"{record.holder} is executing it now, under token {record.token}. Wait for its answer; when its lease "
                f"ends without one, in {span(lease_us)} unless renewed, it is in doubt and can be resolved."
            )
        case State.COMPLETED | State.TOMBSTONE:
            text = f"{done}, {_when(snapshot)}; there is nothing to resolve."
        case _:
            text = f"{done}; the next request with this key runs. There is nothing to resolve."
    return Refused(Refusal.STATE, text, snapshot)


def _when(snapshot: Snapshot) -> str:
    """When it completed, and with what."""
    record = snapshot.record
    if record is None or record.completed_us is None:
        return "before"
    status = "" if record.response is None else f", with status {record.response.status}"
    return f"at {moment(record.completed_us)} ({ago(record.completed_us, snapshot.now_us)}){status}"
