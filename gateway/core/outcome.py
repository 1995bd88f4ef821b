"""What is known of an attempt, and which event that is. The most dangerous decision of the program: pure and total.

An attempt ends in one of three ways. *Answered*: a complete response came, and the route's policy defines what it
means. *Not sent*: no byte of the request left, so nothing can have happened. *Unknown*: a byte may have left and
no complete response came. Each has a `conclude_…`, which returns the event to apply and the verdict for the client. It
takes into account the doubt that the claim carries and whether this was the first attempt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Final, assert_never

from gateway.core.identity.body import MISSING
from gateway.core.immutable import immutable
from gateway.core.message import Values
from gateway.core.operation import Abandon, Event, Postpone, Record, Release, microseconds
from gateway.core.replay import ResponseRule
from gateway.core.verdict import Verdict


class Meaning(StrEnum):
    FINAL = "final"  # whether it had an effect or not, this is the response
    RETRYABLE = "retryable"  # it had no effect
    IN_DOUBT = "in_doubt"  # it may have had its effect


class Preset(StrEnum):
    """What statuses mean unless the route says otherwise: see `_preset`, and docs/configure/outcomes.md."""

    STANDARD = "standard"
    PAYMENTS = "payments"
    SUCCESS_ONLY = "success_only"


# 408, 425: the request was not processed. 421: it was for another server. 423, 429: it must wait.
RETRYABLE_4XX: Final = frozenset((408, 421, 423, 425, 429))
# A request refused by authentication had no effect, and must not settle the key for its owner.
REFUSED_AT_THE_DOOR: Final = frozenset((401, 403))
CONFLICT: Final = 409
# A deduplicating upstream sends these while it still runs an earlier attempt of ours.
RESEND_IN_PROGRESS: Final = frozenset((409, 425))
_V = Verdict
_NOTHING_SENT: Final = (
    _V.REQUEST_INVALID, _V.OVERLOADED, _V.KEY_MISSING, _V.SCOPE_MISSING, _V.SCOPE_UNSUITABLE, _V.IDENTITY_UNAVAILABLE,
    _V.BODY_TOO_LARGE, _V.SIGNATURE_MISSING, _V.SIGNATURE_INVALID, _V.SIGNATURE_STALE, _V.EVENT_UNSUPPORTED,
    _V.KEY_INVALID, _V.ORDER_MISSING, _V.STORE_UNAVAILABLE, _V.STORE_AMNESIA, _V.BACKLOG_FULL,
    _V.UPSTREAM_UNREACHABLE, _V.WITHDRAWN,
    # Executed later, if the caller says that it means it.
    _V.LIKELY_DUPLICATE,
    # An earlier request has the key; that it is another one may be a mistake of the comparison, so it ends no doubt.
    _V.KEY_REUSED, _V.RELEASED,
)  # fmt: skip
_COMPLETED: Final = (
    _V.STORED, _V.JOURNALED, _V.REPLAYED, _V.RECOVERED, _V.RESPONSE_NOT_STORED, _V.KEY_EXPIRED,
    # And this is the response to another request: where that failed, a repeat may get more.
    _V.FETCHED,
)  # fmt: skip
SAID: Final[Mapping[Verdict, Meaning | None]] = {
    # Nothing was sent for this request. What became of earlier ones is not said: only the doubt about them counts.
    **dict.fromkeys(_NOTHING_SENT, Meaning.RETRYABLE),
    # It runs, it may have run, or it may run yet.
    **dict.fromkeys((_V.IN_FLIGHT, _V.IN_DOUBT, _V.DEAD_LETTER), Meaning.IN_DOUBT),
    # No repeat gets more.
    **dict.fromkeys(_COMPLETED, Meaning.FINAL),
    # Not executed under a key, or acknowledged like anything else: the status counts.
    **dict.fromkeys((_V.UNKEYED, _V.UNPROTECTED, _V.ACCEPTED, _V.EVENT_DUPLICATE)),
}
"""What a reply of a gateway says of the effect of its request, by its verdict: told to whoever sent it, and read where
the service behind this gateway is a gateway, too."""


def outcome_header(meaning: Meaning) -> tuple[bytes, bytes]:
    """The header by which a response declares what it means."""
    return b"Idempotency-Outcome", meaning.replace("_", "-").encode()


OUTCOME_HEADERS: Final[Mapping[Verdict, tuple[bytes, bytes]]] = {
    verdict: outcome_header(meaning) for verdict, meaning in SAID.items() if meaning is not None
}
"""How the gateway's own problems say it; a response of the service goes out with the verdict alone."""
# Headers by which a response says more than its status does.
_OUTCOME: Final = b"idempotency-outcome"
_STATUS: Final = b"idempotency-status"
_RETRY_AFTER: Final = b"retry-after"
RETENTION: Final = b"idempotency-retention"
_TELLING: Final = frozenset((_OUTCOME, _STATUS, _RETRY_AFTER))
_BY_WORD: Final = {verdict.encode(): meaning for verdict, meaning in SAID.items() if meaning is not None}
_DECLARED: Final = {meaning.replace("_", "-").encode(): meaning for meaning in Meaning}

# How services call it that another request with this key runs, in a code of its own or in a sentence about the key.
_OUTSTANDING_CODES: Final = frozenset(
    (
        "duplicate_request_in_progress",
        "idempotency_key_in_use",  # Stripe
        "lock_timeout",  # Stripe
        "previous_request_in_progress",  # PayPal
        "request_in_progress",
    )
)
_RUNS: Final = re.compile(
    r"outstanding|in[ _-]?progress|in[ _-]?flight|concurrent|locked|being (?:process|execut|handl)ed|"
    r"(?:is|still|currently) (?:processing|running|executing|pending)"
)
_STRINGS_MAX: Final = 1000
_STRING_CHARACTERS_MAX: Final = 2000

# A year: more than any sensible retention, and far below any overflow.
RETENTION_SECONDS_MAX: Final = 366 * 24 * 3600


@immutable
class StatusPolicy:
    """What responses mean on a route: `when` by their JSON body, in order; single codes, classes (the first digit), and
    a preset for the rest.

    `resends` is true where recovery sends again: the upstream may then respond for an attempt that it still runs.
    """

    preset: Preset
    codes: Mapping[int, Meaning] = field(default_factory=dict)
    classes: Mapping[int, Meaning] = field(default_factory=dict)
    resends: bool = False
    when: tuple[tuple[ResponseRule, Meaning], ...] = ()
    by_status: Mapping[int, Meaning] = field(init=False, repr=False, compare=False)
    """What a status means by itself, where nothing but a header could change that."""

    def __post_init__(self) -> None:
        by_body = {CONFLICT, *[status for rule, _ in self.when for status in rule.statuses]}
        plain = {status: meaning_of(status, {}, self, carries_doubt=False) for status in range(200, 600)}
        object.__setattr__(self, "by_status", {status: plain[status] for status in plain.keys() - by_body})


@immutable
class Outcome:
    """The event to apply, and the client's verdict once it is applied."""

    event: Event
    verdict: Verdict


def meaning_of(
    status: int, by_name: Values, policy: StatusPolicy, *, carries_doubt: bool, document: Any = MISSING
) -> Meaning:
    """What a complete response means; the first rule that applies decides.

    First comes what the gateway knows of its own attempts, and no service does; then what another gateway says of
    them; then what the service says of this response, by header or by body; then what the route says of the status.
    `document` is the JSON body, or the text, `MISSING` where it could not be read.
    """
    if carries_doubt and status in REFUSED_AT_THE_DOOR:
        return Meaning.IN_DOUBT
    declared = _declared(by_name.get(_OUTCOME, ()))
    said = _said(status, by_name.get(_STATUS, ()))
    if said is not None:
        return said if declared in (None, said) else Meaning.IN_DOUBT
    if policy.resends and status in RESEND_IN_PROGRESS:
        return Meaning.IN_DOUBT
    if declared is not None:
        return declared
    for rule, meaning in policy.when:
        if rule.fits(status, document):
            return meaning
    if status in policy.codes:
        return policy.codes[status]
    if status in REFUSED_AT_THE_DOOR:
        return Meaning.RETRYABLE
    if status // 100 in policy.classes:
        return policy.classes[status // 100]
    if status == CONFLICT and policy.preset is not Preset.SUCCESS_ONLY and is_outstanding(document):
        return Meaning.IN_DOUBT
    return _preset(policy.preset, status, has_retry_after=_RETRY_AFTER in by_name)


def _declared(declared: Sequence[bytes]) -> Meaning | None:
    if not declared:
        return None
    values = {value.strip(b" \t").lower() for value in declared}
    return _DECLARED.get(values.pop(), Meaning.IN_DOUBT) if len(values) == 1 else Meaning.IN_DOUBT


def _said(status: int, values: Sequence[bytes]) -> Meaning | None:
    """What a gateway says in its `Idempotency-Status`; None where there is none that is known."""
    words = {value.strip(b" \t") for value in values}
    said = {meaning for word in words if (meaning := _BY_WORD.get(word)) is not None}
    if not said:
        return None
    if len(said) > 1:
        return Meaning.IN_DOUBT
    is_failed_fetch = Verdict.FETCHED.encode() in words and status // 100 != 2
    return Meaning.RETRYABLE if is_failed_fetch else said.pop()


def is_outstanding(document: Any) -> bool:
    """Whether a conflict is about the key, which another request has that still runs.

    The draft's problem says "A request is outstanding for this Idempotency-Key". A service's own conflicts (a name that
    is taken, a version that is old) do not speak of idempotency.
    """
    pending, strings = [document], 0
    while pending and strings < _STRINGS_MAX:
        match pending.pop():
            case dict() as members:
                pending += members.values()
            case list() as elements:
                pending += elements
            case str() as text:
                strings += 1
                if len(text) <= _STRING_CHARACTERS_MAX and _names_outstanding(text.lower()):
                    return True
    return False


def _names_outstanding(text: str) -> bool:
    return text.replace("-", "_") in _OUTSTANDING_CODES or ("idempot" in text and _RUNS.search(text) is not None)


def _preset(preset: Preset, status: int, *, has_retry_after: bool) -> Meaning:
    category = status // 100
    if category == 2:
        return Meaning.FINAL
    if category in (3, 4):
        if preset is Preset.SUCCESS_ONLY:
            return Meaning.RETRYABLE
        is_retryable = status in RETRYABLE_4XX or (category == 4 and has_retry_after)
        return Meaning.RETRYABLE if is_retryable else Meaning.FINAL
    if status in (500, 503) and preset is not Preset.PAYMENTS:
        return Meaning.RETRYABLE
    return Meaning.IN_DOUBT


def conclude_answered(
    status: int,
    by_name: Values,
    policy: StatusPolicy,
    *,
    carries_doubt: bool,
    is_first_attempt: bool,
    is_stored: bool,
    document: Any = MISSING,
) -> Outcome:
    """The outcome of a response whose status counts: a complete one, or a head whose body will not be stored.

    `is_first_attempt`: no other request with this key is known, because the claim was on absent or on a record whose
    fingerprint was forgotten. `is_stored`: the body is stored with the record. `document`: as in `meaning_of`.
    """
    meaning = None
    if not carries_doubt and _TELLING.isdisjoint(by_name):
        # Mostly.
        meaning = policy.by_status.get(status)
    match meaning or meaning_of(status, by_name, policy, carries_doubt=carries_doubt, document=document):
        case Meaning.FINAL:
            return Outcome(Event.COMPLETE, Verdict.STORED if is_stored else Verdict.RESPONSE_NOT_STORED)
        case Meaning.RETRYABLE:
            if carries_doubt:
                return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
            if status in REFUSED_AT_THE_DOOR and is_first_attempt:
                return Outcome(Event.FORGET, Verdict.RELEASED)
            return Outcome(Event.RELEASE, Verdict.RELEASED)
        case Meaning.IN_DOUBT:
            return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
        case other:
            assert_never(other)


def conclude_not_sent(*, carries_doubt: bool) -> Outcome:
    """The outcome when surely no byte of the request left. Earlier attempts may still have had an effect."""
    if carries_doubt:
        return Outcome(Event.ABANDON, Verdict.IN_DOUBT)
    return Outcome(Event.RELEASE, Verdict.UPSTREAM_UNREACHABLE)


def conclude_unknown() -> Outcome:
    """The outcome when a byte may have left and no complete response came."""
    return Outcome(Event.ABANDON, Verdict.IN_DOUBT)


def end_unused(record: Record, remember_us: int, why: str) -> Release | Postpone | Abandon:
    """How a claim ends under which nothing was sent, for a reason on this side. `record` is as the claim left it."""
    ids = (record.identity.operation_id, record.token, record.attempt_id)
    if record.carries_doubt:
        return Abandon(*ids, why)
    if record.delivery is not None:
        return Postpone(*ids, pause_us=0, failure=why, is_answered=False)
    return Release(*ids, remember_us, why)


def windows_us(by_name: Values, replay_us: int, remember_us: int) -> tuple[int, int]:
    """How long this response is replayed and its key remembered.

    The upstream's `Idempotency-Retention`, in seconds, overrides the route, unless it is malformed.
    """
    values = by_name.get(RETENTION, ())
    if len(values) == 1 and (text := values[0].strip(b" \t")).isdigit() and len(text) <= 9:
        replay_us = microseconds(min(int(text), RETENTION_SECONDS_MAX))
    return replay_us, max(replay_us, remember_us)
