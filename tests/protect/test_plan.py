"""What a route does with a request is chosen when the route is made: a step for each thing that is on, and no other."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.identity.peer import hop_from
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.observe.facts import Events
from gateway.protect.body import Spool, TakenBody, UploadSlots, WholeBody
from gateway.protect.identification import (
    Callers,
    Identifying,
    Plan,
    Step,
    _caller,
    _key_in_body,
    _operation,
    _version,
    plan_of,
)
from gateway.protect.inbox import Verifying
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from gateway.protect.route import Route, route_of
from tests.config.support import read, with_route

SECRETS: Final = f"secrets: {{encryption: [{{id: a, key: '{'A' * 43}='}}]}}\n"
INBOX: Final = "inbox: {preset: github, secrets: [{id: a, key: '" + "s" * 32 + "'}]}"
ACCEPT: Final = "accept: {mode: always, identity: unverified}"
BODY_KEY: Final = "key: {body: /id}"
PLAIN: Final = (["key_and_scope"], ["operation"])


def route(*lines: str, without: str = "") -> Route:
    """The route of a small file, with more lines."""
    config = read(SECRETS + with_route(*lines, without=without))
    return route_of(config, config.routes[0], Mock())


def names(steps: tuple[Step, ...]) -> list[str]:
    """The steps by their names."""
    functions = [step.func if isinstance(step, partial) else step for step in steps]
    return [function.__name__.removeprefix("_") for function in functions]


def planned(*lines: str, without: str = "") -> tuple[list[str], list[str]]:
    """The steps by the head, and with the whole request."""
    plan = plan_of(route(*lines, without=without))
    return names(plan.by_head), names(plan.whole)


@pytest.mark.parametrize(
    ("lines", "by_head", "whole"),
    [
        ([], [], []),
        # Most settings are values that the steps there are look at.
        (["in_flight: {wait: 1s}", "fingerprint: {ignore: [/at]}", "retention: {replay: 1h}"], [], []),
        (["repeats: {}"], [], ["content"]),
        (["recovery: {probe: {path: /a, done: [{status: [200]}]}}"], [], ["probe"]),
        (["recovery: resend"], [], ["canonical_key"]),
        (["response: {version: v3}"], [], ["version"]),
        ([ACCEPT], [], ["preference"]),
        (["authorize: {forward_auth: {url: http://127.0.0.1:4180/}}"], ["authorize"], []),
    ],
    ids=lambda value: str(value)[:20] if value else "",
)
def test_what_is_on_adds_its_own_step(lines: list[str], by_head: list[str], whole: list[str]) -> None:
    """And leaves the others as they are; what is off is no step."""
    assert planned(*lines) == ([*by_head, *PLAIN[0]], [*PLAIN[1], *whole])


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        # What is not accepted would pass others.
        (
            ["key: {header: Idempotency-Key, required: true}", ACCEPT, "order: {by: /account}"],
            (PLAIN[0], ["operation", "preference", "lane"]),
        ),
        ([BODY_KEY], ([], ["key_in_body", "caller", "operation"])),
        # Where every request needs a key, a stranger's body is not read.
        (["key: {body: /id, required: true}"], (["caller"], ["key_in_body", "operation"])),
        # Its sender is known by what it signed.
        ([INBOX], (["event_by_head"], ["event", "caller", "operation", "preference"])),
    ],
    ids=["order", "key-in-body", "required-key-in-body", "inbox"],
)
def test_the_steps_of_another_key(lines: list[str], steps: tuple[list[str], list[str]]) -> None:
    """Wherever the key is, its caller is known before anything is read for nothing."""
    assert planned(*lines, without="key") == steps


# -- against the full way ----------------------------------------------------------------------------------------------

_NAMES: Final = (b"Idempotency-Key", b"idempotency-key", b"X-Api-Key", b"x-api-key", b"Content-Type", b"API-Version")
_VALUES: Final = (b"", b"a", b'"a"', b'"a', b"a, b", b"application/json", b"k" * 300, b"eyJhbGciOiJIUzI1NiJ9.e30.c2ln")
HEADERS: Final = st.one_of(
    st.tuples(st.sampled_from(_NAMES), st.sampled_from(_VALUES)),
    st.sampled_from(((b"Idempotency-Key", b"k"), (b"X-Api-Key", b"secret-of-twenty-chars"))),
)
BODIES: Final = st.sampled_from((b"", b"{}", b'{"id": "a", "at": 1}', b'{"at": 2, "id": "a"}', b"\xff"))


LINES: Final = st.sets(
    st.sampled_from(("response: {version: {header: API-Version}}", ACCEPT, "fingerprint: {ignore: [/at]}"))
)
# Every step that a key in headers could have, and none that was made for it.
FULL: Final[tuple[Step, ...]] = (_key_in_body, _caller, _operation, _version)


def told(of: Route, head: RequestHead, body: bytes, plan: Plan | None = None) -> object:
    """All that a request gets, by the plan of its route or by another one."""
    identifying = Identifying("s", Mock(Spool), UploadSlots(1), Verifying(Events(), lambda: 0.0), Callers({}))
    if plan is not None:
        identifying._plans[of] = plan
    taken = TakenBody(body, len(body))
    request = Request(head, WholeBody(taken), hop_from("127.0.0.1", is_secure=False))
    found = asyncio.run(identifying.identify(request, of))
    if isinstance(found, Reply):
        return found
    if found is not None:
        return found.verdict, found.request.body.whole()
    return request.identity, request.fingerprints, request.version, request.is_async, request.taken.content


@given(st.lists(HEADERS, max_size=5), BODIES, LINES)
@settings(max_examples=200, deadline=None)
def test_a_plan_does_what_all_steps_do(headers: list[tuple[bytes, bytes]], body: bytes, lines: set[str]) -> None:
    """Whatever a request holds, leaving steps out and joining them changes nothing of what it gets."""
    of = route(*lines)
    head = RequestHead(b"POST", b"/pay", IndexedHeaders(headers))
    preference = [step for step in plan_of(of).whole if isinstance(step, partial)]
    assert told(of, head, body) == told(of, head, body, Plan((), (*FULL, *preference), 1 << 20))
