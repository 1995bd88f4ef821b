"""What a response says about repeating the same request: the member, the headers and the detail have to agree."""

from __future__ import annotations

from typing import Any

from tests.support.http import Response

# Of these the gateway knows too little to forbid or to ask for a repeat.
LEFT_TO_THE_CLIENT = frozenset(("no-response", "gateway-failed"))
# What a service that had no effect says with one of these may be another thing a moment later.
_PASSING = frozenset((408, 421, 423, 425, 429, *range(500, 600)))


def problem_of(response: Response) -> dict[str, Any] | None:
    """The members of a problem of the gateway, in both of its forms; None where the response is none."""
    if response.header("Content-Type") == "application/problem+json":
        found = response.json()
        return found if isinstance(found, dict) and "code" in found else None
    if response.header("Content-Type") == "application/json" and response.body.startswith(b'{"error":'):
        error = response.json()["error"]
        return error if isinstance(error, dict) and "retryable" in error else None
    return None


def should_retry(response: Response) -> bool | None:
    """What the headers for SDKs say."""
    value = response.header("x-should-retry")
    assert response.header("Stripe-Should-Retry") == value
    return None if value is None else {"true": True, "false": False}[value]


def check_advice(response: Response, *, method: str = "POST") -> None:
    """Raises AssertionError where two parts of one response advise different things, or nothing is advised."""
    if method == "HEAD" or not response.complete:
        return
    word, problem = response.header("Idempotency-Status"), problem_of(response)
    says, after = should_retry(response), response.header("Retry-After")
    if problem is not None:
        _check_problem(response, problem, says, after)
    elif word == "released" and response.status in _PASSING:
        assert says is not None
        assert not says or after is not None


def _check_problem(response: Response, problem: dict[str, Any], says: bool | None, after: str | None) -> None:
    code, retryable = problem["code"], problem["retryable"]
    assert isinstance(retryable, bool)
    assert (after is not None) == retryable, f"{code}: retryable is {retryable}, Retry-After is {after}"
    if code in LEFT_TO_THE_CLIENT and not retryable:
        assert says is None
    elif not (response.status == 408 and not retryable):
        assert says is retryable, f"{code}: retryable is {retryable}, x-should-retry is {says}"
    if "detail" in problem:
        assert problem["type"].endswith(code)
        assert problem["title"]
        assert problem["detail"]
        assert problem["status"] == response.status
