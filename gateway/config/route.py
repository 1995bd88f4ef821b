"""A protected route, as the file says it.

Owns the keys below `routes[]`, their forms and defaults. What of them must agree with each other is in `agreement`.
A default may be slow or annoying, never unsafe: whatever can run something twice, forget it or show it to the wrong
caller has no default here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.address import HostName
from gateway.config.identity import KEY_FORMS, SCOPE_FORMS, Key, Scope
from gateway.config.message import HeaderName, JsonPointer, Method, RoutePath, StatusChoice, StatusSet
from gateway.config.recovery import RECOVERY_FORMS, ProbeRecovery, Recovery
from gateway.config.section import Section, written
from gateway.config.unit import Count, Duration, Flag, Name, Size
from gateway.config.upstream import RouteUpstream
from gateway.core.routing import PathPattern, Rule, normalise_host

_Pointer = Annotated[str, JsonPointer()]


class Match(Section):
    """Which requests the route is about. The first route of the file that matches decides."""

    methods: Annotated[tuple[Annotated[str, Method()], ...], Field(min_length=1, max_length=16)] = ("POST", "PATCH")
    """Methods, in upper case."""
    path: Annotated[PathPattern, RoutePath()]
    """The path: exact, with {name} for a segment, {name:.*} for the rest. Upper and lower case differ."""
    host: Annotated[str, HostName()] | None = None
    """The host that the request names, or is forwarded with if it names none; without a port. Any host if left out."""


class Fingerprint(Section):
    """What makes two requests the same request."""

    body: Literal["json", "form", "multipart", "raw", "none"] | None = None
    """The form in which bodies are compared; by media type if left out."""
    ignore: Annotated[tuple[_Pointer, ...], Field(max_length=64)] = ()
    """JSON pointers to what a retry may change."""
    only: Annotated[tuple[_Pointer, ...], Field(max_length=64)] = ()
    """JSON pointers to all that is compared; everything if left out."""
    headers: Annotated[tuple[Annotated[str, HeaderName(is_compared=True)], ...], Field(max_length=64)] = ()
    """Header fields that are compared too. Those that override method or target always are."""
    on_recipe_change: Literal["refuse", "accept"] = "refuse"
    """Whether a record made under other settings than these may be replayed to a request that differs from it."""


class InFlight(Section):
    """What a duplicate gets while the first request is still running."""

    ORDERED = (("wait", "max_wait"),)

    wait: Annotated[float, Duration("0s", "10m")] = written("5s")
    """How long a duplicate waits for the first request, unless it asks for a time itself. At most max_wait."""
    max_wait: Annotated[float, Duration("0s", "10m")] = written("30s")
    """The longest wait that a caller may ask for with `Prefer: wait`."""
    status: Annotated[Literal[409, 429], StatusChoice((409, 429))] = 409
    """The status of the answer when the wait is over."""
    max_waiters: Annotated[int, Count(0, 100_000)] = 1000
    """How many duplicates may wait at once on this route. Workers share them out evenly."""


StatusSelector = Annotated[int | str, StatusSet()]
Meaning = Literal["final", "retryable", "in_doubt"]


class Outcome(Section):
    """What the statuses of the service say about its effects. A code beats a class, and both beat the preset."""

    preset: Literal["standard", "payments", "success_only"]
    """What each status means; there is no default, because this is a decision about money."""
    final: Annotated[tuple[StatusSelector, ...], Field(max_length=64)] = ()
    """Codes and classes that are recorded and replayed."""
    retryable: Annotated[tuple[StatusSelector, ...], Field(max_length=64)] = ()
    """Codes and classes that say that nothing happened, so that a retry runs."""
    in_doubt: Annotated[tuple[StatusSelector, ...], Field(max_length=64)] = ()
    """Codes and classes that leave open what happened, so that no retry runs."""

    @property
    def codes(self) -> dict[int, Meaning]:
        """What the route says of single status codes."""
        return {status: meaning for status, meaning in self._selected() if isinstance(status, int)}

    @property
    def classes(self) -> dict[int, Meaning]:
        """What the route says of classes, by their first digit."""
        return {int(status[0]): meaning for status, meaning in self._selected() if isinstance(status, str)}

    def _selected(self) -> list[tuple[int | str, Meaning]]:
        listed: tuple[tuple[Meaning, tuple[int | str, ...]], ...] = (
            ("final", self.final),
            ("retryable", self.retryable),
            ("in_doubt", self.in_doubt),
        )
        return [(status, meaning) for meaning, statuses in listed for status in statuses]


class ResponsePolicy(Section):
    """What of a response is kept for replay."""

    max_stored_bytes: Annotated[int, Size("0", "64MiB")] = written("1MiB")
    """The longest body that is kept; 0 keeps none."""
    strip: Annotated[tuple[Annotated[str, HeaderName()], ...], Field(max_length=64)] = ()
    """Header fields that are not kept."""
    keep: Annotated[tuple[Annotated[str, HeaderName()], ...], Field(max_length=2)] = ()
    """Set-Cookie or WWW-Authenticate, which are not kept otherwise."""


class Retention(Section):
    """How long an operation is remembered."""

    ORDERED = (("replay", "remember"),)

    replay: Annotated[float, Duration("1s", "3650d")] = written("24h")
    """How long the response is kept. At most as long as the key."""
    remember: Annotated[float, Duration("1s", "3650d")] = written("7d")
    """How long the key is kept; a key that is no longer remembered runs again."""
    expired_status: Annotated[Literal[410, 409, 204], StatusChoice((410, 409, 204))] = 410
    """The status of the answer when the key is remembered and the response is gone."""


class Body(Section):
    """Limits of request bodies."""

    max_bytes: Annotated[int, Size("0", "16GiB")] = written("10MiB")
    """The longest body of a request."""
    spool_over: Annotated[int, Size("0", "16GiB")] = written("256KiB")
    """Longer bodies are held in a file while they are compared."""


class Route(Section):
    """One kind of operation that is protected."""

    name: Annotated[str, Name()]
    """The name of the route in logs and metrics."""
    operation: Annotated[str, Name()] = Field(default_factory=lambda known: known.get("name", ""))
    """The name in the identity of its operations: the route's name if left out. Routes may share one."""
    match: Match
    """Which requests it is for: {path}, and perhaps methods and host."""
    key: Annotated[Key, Field(description=f"Where the key is: {KEY_FORMS}.")]
    scope: Annotated[Scope, Field(description=f"Whose key it is: {SCOPE_FORMS}.")]
    fingerprint: Fingerprint = Field(default_factory=Fingerprint)
    """What makes two requests the same request."""
    in_flight: InFlight = Field(default_factory=InFlight)
    """What a duplicate gets while the first request is still running."""
    outcome: Outcome
    """What the statuses of the service mean: {preset: standard}, payments or success_only."""
    recovery: Annotated[Recovery, Field(description=f"What is done about an operation in doubt: {RECOVERY_FORMS}.")] = (
        "hold"
    )
    response: ResponsePolicy = Field(default_factory=ResponsePolicy)
    """What of a response is kept for replay."""
    retention: Retention = Field(default_factory=Retention)
    """How long an operation is remembered."""
    body: Body = Field(default_factory=Body)
    """Limits of request bodies."""
    upstream: RouteUpstream = Field(default_factory=RouteUpstream)
    """What is different from the global upstream for this route."""
    errors: Literal["problem", "stripe"] = "problem"
    """The form of the gateway's own answers: RFC 9457 problem documents, or errors as Stripe's SDKs know them."""
    mismatch_status: Annotated[Literal[422, 409, 400], StatusChoice((422, 409, 400))] = 422
    """The status of the answer to a different request under a used key."""
    status_header: Annotated[bool, Flag()] = True
    """Whether answers carry `Idempotency-Status`."""
    store_unavailable: Literal["refuse", "forward"] = "refuse"
    """What happens to a request while the durable store is down: refused, or forwarded unprotected."""
    identity_change: Literal["refuse", "accept"] = "refuse"
    """Whether the gateway starts when a change of the file would make it forget keys that are still remembered."""

    @property
    def settle(self) -> float | None:
        """The `settle` of its probe, in seconds, where there is one and it is written."""
        return self.recovery.probe.settle if isinstance(self.recovery, ProbeRecovery) else None

    @property
    def rule(self) -> Rule:
        """What `routing.RouteTable` matches requests with."""
        host = None if self.match.host is None else normalise_host(self.match.host.encode())
        return Rule(frozenset(method.encode() for method in self.match.methods), self.match.path, host)
