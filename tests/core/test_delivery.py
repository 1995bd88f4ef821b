"""When a kept request is sent again, and when not: the table of deliveries, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.delivery import (
    ATTEMPTS_EXHAUSTED,
    RETRY_AFTER_US_MAX,
    RETRY_AFTER_US_MIN,
    UNAUTHORIZED,
    UNSENT_PAUSE_US_MAX,
    DeliveryPolicy,
    conclude_answered,
    conclude_unsent,
    http_date_seconds,
    retry_after_us,
)
from gateway.core.operation import Bury, Postpone, Record, microseconds
from gateway.core.outcome import end_unused
from tests.core.records import KEPT, RECORD

NOW = datetime(2026, 11, 23, 6, 30, tzinfo=UTC).timestamp()
DATE = b"Mon, 23 Nov 2026 06:30:00 GMT"
POLICY = DeliveryPolicy()
SECOND = microseconds(1)
DRAWS = st.floats(0, 1, exclude_max=True)


def record(answers: int = 0, **changes: object) -> Record:
    """The record of a delivery that is under way."""
    return replace(RECORD, **{"delivery": replace(KEPT, answers=answers)} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "pause"), [(0, 1), (1, 5), (2, 30), (3, 120), (4, 600), (5, 1800), (6, 3600), (7, 3600), (18, 3600)]
)
@given(draw=DRAWS)
def test_the_schedule(answers: int, pause: int, draw: float) -> None:
    """The pause after each response is drawn from the second half of its own; the last one repeats."""
    command = conclude_answered(record(answers), POLICY, 503, None, "answered_503", draw)
    assert isinstance(command, Postpone)
    assert pause * SECOND / 2 <= command.pause_us <= pause * SECOND
    assert (command.token, command.attempt_id, command.is_answered) == (7, RECORD.attempt_id, True)


@pytest.mark.parametrize(
    ("status", "answers", "policy", "reason"),
    [
        (503, 18, POLICY, None),
        (503, 19, POLICY, ATTEMPTS_EXHAUSTED),
        (503, 0, DeliveryPolicy(answers_max=1), ATTEMPTS_EXHAUSTED),
        (401, 0, POLICY, UNAUTHORIZED),
        (403, 19, POLICY, UNAUTHORIZED),
        (401, 0, DeliveryPolicy(buries_unauthorized=False), None),
        (403, 19, DeliveryPolicy(buries_unauthorized=False), ATTEMPTS_EXHAUSTED),
    ],
)
def test_what_is_given_up(status: int, answers: int, policy: DeliveryPolicy, reason: str | None) -> None:
    """After the last response that counts, and at once where the credentials are refused."""
    command = conclude_answered(record(answers), policy, status, None, f"answered_{status}", 0.0)
    assert (command.reason if isinstance(command, Bury) else None) == reason
    assert command.is_answered


@given(answers=st.integers(0, 1000), attempts=st.integers(1, 10**6), draw=DRAWS)
def test_what_was_not_sent_never_counts(answers: int, attempts: int, draw: float) -> None:
    """Nor is it ever given up, and the request comes soon after the outage."""
    command = conclude_unsent(record(answers, attempts=attempts), POLICY, "refused", draw)
    assert (command.is_answered, command.failure) == (False, "refused")
    assert SECOND / 2 <= command.pause_us <= UNSENT_PAUSE_US_MAX


def test_a_claim_that_was_not_used() -> None:
    """What is kept may be sent at once by another gateway; under an earlier doubt it stays in doubt."""
    kept = Postpone(UUID(int=1), 7, UUID(int=2), pause_us=0, failure="unused", is_answered=False)
    assert end_unused(record(), 1, "unused") == kept
    assert type(end_unused(record(carried_us=1), 1, "unused")).__name__ == "Abandon"
    assert type(end_unused(record(delivery=None), 1, "unused")).__name__ == "Release"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({b"Retry-After": b"120"}, 120),
        ({b"Retry-After": b"0"}, 1),
        ({b"Retry-After": b"86401"}, 86_400),
        ({b"Retry-After": b"9" * 5000}, 86_400),
        ({b"Retry-After": b"-5"}, None),
        ({b"Retry-After": b"1.5"}, None),
        ({b"Retry-After": "\u0661".encode()}, None),
        ({b"Retry-After": b"Mon, 23 Nov 2026 06:32:00 GMT"}, 120),
        ({b"Retry-After": b"Mon, 23 Nov 2026 06:29:00 GMT"}, 1),
        ({b"Retry-After": b"Tue, 23 Nov 2027 06:30:00 GMT"}, 86_400),
        ({b"Retry-After": b"Mon, 23 Nov 2026 06:32:00"}, None),
        # The sender's clock is an hour behind ours: what counts is the distance on its own.
        ({b"Retry-After": b"Mon, 23 Nov 2026 05:32:00 GMT", b"Date": b"Mon, 23 Nov 2026 05:30:00 GMT"}, 120),
        ({b"Retry-After": b"Mon, 23 Nov 2026 06:32:00 GMT", b"Date": b"yesterday"}, 120),
    ],
    ids=str,
)
def test_retry_after(headers: dict[bytes, bytes], seconds: int | None) -> None:
    """A number or a date, clamped to a second and a day; what is neither is ignored."""
    assert retry_after_us(tuple(headers.items()), NOW) == (None if seconds is None else seconds * SECOND)


@given(st.binary(max_size=60))
def test_any_retry_after(value: bytes) -> None:
    """Whatever a service sends delays a request by a second to a day; of two, nobody can say which one is meant."""
    pause_us = retry_after_us(((b"Retry-After", value),), NOW)
    assert pause_us is None or RETRY_AFTER_US_MIN <= pause_us <= RETRY_AFTER_US_MAX
    assert retry_after_us(((b"Retry-After", b"1"), (b"retry-after", value)), NOW) is None


@pytest.mark.parametrize(("retry_after_seconds", "bounds"), [(None, (0.5, 1)), (1, (1, 1)), (120, (120, 120))], ids=str)
def test_the_longer_pause_counts(retry_after_seconds: int | None, bounds: tuple[float, float]) -> None:
    """Never earlier than the service asks for, and never earlier than the schedule."""
    asked = None if retry_after_seconds is None else retry_after_seconds * SECOND
    command = conclude_answered(record(), POLICY, 503, asked, "answered_503", 0.5)
    assert isinstance(command, Postpone)
    assert bounds[0] * SECOND <= command.pause_us <= bounds[1] * SECOND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DATE, NOW),
        (b"Sunday, 06-Nov-94 08:49:37 GMT", datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp()),
        (b"Monday, 06-Nov-76 08:49:37 GMT", datetime(2076, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp()),
        (b"Sun Nov  6 08:49:37 1994", datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp()),
        (b"Sat, 31 Dec 2016 23:59:60 GMT", datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()),
        (b"Mon, 23 Nov 2026 24:30:00 GMT", None),
    ],
)
def test_http_dates(text: bytes, expected: float | None) -> None:
    """All three forms that a recipient must accept (RFC 9110 section 5.6.7)."""
    assert http_date_seconds(text, NOW) == expected
