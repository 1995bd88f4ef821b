"""Outcomes: every status, under every preset, override, doubt and attempt, is the event that it has to be.

The expectations are written from the table in docs/configure/outcomes.md and not from the code: sets of statuses by
preset.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

import pytest

from gateway.core.identity.body import MISSING, parse_json, parse_pointer
from gateway.core.message import Headers, IndexedHeaders
from gateway.core.operation import Event, microseconds
from gateway.core.outcome import (
    RETENTION_SECONDS_MAX,
    Meaning,
    Preset,
    ResponseRule,
    StatusPolicy,
    conclude_answered,
    conclude_unknown,
    meaning_of,
    windows_us,
)
from gateway.core.verdict import Verdict

STATUSES = range(200, 600)
ALWAYS_RETRYABLE = {408, 421, 423, 425, 429}
DOOR = {401, 403}

RETRYABLE: Mapping[Preset, set[int]] = {
    Preset.STANDARD: ALWAYS_RETRYABLE | DOOR | {500, 503},
    Preset.PAYMENTS: ALWAYS_RETRYABLE | DOOR,
    Preset.SUCCESS_ONLY: {*range(300, 500), 500, 503},
}
IN_DOUBT: Mapping[Preset, set[int]] = {
    Preset.STANDARD: {*range(500, 600)} - {500, 503},
    Preset.PAYMENTS: {*range(500, 600)},
    Preset.SUCCESS_ONLY: {*range(500, 600)} - {500, 503},
}


def expected_by_preset(preset: Preset, status: int) -> Meaning:
    if status in RETRYABLE[preset]:
        return Meaning.RETRYABLE
    return Meaning.IN_DOUBT if status in IN_DOUBT[preset] else Meaning.FINAL


def meaning(
    status: int, policy: StatusPolicy, headers: Headers = (), *, carries_doubt: bool = False, body: bytes | None = None
) -> Meaning:
    document = MISSING if body is None else parse_json(body)
    return meaning_of(status, IndexedHeaders(headers).by_name, policy, carries_doubt=carries_doubt, document=document)


@pytest.mark.parametrize("preset", list(Preset))
def test_every_status_by_preset(preset: Preset) -> None:
    """Without overrides, each status means what the preset's table says; one of no known class proves nothing."""
    found = {status: meaning(status, StatusPolicy(preset)) for status in STATUSES}
    assert found == {status: expected_by_preset(preset, status) for status in STATUSES}
    assert {meaning(status, StatusPolicy(preset)) for status in (600, 799, 999)} == {Meaning.IN_DOUBT}


@pytest.mark.parametrize("preset", [Preset.STANDARD, Preset.PAYMENTS])
def test_retry_after_makes_4xx_retryable(preset: Preset) -> None:
    """A 4xx that names a time to come back had no effect; a 2xx or 5xx is not changed by it."""
    headers = ((b"Retry-After", b"3"),)
    found = {status: meaning(status, StatusPolicy(preset), headers) for status in STATUSES}
    assert all(found[status] is Meaning.RETRYABLE for status in range(400, 500))
    others = [status for status in STATUSES if not 400 <= status < 500]
    assert all(found[status] is expected_by_preset(preset, status) for status in others)


@pytest.mark.parametrize(("status", "meant"), list(itertools.product([200, 302, 404, 401, 500, 503], list(Meaning))))
def test_code_beats_class_beats_preset(status: int, meant: Meaning) -> None:
    """A listed code decides over its class, and a class over the preset."""
    other = next(each for each in Meaning if each is not meant)
    by_code = StatusPolicy(Preset.PAYMENTS, {status: meant}, {status // 100: other})
    assert meaning(status, by_code) is meant
    by_class = StatusPolicy(Preset.PAYMENTS, {}, {status // 100: meant})
    assert meaning(status, by_class) is (Meaning.RETRYABLE if status in DOOR else meant)


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ([b"final"], Meaning.FINAL), ([b"final", b"final"], Meaning.FINAL), ([b"Retryable "], Meaning.RETRYABLE),
        ([b"in-doubt"], Meaning.IN_DOUBT), ([b"perhaps"], Meaning.IN_DOUBT), ([b""], Meaning.IN_DOUBT),
        ([b"final", b"retryable"], Meaning.IN_DOUBT),
    ],
    ids=["final", "said-twice", "retryable-spelt", "in-doubt", "unknown-verdict", "empty", "contradicting"],
)  # fmt: skip
def test_upstream_says_it_per_response(values: list[bytes], meant: Meaning) -> None:
    """What the upstream declares beats codes and preset, also for 401, but not under doubt; unknown words are doubt."""
    policy = StatusPolicy(Preset.STANDARD, {201: Meaning.FINAL, 500: Meaning.RETRYABLE, 403: Meaning.FINAL})
    headers = tuple((b"Idempotency-Outcome", value) for value in values)
    assert {meaning(status, policy, headers) for status in (201, 401, 500, 502)} == {meant}
    assert {meaning(status, policy, headers, carries_doubt=True) for status in DOOR} == {Meaning.IN_DOUBT}


# What a gateway says of a request by each of its words: nothing happened, it is over, or nobody knows.
NOTHING: Final = (
    "request-invalid", "overloaded", "key-missing", "scope-missing", "scope-unsuitable", "identity-unavailable",
    "body-too-large", "signature-missing", "signature-invalid", "signature-stale", "event-unsupported", "key-invalid",
    "order-missing", "store-unavailable", "store-amnesia", "key-reused", "backlog-full", "withdrawn",
    "likely-duplicate", "released", "upstream-unreachable",
)  # fmt: skip
OVER: Final = ("replayed", "recovered", "fetched", "response-not-stored", "key-expired", "stored", "journaled")
UNKNOWN: Final = ("in-flight", "in-doubt", "dead-letter")
# Not under a key, or an acknowledgement: the status counts.
BY_STATUS: Final = ("unkeyed", "unprotected", "accepted", "event-duplicate")
WORDS: Final = {
    **dict.fromkeys(NOTHING, Meaning.RETRYABLE),
    **dict.fromkeys(OVER, Meaning.FINAL),
    **dict.fromkeys(UNKNOWN, Meaning.IN_DOUBT),
    **dict.fromkeys(BY_STATUS),
}


@pytest.mark.parametrize("verdict", list(Verdict), ids=str)
def test_a_gateway_behind_this_one(verdict: Verdict) -> None:
    """What a gateway says beats the status, the route and the preset; where it says nothing, they decide. A service may
    use the header for something else; two gateways' words that differ are doubt."""
    said = ((b"Idempotency-Status", verdict.encode()),)
    for status, resends in itertools.product((200, 404, 409, 500, 503), (False, True)):
        policy = StatusPolicy(Preset.STANDARD, {404: Meaning.IN_DOUBT}, {5: Meaning.FINAL}, resends=resends)
        expected = WORDS[verdict.value] or meaning(status, policy)
        if verdict is Verdict.FETCHED and status != 200:
            expected = Meaning.RETRYABLE
        assert meaning(status, policy, said) is expected
        other = next(each for each in Meaning if each is not expected)
        declared = (*said, (b"Idempotency-Outcome", other.replace("_", "-").encode()))
        if WORDS[verdict.value] is not None:
            assert meaning(status, policy, declared) is Meaning.IN_DOUBT
    policy = StatusPolicy(Preset.STANDARD)
    assert {meaning(status, policy, said, carries_doubt=True) for status in DOOR} == {Meaning.IN_DOUBT}
    for words, meant in (
        *[([word], Meaning.FINAL) for word in (b"created", b"observed;would=in-doubt", b"", b"IN-DOUBT")],
        ([b"stored", b"released"], Meaning.IN_DOUBT),
    ):
        assert meaning(200, policy, tuple((b"Idempotency-Status", word) for word in words)) is meant


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        (b'{"errors":[{"message":"request with this idempotency key is already in progress"}]}', Meaning.IN_DOUBT),
        (b'[{"detail":"This Idempotency-Key was already used, and its request was processed"}]', Meaning.FINAL),
    ],
    ids=["outstanding", "business"],
)
def test_a_conflict_says_anywhere_that_a_request_is_outstanding(body: bytes, meant: Meaning) -> None:
    """Then nobody knows yet what it comes to; what the route says of the status counts before that."""
    assert meaning(409, StatusPolicy(Preset.STANDARD), body=body) is meant
    assert meaning(422, StatusPolicy(Preset.STANDARD), body=body) is Meaning.FINAL
    assert meaning(409, StatusPolicy(Preset.STANDARD, {409: Meaning.FINAL}), body=body) is Meaning.FINAL


@pytest.mark.parametrize("preset", list(Preset))
def test_event_and_word_of_every_answer(preset: Preset) -> None:
    """Over every status, doubt, attempt and way of storing: the event and the word agree with what is known."""
    policy = StatusPolicy(preset)
    for status, carries_doubt, is_first, is_stored in itertools.product(
        STATUSES, (False, True), (False, True), (False, True)
    ):
        outcome = conclude_answered(
            status, {}, policy, carries_doubt=carries_doubt, is_first_attempt=is_first, is_stored=is_stored
        )
        meant = expected_by_preset(preset, status)
        case = (status, carries_doubt, is_first, is_stored)
        if meant is Meaning.FINAL:
            assert outcome.event is Event.COMPLETE, case
            assert outcome.verdict is (Verdict.STORED if is_stored else Verdict.RESPONSE_NOT_STORED), case
        elif meant is Meaning.IN_DOUBT or carries_doubt:
            assert (outcome.event, outcome.verdict) == (Event.ABANDON, Verdict.IN_DOUBT), case
        else:
            event = Event.FORGET if status in DOOR and is_first else Event.RELEASE
            assert (outcome.event, outcome.verdict) == (event, Verdict.RELEASED), case


def test_unknown_is_never_anything_else() -> None:
    """When a byte may have left and no complete response came, it is in doubt."""
    outcome = conclude_unknown()
    assert (outcome.event, outcome.verdict) == (Event.ABANDON, Verdict.IN_DOUBT)


RETENTIONS: Final[dict[str, tuple[list[bytes], int | None]]] = {
    "none": ([], None), "an-hour": ([b"3600"], 3600), "zero": ([b" 0 "], 0), "twice": ([b"1", b"1"], None),
    "bounded": ([b"999999999"], RETENTION_SECONDS_MAX), "negative": ([b"-1"], None), "fraction": ([b"1.5"], None),
    "exponent": ([b"1e3"], None), "overlong": ([b"9" * 10], None), "other-digits": (["٣".encode()], None),
}  # fmt: skip


@pytest.mark.parametrize(("values", "seconds"), RETENTIONS.values(), ids=RETENTIONS)
def test_declared_retention(values: list[bytes], seconds: int | None) -> None:
    """Only one plain number of seconds is taken, and it is bounded."""
    replay_us, _ = windows_us({b"idempotency-retention": values}, -1, 0)
    assert replay_us == (-1 if seconds is None else microseconds(seconds))


def test_what_the_body_says_comes_after_what_is_known() -> None:
    """Of a response that may be of an earlier attempt, or that refused a takeover, its body proves nothing; what the
    service says by header counts before it, and the statuses of the route and of the preset come after it."""
    body = b'{"a":"x"}'
    fits = ResponseRule(frozenset(STATUSES), ((parse_pointer("/a"), frozenset(("x",))),))
    other = ResponseRule(frozenset(STATUSES), ((parse_pointer("/a"), frozenset(("y",))),))
    when = ((other, Meaning.IN_DOUBT), (fits, Meaning.FINAL), (fits, Meaning.RETRYABLE))
    policy = StatusPolicy(Preset.STANDARD, {400: Meaning.IN_DOUBT}, {5: Meaning.IN_DOUBT}, resends=True, when=when)
    retryable = ((b"Idempotency-Outcome", b"retryable"),)

    assert {meaning(status, policy, body=body) for status in (409, 425)} == {Meaning.IN_DOUBT}
    assert {meaning(status, policy, carries_doubt=True, body=body) for status in DOOR} == {Meaning.IN_DOUBT}
    assert meaning(200, policy, retryable, body=body) is Meaning.RETRYABLE
    assert {meaning(status, policy, body=body) for status in (200, 400, 401, 429, 500, 503)} == {Meaning.FINAL}
    assert meaning(400, policy) is Meaning.IN_DOUBT
    retried = StatusPolicy(Preset.STANDARD, when=((fits, Meaning.RETRYABLE),))
    how: Any = {"carries_doubt": True, "is_first_attempt": False, "is_stored": True, "document": parse_json(body)}
    assert conclude_answered(200, {}, retried, **how).event is Event.ABANDON
