"""What a route does with a request is chosen when the route is made: a step for each thing that is on, and no other."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.identity.caller import hop_from
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.observe.facts import Events
from gateway.protect.forwarding import prefers_async, wait_preference, without_heeded
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
from gateway.protect.request import Request, Spool, TakenBody, UploadSlots
from gateway.protect.route import Route, route_of
from tests.config.support import read, written

SECRETS: Final = f"secrets: {{encryption: [{{id: a, key: '{'A' * 43}='}}]}}\n"
ACCEPT: Final = "accept: {mode: always, identity: unverified}"


def route(*lines: str) -> Route:
    """The route of a small file, with more lines."""
    config = read(SECRETS + written(*lines))
    return route_of(config, config.routes[0], Mock())


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
        identifying.plans[of] = plan
    taken = TakenBody(body, len(body))
    request = Request(head, taken, hop_from("127.0.0.1", is_secure=False))
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


@pytest.mark.parametrize(
    ("value", "seconds", "sent"),
    [
        (b"wait=10", 10, b""),
        (b"WAIT \t=\t10", 10, b""),
        (b'wait="10"', 10, b""),
        (b'wait="1\\0"', 10, b""),
        (b'wait=10; x="a, b"; y, return=minimal', 10, b"return=minimal"),
        (b"wait=0000000000007", 7, b""),
        (b"wait=" + b"9" * 5000, 10**9, b""),
        (b"respond-async, , wait=3", 3, b"respond-async"),
        (b"wait=3, wait=600", 3, b""),
        (b"wait=soon, wait=600", None, b""),
        (b"wait", None, b""),
        (b"wait=", None, b""),
        (b"wait;x=1", None, b""),
        (b"wait=-1", None, b""),
        (b"wait=1.5", None, b""),
        (b"wait=5 5", None, b""),
        (b'wait="5', None, b""),
        (b'wait="5, wait=600', None, b""),
        (b'note="a, wait=600"', None, b'note="a, wait=600"'),
        (b'note="a \\", wait=600"', None, b'note="a \\", wait=600"'),
        (b'note="a, wait=600', None, b'note="a, wait=600'),
        (b'note="a, wait=600", wait=2', 2, b'note="a, wait=600"'),
        (b"note=wait=600", None, b"note=wait=600"),
        (b"x; wait=600", None, b"x; wait=600"),
        (b"awaiting=600, waiting=1", None, b"awaiting=600, waiting=1"),
        (b"'wait=600'", None, b"'wait=600'"),
    ],
    ids=lambda value: value[:24].decode() if isinstance(value, bytes) else None,
)
def test_the_wait_is_read_and_removed_by_the_same_rule(value: bytes, seconds: int | None, sent: bytes) -> None:
    """What the gateway waits by is what the service does not get; nothing inside quotes is either."""
    assert wait_preference(((b"Prefer", value),)) == seconds
    assert without_heeded(value, heeds_async=False) == sent


@pytest.mark.parametrize(
    ("value", "is_async", "sent"),
    [
        (b"respond-async", True, b""),
        (b"Respond-ASYNC", True, b""),
        (b'respond-async=""', True, b""),
        (b"respond-async = ", True, b""),
        (b"respond-async; x=1, return=minimal", True, b"return=minimal"),
        (b"wait=5,respond-async", True, b""),
        (b"return=minimal, respond-async, respond-async", True, b"return=minimal"),
        (b"respond-async=1", False, b"respond-async=1"),
        (b'respond-async="no"', False, b'respond-async="no"'),
        (b"respond-asynchronously", False, b"respond-asynchronously"),
        (b'note="respond-async"', False, b'note="respond-async"'),
        (b'note="a, respond-async"', False, b'note="a, respond-async"'),
        (b'note="a, respond-async', False, b'note="a, respond-async'),
        (b"x; respond-async", False, b"x; respond-async"),
    ],
    ids=lambda value: value[:30].decode() if isinstance(value, bytes) else None,
)
def test_a_caller_that_does_not_wait(value: bytes, is_async: bool, sent: bytes) -> None:
    """The preference is read and removed by one rule; a service whose route does not heed it gets it."""
    assert prefers_async(((b"Prefer", value),)) is is_async
    assert without_heeded(value, heeds_async=True) == sent
    assert (b"respond-async" in without_heeded(value, heeds_async=False).lower()) is (b"async" in value.lower())
