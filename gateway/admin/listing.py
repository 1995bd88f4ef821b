"""Many operations: found, filtered by what a record says, sorted, and dead letters decided about one after another; and
a key of a caller unknown.

The store finds by what it has an index of. What is compared here is read first, so there is a bound on it, and whoever
is shown a part is told so. No index is kept for this: it would cost every request.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import UUID

from gateway.admin.operations import Operations
from gateway.admin.reports import Report
from gateway.admin.resolution import Changed, Malformed, Policies, Refusal, Refused
from gateway.admin.view import caller, did, since_us, subject, then
from gateway.core.identity.key import Key, derive_operation_id, stored_digest
from gateway.core.operation import Audit, Record, Snapshot, State
from gateway.core.recovery import doubted_status
from gateway.store.base import Unreadable
from gateway.store.operations import Query

PAGE_SIZE_MAX: Final = 500
# So many are put in order.
SORTED_MAX: Final = PAGE_SIZE_MAX
_INDEXED: Final = (frozenset((State.IN_DOUBT,)), frozenset((State.DEAD_LETTER,)))
_EVERY: Final = frozenset(State) - {State.ABSENT}
# A page is not kept waiting for longer, however many records there are to be read.
_LOOK_SECONDS: Final = 0.12
# So many callers are asked after with one key.
_CALLERS_MAX: Final = 200
_TOGETHER: Final = 200
_TEXT_MAX: Final = 200


# -- finding ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """Records at `now_us` of the store's clock. `after` is where to go on; None where these are all. `looked` records
    were read."""

    records: list[Record]
    now_us: int = 0
    after: UUID | None = None
    looked: int = 0


async def looked(operations: Operations, query: Query) -> AsyncIterator[Found]:
    """The matches, page by page, ordered by operation id. `query.limit` is the page size.

    The store has an index of what is in doubt and of dead letters. For other states all records are read, many at once,
    and left out here: the store would look through as many as there are before it says that there is none.
    """
    asked = query
    if query.states not in _INDEXED and query.reason is None:
        asked = replace(query, states=_EVERY, routes=None, limit=PAGE_SIZE_MAX)
    while True:
        records, now_us = await operations.page(asked)
        after = records[-1].identity.operation_id if len(records) == asked.limit else None
        found = [each for each in records if each.state in query.states]
        if query.routes is not None:
            found = [each for each in found if each.identity.route in query.routes]
        yield Found(found, now_us, after, len(records))
        if after is None:
            return
        asked = replace(asked, after=after)


async def pages(operations: Operations, query: Query, limit: int) -> AsyncIterator[tuple[list[Record], int]]:
    """The records that are found of it, up to `limit` in all, each page with the store's time (µs)."""
    async for page in looked(operations, replace(query, limit=min(query.limit, limit))):
        if page.records:
            yield page.records[:limit], page.now_us
        limit -= len(page.records)
        if limit <= 0:
            return


async def gathered(
    operations: Operations, query: Query, fits: Callable[[Record], object] = bool, records_max: int | None = None
) -> Found:
    """At most `records_max` records of the query that fit, of those that can be read in a moment; `SORTED_MAX` by
    default."""
    records_max = SORTED_MAX if records_max is None else records_max
    found: list[Record] = []
    until, number, now_us = time.monotonic() + _LOOK_SECONDS, 0, 0
    async for page in looked(operations, replace(query, limit=records_max)):
        number += page.looked
        now_us = page.now_us or now_us
        found += filter(fits, page.records)
        if len(found) > records_max:
            return Found(found[:records_max], now_us, found[records_max - 1].identity.operation_id, number)
        is_enough = len(found) == records_max or time.monotonic() >= until
        if is_enough and page.after is not None:
            return Found(found, now_us, page.after, number)
    return Found(found, now_us, None, number)


# -- order and filters ------------------------------------------------------------------------------------------------


def orders(states: frozenset[State], now_us: int, policies: Policies) -> dict[str, tuple[str, Callable[[Record], Any]]]:
    """What a list of these states can be sorted by: the columns, each with its head."""
    since = {_INDEXED[0]: "In doubt since", _INDEXED[1]: "Given up"}.get(states, "Since")
    return {
        "subject": ("Operation", subject),
        "route": ("Route", lambda record: record.identity.route),
        "caller": ("Caller", caller),
        "state": ("State", lambda record: record.state),
        "since": (since, since_us),
        "did": ("The service last", did),
        "then": ("Next", lambda record: then(record, now_us, policies)),
    }


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is compared here: a part of the method, host and path; the beginning of the caller's digest; a part of why;
    the status, or its beginning as in `5xx`; a request id or trace id, whole. Empty: any."""

    path: str = ""
    caller: str = ""
    why: str = ""
    status: str = ""
    request_id: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Wanted:
        """Raises `Malformed`."""
        texts = {name: given.get(name, "").strip() for name in cls.__slots__}
        for name, text in texts.items():
            if len(text) > _TEXT_MAX:
                raise Malformed(f"{name}: at most {_TEXT_MAX} characters")
        status = texts["status"].lower().removesuffix("xx")
        if status and not (status.isascii() and status.isdigit() and len(status) <= 3):
            raise Malformed("status: a status such as 502, or 5xx")
        path, why, who = texts["path"].casefold(), texts["why"].casefold(), _digits(texts["caller"])
        return cls(path, who, why, status, texts["request_id"])

    def fits(self, record: Record) -> bool:
        request, delivery, response = record.request, record.delivery, record.response
        places, ids = [record.identity.operation], [""]
        if request is not None:
            places += [subject(record), f"{request.host}{request.path}"]
            ids += [request.request_id or "", request.trace_id or ""]
        failure, reason = (None, None) if delivery is None else (delivery.failure, delivery.reason)
        status = doubted_status(record.doubt) or doubted_status(failure) if response is None else response.status
        return (
            self.path in "\n".join(places).casefold()
            and self.request_id in ids
            and self.why in f"{did(record)}\n{(record.doubt, failure, reason)}".casefold()
            and str(status or "").startswith(self.status)
            and caller(record).startswith(self.caller)
        )


def _digits(text: str) -> str:
    """Hexadecimal digits, as a digest is shown. Raises `Malformed`."""
    found = text.lower().rstrip("…")
    if not _is_hexadecimal(found):
        raise Malformed("caller: the digest of a caller, or its beginning, as the lists show it")
    return found


def _is_hexadecimal(text: str) -> bool:
    return all(each in "0123456789abcdef" for each in text)


# -- a key of a caller unknown ----------------------------------------------------------------------------------------


class Holder(NamedTuple):
    caller: str
    operation: str
    operation_id: UUID


class Held(NamedTuple):
    """Who has the key, among so many callers. `digest` is that of the key, to be noted in its place."""

    digest: str
    holders: list[Holder]
    callers: int
    is_whole: bool


async def holders(operations: Operations, key: str, of_caller: str = "") -> Held:
    """Who has an operation with this key, in clear or as its stored digest. Raises `Malformed`. An id is made of the
    caller, too, and no index has a key alone. The callers of what is in doubt or dead, and of as many other operations
    as fit in a moment, are asked after; ids are as good as random, so these are a fair sample. With the whole digest of
    a caller, it is that one alone."""
    by_operation = _key_digests(operations.policies, key.strip())
    of_caller, is_whole = _digits(of_caller.strip()), True
    if len(of_caller) == 64:
        callers = [bytes.fromhex(of_caller)]
    else:
        callers, is_whole = await _callers(operations, of_caller)
    asked = [
        *dict.fromkeys(
            Holder(scope.hex(), operation, derive_operation_id(operations.policies.service, operation, scope, digest))
            for operation, digests in by_operation.items()
            for scope in callers
            for digest in digests
        )
    ]
    found = []
    for begin in range(0, len(asked), _TOGETHER):
        some = asked[begin : begin + _TOGETHER]
        snapshots = await asyncio.gather(*(operations.read(each.operation_id) for each in some))
        found += [each for each, snapshot in zip(some, snapshots, strict=True) if snapshot.record is not None]
    return Held(next(iter(by_operation.values()))[0].hex()[:16], found, len(callers), is_whole)


def _key_digests(policies: Policies, key: str) -> dict[str, list[bytes]]:
    """The digests that the key may have, by operation name."""
    found: dict[str, list[bytes]] = {}
    if not key or len(key) > _TEXT_MAX:
        raise Malformed(f"give a key of at most {_TEXT_MAX} characters, or its digest")
    for route in policies.routes:
        digests = found.setdefault(route.operation, [])
        if len(key) == 64 and _is_hexadecimal(key.lower()):
            digests.append(bytes.fromhex(key))
        values = {name: [key.encode("utf-8", "replace")] for name in route.key.headers}
        parsed = None if route.key.needs_body else route.key.find_key(values, None)
        if isinstance(parsed, Key):
            digests.append(stored_digest(parsed, policies.identity_secret))
    found = {operation: digests for operation, digests in found.items() if digests}
    if not found:
        raise Malformed("no route has a key such as this: give its digest, of 64 hexadecimal digits, or its request")
    return found


async def _callers(operations: Operations, beginning: str) -> tuple[list[bytes], bool]:
    """The callers of the operations that are looked at, first those of what is in doubt or dead; and whether these are
    all."""
    stopped = (operations.page(Query(states, limit=_CALLERS_MAX)) for states in _INDEXED)
    others = gathered(operations, Query(_EVERY), records_max=sys.maxsize)
    seen, pages = await asyncio.gather(others, asyncio.gather(*stopped))
    records = chain(*(page for page, _ in pages), seen.records)
    digests = [each.identity.scope_digest for each in records if caller(each).startswith(beginning)]
    found = [*dict.fromkeys(digest for digest in digests if len(digest) == 32)]
    return found[:_CALLERS_MAX], seen.after is None and len(found) <= _CALLERS_MAX


# -- many dead letters -------------------------------------------------------------------------------------------------
#
# They are listed first, up to a limit, and then requeued or withdrawn at a rate. Each is done in order, as a single one
# would be: fenced, audited, and not twice by the same person for the same reason. So it may be done again.

# Matches beyond the limit are counted up to this.
_COUNT_MAX: Final = 100_000
# How many a preview shows, and how many of those that were skipped a result names.
_SHOWN_MAX: Final = 10


class Verb(NamedTuple):
    """What is decided about each of many dead letters."""

    name: str
    did: str
    done: str
    decide: Callable[[Operations, UUID, Audit], Awaitable[Changed | Refused]]


REQUEUE: Final = Verb("requeue", "requeued", "requeued", Operations.requeue)
WITHDRAW: Final = Verb("withdraw", "withdrew", "withdrawn", Operations.withdraw)


def dead_letters(routes: frozenset[str] | None, reason: str | None, age_us: int, limit: int) -> Query:
    """At most `limit` dead letters: of these routes (None: all), for this reason (None: any), dead for `age_us`."""
    return Query(frozenset((State.DEAD_LETTER,)), routes, age_us, reason=reason, limit=limit)


@dataclass(slots=True)
class Bulk:
    """One decision about many. The counts hold at any time; one that is under way, or ended unknown, counts as left.
    `first` has the beginning of those that match."""

    verb: Verb
    rate: int
    operation_ids: list[UUID] = field(default_factory=list)
    first: list[Record] = field(default_factory=list)
    now_us: int = 0
    beyond: int = 0
    done: int = 0
    skipped: int = 0
    why_skipped: list[str] = field(default_factory=list)

    @property
    def matching(self) -> int:
        return len(self.operation_ids) + self.beyond

    @property
    def left(self) -> int:
        """Matches that were not tried, those beyond the limit included."""
        return self.matching - self.done - self.skipped

    def __str__(self) -> str:
        return f"{self.done} {self.verb.done}, {self.skipped} skipped, {self.left} left"

    @property
    def text(self) -> str:
        return f"{self}."

    @property
    def notes(self) -> list[str]:
        return [*self.why_skipped, *(["Those that are left need another step."] if self.left else [])]

    @property
    def document(self) -> Report:
        return {"detail": self.text, **self.counts}

    @property
    def counts(self) -> dict[str, int]:
        return {self.verb.done: self.done, "skipped": self.skipped, "left": self.left}

    async def run(
        self,
        operations: Operations,
        audit: Audit,
        *,
        seconds_max: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> AsyncIterator[tuple[UUID, Changed | Refused]]:
        """Decide about them in order, and yield what became of each; none begins later than `seconds_max` from now.
        Raises as `Operations.requeue`, except for a record that is unreadable: that is skipped."""
        started = due = clock()
        for operation_id in self.operation_ids:
            if due > clock():
                await sleep(due - clock())
            now = clock()
            if seconds_max is not None and now - started >= seconds_max:
                return
            # Counted from the later one, so that a slow store is not followed by a burst.
            due = max(due, now) + 1 / self.rate
            try:
                outcome = await self.verb.decide(operations, operation_id, audit)
            except Unreadable as error:
                outcome = Refused(Refusal.STATE, f"The record cannot be read: {error}", Snapshot(None, 0))
            if isinstance(outcome, Changed) and not outcome.is_repeat:
                self.done += 1
            else:
                self.skipped += 1
                if len(self.why_skipped) < _SHOWN_MAX:
                    self.why_skipped.append(f"Skipped `{operation_id}`: {outcome.text}")
            yield operation_id, outcome


async def listed(operations: Operations, wanted: Query, rate: int, verb: Verb = REQUEUE) -> Bulk:
    """The decision about the dead letters that match now, about `rate` a second. Raises `NotApplied`."""
    found = Bulk(verb, rate)
    async for page in looked(operations, replace(wanted, limit=PAGE_SIZE_MAX)):
        for record in page.records:
            if record.delivery is None or not operations.policies.is_own(record):
                continue
            # The query's age is since the acceptance.
            if record.delivery.since_us > page.now_us - wanted.age_us:
                continue
            if len(found.first) < _SHOWN_MAX:
                found.first.append(record)
                found.now_us = page.now_us
            if len(found.operation_ids) < wanted.limit:
                found.operation_ids.append(record.identity.operation_id)
            else:
                found.beyond += 1
        if found.beyond >= _COUNT_MAX:
            break
    return found
