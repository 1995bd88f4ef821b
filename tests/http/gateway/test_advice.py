"""What callers are told about repeating a request: where the verdict alone does not say it, and in each form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.http.gateway.test_recovery import STATUS, probed
from tests.support import http
from tests.support.accepting import STEPS, desk
from tests.support.eventually import eventually
from tests.support.house import House, check_advice, house, problem_of, should_retry, sqlite_store, status_of
from tests.support.http import Response
from tests.support.upstream import Answer, Ending

Scene = Callable[[House], Awaitable[Response]]
AT_ONCE = ("Prefer", "wait=0")
RESET = Answer(bytes_max=0, ending=Ending.RESET)
PROBED = probed(settle="20m")


def once(*answers: Answer, **how: Any) -> Scene:
    async def scene(home: House) -> Response:
        home.upstream.on("/charges", *answers or (Answer(),))
        return await home.send(**how)

    return scene


def twice(*answers: Answer, then: dict[str, Any] | None = None) -> Scene:
    async def scene(home: House) -> Response:
        home.upstream.on("/charges", *answers)
        await home.send()
        return await home.send(**then or {})

    return scene


async def expired(home: House) -> Response:
    async def is_over() -> bool:
        return status_of(await home.send())[1] == "key-expired"

    await eventually(is_over)
    return await home.send()


async def probed_in_vain(home: House) -> Response:
    home.upstream.on("/charges", RESET)
    await home.send()
    home.upstream.on(STATUS, Answer(500))
    return await home.send(headers=[AT_ONCE])


def meanwhile(**how: Any) -> Scene:
    """The response to a request that comes while another one runs."""

    async def scene(home: House) -> Response:
        first, hold = await home.begin()
        response = await home.send(**how)
        hold.set()
        await first
        return response

    return scene


def answered(status: int, *headers: tuple[str, str]) -> Answer:
    return Answer(status, headers=headers)


# name: changes of the route, what is done, status and verdict of the response, whether to repeat, after how long
ROWS: dict[str, tuple[dict[str, Any], Scene, tuple[int, str], bool | None, str | None]] = {
    "overloaded": ({}, meanwhile(key="k2"), (503, "overloaded"), True, "1"),
    "key-reused": ({}, twice(Answer(), then={"body": b"{}"}), (422, "key-reused"), False, None),
    "key-reused 409": (
        {"mismatch_status": 409}, twice(Answer(), then={"body": b"{}"}), (409, "key-reused"), False, None
    ),
    "key-expired 204": (
        {"retention": {"replay": "1s", "remember": "1h", "expired_status": 204}}, expired,
        (204, "key-expired"), False, None,
    ),
    "in-flight": ({}, meanwhile(headers=[AT_ONCE]), (409, "in-flight"), True, "1"),
    "in-flight 429": ({"in_flight": {"status": 429}}, meanwhile(headers=[AT_ONCE]), (429, "in-flight"), True, "1"),
    "in-doubt 502": ({}, once(RESET), (502, "in-doubt"), False, None),
    "in-doubt 502, resent": ({"recovery": "resend"}, once(RESET), (502, "in-doubt"), True, "1"),
    "in-doubt 502, probed": (PROBED, once(RESET), (502, "in-doubt"), True, "1"),
    "in-doubt 409, probed": (PROBED, probed_in_vain, (409, "in-doubt"), True, None),
    # A library that repeats it gets the problem, and its user the reason.
    "in-doubt 409, resent in vain": ({"recovery": "resend"}, twice(RESET), (502, "in-doubt"), True, "1"),
    "in-doubt, as answered": ({}, once(answered(502)), (502, "in-doubt"), None, None),
    "in-doubt, as answered with advice": (
        {}, once(answered(502, ("x-should-retry", "true"), ("Stripe-Should-Retry", "true"))),
        (502, "in-doubt"), True, None,
    ),
    "in-doubt, as answered, resent": (
        {"recovery": "resend"}, once(answered(502)), (502, "in-doubt"), True, "1"
    ),
    "released 503": ({}, once(answered(503)), (503, "released"), True, "1"),
    "released 429": ({}, once(answered(429)), (429, "released"), True, "1"),
    "released 503, after a while": ({}, once(answered(503, ("Retry-After", "30"))), (503, "released"), True, "30"),
    "released 429, never": (
        {}, once(answered(429, ("x-should-retry", "false"), ("Stripe-Should-Retry", "false"))),
        (429, "released"), False, None,
    ),
    "released 401": ({}, once(answered(401)), (401, "released"), None, None),
    "stored 409": ({}, once(answered(409)), (409, "stored"), None, None),
}  # fmt: skip


@pytest.mark.parametrize("errors", ["problem", "stripe"])
@pytest.mark.parametrize("row", ROWS)
async def test_each_verdict_with_each_status(tmp_path: Path, row: str, errors: str) -> None:
    """A repeat is asked for, forbidden or left open, by member and headers alike; a response of the service is what it
    is, but for that."""
    route, scene, (status, word), says, after = ROWS[row]
    limits = {"limits": {"max_in_flight": 1}} if row == "overloaded" else {}
    async with house(sqlite_store(tmp_path), tmp_path, route={**route, "errors": errors}, **limits) as home:
        response = await scene(home)
    if (errors, row) == ("stripe", "key-reused"):
        status = 400
    assert status_of(response) == (status, word)
    assert should_retry(response) is says
    if says and problem_of(response) is not None:
        assert response.header("Retry-After") is not None
    if after is not None or not says:
        assert response.header("Retry-After") == after
    problem = problem_of(response)
    if problem is not None:
        # Only what nothing heals sends to the operator.
        assert ("Ask the operator" in response.body.decode()) == (word == "in-doubt" and not says)
        assert (problem["code"], problem["retryable"]) == (
            "idempotency_key_in_use" if (errors, word) == ("stripe", "in-flight") else word,
            says,
        )


TYPE = "https://docs.example.com/problems/"


def form_of(response: Response) -> tuple[object, ...]:
    """What every problem has, of whatever part of the gateway; `detail` and `title` are texts."""
    problem = problem_of(response)
    assert problem is not None
    assert problem["title"]
    assert problem["detail"] == problem["error"]["message"] != ""
    return problem["status"], problem["type"], problem["code"], problem["error"]["code"], problem["retryable"]


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/_operations/11111111-2222-8333-8444-555555555555", 404, "no-such-operation"),
        ("GET", "/_operations/x", 404, "no-such-operation"),
        ("POST", "", 405, "method-not-allowed"),
        ("DELETE", "/result", 405, "method-not-allowed"),
        ("DELETE", "", 409, "already-completed"),
    ],
)
async def test_a_problem_of_the_status_resource(
    tmp_path: Path, method: str, target: str, status: int, code: str
) -> None:
    """It has the same members as those of a route: a program need not know who refuses."""
    async with desk(tmp_path, errors={"type_base": TYPE}) as it:
        url = (await it.accept()).header("Location") or ""
        await it.drive(*STEPS["completed"])
        response = await it.see(target if target.startswith("/_") else url + target, method=method)
        assert form_of(response) == (status, TYPE + code, code, code, False)
        assert should_retry(response) is False


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n bad\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 501),
        (b"POST /charges HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    ],
    ids=["malformed", "no-http", "head-too-big", "path-too-long", "no-proxy", "on-a-route"],
)
async def test_what_is_no_request(tmp_path: Path, data: bytes, status: int) -> None:
    """Malformed HTTP gets a whole problem, too, whether a route can be told or not."""
    async with house(sqlite_store(tmp_path), tmp_path, errors={"type_base": TYPE}) as home:
        response = await http.exchange(home.port, data)
    check_advice(response)
    assert form_of(response) == (status, TYPE + "request-invalid", "request-invalid", "request-invalid", False)


@pytest.mark.parametrize(
    ("answer", "target", "status", "code", "retryable"),
    [
        (None, "/other", 502, "upstream-unreachable", True),
        (RESET, "/charges", 502, "no-response", False),
    ],
    ids=["unsent", "lost"],
)
async def test_what_is_not_protected(
    tmp_path: Path, answer: Answer | None, target: str, status: int, code: str, retryable: bool
) -> None:
    """What was not sent may be sent again; of what may have been executed, that is left to the client."""
    key = {"header": "Idempotency-Key", "required": False}
    async with house(sqlite_store(tmp_path), tmp_path, route={"key": key}, errors={"type_base": TYPE}) as home:
        if answer is None:
            await home.upstream.__aexit__()
        else:
            home.upstream.on(target, answer)
        response = await home.send(None, target=target)
    assert form_of(response) == (status, TYPE + code, code, code, retryable)
    assert should_retry(response) is (True if retryable else None)
