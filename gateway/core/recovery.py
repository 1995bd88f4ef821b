"""How an operation in doubt is resolved, as decisions: when to try, what to probe, what a probe's response means.

Owns the route's recovery policy. `hold` waits for an operator. `resend` takes over and sends again, because the
upstream deduplicates on what is forwarded. `probe` asks the upstream for the outcome and takes nothing over: a late
response to the holder may still win.

Nothing here ends a doubt by itself. A response to a probe that no rule matches means "ask again", and "it never
happened" counts only when no request of the attempt can still arrive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, Literal
from uuid import UUID

from gateway.core.identity.body import number_lexeme, parse_json, percent_decoded, resolve
from gateway.core.lifecycle import LAPSED_DOUBT
from gateway.core.message import ResponseHead, header_values
from gateway.core.operation import CUT, MICROSECONDS, ProbeTarget, Record, Snapshot, State, microseconds
from gateway.core.outcome import Reference, ResponseRule, escaped, is_target
from gateway.core.routing import PathPattern, normalise_path

_PAUSE_SECONDS_MIN: Final = 1.0
_PAUSE_SECONDS_MAX: Final = 600.0
_RETRY_SECONDS_MAX: Final = 10
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_DOUBTED_STATUS: Final = re.compile(r"(?:\banswered|_after)_([1-9][0-9]{2})\Z")


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the upstream. `path` is a template of `{operation_id}`, `{key}` and the variables of the route's path.

    `follow` is where a "done" response names the response to record: in its `Location`, or in its body. `patterns`
    are the route's, and `host` is what the route sends as `Host` in place of the caller's: with these and the stored
    request, operations can be probed that were claimed before the route had a probe.
    """

    path: str
    method: Literal["GET", "HEAD"] = "GET"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    done: tuple[ResponseRule, ...] = ()
    never_happened: tuple[ResponseRule, ...] = ()
    settle_us: int = 0
    follow: Reference | None = None
    patterns: tuple[PathPattern, ...] = ()
    host: bytes | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait for an operator."""


@dataclass(frozen=True, slots=True)
class Resend:
    """Send again under a claim that carries the doubt."""


Recovery = Hold | Resend | Probe


@dataclass(frozen=True, slots=True)
class Done:
    """It happened. `follow` is the target of the response to record, None for the probe's own response."""

    follow: bytes | None


@dataclass(frozen=True, slots=True)
class NeverHappened:
    """Nothing happened, and nothing can happen any more."""


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The outcome is not known yet. `why` is for the log."""

    why: str


Finding = Done | NeverHappened | AskAgain


def answered_doubt(status: int, lost: str | None = None) -> str:
    """The doubt of an operation after a response with this status; `lost` is how the response was cut short."""
    return f"answered_{status}" if lost is None else f"{lost}_after_{status}"


def doubted_status(doubt: str | None) -> int | None:
    found = None if doubt is None else _DOUBTED_STATUS.search(doubt)
    return None if found is None else int(found[1])


def may_recover(snapshot: Snapshot, *, grace_us: int, reachable_us: int) -> bool:
    """Whether a record in doubt may be taken over or probed now.

    The outcome of a lapsed one may still be in its holder's journal: it gets `grace_us` after its lease ended, and
    after the store became reachable for this gateway, `reachable_us` ago. If the holder itself reported the doubt,
    there is nothing to wait for.
    """
    record = snapshot.record
    if record is None or record.state is not State.IN_DOUBT:
        return False
    if record.doubt != LAPSED_DOUBT:
        return True
    return snapshot.now_us - record.lease_until_us >= grace_us and reachable_us >= grace_us


def for_repeats(recovery: Recovery, record: Record, *, is_same: bool) -> Recovery:
    """What recovery does for a repeat of a request in doubt: the route's policy, or `Hold` where that cannot act.

    `is_same` as in `verdict.Doubt`: a request that may be another one is not sent again.
    """
    match recovery:
        case Probe() if probe_target(recovery, record) is None:
            return Hold()
        case Resend() if not is_same:
            return Hold()
        case _:
            return recovery


def retry_after_seconds(recovery: Recovery, snapshot: Snapshot) -> int | None:
    """When a repeat may get another verdict than in-doubt; None where only an operator ends the doubt.

    With resend, at once, unless the holder died. Otherwise after as long again as the operation has lasted, at most a
    few seconds; with a probe, no later than "never happened" may count.
    """
    record = snapshot.record
    if record is None or isinstance(recovery, Hold):
        return None
    if isinstance(recovery, Resend) and record.doubt != LAPSED_DOUBT:
        return 1
    wait_us = snapshot.now_us - record.claimed_us
    if isinstance(recovery, Probe) and (left_us := record.lease_until_us + recovery.settle_us - snapshot.now_us) > 0:
        wait_us = min(wait_us, left_us)
    return max(1, min(ceil(wait_us / MICROSECONDS), _RETRY_SECONDS_MAX))


def probe_placeholders(path: str) -> list[str]:
    """The names of the placeholders in a template."""
    return _PLACEHOLDER.findall(path)


def render_probe(policy: Probe, values: Mapping[str, bytes], host: bytes) -> ProbeTarget | None:
    """The probe's target for this request; None where it cannot be written unambiguously.

    `values` has raw octets by name; escaping keeps each within its path segment or query value.
    """
    if not values.keys() >= set(probe_placeholders(policy.path)):
        return None
    target = _PLACEHOLDER.sub(lambda found: escaped(values[found[1]]).decode("ascii"), policy.path).encode()
    return ProbeTarget(target, host) if is_target(target) else None


def probe_values(policy: Probe, target: bytes, operation_id: UUID, key: str | None) -> dict[str, bytes]:
    """The values of the placeholders, as raw octets. Without `key` that one is missing."""
    path = normalise_path(target)
    variables = next((found for pattern in policy.patterns if (found := pattern.variables(path))), {})
    values = {name: percent_decoded(value) for name, value in variables.items()}
    values["operation_id"] = str(operation_id).encode()
    if key is not None:
        values["key"] = key.encode("utf-8", "surrogatepass")
    return values


def probe_target(policy: Probe, record: Record) -> ProbeTarget | None:
    """The probe's target for this operation: from its claim or, if that has none, from the stored request.

    None where too little is stored: the key is a digest, or the host or the path is truncated. A guess could get "not
    found", which may free the key.
    """
    if record.probe is not None:
        return record.probe
    request, identity = record.request, record.identity
    if request is None or request.path.endswith(CUT) or request.host.endswith(CUT):
        return None
    host = policy.host or request.host.encode()
    if not host:
        return None
    return render_probe(policy, probe_values(policy, request.path.encode(), identity.operation_id, identity.key), host)


def conclude_probe(
    policy: Probe, head: ResponseHead, body: bytes, record: Record, began_us: int, steady_seconds: float
) -> Finding:
    """What a probe's response means. If "done" and "never happened" both match, it means nothing. The probe began at
    `began_us` of the store's clock, which by then had surely not been set ahead for `steady_seconds`.

    "Never happened" counts once no request can arrive any more: `settle` after the last attempt ended, or its lease. A
    store's clock that was set ahead shows that too early, so a lease and `settle` must have passed since it may have
    been.
    """
    document = parse_json(body)
    is_done = any(rule.fits(head.status, document) for rule in policy.done)
    is_never = any(rule.fits(head.status, document) for rule in policy.never_happened)
    if is_done == is_never:
        return AskAgain(f"the status is {head.status}, which no rule matches" if not is_done else "both rules match")
    if is_never:
        if began_us - record.lease_until_us < policy.settle_us:
            return AskAgain("nothing is there yet, and a request may still arrive")
        leased_us = max(0, record.lease_until_us - record.claimed_us)
        if steady_seconds * MICROSECONDS < policy.settle_us + leased_us:
            return AskAgain("nothing is there, but the store's clock may have been set ahead meanwhile")
        return NeverHappened()
    if policy.follow is None:
        return Done(None)
    follow = _follow(policy.follow, head, document)
    return AskAgain("the response does not name the one to record") if follow is None else Done(follow)


def pause_us(tries: int) -> int:
    """The pause before the background probes an operation again, after `tries` of its own probes: growing, bounded."""
    return microseconds(min(_PAUSE_SECONDS_MIN * float(2 ** min(tries, 16)), _PAUSE_SECONDS_MAX))


def _follow(where: Reference, head: ResponseHead, document: Any) -> bytes | None:
    """A target on the same upstream, which is a path: other hosts are not followed."""
    if where == "location":
        values = header_values(head.headers, b"location")
        target = values[0] if len(values) == 1 else b""
    else:
        found = resolve(document, where)
        is_text = isinstance(found, str) and number_lexeme(found) is None
        target = found.encode("utf-8", "surrogatepass") if is_text else b""
    return target if is_target(target) else None
