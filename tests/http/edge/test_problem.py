"""The error table: every verdict, both shapes, and what a client is told to do."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.core.message import Headers, StoredResponse, header_values
from gateway.core.operation import Event, Identity, Record, State
from gateway.core.recovery import Hold, Probe, Recovery, Resend
from gateway.core.verdict import Verdict
from gateway.protect.reply import ANSWERED, CASES, PROBLEM, Reply, Shape, Trouble, refuse
from gateway.protect.request import Request, Untouched
from tests.http.edge.harness import PlainRoute, post, serving
from tests.support.eventually import eventually
from tests.support.http import Connection, Response, exchange
from tests.support.upstream import Answer, Ending, RecordingUpstream

STRIPE = Shape("stripe")
ID = UUID("11111111-2222-3333-4444-555555555555")
CLAIMED_US = 1_700_000_000_000_000
IDENTITY = Identity(ID, "payments", "payments", b"s", b"k")
RECORD = Record(
    identity=IDENTITY, state=State.COMPLETED, token=7, attempt_id=UUID(int=1), last_event=Event.COMPLETE, holder="h",
    carried_us=None, fingerprint=None, attempts=1, first_claimed_us=CLAIMED_US, claimed_us=CLAIMED_US,
    completed_us=CLAIMED_US + 60_000_000, response=StoredResponse(201, b"Created", (), None),
    resource="/v1/payments/7",
)  # fmt: skip


def document(reply: Reply) -> dict[str, object]:
    assert isinstance(reply.body, bytes)
    parsed: dict[str, object] = json.loads(reply.body)
    return parsed


def one(headers: Headers, name: bytes) -> bytes | None:
    values = header_values(headers, name)
    assert len(values) <= 1
    return values[0] if values else None


def test_every_word_is_a_problem_or_said_beside_an_answer() -> None:
    """No verdict is without its row; to ask for a problem of one that is said beside an answer is a mistake."""
    assert set(CASES) | ANSWERED == set(Verdict) | set(Trouble)
    assert not set(CASES) & ANSWERED
    for verdict in ANSWERED:
        with pytest.raises(ValueError, match="makes no problem"):
            refuse(verdict)


@pytest.mark.parametrize("code", sorted(CASES))
@pytest.mark.parametrize("shape", [PROBLEM, STRIPE], ids=lambda shape: shape.form)
@pytest.mark.parametrize("record", [None, RECORD], ids=["nothing-known", "record-known"])
def test_a_problem_is_complete_whatever_is_known(code: Verdict | Trouble, shape: Shape, record: Record | None) -> None:
    """No gap is left in its detail, and headers advise what its members do; stripe-node takes JSON without an `error`
    for a charge, whatever its status, on routes of both shapes."""
    reply = refuse(code, shape=shape, record=record)
    assert reply.verdict == (code if isinstance(code, Verdict) else None)
    assert one(reply.headers, b"content-language") == b"en"
    assert one(reply.headers, b"cache-control") == b"no-store"
    assert b'rel="describedby"' in (one(reply.headers, b"link") or b"")
    body = document(reply)
    error = body["error"]
    assert isinstance(error, dict)
    assert error["type"] in ("idempotency_error", "invalid_request_error", "api_error")
    text = error["message"]
    assert text == body.get("detail", text)
    assert not any(gap in text for gap in ("{", "  ", "None"))
    assert text.endswith(".")
    retryable = (body if shape is PROBLEM else error)["retryable"]
    assert (one(reply.headers, b"retry-after") is not None) is retryable
    advice = None if CASES[code].retry == "open" else b"true" if retryable else b"false"
    assert one(reply.headers, b"x-should-retry") == one(reply.headers, b"stripe-should-retry") == advice


@pytest.mark.parametrize(
    ("verdict", "detail"),
    [
        (Verdict.KEY_REUSED, "at 2023-11-14T22:13:20Z for a different request"),
        (Verdict.KEY_EXPIRED, "at 2023-11-14T22:14:20Z (201)"),
        (Verdict.KEY_EXPIRED, "See /{id}{time}."),
        (Verdict.IN_DOUBT, f"operation {ID}."),
    ],
)
def test_the_detail_says_what_is_known_of_the_operation(verdict: Verdict, detail: str) -> None:
    """Times are UTC, the status and the place are those of the first answer; braces in that are text."""
    said = document(refuse(verdict, record=replace(RECORD, resource="/{id}{time}")))
    assert detail in str(said["detail"])


@pytest.mark.parametrize("shape", [PROBLEM, STRIPE], ids=lambda shape: shape.form)
@pytest.mark.parametrize("recovery", [Hold(), Resend(), Probe("/status")], ids=["hold", "resend", "probe"])
def test_doubt_is_told_by_what_a_repeat_does(recovery: Recovery, shape: Shape) -> None:
    """Where a repeat may end it, detail, members and fields all ask for one, and nobody is sent to the operator."""
    heals = not isinstance(recovery, Hold)
    reply = refuse(Verdict.IN_DOUBT, shape=shape, operation_id=ID, recovery=recovery)
    body = document(reply)
    about = body if shape.form == "problem" else body["error"]
    assert isinstance(about, dict)
    assert about["retryable"] is heals
    assert one(reply.headers, b"retry-after") == (b"1" if heals else None)
    advice = b"true" if heals else b"false"
    assert one(reply.headers, b"x-should-retry") == one(reply.headers, b"stripe-should-retry") == advice
    text = about["detail"] if shape.form == "problem" else about["message"]
    assert ("Send it again with the same key" in text) == heals
    assert ("Ask the operator" in text) != heals


STRIPE_ROUTE = PlainRoute(shape=STRIPE)
# As stripe-node sends it, as far as it matters here.
CHARGE = post(
    b"Content-Type: application/x-www-form-urlencoded\r\nIdempotency-Key: stripe-node-retry-1\r\n",
    b"amount=100&currency=eur&source=tok_visa",
)


async def unprotected(incoming: Request) -> Untouched:
    return Untouched(incoming, Verdict.UNPROTECTED)


def told(response: Response) -> tuple[int, object, str]:
    """Status, type and message of an error in Stripe's shape."""
    error = response.json()["error"]
    assert response.header("content-type") == "application/json"
    return response.status, error["type"], error["message"]


async def test_a_service_that_breaks_off_is_told_in_stripes_shape() -> None:
    """Also where the request was forwarded without protection."""
    async with (
        RecordingUpstream() as upstream,
        serving(unprotected, route=STRIPE_ROUTE, to=upstream.port) as edge,
    ):
        upstream.on(None, Answer(ending=Ending.CLOSE, bytes_max=0))
        status, kind, message = told(await exchange(edge.port, CHARGE))
    assert (status, kind) == (502, "api_error")
    assert "not known" in message


async def test_a_body_that_breaks_while_it_is_passed_on_is_told_in_stripes_shape() -> None:
    """It is no verdict of the route, and has its shape all the same. The request is not whole at the upstream."""
    async with (
        RecordingUpstream() as upstream,
        serving(unprotected, route=STRIPE_ROUTE, to=upstream.port) as edge,
        Connection(edge.port) as connection,
    ):
        head = CHARGE.partition(b"Content-Length")[0]
        await connection.send(head + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await eventually(lambda: upstream.connections == 1)
        await connection.send(b"no size\r\n")
        status, kind, message = told(await connection.read_response())
        assert upstream.requests == []
    assert (status, kind) == (400, "invalid_request_error")
    assert "executed" not in message


async def test_a_failure_of_the_gateway_is_told_in_stripes_shape() -> None:
    """And nothing of what failed."""

    async def failing(_: Request) -> Reply:
        raise RuntimeError("secret detail")

    async with serving(failing, route=STRIPE_ROUTE) as edge:
        response = await exchange(edge.port, CHARGE)
    status, kind, message = told(response)
    assert (status, kind) == (500, "api_error")
    assert message.startswith("The gateway failed")
    assert b"secret" not in response.body
