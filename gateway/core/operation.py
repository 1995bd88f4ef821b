"""The nouns: the record of an operation, its history, the commands on it, and their results.

Everything here is a value. Times are integers of microseconds on *the store's own clock*, comparable only with one
another and with the `now_us` that the same store returned with them; durations are integers of microseconds. What may
happen to a record, and when, is in `lifecycle`.
"""

from __future__ import annotations

import json
from dataclasses import astuple, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, get_args
from uuid import UUID

from gateway.core import immutable
from gateway.core.message import StoredResponse

MICROSECONDS: Final = 1_000_000


CUT: Final = "\u2026"
"""The end of a text that was truncated."""


def microseconds(seconds: float) -> int:
    """A duration in seconds, as in the configuration, as the microseconds of a store."""
    return round(seconds * MICROSECONDS)


def moment(at_us: int) -> str:
    """A time of a store's clock, for people: in RFC 3339, to the second and in UTC."""
    return datetime.fromtimestamp(at_us // MICROSECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class State(StrEnum):
    ABSENT = "absent"
    RELEASED = "released"
    ACCEPTED = "accepted"
    CLAIMED = "claimed"
    IN_DOUBT = "in_doubt"
    DEAD_LETTER = "dead_letter"
    COMPLETED = "completed"
    TOMBSTONE = "tombstone"


class Event(StrEnum):
    """What can happen to an operation. No command causes lapse, expire, retire and collect: the clock does."""

    CLAIM = "claim"
    ACCEPT = "accept"
    DISPATCH = "dispatch"
    RENEW = "renew"
    COMPLETE = "complete"
    RELEASE = "release"
    FORGET = "forget"
    ABANDON = "abandon"
    POSTPONE = "postpone"
    BURY = "bury"
    LAPSE = "lapse"
    EXPIRE = "expire"
    TAKEOVER = "takeover"
    PROVE = "prove"
    DISPROVE = "disprove"
    REINSTATE = "reinstate"
    REQUEUE = "requeue"
    WITHDRAW = "withdraw"
    RETIRE = "retire"
    PURGE = "purge"
    COLLECT = "collect"
    ERASE = "erase"


@immutable
class Fingerprint:
    """What identifies a request, as digests.

    `recipe` names the algorithm, the route's settings and the key that made `digest`; two digests are comparable only
    under one recipe. `raw` always covers the same parts (method, target, Host, media type, coding, body), so that under
    one `key_id` it stays comparable when the recipe changes. `key_id` is empty when the digests are not keyed. `parts`
    are short digests of single parts, which explain a mismatch (`identity.fingerprint`) and decide nothing.

    A tombstone may have only the first `SHORT_DIGEST_BYTES` of both digests, and no parts.
    """

    recipe: bytes
    digest: bytes
    raw: bytes
    key_id: str = ""
    parts: bytes = b""

    def equals(self, other: Fingerprint) -> bool | None:
        """Whether both are of the same request; None when that cannot be known (other recipe, other raw digest)."""
        if self.recipe == other.recipe:
            return self.digest == other.digest or is_same_digest(self.digest, other.digest)
        if self.key_id == other.key_id and is_same_digest(self.raw, other.raw):
            return True
        return None


SHORT_DIGEST_BYTES: Final = 8
"""What a tombstone keeps of the digests of its request. They decide there which refusal a request gets, and nothing is
executed either way."""


def is_same_digest(one: bytes, other: bytes) -> bool:
    """Whether two digests of requests are equal; a short one is compared as far as it goes."""
    if len(one) != len(other) and SHORT_DIGEST_BYTES in (len(one), len(other)):
        return one[:SHORT_DIGEST_BYTES] == other[:SHORT_DIGEST_BYTES]
    return one == other


@immutable
class Identity:
    """Which record this is, and how an operator finds it.

    Scope and key are digests; `key` is the key in clear, stored only where the configuration asks for it.

    `service` is set in a tombstone that gave up its key (`Record`): there it does not follow from the id any more.
    """

    operation_id: UUID
    route: str
    operation: str
    scope_digest: bytes
    key_digest: bytes
    key: str | None = None
    service: str | None = None


@immutable
class Content:
    """What a request asks for, where likely duplicates are refused: a digest of caller and content.

    Two operations with equal digests are likely duplicates, for `within_us` from the claim or acceptance of the first
    and for as long as its outcome is not known. `is_distinct`: the caller says that this one is meant.
    """

    digest: bytes
    within_us: int
    is_distinct: bool = False


@immutable
class ProbeTarget:
    """Where to probe for an operation's outcome, rendered from the request when it was claimed."""

    target: bytes
    host: bytes


@immutable
class RequestInfo:
    """What is stored of an attempt's request for people: enough to find it in the logs of other systems.

    `host` and `path` are as sent, in printable ASCII (other octets as `%XX`), without the query, which may hold
    secrets; truncated ones end in `CUT`. `host` is empty where there was none. An id is None where the caller sent
    none.
    """

    method: str
    host: str
    path: str
    request_id: str | None = None
    trace_id: str | None = None


@immutable
class Audit:
    """Who changed an operation by hand or by probe, and why; outlives the record by a bounded time."""

    who: str
    why: str


@immutable
class SealedRequest:
    """A whole request, encrypted, as it is kept until it was delivered. `key_id` names the key.

    `acceptance_id` is the attempt id of the `Accept` that brought it. It and the operation id are authenticated with
    the bytes, so that no row can pass for another one.
    """

    acceptance_id: UUID
    key_id: str
    sealed: bytes


@immutable
class Delivery:
    """What a record knows of its kept request while there is one: from `accept` until the outcome is known.

    `service` is whose gateways deliver it. In `accepted`, the next attempt may start at `next_attempt_us`, and none
    starts from `deliver_until_us` on. `since_us` is when it was last accepted or requeued, or became a dead letter.
    `answers` counts the attempts since it was last accepted or requeued that the upstream answered, and those in doubt
    that were followed by another one; `failure` is why the last attempt failed, a short word with the status if there
    was one; `reason` is why it is a dead letter, None in other states. `request_bytes` is the size of the sealed
    request.

    `lane` is what it is delivered in order with, None for nothing; `lane_number` is its number there, and `stops_lane`
    whether it stops the lane as a dead letter. While `is_behind`, another one of the lane goes first. The store keeps
    it true (`core.delivery`).
    """

    service: str
    acceptance_id: UUID
    accepted_us: int
    since_us: int
    next_attempt_us: int
    deliver_until_us: int
    request_bytes: int
    answers: int = 0
    failure: str | None = None
    reason: str | None = None
    lane: bytes | None = None
    lane_number: int = 0
    stops_lane: bool = True
    is_behind: bool = False


@immutable
class Record:
    """The durable row of an operation.

    `token` and `attempt_id` are those of the last claim or acceptance; `last_event` is the event of the last command
    (the clock does not change it). `attempts` counts the claims and dispatches since the record was created.
    `resolution_id` is that of the last prove, disprove, reinstate, requeue or withdraw. `lease_until_us` is set in
    `claimed` and, as the end of the last attempt's lease, in `in_doubt`, with `lease_us`, the length that the lease was
    last given; `replay_until_us` in `completed`; `remember_until_us` in `released`, `completed` and `tombstone`; 0
    elsewhere. `carried_us` is when the doubt began that a takeover carries, also in `in_doubt` after it; None without.
    `response` is set in `completed` (its body None when it was not stored) and, with status and version alone, in
    `tombstone`. `resource` is the reference to what was made, by the last response that named one; None where it is
    known that nothing was made. `doubt` is why the record came into doubt.
    `probe` is the last claim's, `request` the last attempt's; it is None in a copy, which people are not shown.
    `history` has what the record itself tells no more (below); None in a copy, and where there is nothing.
    `delivery` is set while the record's request is kept: always in `accepted` and `dead_letter`, never in `released`,
    `completed` and `tombstone`. `first_claimed_us` and `claimed_us` are times of acceptance until the first dispatch.

    `sealed` is set in a record that was decrypted: the record as it is stored, which is what goes back to a store.

    A store may give up, of a tombstone, what no request and no operator needs any more. Then `attempt_id` is
    `NO_ATTEMPT`; key, key digest, holder, probe, request, resolution and the parts of the fingerprint are missing; of
    the scope's digest there are the first `SHORT_SCOPE_BYTES`, of the fingerprint's the first `SHORT_DIGEST_BYTES`; it
    was first claimed and claimed when it was completed.
    """

    identity: Identity
    state: State
    token: int
    attempt_id: UUID
    last_event: Event
    holder: str
    carried_us: int | None
    fingerprint: Fingerprint | None
    attempts: int
    first_claimed_us: int
    claimed_us: int
    lease_until_us: int = 0
    replay_until_us: int = 0
    remember_until_us: int = 0
    completed_us: int | None = None
    doubt: str | None = None
    resolution_id: UUID | None = None
    response: StoredResponse | None = None
    resource: str | None = None
    probe: ProbeTarget | None = None
    request: RequestInfo | None = field(default=None, compare=False)
    delivery: Delivery | None = None
    lease_us: int = 0
    history: bytes | None = field(default=None, compare=False)
    sealed: Record | None = field(default=None, compare=False, repr=False)
    replay: object = field(init=False, default=None, compare=False, repr=False)
    """What every repeat gets, once one has got it."""

    @property
    def carries_doubt(self) -> bool:
        """Whether an attempt before the last one may have had its effect."""
        return self.carried_us is not None


NO_ATTEMPT: Final = UUID(int=0)
"""The attempt id of a tombstone that does not keep it."""

SHORT_SCOPE_BYTES: Final = 16
"""What a tombstone keeps of the digest of its scope, at least: enough that nobody finds another scope with it."""


def trace_of_attempt(record: Record) -> str | None:
    """The trace id that the caller of the last attempt sent. An accepted request is delivered without a caller."""
    return None if record.request is None or record.delivery is not None else record.request.trace_id


def in_doubt_since_us(record: Record) -> int:
    """When the doubt of a record in doubt began: its first attempt that ended without a known effect did so then."""
    return record.lease_until_us if record.carried_us is None else record.carried_us


def delivery_of(record: Record) -> Delivery:
    """What is known of the kept request; ValueError where the record keeps none."""
    if record.delivery is None:
        raise ValueError(f"a record in {record.state} has no kept request")
    return record.delivery


def is_withdrawn(record: Record) -> bool:
    """Whether it was called off: what was kept of it is gone, and it has no effect."""
    return record.state is State.RELEASED and record.last_event is Event.WITHDRAW


@immutable
class Snapshot:
    """A settled record (None: absent) as of `now_us` of the store's clock, which remaining times are counted from."""

    record: Record | None
    now_us: int

    @property
    def state(self) -> State:
        return State.ABSENT if self.record is None else self.record.state


# Commands to a store: one class for each event that is not the clock's, named after it, with what its row needs.
# `audit`, where given, is written in the same atomic change.


@immutable
class Claim:
    """Ask for the permission to execute.

    `read_token` is that of the released record that was read, None if no record was. `content` is held from now on,
    and where another operation holds it the claim is `Fenced`; None where repeats are not refused.
    """

    identity: Identity
    attempt_id: UUID
    holder: str
    fingerprint: Fingerprint
    lease_us: int
    read_token: int | None = None
    probe: ProbeTarget | None = None
    request: RequestInfo | None = None
    content: Content | None = None


@immutable
class Accept:
    """Keep the request, to be delivered later. Nothing is sent under it.

    `read_token`, `probe`, `request` and `content` as in `Claim`. The first attempt may start at once, and none starts
    after `deliver_within_us`. `lane` and `stops_lane` as in `Delivery`.
    """

    identity: Identity
    attempt_id: UUID
    service: str
    fingerprint: Fingerprint
    kept: SealedRequest
    deliver_within_us: int
    read_token: int | None = None
    probe: ProbeTarget | None = None
    request: RequestInfo | None = None
    content: Content | None = None
    lane: bytes | None = None
    stops_lane: bool = True


@immutable
class Dispatch:
    """Claim an accepted operation whose next attempt is due and whose turn it is in its lane, fenced on the token that
    was read."""

    operation_id: UUID
    read_token: int
    attempt_id: UUID
    holder: str
    lease_us: int


@immutable
class _ByHolder:
    """A command of the holder of a claim, fenced on its token and attempt id."""

    operation_id: UUID
    token: int
    attempt_id: UUID


@immutable
class Renew(_ByHolder):
    lease_us: int


@immutable
class Complete(_ByHolder):
    """Record the response. `remember_us` is never less than `replay_us`; both count from the moment of recording.

    `resource` is the reference that the response names, here and in other commands; None keeps an earlier one.
    `granted` is the record as the claim was granted, if the caller has it: a store that finds the claim in force takes
    what the response does not change from it, and need not read the record.
    """

    response: StoredResponse
    replay_us: int
    remember_us: int
    resource: str | None = None
    granted: Record | None = field(default=None, compare=False, repr=False)


@immutable
class Release(_ByHolder):
    """Record that the attempt had no effect. `why` is a short word, here and in `Forget`."""

    remember_us: int
    why: str = ""


@immutable
class Forget(_ByHolder):
    """The caller was refused at the door: drop the fingerprint."""

    why: str = ""


@immutable
class Abandon(_ByHolder):
    """Record that something was sent and its effect is unknown; `doubt` is a short reason."""

    doubt: str
    resource: str | None = None


@immutable
class Postpone(_ByHolder):
    """The attempt had no effect, and the kept request is to be sent again, after `pause_us` at the earliest.

    `is_answered`: the upstream answered, which counts against the limit of answers. `failure` as in `Delivery`.
    """

    pause_us: int
    failure: str
    is_answered: bool


@immutable
class Bury(_ByHolder):
    """The attempt had no effect, and the kept request is not sent again unless somebody says so.

    `reason` is a short word; the rest as in `Postpone`.
    """

    reason: str
    failure: str
    is_answered: bool


@immutable
class Takeover:
    """Claim an operation that is in doubt, fenced on the token that was read; the new claim carries the doubt."""

    operation_id: UUID
    read_token: int
    attempt_id: UUID
    holder: str
    lease_us: int
    request: RequestInfo | None = None


@immutable
class _Resolution:
    """A decision about an operation that nobody executes, fenced on the token that was read.

    The single-use `resolution_id` makes a retry safe.
    """

    operation_id: UUID
    read_token: int
    resolution_id: UUID


@immutable
class Prove(_Resolution):
    """Record the response that a probe or an operator found."""

    response: StoredResponse
    replay_us: int
    remember_us: int
    audit: Audit | None = None
    resource: str | None = None


@immutable
class Disprove(_Resolution):
    """Record that nothing happened."""

    remember_us: int
    audit: Audit | None = None


@immutable
class Reinstate(_Resolution):
    """Record that nothing happened, and deliver the kept request."""

    audit: Audit | None = None


@immutable
class Requeue(_Resolution):
    """Deliver a dead letter after all: at once, within `deliver_within_us`, with a new limit of answers."""

    deliver_within_us: int
    audit: Audit | None = None


@immutable
class Withdraw(_Resolution):
    """Call off what was accepted or is a dead letter."""

    remember_us: int
    audit: Audit | None = None


@immutable
class Purge:
    operation_id: UUID
    audit: Audit | None = None


@immutable
class Erase:
    operation_id: UUID
    audit: Audit | None = None


OutcomeCommand = Complete | Release | Forget | Abandon | Postpone | Bury
"""How the holder of a claim reports the outcome of its attempt to a store."""
HolderCommand = Renew | OutcomeCommand
"""Commands of the holder of a claim, fenced on its token and attempt id."""
ClaimingCommand = Claim | Dispatch | Takeover
"""Commands that ask for the permission to execute: their attempt id is new, and they draw a token."""
ResolvingCommand = Prove | Disprove | Reinstate | Requeue | Withdraw
"""Commands by which a probe, an operator or the caller decides about an operation that nobody executes."""
ReaderCommand = ClaimingCommand | Accept | ResolvingCommand
"""Commands on a record as it was read, fenced on the token that it had then."""
Command = HolderCommand | ReaderCommand | Purge | Erase

EVENT_OF: Final[dict[type[Command], Event]] = {kind: Event[kind.__name__.upper()] for kind in get_args(Command)}


# Constants, because a union inside `isinstance` is built on every call.
_BY_IDENTITY: Final = (Claim, Accept)
_AUDITED: Final = (Prove, Disprove, Reinstate, Requeue, Withdraw, Purge, Erase)


def operation_id_of(command: Command) -> UUID:
    return command.identity.operation_id if isinstance(command, _BY_IDENTITY) else command.operation_id


def content_of(command: Command) -> Content | None:
    return command.content if isinstance(command, _BY_IDENTITY) else None


def audit_of(command: Command) -> Audit | None:
    return command.audit if isinstance(command, _AUDITED) else None


# What a store returns for a command. Losing a race is a value, not an exception.


@immutable
class Applied:
    """The change is in the record, by this command or by an earlier try of it whose result was lost."""

    snapshot: Snapshot


@immutable
class Lapsed:
    """The record is still this attempt's, but its lease is over: it can no longer be renewed."""

    snapshot: Snapshot


@immutable
class Fenced:
    """Nothing was changed: the table has no such row for the record as it is, which is in the snapshot.

    `content_holder`: the row exists, but this other operation holds the content of the request.
    """

    snapshot: Snapshot
    content_holder: UUID | None = None


Result = Applied | Lapsed | Fenced


# -- history -----------------------------------------------------------------------------------------------------------
#
# What an operation has been through, kept beside its record.
#
# A record tells of its last attempt. So an operation that was completed by its first attempt has no entry, and the
# verbs of a new key write none. An entry has what a later change would overwrite: how an attempt ended otherwise, what
# was decided about the operation (`lifecycle` makes these), and what a probe found that changed nothing (the stores,
# when the probe gives back its lease).
#
# What has an audit has no entry: the audit tells who and why, and is encrypted. An entry quotes nobody. It has words of
# this program, statuses, methods, and the names of gateways, as the record itself has them in clear.
#
# The first `HISTORY_FIRST` entries and the last `HISTORY_LAST` are kept, and how many of those between were dropped.
# Probes are dropped before anything else, because there is no end to them while a doubt lasts.

HISTORY_FIRST: Final = 3
HISTORY_LAST: Final = 20
PROBE: Final = "probe"
"""The event of a probe that changed nothing; all others are `Event`s."""
_ENTRY_CHARACTERS_MAX: Final = 200


@immutable
class Entry:
    """That something happened, at `at_us` of the store's clock and under this token. If it ended an attempt: by which
    `method` of which `holder`, which was claimed at `began_us`; 0 otherwise. `detail` is why, as short words, with the
    status if there was one (`recovery.answered_doubt`)."""

    event: str
    at_us: int
    token: int
    detail: str = ""
    began_us: int = 0
    holder: str = ""
    method: str = ""


@immutable
class History:
    """`dropped` is how many there were behind the first `HISTORY_FIRST` of the entries."""

    entries: tuple[Entry, ...] = ()
    dropped: int = 0


_ENTRY_FIELDS: Final = len(fields(Entry))


def history_with(packed: bytes | None, entry: Entry) -> bytes:
    history = unpacked_history(packed)
    entries, dropped = [*history.entries, entry], history.dropped
    if len(entries) > HISTORY_FIRST + HISTORY_LAST:
        probes = (place for place in range(HISTORY_FIRST, len(entries) - 1) if entries[place].event == PROBE)
        del entries[next(probes, HISTORY_FIRST)]
        dropped += 1
    rows = [
        [each[:_ENTRY_CHARACTERS_MAX] if isinstance(each, str) else each for each in astuple(entry)]
        for entry in entries
    ]
    # Not by orjson, which refuses surrogates: what a service or a person wrote must not stop a change.
    return json.dumps([dropped, *rows], separators=(",", ":")).encode()


def unpacked_history(packed: bytes | None) -> History:
    """Undo `history_with`; None is the history of an operation with nothing to tell."""
    if packed is None:
        return History()
    dropped, *entries = json.loads(packed)
    # A newer program may have more to tell.
    return History(tuple(Entry(*each[:_ENTRY_FIELDS]) for each in entries), dropped)
