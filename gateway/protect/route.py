"""A route as requests need it: what the configuration asked for, compiled once.

Owns nothing and decides nothing. Durations are seconds unless the name says microseconds; sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.delivery import DeliveryPolicy
from gateway.core.framing import digest
from gateway.core.identity.fingerprint import Fingerprinter, RepeatPolicy
from gateway.core.identity.key import ComposedKey, Key, KeySpec
from gateway.core.identity.scope import AuthService, ScopeSpec
from gateway.core.message import Headers, values_by_name
from gateway.core.operation import MICROSECONDS
from gateway.core.outcome import StatusPolicy
from gateway.core.recovery import Hold, Recovery
from gateway.core.replay import KeepPolicy
from gateway.core.routing import PathPattern
from gateway.core.webhook.examination import Inbox
from gateway.protect.forwarding import ForwardingPolicy, UpstreamKey
from gateway.protect.problem import Shape
from gateway.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go and how: the client of one upstream, and its forwarding settings.

    `key_headers`: as in `forwarding.Execution`.
    """

    upstream: Upstream
    forwarding: ForwardingPolicy
    key: UpstreamKey
    key_headers: tuple[bytes, ...]
    answer_within_seconds: float


@dataclass(frozen=True, slots=True)
class InFlightPolicy:
    """How long a duplicate waits for a running operation, its status after that, and how many wait on this route."""

    wait_seconds: float = 5.0
    wait_seconds_max: float = 30.0
    status: int = 409
    waiters_max: int = 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a response is kept, how long its key, and the status of a repeat in between."""

    replay_us: int
    remember_us: int
    expired_status: int = 410


@dataclass(frozen=True, slots=True)
class Order:
    """What the requests of a route are delivered in order by. `stops`: a dead letter stops its lane; `is_required`: a
    request without the value is refused."""

    by: ComposedKey
    stops: bool = True
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class AcceptPolicy:
    """Which requests of a route are accepted, to be delivered later, and how many may wait.

    `is_always`: all that have a key, and not only those whose caller prefers it. `requeues_on_repeat`: a repeat of a
    dead letter delivers it again, at most once in `requeue_after_us`. `headers` replace the caller's when the request
    is delivered. Where there is an `order`, the route executes nothing but what was accepted. `status_prefix` and the
    operation id make the URL of the operation's status.
    """

    delivery: DeliveryPolicy
    is_always: bool
    request_bytes_max: int
    pending_max: int
    pending_bytes_max: int
    pending_per_scope_max: int
    may_withdraw: bool
    headers: Headers = ()
    order: Order | None = None
    requeues_on_repeat: bool = False
    requeue_after_us: int = 60 * MICROSECONDS
    status_prefix: bytes = b"/_operations/"


@dataclass(frozen=True, slots=True)
class Route:
    """One protected route. `once` are the headers (lower case) that a request may carry at most once; `compared` those
    that the route's fingerprint covers beside what every fingerprint does. `authorize` is asked about every request.

    `is_observed`: its requests are forwarded as if no route matched, but for those of the `enforced` share of keys.
    """

    name: str
    operation: str
    key: KeySpec
    is_key_required: bool
    scope: ScopeSpec
    once: frozenset[bytes]
    compared: frozenset[bytes]
    fingerprinter: Fingerprinter
    accepts_recipe_change: bool
    in_flight: InFlightPolicy
    policy: StatusPolicy
    keep: KeepPolicy
    retention: Retention
    body_bytes_max: int
    spool_over_bytes: int
    shape: Shape
    mismatch_status: int
    shows_status: bool
    forwards_unprotected: bool
    target: Target
    path: PathPattern
    authorize: AuthService | None = None
    accept: AcceptPolicy | None = None
    inbox: Inbox | None = None
    repeats: RepeatPolicy | None = None
    recovery: Recovery = Hold()  # noqa: RUF009  a value without state
    is_observed: bool = False
    enforced: EnforcedShare | None = None

    def for_key(self, headers: Headers) -> Route:
        """The route that a request with these headers meets: this one, or the one that enforces for its key."""
        share = self.enforced
        if share is None:
            return self
        key = self.key.find_key(values_by_name(headers), None)
        return share.route if isinstance(key, Key) and share.covers(self.operation, key) else self


@dataclass(frozen=True, slots=True)
class EnforcedShare:
    """The route that enforces for a share of the keys of an observed one, from 0 to 1.

    Which keys those are follows from operation name and key alone: all repeats of a key, at every gateway, are on one
    side, and so are those of a larger share that were in a smaller one.
    """

    route: Route
    share: float

    def covers(self, operation: str, key: Key) -> bool:
        """Whether requests with this key are enforced."""
        drawn = int.from_bytes(digest(b"share", operation.encode(), key.digest)[:8], "big")
        return drawn < self.share * 2**64
