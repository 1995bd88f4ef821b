"""What a durable store keeps is encrypted: what gets to it is sealed, and what comes from it is opened (`SealedStore`
for what requests call, `SealedCold` for the rest); and it is sealed again with the current key, beside gateways that
use the store (`rekey`).

`core.confidential` decides what is sealed. The store's events are sealed by its `Outbox`, because the store makes them.
Kept requests come sealed. The invariant: no change of a record reads, or loses, what is sealed in it.

*Again* changes nothing about an operation but the bytes of its confidential parts. It reads a table in pages, seals
what is not sealed with the current key, and has the store write each row only if it is still as it was read: what
another writer changes in between wins, and is found by the next pass. So it may be stopped at any point and run again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, cast
from uuid import UUID

from gateway.core import immutable
from gateway.core.confidential import (
    FAILURE,
    NO_SEALING,
    TEXT,
    TEXTS,
    Resealing,
    Sealing,
    Unopenable,
    of_audit,
    of_pause,
    of_suspension,
)
from gateway.core.delivery import Delivering
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Accept,
    Audit,
    Claim,
    Command,
    Complete,
    Dispatch,
    Event,
    Fenced,
    Prove,
    Record,
    Renew,
    Result,
    SealedRequest,
    Snapshot,
    State,
    Takeover,
)
from gateway.core.outbox import opened_event, resealed_event
from gateway.observe.facts import Events, StoreCalled
from gateway.store.base import StartRefused, Store, boot_seconds
from gateway.store.operations import (
    SEALED_COUNT_MAX,
    AuditEntry,
    Backlog,
    Cold,
    Due,
    EventFate,
    EventReport,
    KeptEvent,
    LeasedEvent,
    NumberedAudit,
    PauseAudit,
    Query,
    SinkBacklog,
)

# -- again -------------------------------------------------------------------------------------------------------------

PAGE_ROWS_MAX: Final = 50
"""Rows of one page: writers wait for so many at most, and responses of so many are in memory."""
_PASSES_MAX: Final = 3
_NEWER: Final = "a newer program wrote it"
EXAMPLES_MAX: Final = 3
"""So many of each kind show whether a key is the one that it was: one may be damaged."""


class Place(StrEnum):
    """What a store keeps confidential values in."""

    RECORDS = "records"
    REQUESTS = "requests"
    AUDITS = "audits"
    PAUSES = "pauses"
    PAUSE_AUDITS = "pause_audits"
    SUSPENSIONS = "suspensions"
    EVENTS = "events"


@immutable
class Values:
    """What a row of another place than `RECORDS` has: the columns `values` of `SEALED`, and before them the columns
    `about` that these are bound to."""

    place: Place
    columns: tuple[Any, ...]

    @property
    def values(self) -> tuple[Any, ...]:
        return self.columns[-len(SEALED[self.place].values) :]


Kept = Record | Values
"""A row as it is stored. Records have their whole response."""


@immutable
class _Sealed:
    """The columns of a place that are encrypted, and those `about` that they are bound to. `again` gets a `Resealing`
    and the values of both, and returns the former under the current key."""

    about: tuple[str, ...]
    values: tuple[str, ...]
    again: Callable[..., tuple[Any, ...]]


def _request(again: Resealing, operation_id: UUID, acceptance_id: UUID, key_id: str, sealed: bytes) -> tuple[Any, ...]:
    kept = again.resealed_request(SealedRequest(acceptance_id, key_id, sealed), operation_id)
    return kept.key_id, kept.sealed


def _audit(again: Resealing, operation_id: UUID, name: str, token: int, *texts: str) -> tuple[str, str]:
    return _texts(again, of_audit(operation_id, Event(name), token), *texts)


def _pause(again: Resealing, service: str, operation: str, *texts: str) -> tuple[str, str]:
    return _texts(again, of_pause(service, operation, is_resumed=False), *texts)


def _pause_audit(again: Resealing, service: str, operation: str, is_resumed: int, *texts: str) -> tuple[str, str]:
    return _texts(again, of_pause(service, operation, is_resumed=bool(is_resumed)), *texts)


def _texts(again: Resealing, associated: bytes, who: str, why: str) -> tuple[str, str]:
    audit = again.again(TEXTS, Audit(who, why), associated)
    return audit.who, audit.why


def _suspension(again: Resealing, service: str, sink: str, why: str) -> tuple[str]:
    return (again.again(TEXT, why, of_suspension(service, sink)),)


def _event(
    again: Resealing, event_id: str, sink: str, content: bytes, response: bytes | None, why: str
) -> tuple[Any, ...]:
    try:
        content, response = resealed_event(content, response, event_id, sink, again)
    except Unopenable as error:
        again.reasons.append(str(error))
    return content, response, again.again(FAILURE, why, sink, event_id)


SEALED: Final[Mapping[Place, _Sealed]] = {
    Place.REQUESTS: _Sealed(("operation_id", "acceptance_id"), ("key_id", "sealed"), _request),
    Place.AUDITS: _Sealed(("operation_id", "event", "token"), ("who", "why"), _audit),
    Place.PAUSES: _Sealed(("service", "operation"), ("who", "why"), _pause),
    Place.PAUSE_AUDITS: _Sealed(("service", "operation", "is_resumed"), ("who", "why"), _pause_audit),
    Place.SUSPENSIONS: _Sealed(("service", "sink"), ("why",), _suspension),
    Place.EVENTS: _Sealed(("event_id", "sink"), ("content", "response", "why"), _event),
}
"""Of each place but `RECORDS`."""


@immutable
class Row:
    """A row in the store's own order: `after` continues behind it. `kept` is None where it `is_gone` since, or this
    program cannot read it."""

    after: Any
    kept: Kept | None
    is_gone: bool = False


class SealedRows(Protocol):
    """What `rekey` needs of a durable store. Everything raises `StoreError`."""

    async def sealed_rows(self, place: Place, after: Any, limit: int) -> list[Row]:
        """The next rows behind this one (None: from the first)."""

    async def reseal(self, changes: Sequence[tuple[Row, Kept]]) -> int:
        """Replace the confidential values of rows that are as they were read; returns how many were. All of a page are
        one transaction at most."""


@dataclass(slots=True)
class Rekeyed:
    """What became of the rows of one place. `left`: what the last pass could not do, because it cannot be read, or
    because it changed each time."""

    changed: int = 0
    left: int = 0
    why: str = ""


async def rekey(
    store: SealedRows, place: Place, sealing: Sealing, on_page: Callable[[int], None] = lambda _: None
) -> Rekeyed:
    """Encrypt what is kept in one place with the current key. `on_page` gets how many rows were changed so far."""
    done = Rekeyed()
    for _ in range(_PASSES_MAX):
        done.left, lost = 0, 0
        after: Any = None
        while rows := await store.sealed_rows(place, after, PAGE_ROWS_MAX):
            after = rows[-1].after
            changes = []
            for row in rows:
                if row.is_gone:
                    continue
                again, why = (None, _NEWER) if row.kept is None else _resealed(row.kept, sealing)
                if why:
                    done.left, done.why = done.left + 1, why
                if again is not None:
                    changes.append((row, again))
            if changes:
                number = await store.reseal(changes)
                done.changed += number
                lost += len(changes) - number
                on_page(done.changed)
        done.left += lost
        if not lost:
            break
    return done


def why_unopenable(examples: Sequence[Kept], sealing: Sealing) -> str | None:
    """Why none of these can be opened; None if one can, or if there are none."""
    reasons = [_resealed(kept, sealing)[1] for kept in examples]
    return reasons[0] if reasons and all(reasons) else None


def _resealed(kept: Kept, sealing: Sealing) -> tuple[Kept | None, str]:
    """The row under the current key, None if nothing changes; and why a part of it is left, empty if none is."""
    resealing = Resealing(sealing)
    if isinstance(kept, Record):
        found: Kept = resealing.resealed(kept)
    else:
        sealed = SEALED[kept.place]
        try:
            values = sealed.again(resealing, *kept.columns)
        except ValueError:
            return None, _NEWER
        found = Values(kept.place, kept.columns[: -len(values)] + values)
    return (None if found == kept else found), "".join(resealing.reasons[:1])


# -- a store behind encryption -----------------------------------------------------------------------------------------


def why_unreadable(sealed: Mapping[str, int], key_ids: Collection[str] | None) -> str | None:
    """Why a gateway with these keys must not start on a store of which so many records use which keys; None if it
    may."""
    missing = {} if key_ids is None else {key_id: sealed[key_id] for key_id in sorted(sealed) if key_id not in key_ids}
    if not missing:
        return None
    listed = ", ".join(
        f"{number}{' or more' if number >= SEALED_COUNT_MAX else ''} records with key '{key_id}'"
        for key_id, number in missing.items()
    )
    return (
        f"it has {listed}, and secrets.encryption has no such key: responses, kept requests, events and reasons could "
        "not be read. List the key there, behind the one that encrypts; if it is lost for good, accept that with "
        "secrets: {unreadable: accept}"
    )


async def refuse_unreadable(
    sealed: Mapping[str, int],
    key_ids: Collection[str],
    examples: Callable[[str], Awaitable[Sequence[Kept]]],
    sealing: Sealing,
) -> None:
    """Raises `StartRefused` where a gateway with these keys must not start on a store, of which so many records use
    which keys: one is missing, or is another key than it was. `examples` are the store's `sealed_examples`."""
    if why := why_unreadable(sealed, key_ids):
        raise StartRefused(why)
    for key_id in sorted(sealed):
        if why := why_unopenable(await examples(key_id), sealing):
            raise StartRefused(
                f"what it has encrypted with key '{key_id}' cannot be opened with the key that secrets.encryption has "
                f"under this id: {why}. List the right key under that id, and a new one under a new id; if it is lost "
                "for good, accept that with secrets: {unreadable: accept}"
            )


class SealedCold:
    """The `Cold` of a store behind encryption: these verbs, and the others as they are."""

    def __init__(self, behind: Cold, sealing: Sealing) -> None:
        self._behind = behind
        self._sealing = sealing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def find(self, query: Query) -> list[Snapshot]:
        return [self._sealing.opened_snapshot(each) for each in await self._behind.find(query)]

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        due = await self._behind.find_due(service, delivering, limit)
        return replace(due, found=[self._sealing.opened_snapshot(each) for each in due.found])

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return [self._opened(operation_id, entry) for entry in await self._behind.audits(operation_id)]

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        found = await self._behind.latest_audits(before, limit)
        return [replace(each, entry=self._opened(each.operation_id, each.entry)) for each in found]

    def _opened(self, operation_id: UUID, entry: AuditEntry) -> AuditEntry:
        return self._sealing.opened_texts(entry, of_audit(operation_id, entry.event, entry.token), operation_id)

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        sealed = self._sealing.seal(TEXTS, audit, of_pause(service, operation, is_resumed=False))
        return await self._behind.pause(service, operation, sealed)

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        sealed = self._sealing.seal(TEXTS, audit, of_pause(service, operation, is_resumed=True))
        return await self._behind.resume(service, operation, sealed)

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        found = await self._behind.pause_audits(service)
        opened = self._sealing.opened_texts
        return [opened(each, of_pause(service, each.operation, each.is_resumed)) for each in found]

    async def backlog(self, service: str) -> Backlog:
        backlog = await self._behind.backlog(service)
        opened, paused = self._sealing.opened_texts, backlog.paused.items()
        return replace(
            backlog, paused={name: opened(each, of_pause(service, name, is_resumed=False)) for name, each in paused}
        )

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        sealed = self._sealing.seal(TEXT, why, of_suspension(service, sink))
        return await self._behind.suspend_sink(service, sink, sealed)

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        found = await self._behind.sinks(service)
        return {sink: self._opened_backlog(each, service, sink) for sink, each in found.items()}

    def _opened_backlog(self, backlog: SinkBacklog, service: str, sink: str) -> SinkBacklog:
        why, last_error = backlog.suspended_why, self._sealing.shown(FAILURE, backlog.last_error, sink, None)
        opened = None if why is None else self._sealing.shown(TEXT, why, of_suspension(service, sink))
        return replace(backlog, last_error=last_error, suspended_why=opened)

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        """An event that cannot be opened becomes a dead one: an operator redelivers it once its key is back."""
        opened: list[LeasedEvent] = []
        dead: list[EventReport] = []
        for leased in await self._behind.lease_events(service, wanted, lease_us):
            try:
                event = opened_event(leased.event, leased.sink, self._sealing)
                opened.append(leased if event is leased.event else replace(leased, event=event))
            except Unopenable as error:
                lease = leased.sink, leased.event.id, leased.tries, leased.redeliveries
                dead.append(EventReport(*lease, EventFate.DEAD, f"unreadable: {error}", line=leased.line))
        if dead:
            await self.report_events(service, dead)
        return opened

    async def report_events(self, service: str, reports: Collection[EventReport]) -> None:
        seal = partial(self._sealing.seal, FAILURE)
        sealed = [replace(each, why=seal(each.why, each.sink, each.event_id)) if each.why else each for each in reports]
        await self._behind.report_events(service, sealed)

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[KeptEvent]:
        found = await self._behind.find_events(service, sink, is_dead=is_dead, after=after, limit=limit)
        return [replace(each, why=self._sealing.shown(FAILURE, each.why, sink, each.event_id)) for each in found]


# -- the way of a command ----------------------------------------------------------------------------------------------
#
# The way of a command to a durable store and back: one coroutine, whatever stands in front of the store.
#
# What stands there keeps values true that this way compares: until when this gateway may grant, and what it has copies
# of (`Copies`). It is called only where a value asks for it. The way itself seals what is confidential for the store,
# and opens it in the result.

DURABLE: Final = "durable"

# A constant, because a union inside `isinstance` is built on every call.
_NEW: Final = (Claim, Accept)
# After these there is no response to replay.
_ENDING: Final = frozenset(EVENT_OF) - {Claim, Accept, Dispatch, Takeover, Renew, Complete, Prove}
_ALWAYS: Final = float("inf")

# A call that says nothing new of the clock is passed over for no longer than this.
_OBSERVED_SECONDS: Final = 1.0
# A smaller step of the store's clock goes unnoticed; callers that wait for a steady clock wait longer than this.
_UNSEEN_SECONDS: Final = 1.0
# Seconds per second: more than clocks drift apart, or are slewed.
_DRIFT: Final = 0.001


class Steadiness:
    """Since when the durable store's clock has had no step, as seen from one process.

    The store reads its clock between the start and the end of a call, so each call gives a lower and an upper bound of
    that clock's lead over the boot-time clock, whose seconds these are. Bounds that lie beyond the earlier ones, plus
    the possible drift, are a step. The time before the first call counts as one. A call says nothing new that ends
    before `again_seconds`, and whose bounds are outside of those that are known.
    """

    __slots__ = ("_observed_seconds", "_since_seconds", "again_seconds", "least_seconds", "most_seconds", "steps")

    def __init__(self) -> None:
        self.least_seconds, self.most_seconds = float("-inf"), float("inf")
        """The lead is between these."""
        self.again_seconds = float("-inf")
        """A call that ends after this is observed, even if it says nothing new: the clocks drift."""
        self._since_seconds = float("inf")
        self._observed_seconds = 0.0
        self.steps = 0
        """How many were noticed, the first call included."""

    def observe(self, store_now_us: int, started_seconds: float, ended_seconds: float) -> None:
        """The store's clock showed `store_now_us` at some moment of the call between these two times."""
        lead_seconds = store_now_us / MICROSECONDS
        least_seconds, most_seconds = lead_seconds - ended_seconds, lead_seconds - started_seconds
        drift_seconds = _DRIFT * max(0.0, ended_seconds - self._observed_seconds)
        low_seconds, high_seconds = self.least_seconds - drift_seconds, self.most_seconds + drift_seconds
        self._observed_seconds, self.again_seconds = ended_seconds, ended_seconds + _OBSERVED_SECONDS
        if (
            not self.steps
            or least_seconds > high_seconds + _UNSEEN_SECONDS
            or most_seconds < low_seconds - _UNSEEN_SECONDS
        ):
            self.steps += 1
            self._since_seconds = ended_seconds
            self.least_seconds, self.most_seconds = least_seconds, most_seconds
        else:
            self.least_seconds, self.most_seconds = max(low_seconds, least_seconds), min(high_seconds, most_seconds)

    def steady_seconds(self, now_seconds: float) -> float:
        """For how long no step was noticed; 0 before the first call."""
        return max(0.0, now_seconds - self._since_seconds)


class Copies:
    """What is in front of a store: copies of what it acknowledged, and whether it is up. Here there are none."""

    cached: Container[int] = ()
    """By the integer of the operation id. What is in it may be over."""
    durable_up = True

    def __init__(self) -> None:
        self.steadiness: Final = Steadiness()
        self.keep: Callable[[Snapshot, float], None] = lambda _snapshot, _started_seconds: None
        """Keeps the record of a call that began at this time, if it is completed."""

    def recall(self, _operation_id: UUID) -> Snapshot | None:
        """The completed record that a claim's `Fenced` result would carry, if there is a copy."""
        return None

    def observe(self, store_now_us: int, started_seconds: float, ended_seconds: float) -> None:
        """The store answered a write of this time with this time of its own."""
        self.steadiness.observe(store_now_us, started_seconds, ended_seconds)

    async def end(self, command: Command, result: Result, started_seconds: float) -> None:
        """The store has executed, or refused, a command after which there is no response to replay."""

    async def fail(self, command: Command, error: BaseException) -> None:
        """The command failed, and may have taken effect."""


class SealedStore:
    """Satisfies the `Store` protocol; owns the store behind it. By itself it lets everything through.

    Without keys it only recognises what is sealed: another gateway beside this one may have keys already.
    """

    def __init__(self, store: Store, sealing: Sealing = NO_SEALING, events: Events | None = None) -> None:
        self.behind: Final = store
        self.sealing = sealing
        self.cold = cast(Cold, SealedCold(store.cold, sealing))
        self.watch = store.watch
        self._events = Events() if events is None else events
        self._copies = Copies()
        self._clock: Callable[[], float] = boot_seconds
        # Until when this gateway may grant, and believes what the store acknowledges, on the boot-time clock; and which
        # trust that is: there is a new one where another memory was found, which a command that was under way notices.
        self._trusted_until_seconds = _ALWAYS
        self._trust = 0
        # The highest token that was seen; and since when something that was acknowledged is not shared.
        self._token = _ALWAYS
        self._unshared_since: float | None = 0.0

    async def start(self) -> None:
        await self.behind.start()

    async def close(self) -> None:
        await self.behind.close()

    async def read(self, operation_id: UUID) -> Snapshot:
        return self.sealing.opened_snapshot(await self.behind.read(operation_id))

    def copy_to(self, copies: Copies, clock: Callable[[], float]) -> None:
        """From now on these are in front. `clock` is the boot-time clock."""
        self._copies, self._clock = copies, clock

    async def apply(self, command: Command) -> Result:
        """See `Store`."""
        copies, trust, sealing, sealed = self._copies, self._trust, self.sealing, command
        if (
            isinstance(command, _NEW)
            and command.identity.operation_id.int in copies.cached
            and (copy := copies.recall(command.identity.operation_id)) is not None
        ):
            return Fenced(copy)
        started_seconds = self._clock()
        is_trusted = started_seconds <= self._trusted_until_seconds
        if not is_trusted and (known := await self._known(command, started_seconds)) is not None:
            return known
        # What the record is made of, if it is made of what this process has in clear.
        made_of = command.granted if isinstance(command, Complete) else command
        try:
            if sealing.ring is not None or getattr(made_of, "sealed", None) is not None:
                sealed = sealing.sealed(command)
            result = await self.behind.apply(sealed)
            record = result.snapshot.record
            is_own = record is None or (sealed is command and record.identity is getattr(made_of, "identity", None))
            if not is_own:
                result = sealing.opened_result(result, command, sealed)
            if self._unshared_since is None:
                self._begin_unshared()
            ended_seconds = self._clock()
            if ended_seconds > self._trusted_until_seconds or trust != self._trust:
                self._doubt(command, trust)
        except BaseException as failure:
            self._report_call(EVENT_OF[type(command)], started_seconds, failure)
            await copies.fail(command, failure)
            raise
        self._events.publish(StoreCalled(DURABLE, EVENT_OF[type(command)], ended_seconds - started_seconds, None))
        if record is not None and record.token > self._token:
            self._token = record.token
        lead_seconds, known_lead = result.snapshot.now_us / MICROSECONDS, copies.steadiness
        if (
            lead_seconds - ended_seconds > known_lead.least_seconds
            or lead_seconds - started_seconds < known_lead.most_seconds
            or ended_seconds > known_lead.again_seconds
            or not copies.durable_up
        ):
            copies.observe(result.snapshot.now_us, started_seconds, ended_seconds)
        if type(command) in _ENDING:
            await copies.end(command, result, started_seconds)
        elif record is not None and record.state is State.COMPLETED:
            copies.keep(result.snapshot, started_seconds)
        return result

    async def _known(self, command: Command, started_seconds: float) -> Result | None:
        """The result of a command without trust, if that is known without the call. Raises where it must not pass."""
        try:
            result = await self._admit(command)
        except BaseException as error:
            await self._copies.fail(command, error)
            raise
        if result is not None:
            self._copies.observe(result.snapshot.now_us, started_seconds, self._clock())
            self._copies.keep(result.snapshot, started_seconds)
        return result

    async def _admit(self, _command: Command) -> Result | None:
        """As `_known`."""
        return None

    def _doubt(self, command: Command, trust: int) -> None:
        """This trust ended during the call. Raises `Indefinite` where its result is not believed."""

    def _begin_unshared(self) -> None:
        """Something was acknowledged that is not shared."""

    def _report_call(self, verb: str, started_seconds: float, failure: BaseException | None = None) -> None:
        """Publish a call and its outcome."""


Caller = Callable[..., Awaitable[Any]]
"""Calls a verb of the store behind with these arguments, and sees how it ends."""


class _Passing:
    def __init__(self, cold: Cold, call: Caller, changed: dict[str, Callable[..., Any]]) -> None:
        self._cold = cold
        self._call = call
        self.announce_work = cold.announce_work
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._cold, name)

        async def passed(*args: Any, **kwargs: Any) -> Any:
            return await self._call(verb, *args, **kwargs)

        passed.__name__ = name
        # Found without this method from now on.
        setattr(self, name, passed)
        return passed


def passing(cold: Cold, call: Caller, **changed: Callable[..., Any]) -> Cold:
    """The verbs of `cold`, each called by `call`, but for those that are `changed`."""
    return cast(Cold, _Passing(cold, call, changed))
