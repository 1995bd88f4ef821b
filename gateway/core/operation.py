"""The nouns: what an operation is, what is recorded of it, and what may be asked of it.

Everything here is a value. Times are integers of microseconds on *the store's own clock*, comparable only with one
another and with the `now_us` that the same store gave along with them; durations are integers of microseconds. What may
happen to a record, and when, is not said here but in `lifecycle`.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Final
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.message import StoredResponse

MICROSECONDS: Final = 1_000_000


CUT: Final = "\u2026"
"""What a text ends in that was cut to its bound."""


def microseconds(seconds: float) -> int:
    """A duration of the configuration as a duration of a store."""
    return round(seconds * MICROSECONDS)


class State(StrEnum):
    ABSENT = "absent"
    RELEASED = "released"
    CLAIMED = "claimed"
    IN_DOUBT = "in_doubt"
    COMPLETED = "completed"
    TOMBSTONE = "tombstone"


class Event(StrEnum):
    """What can happen to an operation. Time rows (lapse, retire, collect) are said by nobody: the clock brings them."""

    CLAIM = "claim"
    RENEW = "renew"
    COMPLETE = "complete"
    RELEASE = "release"
    FORGET = "forget"
    ABANDON = "abandon"
    LAPSE = "lapse"
    TAKEOVER = "takeover"
    PROVE = "prove"
    DISPROVE = "disprove"
    RETIRE = "retire"
    PURGE = "purge"
    COLLECT = "collect"
    ERASE = "erase"


@immutable
class Fingerprint:
    """What a request was, as digests.

    `recipe` names the algorithm, the route's settings and the key that made `digest`; two digests are comparable only
    under one recipe. `raw` is always taken over the same parts (method, target, Host, media type, coding, body), so
    that under one `key_id` it stays comparable when the recipe changes. `key_id` is empty when the digests are not
    keyed.
    """

    recipe: bytes
    digest: bytes
    raw: bytes
    key_id: str = ""

    def equals(self, other: Fingerprint) -> bool | None:
        """Whether both are of the same request; None when that cannot be known (other recipe, other raw digest)."""
        if self.recipe == other.recipe:
            return self.digest == other.digest
        if self.key_id == other.key_id and self.raw == other.raw:
            return True
        return None


@immutable
class Identity:
    """Where a record lives and how an operator finds it.

    Scope and key are digests; `key` is in clear only by request.
    """

    operation_id: UUID
    route: str
    operation: str
    scope_digest: bytes
    key_digest: bytes
    key: str | None = None


@immutable
class ProbeTarget:
    """Where to ask what became of an operation, rendered from the request when it was claimed."""

    target: bytes
    host: bytes


@immutable
class RequestInfo:
    """What of the request of an attempt is kept for people: enough to find it in the logs of others.

    `host` and `path` are as they were sent, in printable ASCII (other octets as `%XX`), without the query, which may
    hold secrets; what was too long ends in `CUT`. `host` is empty where there was none. Both ids are None where the
    caller sent none.
    """

    method: str
    host: str
    path: str
    request_id: str | None = None
    trace_id: str | None = None


@immutable
class Audit:
    """Who did something to an operation by hand or by probe, and why; outlives the record by a bounded time."""

    who: str
    why: str


@immutable
class Record:
    """The durable row of an operation.

    `token` and `attempt_id` are those of the last claim; `last_event` is the last one that somebody said (time rows
    leave it). `attempts` counts the claims since the record came into being. `resolution_id` is that of the prove or
    disprove that ended a doubt. `lease_until_us` means something in `claimed` and, as the end of the last lease, in
    `in_doubt`; `replay_until_us` in `completed`; `remember_until_us` in `released`, `completed` and `tombstone`; 0
    elsewhere. `response` is set in `completed` (its body None when it was not kept) and, with status and `Location`
    alone, in `tombstone`. `doubt` says why the record came into doubt. `probe` is the last claim's, `request` the last
    attempt's; it is None in a copy, which people are not shown.
    """

    identity: Identity
    state: State
    token: int
    attempt_id: UUID
    last_event: Event
    holder: str
    carries_doubt: bool
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
    probe: ProbeTarget | None = None
    request: RequestInfo | None = field(default=None, compare=False)


@immutable
class Snapshot:
    """A settled record (None: absent) as of `now_us` of the store's clock. Remaining times are differences in it."""

    record: Record | None
    now_us: int

    @property
    def state(self) -> State:
        return State.ABSENT if self.record is None else self.record.state


# What is asked of a store. `audit`, where it is given, is written down in the same atomic change. One class per event
# that somebody can say, named after it; the fields are what its row needs.


@immutable
class Claim:
    """Ask for the grant to execute.

    `read_token` is that of the released record that was read, None on a first statement.
    """

    identity: Identity
    attempt_id: UUID
    holder: str
    fingerprint: Fingerprint
    lease_us: int
    read_token: int | None = None
    probe: ProbeTarget | None = None
    request: RequestInfo | None = None


@immutable
class Renew:
    operation_id: UUID
    token: int
    attempt_id: UUID
    lease_us: int


@immutable
class Complete:
    """Record the answer. `remember_us` is never less than `replay_us`; both count from the moment of recording.

    `granted` is the record as it was when the claim was granted, where whoever says this has it: what the answer does
    not change is known from it, and a store that finds the claim in force need not read the record.
    """

    operation_id: UUID
    token: int
    attempt_id: UUID
    response: StoredResponse
    replay_us: int
    remember_us: int
    granted: Record | None = field(default=None, compare=False, repr=False)


@immutable
class Release:
    operation_id: UUID
    token: int
    attempt_id: UUID
    remember_us: int


@immutable
class Forget:
    operation_id: UUID
    token: int
    attempt_id: UUID


@immutable
class Abandon:
    """Say that something was sent and its effect is unknown; `doubt` is a short word for why."""

    operation_id: UUID
    token: int
    attempt_id: UUID
    doubt: str


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
class Prove:
    """Record what a probe or an operator found. `resolution_id` is single-use and makes the statement repeatable."""

    operation_id: UUID
    read_token: int
    resolution_id: UUID
    response: StoredResponse
    replay_us: int
    remember_us: int
    audit: Audit | None = None


@immutable
class Disprove:
    """Record that nothing happened. `resolution_id` is single-use and makes the statement repeatable."""

    operation_id: UUID
    read_token: int
    resolution_id: UUID
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


LastWord = Complete | Release | Forget | Abandon
"""What the holder of a claim ends its attempt with: the outcome, as it is told to a store."""
HolderCommand = Renew | LastWord
"""What the holder of a claim says of it, by token and attempt id."""
ReaderCommand = Claim | Takeover | Prove | Disprove
"""What is said of a record as it was read, by its token then."""
Command = HolderCommand | ReaderCommand | Purge | Erase

EVENT_OF: Final[dict[type[Command], Event]] = {
    Claim: Event.CLAIM,
    Renew: Event.RENEW,
    Complete: Event.COMPLETE,
    Release: Event.RELEASE,
    Forget: Event.FORGET,
    Abandon: Event.ABANDON,
    Takeover: Event.TAKEOVER,
    Prove: Event.PROVE,
    Disprove: Event.DISPROVE,
    Purge: Event.PURGE,
    Erase: Event.ERASE,
}


def operation_id_of(command: Command) -> UUID:
    return command.identity.operation_id if isinstance(command, Claim) else command.operation_id


def audit_of(command: Command) -> Audit | None:
    return command.audit if isinstance(command, Prove | Disprove | Purge | Erase) else None


# What a store says to a command. Losing a race is a value, not an exception.


@immutable
class Applied:
    """The change is in the record, by this statement or by an earlier one of the same attempt whose answer was lost."""

    snapshot: Snapshot


@immutable
class Lapsed:
    """The record is still this attempt's, but its lease is over: it can no longer be renewed."""

    snapshot: Snapshot


@immutable
class Fenced:
    """Nothing was changed: the table has no such row for the record as it is. For a claim: here is the record."""

    snapshot: Snapshot


Result = Applied | Lapsed | Fenced
