"""Work lists for people: in their words, sorted, and filtered by what a record says; and a key of a caller unknown.

The store finds by what it has an index of. What is compared here is read first, so there is a bound on it, and whoever
is shown a part is told so. No index is kept for this: it would cost every request.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import UUID

from gateway.admin.operations import EVERY, INDEXED, PAGE_SIZE_MAX, Operations
from gateway.admin.resolution import Malformed, Policies
from gateway.admin.view import doubt_text, since_us, span
from gateway.core.identity.key import Key, derive_operation_id, stored_digest
from gateway.core.operation import Delivery, Record, State
from gateway.core.recovery import Hold, Probe, Resend, doubted_status, probe_target
from gateway.store.operations import Query

# So many are put in order.
SORTED_MAX: Final = PAGE_SIZE_MAX
# A page is not kept waiting for longer, however many records there are to be read.
_LOOK_SECONDS: Final = 0.12
# So many callers are asked after with one key.
_CALLERS_MAX: Final = 200
_TOGETHER: Final = 200
_TEXT_MAX: Final = 200


# -- in a person's words ----------------------------------------------------------------------------------------------


def subject(record: Record) -> str:
    """What was asked for: method and path, or the operation name where the request is not stored."""
    request = record.request
    return record.identity.operation if request is None else f"{request.method} {request.path}"


def caller(record: Record) -> str:
    """Who asked, as a digest: the same one on every operation of one caller."""
    return record.identity.scope_digest.hex()


def status_of(record: Record) -> int | None:
    """What the service responded with last, as far as the record has it."""
    if record.response is not None:
        return record.response.status
    failure = None if record.delivery is None else record.delivery.failure
    return doubted_status(record.doubt) or doubted_status(failure)


def did(record: Record) -> str:
    if record.response is not None:
        return f"responded with {record.response.status}"
    if record.doubt is not None:
        return doubt_text(record.doubt)
    delivery = record.delivery
    if delivery is not None and (said := _said(delivery)):
        return said
    match record.state:
        case State.RELEASED:
            return "did nothing of it"
        case State.ACCEPTED | State.DEAD_LETTER:
            return "was not asked"
        case _:
            return "has not responded"


def _said(delivery: Delivery) -> str:
    reasons = (delivery.failure, delivery.reason)
    return "; ".join(dict.fromkeys(doubt_text(reason) for reason in reasons if reason is not None))


def then(record: Record, now_us: int, policies: Policies) -> str:
    """What happens to it next, if nobody does anything."""
    delivery = record.delivery
    match record.state:
        case State.IN_DOUBT:
            return _then_in_doubt(record, policies)
        case State.CLAIMED:
            return f"its attempt ends, or is in doubt in {span(record.lease_until_us - now_us)}"
        case State.DEAD_LETTER:
            return "waits for a decision"
        case State.ACCEPTED if delivery is not None:
            if delivery.is_behind:
                return "waits for others of its lane"
            is_due = delivery.next_attempt_us <= now_us
            return "is due" if is_due else f"is tried in {span(delivery.next_attempt_us - now_us)}"
        case State.COMPLETED:
            return f"repeats get its response for {span(record.replay_until_us - now_us)}"
        case State.RELEASED:
            return "a repeat runs"
        case _:
            return f"a repeat is refused for {span(record.remember_until_us - now_us)}"


def _then_in_doubt(record: Record, policies: Policies) -> str:
    if not policies.is_own(record):
        return "waits for its own service"
    match policies.treatment_of(record).recovery:
        case Probe() as probe if probe_target(probe, record) is not None:
            return "the service is asked about it"
        case Resend():
            return "is sent again" if record.delivery is not None else "a repeat is sent again"
        case Hold() | Probe():
            return "waits for a decision"


class AsRequest(NamedTuple):
    """A request, as far as it is stored: query, body and what names the caller never are."""

    method: str
    url: str
    header: str


def as_request(record: Record, policies: Policies) -> AsRequest | None:
    """None where nothing of it is stored, or its route is no more."""
    request, route = record.request, policies.route_of(record)
    if request is None or not request.host or route is None:
        return None
    name = next(iter(sorted(route.key.headers)), b"idempotency-key").decode()
    key = record.identity.key or "THE SAME KEY"
    return AsRequest(request.method, f"https://{request.host}{request.path}", f"{name}: {key}")


def repeat(record: Record, policies: Policies) -> str:
    """A command that repeats the request; empty where it is not stored. Whoever repeats it adds what is missing."""
    found = as_request(record, policies)
    return "" if found is None else shlex.join(["curl", "-i", "-X", found.method, found.url, "-H", found.header])


# -- order ------------------------------------------------------------------------------------------------------------

Order = Callable[[Record], Any]


def orders(states: frozenset[State], now_us: int, policies: Policies) -> dict[str, tuple[str, Order]]:
    """What a list of these states can be sorted by: the columns, each with its head."""
    since = {INDEXED[0]: "In doubt since", INDEXED[1]: "Given up"}.get(states, "Since")
    return {
        "subject": ("Operation", subject),
        "route": ("Route", lambda record: record.identity.route),
        "caller": ("Caller", caller),
        "state": ("State", lambda record: record.state),
        "since": (since, since_us),
        "did": ("The service last", did),
        "then": ("Next", lambda record: then(record, now_us, policies)),
    }


# -- filters ----------------------------------------------------------------------------------------------------------


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
        texts |= {"status": status, "caller": _digits(texts["caller"]), "path": texts["path"].casefold()}
        return cls(**{**texts, "why": texts["why"].casefold()})

    def fits(self, record: Record) -> bool:
        request = record.request
        places = [record.identity.operation]
        if request is not None:
            places += [subject(record), f"{request.host}{request.path}"]
        if self.path not in "\n".join(places).casefold():
            return False
        if self.request_id and (request is None or self.request_id not in (request.request_id, request.trace_id)):
            return False
        delivery = record.delivery
        codes = (record.doubt, *((delivery.failure, delivery.reason) if delivery is not None else ()))
        if self.why not in f"{did(record)}\n{codes}".casefold():
            return False
        if self.status and not str(status_of(record) or "").startswith(self.status):
            return False
        return caller(record).startswith(self.caller)


def _digits(text: str) -> str:
    """Hexadecimal digits, as a digest is shown. Raises `Malformed`."""
    found = text.lower().rstrip("…")
    if not all(each in "0123456789abcdef" for each in found):
        raise Malformed("caller: the digest of a caller, or its beginning, as the lists show it")
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """`after` is where to go on; None where these are all. `looked` records were read."""

    records: list[Record]
    now_us: int = 0
    after: UUID | None = None
    looked: int = 0


async def gathered(
    operations: Operations, query: Query, fits: Callable[[Record], object] = bool, records_max: int | None = None
) -> Found:
    """At most `records_max` records of the query that fit, of those that can be read in a moment; `SORTED_MAX` by
    default."""
    records_max = SORTED_MAX if records_max is None else records_max
    found: list[Record] = []
    until, number, now_us = time.monotonic() + _LOOK_SECONDS, 0, 0
    async for looked in operations.looked(replace(query, limit=records_max), PAGE_SIZE_MAX):
        number += looked.number
        for snapshot in looked.found:
            if (record := snapshot.record) is not None and fits(record):
                found.append(record)
                now_us = snapshot.now_us
        if len(found) > records_max:
            return Found(found[:records_max], now_us, found[records_max - 1].identity.operation_id, number)
        is_enough = len(found) == records_max or time.monotonic() >= until
        if is_enough and looked.after is not None:
            return Found(found, now_us, looked.after, number)
    return Found(found, now_us, None, number)


# -- a key of a caller unknown ----------------------------------------------------------------------------------------


class Holder(NamedTuple):
    """A caller that has an operation with the key."""

    caller: str
    operation: str
    operation_id: UUID


@dataclass(slots=True)
class Held:
    """Who has the key, among so many callers. `digest` is that of the key, to be noted in its place."""

    digest: str
    holders: list[Holder] = field(default_factory=list)
    callers: int = 0
    is_whole: bool = True


async def holders(operations: Operations, key: str, of_caller: str = "") -> Held:
    """Who has an operation with this key, in clear or as its stored digest. Raises `Malformed`. An id is made of the
    caller, too, and no index has a key alone. The callers of what is in doubt or dead, and of as many other operations
    as fit in a moment, are asked after; ids are as good as random, so these are a fair sample. With the whole digest of
    a caller, it is that one alone."""
    policies = operations.policies
    by_operation = _digests(policies, key.strip())
    held = Held(next(iter(by_operation.values()))[0].hex()[:16])
    of_caller = _digits(of_caller.strip())
    if len(of_caller) == 64:
        callers = [bytes.fromhex(of_caller)]
    else:
        callers = await _callers(operations, of_caller, held)
    held.callers = len(callers)
    ids = {
        derive_operation_id(policies.service, operation, scope, digest): Holder(scope.hex(), operation, UUID(int=0))
        for operation, digests in by_operation.items()
        for scope in callers
        for digest in digests
    }
    wanted = [*ids]
    for begin in range(0, len(wanted), _TOGETHER):
        some = wanted[begin : begin + _TOGETHER]
        for operation_id, snapshot in zip(some, await asyncio.gather(*map(operations.read, some)), strict=True):
            if snapshot.record is not None:
                held.holders.append(ids[operation_id]._replace(operation_id=operation_id))
    return held


def _digests(policies: Policies, key: str) -> dict[str, list[bytes]]:
    """The digests that the key may have, by operation name."""
    found: dict[str, list[bytes]] = {}
    if not key or len(key) > _TEXT_MAX:
        raise Malformed(f"give a key of at most {_TEXT_MAX} characters, or its digest")
    for route in policies.routes:
        digests = found.setdefault(route.operation, [])
        if len(key) == 64 and all(each in "0123456789abcdef" for each in key.lower()):
            digests.append(bytes.fromhex(key))
        values = {name: [key.encode("utf-8", "replace")] for name in route.key.headers}
        parsed = None if route.key.needs_body else route.key.find_key(values, None)
        if isinstance(parsed, Key):
            digests.append(stored_digest(parsed, policies.identity_secret))
    found = {operation: digests for operation, digests in found.items() if digests}
    if not found:
        raise Malformed("no route has a key such as this: give its digest, of 64 hexadecimal digits, or its request")
    return found


async def _callers(operations: Operations, beginning: str, held: Held) -> list[bytes]:
    """The callers of the operations that are looked at, first those of what is in doubt or dead."""
    others: list[Record] = []
    stopped = (operations.page(Query(states, limit=_CALLERS_MAX)) for states in INDEXED)
    looking = gathered(operations, Query(EVERY), others.append)
    looked, pages = await asyncio.gather(looking, asyncio.gather(*stopped))
    records = [each.record for each in chain.from_iterable(pages) if each.record is not None] + others
    digests = [each.identity.scope_digest for each in records if caller(each).startswith(beginning)]
    found = dict.fromkeys(digest for digest in digests if len(digest) == 32)
    held.is_whole = looked.after is None and len(found) <= _CALLERS_MAX
    return [*found][:_CALLERS_MAX]
