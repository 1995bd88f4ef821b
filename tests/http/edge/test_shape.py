"""The shape that a route chose holds for all that the gateway says on it, verdicts or not.

stripe-node looks at the body alone: without an `error` in it a refusal is taken for the charge that was asked for.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.verdict import Verdict
from gateway.protect.reply import Reply, Shape
from gateway.protect.request import Request, Untouched
from gateway.upstream import UpstreamSettings
from tests.http.edge.harness import PlainRoute, post, serving
from tests.support.eventually import eventually
from tests.support.http import Connection, Response, exchange
from tests.support.ports import free_port
from tests.support.upstream import Answer, Ending, RecordingUpstream

STRIPE = PlainRoute(shape=Shape("stripe"))
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


@pytest.mark.parametrize("state", ["fresh", "warm", "gone"])
async def test_a_service_that_breaks_off_is_told_in_stripes_shape(state: str) -> None:
    """Also where the request was forwarded without protection, on whichever connection, or could not be sent."""
    lost = Answer(ending=Ending.CLOSE, bytes_max=0)
    away = UpstreamSettings(host="127.0.0.1", port=free_port()) if state == "gone" else None
    async with (
        RecordingUpstream() as upstream,
        serving(unprotected, route=STRIPE, upstream=upstream, upstream_settings=away) as edge,
    ):
        upstream.on(None, *([Answer()] if state == "warm" else []), lost)
        if state == "warm":
            assert (await exchange(edge.port, CHARGE)).status == 200
        status, kind, message = told(await exchange(edge.port, CHARGE))
    assert (status, kind) == (502, "api_error")
    assert ("nothing was sent" if state == "gone" else "not known") in message


async def test_a_body_that_breaks_while_it_is_passed_on_is_told_in_stripes_shape() -> None:
    """It is no verdict of the route, and has its shape all the same."""
    async with (
        RecordingUpstream() as upstream,
        serving(unprotected, route=STRIPE, upstream=upstream) as edge,
        Connection(edge.port) as connection,
    ):
        head = CHARGE.partition(b"Content-Length")[0]
        await connection.send(head + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await eventually(lambda: upstream.connections == 1)
        await connection.send(b"no size\r\n")
        status, kind, message = told(await connection.read_response())
    assert (status, kind) == (400, "invalid_request_error")
    assert "executed" not in message


@pytest.mark.parametrize("is_late", [False, True], ids=["at_once", "later"])
async def test_a_failure_of_the_gateway_is_told_in_stripes_shape(is_late: bool) -> None:
    """Whether it came at once or while the request was worked on."""

    def failing(*_: object) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        future.set_exception(RuntimeError("as the test wants it"))
        return future if is_late else future.result()  # type: ignore[return-value]

    async with serving(protect_now=failing, route=STRIPE) as edge:
        status, kind, message = told(await exchange(edge.port, CHARGE))
    assert (status, kind) == (500, "api_error")
    assert message.startswith("The gateway failed")
