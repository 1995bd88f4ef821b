"""What probes and scrapers get from the status port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.observe.facts import TierChanged
from gateway.observe.logs import Outages
from gateway.observe.metrics import Exposition, Metrics
from gateway.observe.status import Health, StatusServer
from tests.observe.scrape import Scrape
from tests.support.http import Connection, Response, exchange, request


def assert_tells_nothing_of_itself(response: Response) -> None:
    assert response.values("Server") == []
    assert response.header("Cache-Control") == "no-store"


async def test_three_paths_can_be_read_and_nothing_else(port: int) -> None:
    """HEAD gets the head of what GET gets; any other method is refused, with the ones that are not."""
    for path in ("/livez", "/readyz", "/metrics"):
        got, head = await request(port, "GET", path), await request(port, "HEAD", path)
        assert got.status == head.status == 200
        assert got.body
        assert head.header("Content-Type") == got.header("Content-Type")
        assert_tells_nothing_of_itself(got)
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"):
            refused = await request(port, method, path, body=b"{}")
            assert (refused.status, refused.header("Allow")) == (405, "GET,HEAD"), (method, path)
            assert_tells_nothing_of_itself(refused)
    for path in ("/", "/livez/", "/readyz/store", "/metrics/../livez", "/debug", "//livez"):
        absent = await request(port, "GET", path)
        assert absent.status == 404, path
        assert_tells_nothing_of_itself(absent)


ASKED = b"GET /livez HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture
def health() -> Health:
    return Health(serving=True, durable_up=True)


@asynccontextmanager
async def serving(health: Health, render: Any = None) -> AsyncIterator[int]:
    """The port of a status server, without `render` with real metrics."""
    metrics = Metrics(["create_payment"], has_fast_tier=False, version="1")
    server = StatusServer(health, render or metrics.render)
    try:
        yield await server.port.start("127.0.0.1", 0)
    finally:
        await server.port.stop()


@pytest.fixture
async def port(health: Health) -> AsyncIterator[int]:
    async with serving(health) as port:
        yield port


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, id="tls"),
        pytest.param(b"GET /livez HTTP/1.1\r\n\r\n\r\nHost : x\r\n\r\n", 400, id="broken-field"),
        pytest.param(b"GET /" + b"a" * 4096 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 400, id="long-line"),
        pytest.param(ASKED + b"X: " + b"a" * 4096 + b"\r\n\r\n", 400, id="long-field"),
        pytest.param(ASKED + b"".join(b"X-%d: a\r\n" % each for each in range(200)) + b"\r\n", 400, id="many-fields"),
        pytest.param(ASKED + b"Expect: a miracle\r\n\r\n", 417, id="expectation"),
    ],
)
async def test_what_is_malformed_or_long_is_refused_tersely(port: int, data: bytes, status: int) -> None:
    """Whoever sends rubbish learns nothing of what listens."""
    response = await exchange(port, data)
    assert (response.status, response.body) == (status, b"This request cannot be served.\n")
    assert_tells_nothing_of_itself(response)


UP = {"serving": True, "durable_up": True}
READINESS: dict[str, tuple[dict[str, bool], str, int]] = {
    "all-is-well": (UP, "/readyz", 200),
    "without-the-store": ({"serving": True}, "/readyz", 200),
    "store-required": ({"serving": True}, "/readyz?require=store", 503),
    "no-redis": (UP | {"fast_up": False}, "/readyz?require=store", 200),
    "not-listening-yet": ({"durable_up": True}, "/readyz", 503),
    "draining": (UP | {"draining": True}, "/readyz", 503),
    "starting-and-alive": ({}, "/livez", 200),
    "unknown-requirement": (UP, "/readyz?require=redis", 400),
    "empty-requirement": ({"serving": True}, "/readyz?require=&require=store", 400),
}


@pytest.mark.parametrize(("facts", "target", "status"), READINESS.values(), ids=READINESS)
async def test_readiness(facts: dict[str, bool], target: str, status: int) -> None:
    """The gateway is ready while it serves; a store counts only for who asks for it."""
    async with serving(Health(**facts)) as port:
        assert (await request(port, "GET", target)).status == status


def test_why_a_store_is_down_is_among_the_parts() -> None:
    """Whoever looks finds the last cause, of a worker's store too, and none once the store is up."""
    health, whole = Health(fast_up=False), Health()
    for cause in ("refused", "wrong password"):
        health(TierChanged("durable", False, cause))
    whole.take_over([Health(durable_up=True), health])
    for each in (health, whole):
        assert each.parts()["why"] == {"durable": "wrong password"}
    health(TierChanged("durable", True))
    health(TierChanged("fast", True))
    assert (health.durable_up, health.fast_up, "why" in health.parts()) == (True, True, False)


async def test_a_scraper_chooses_its_format(port: int) -> None:
    """Without wishes it gets the text format; `Accept` is heard."""
    plain = await request(port, "GET", "/metrics")
    assert (plain.header("Content-Type") or "").startswith("text/plain; version=0.0.4")
    assert Scrape(plain.body.decode()).value("idempotency_store_up", tier="durable") == 0
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    response = await request(port, "GET", "/metrics", [("Accept", accept)])
    assert (response.header("Content-Type") or "").startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in text_string_to_metric_families(response.body.decode())}
    assert {"idempotency_requests", "idempotency_request_duration_seconds", "process_open_fds"} <= names


async def test_scrapes_at_once_are_bounded() -> None:
    """Slow scrapes pile up to a bound; further ones are turned away, and probes are answered all the while."""
    may_end = asyncio.Event()

    async def render(accept: str) -> Exposition:
        await may_end.wait()
        return b"done", "text/plain"

    async with serving(Health(serving=True), render) as port:
        scrapes = [asyncio.create_task(request(port, "GET", "/metrics")) for _ in range(5)]
        turned_away, _ = await asyncio.wait(scrapes, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status for task in turned_away] == [503]
        assert (await request(port, "GET", "/livez")).status == 200
        may_end.set()
        assert sorted([response.status for response in await asyncio.gather(*scrapes)]) == [200, 200, 200, 200, 503]


async def test_a_broken_scrape_is_told_to_the_log_and_not_to_the_scraper(caplog: pytest.LogCaptureFixture) -> None:
    """An error of the program gets a bare 500; its text is for the operator."""

    async def render(accept: str) -> Exposition:
        raise RuntimeError("a secret")

    async with serving(Health(serving=True), render) as port:
        response = await request(port, "GET", "/metrics")
    assert response.status == 500
    assert b"secret" not in response.body
    assert "RuntimeError: a secret" in caplog.text
    assert_tells_nothing_of_itself(response)


async def test_connections_are_bounded_and_a_newcomer_is_answered(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has been open for longest makes room."""
    monkeypatch.setattr("gateway.observe.status._CONNECTIONS_MAX", 2)
    async with Connection(port) as oldest, Connection(port) as younger:
        for client in (oldest, younger):
            await client.send(ASKED + b"\r\n")
            assert (await client.read_response()).status == 200
        assert (await request(port, "GET", "/livez")).status == 200
        with pytest.raises(ConnectionError):
            await oldest.read_response()
        await younger.send(ASKED + b"\r\n")
        assert (await younger.read_response()).status == 200


def test_workers_together() -> None:
    """A store is up where it is for all that serve, and a memory that one knows to be lost is lost."""
    health = Health(serving=True, fast_up=False)
    up = Health(serving=True, durable_up=True, fast_up=True)
    for healths, expected in [
        ([], (False, False, False)),
        ([up, up], (True, True, False)),
        ([up, Health(durable_up=True, fast_up=False, is_amnesic=True)], (True, False, True)),
        ([Health(durable_up=False, fast_up=True), up], (False, True, False)),
    ]:
        health.take_over(healths)
        assert (health.durable_up, health.fast_up, health.is_amnesic) == expected
    health.workers = {2: "silent", 1: "serving"}
    assert health.parts()["workers"] == {"1": "serving", "2": "silent"}


FULL, WELL = TierChanged("durable", False, "no space is left"), TierChanged("durable", True)


def test_what_comes_and_goes_is_said_to_do_that() -> None:
    """A full disk, which can still be read, gives three lines, and one when it has been well for a minute."""
    now = [0.0]
    outages = Outages(lambda: now[0])

    def said(*facts: TierChanged) -> list[str]:
        now[0] += 20.0
        told = [*(each for fact in facts for each in outages.changed(fact)), *outages.ended()]
        return [line.message for _, line in told]

    assert said(WELL) == ["the durable store is up"]
    assert said(FULL, WELL, FULL, WELL) == [
        "the durable store is down",
        "the durable store is up",
        "the durable store comes and goes; the next line follows when it stays up",
    ]
    assert [said(FULL, WELL) for _ in range(100)] == [[]] * 100
    assert said(TierChanged("durable", False, "an I/O error"), WELL) == ["the durable store is still down"]
    assert [said() for _ in range(4)] == [[], [], ["the durable store stays up"], []]
    assert said(FULL, WELL) == ["the durable store is down", "the durable store is up"]
