"""What happened in a run, as values that need no program to be read.

The world writes it, the auditor reads it. Nothing of the gateway is imported here: states, events and words are the
strings that the contract names. Times are seconds of the run; the store's own times are microseconds, and
`store_us(seconds)` is what its clock showed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256

# In the end everybody asks once more, and so long afterwards all is delivered that was accepted, or requeued.
DELIVER_SECONDS = 12.0
# From where all clients connect.
CLIENT_ADDRESS = "192.0.2.7"

Fields = tuple[tuple[str, str], ...]


def digest_of(status: int, body: bytes) -> bytes:
    """What is compared of an answer and of a recorded response; the fields are compared between answers."""
    return sha256(b"%d %b" % (status, body)).digest()[:8]


@dataclass(slots=True)
class Answer:
    """What a client got. `is_whole` is False when the connection broke before the end."""

    status: int
    verdict: str | None
    headers: Fields
    body: bytes
    is_whole: bool
    at: float

    def header(self, name: str) -> str | None:
        return next((value for field_name, value in self.headers if field_name.lower() == name), None)

    @property
    def nonce(self) -> str | None:
        """The mark of the upstream's answer that this is."""
        return self.header("x-nonce")


class Asked:
    """What is asked for by a client's call, and by what a gateway sends for it."""

    __slots__ = ()
    route: str
    scope: str
    key: str
    target: str
    body: bytes

    @property
    def subject(self) -> tuple[str, str, str]:
        """Which operation it is about."""
        return self.route, self.scope, self.key

    @property
    def request(self) -> tuple[str, bytes]:
        """What is asked for; the rest of a request may be spelt in many ways."""
        return self.target, self.body


@dataclass(slots=True)
class Call(Asked):
    """One request of a client. `answer` None: none came, or the client did not wait for it.

    `gave_up`: the client went before its answer was whole. `reached_gateway` is when a gateway took it in,
    `left_gateway` when it had decided on the reply. `is_async`: it prefers not to wait.
    """

    number: int
    gateway: str
    route: str
    scope: str
    key: str
    body: bytes
    target: str
    begun: float
    ended: float | None = None
    answer: Answer | None = None
    reached_gateway: float | None = None
    left_gateway: float | None = None
    is_final_check: bool = False
    gave_up: bool = False
    is_async: bool = False


@dataclass(slots=True)
class Sent(Asked):
    """A request that left a gateway, and what the upstream made of it: its own journal.

    `sent` is when its first byte could leave, `received` when the upstream had all of it, `effect` when it took effect.
    `nonce` marks the answer, `status`, `headers` and `answer_body` are it. `cut` says after how many bytes of the body
    the answer broke off. `is_closed`: nothing more can come of it.
    """

    number: int
    call: int | None
    gateway: str
    operation_id: str
    token: int
    route: str
    scope: str
    key: str
    method: str
    target: str
    body: bytes
    headers: Fields
    sent: float
    received: float | None = None
    effect: float | None = None
    answered: float | None = None
    nonce: str = ""
    status: int = 0
    answer_headers: Fields = ()
    answer_body: bytes = b""
    cut: int | None = None
    is_kept_whole: bool = True
    is_closed: bool = False
    is_protected: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """A record as it stood in the store."""

    state: str
    token: int
    attempt: str
    last_event: str
    holder: str
    carries_doubt: bool
    fingerprint: bytes | None
    lease_until_us: int
    replay_until_us: int
    remember_until_us: int
    nonce: str | None = None
    response_digest: bytes | None = None
    has_body: bool = False
    is_kept: bool = False
    """Whether its request is kept; then these are when the next attempt may begin, since when that is waited for, and
    until when one may begin."""
    next_attempt_us: int = 0
    waits_since_us: int = 0
    deliver_until_us: int = 0
    lane: str | None = None
    """What it is delivered in order with; then `stops_lane` is whether it stops the others as a dead letter."""
    stops_lane: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """One transition: a command's, or a sweep's, whose event is `sweep`.

    `before` is as it was written, not settled. `token` and `attempt` are those that the command named, if any.
    """

    number: int
    operation_id: str
    event: str
    at: float
    at_us: int
    before: View | None
    after: View | None
    gateway: str
    token: int | None = None
    attempt: str | None = None
    read_token: int | None = None
    fingerprint: bytes | None = None
    region: str = ""
    """Whose store it is."""


@dataclass(slots=True)
class Forward:
    """A request that a gateway had for the region that its operation is at home in.

    `sent` is when its first byte could leave; None: nothing left, nor will. `answered` is when the first of a response
    was there.
    """

    call: int | None
    gateway: str
    home: str
    sent: float | None = None
    answered: float | None = None


@dataclass(slots=True)
class StoreCall:
    """A question to the durable store. `changes` are those that it made; `acknowledged` is when its answer arrived."""

    gateway: str
    verb: str
    operation_id: str | None
    begun: float
    executed: float | None = None
    acknowledged: float | None = None
    result: str = ""
    failure: str = ""
    change: int | None = None


@dataclass(frozen=True, slots=True)
class NoteRead:
    """A gateway asked the fast tier what others saw of the store. `noted` is when they first noted it there."""

    gateway: str
    at: float
    noted: float | None


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong, from `at` until `until`. `gateway` None: it concerns all."""

    kind: str
    at: float
    until: float
    gateway: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Jump:
    """The store's clock was set: after `at` it is `offset_us` ahead of the run's time."""

    at: float
    offset_us: int


@dataclass(frozen=True, slots=True)
class Drop:
    """An operator was told, at `at`, that the answer is dropped, or the key forgotten, and that no copy is left."""

    operation_id: str
    at: float
    is_erasure: bool


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a gateway process. `ending` is `running`, `crashed` or `drained`."""

    gateway: str
    holder: str
    began: float
    ended: float | None
    ending: str
    unsaid: int = 0
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """What was configured, as far as a judge needs it. Seconds."""

    lease_seconds: float
    cache_max_age_seconds: float
    wait_seconds_max: float
    answer_within_seconds: float
    store_timeout_seconds: float
    stored_bytes_max: int = 1024
    resent: frozenset[str] = frozenset()
    """Routes on which an operation in doubt is sent again, because the service deduplicates."""
    answer_within_by_route: Mapping[str, float] = field(default_factory=dict)
    refusing_repeats: frozenset[str] = frozenset()
    ordered: frozenset[str] = frozenset()
    """Routes that deliver the requests for one account in the order of acceptance."""
    sinks: Mapping[str, bool] = field(default_factory=dict)
    """Those that receive `operation.completed`, and whether in order."""
    homes: tuple[str, ...] = ()
    """The regions, in the order that gives operations their homes; none where there is one store."""

    def answered_within(self, route: str) -> float:
        """How long a caller of this route is kept waiting at most."""
        return max(self.wait_seconds_max, self.answer_within_by_route.get(route, self.answer_within_seconds))


@dataclass(frozen=True, slots=True)
class EventRow:
    """An `operation.completed` that the store wrote for a sink, in the order of writing. `line` is that of an ordered
    sink, whose events of one line go out one after the other."""

    sink: str
    operation_id: str
    token: int
    line: str | None = None


@dataclass(slots=True)
class History:
    """Everything, in the order in which it happened."""

    seed: int
    terms: Terms
    epoch_us: int
    calls: list[Call] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    store_calls: list[StoreCall] = field(default_factory=list)
    note_reads: list[NoteRead] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    facts: list[tuple[str, str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    region_of: dict[str, str] = field(default_factory=dict)
    final: dict[str, View] = field(default_factory=dict)
    events: list[EventRow] = field(default_factory=list)
    ended: float = 0.0
    rounds: int = 0

    def store_us(self, seconds: float) -> int:
        """What the store's clock showed at a moment of the run."""
        return self.epoch_us + round(seconds * 1_000_000) + self.offset_us(seconds)

    def offset_us(self, seconds: float) -> int:
        """How far the store's clock was ahead of the run's time."""
        passed = bisect_left(self.jumps, seconds, key=lambda jump: jump.at)
        return self.jumps[passed - 1].offset_us if passed else 0

    def was_set(self, since: float, until: float) -> bool:
        """Whether the store's clock was set between two moments of the run."""
        return any(since <= jump.at <= until for jump in self.jumps)

    def clock_since(self, seconds: float) -> list[tuple[float, float, int]]:
        """From when until when the store's clock was how far ahead, from a moment of the run on."""
        later = [jump for jump in self.jumps if jump.at >= seconds]
        begun = [seconds, *(jump.at for jump in later)]
        ended = [*begun[1:], math.inf]
        offsets = [self.offset_us(seconds), *(jump.offset_us for jump in later)]
        return list(zip(begun, ended, offsets, strict=True))

    def digest(self) -> str:
        """Equal for equal histories."""
        told = [getattr(self, each.name) for each in fields(self) if each.name not in ("seed", "terms")]
        return sha256(repr(told).encode()).hexdigest()
