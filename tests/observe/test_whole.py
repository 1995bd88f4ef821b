"""What a whole gateway tells of real requests: numbers that add up, and lines that give nothing away."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import uvloop

from gateway.app.gateway import Gateway
from gateway.config import parse
from gateway.observe.facts import Fact, OperationSettled, RequestAnswered, RequestPassed
from gateway.observe.logs import Logs
from tests.observe.scrape import Scrape
from tests.support import http
from tests.support.eventually import eventually
from tests.support.house import JSON, config_text, house, sqlite_store
from tests.support.ports import free_port
from tests.support.upstream import Answer, RecordingUpstream


@dataclass
class Logged:
    """A gateway, and the file of its log."""

    port: int
    file: Path

    async def send(
        self, target: str = "/charges", *headers: tuple[str, str], key: str = "k1", body: str = "{}"
    ) -> http.Response:
        fields = [JSON, ("X-Tenant", "acme"), ("Idempotency-Key", key), *headers]
        return await http.request(self.port, "POST", target, fields, body.encode())

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@asynccontextmanager
async def logged(
    directory: Path, url: str, changes: Any = MappingProxyType({}), observer: Any = None, **log: Any
) -> AsyncIterator[Logged]:
    """In front of a service at this address."""
    file = directory / "log"
    own = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    logs = Logs(fd=own, **log)
    try:
        config = parse(config_text(url, sqlite_store(directory), directory, **changes))
        gateway = Gateway(config, (observer or logs,), lambda: logs.dropped)
        await gateway.start()
        try:
            yield Logged(gateway.address[1], file)
        finally:
            await gateway.stop()
    finally:
        logs.close()
        os.close(own)


async def test_the_books_balance(tmp_path: Path) -> None:
    """The counters of verdicts equal the verdicts that clients saw, and the claims what the upstream received."""
    route = {"key": {"header": "Idempotency-Key", "required": False}}
    async with house(sqlite_store(tmp_path), tmp_path, route=route) as running:
        answers = [await running.send("k1") for _ in range(3)]
        answers += await asyncio.gather(*[running.send("k2") for _ in range(5)])
        answers.append(await running.send("k1", b'{"amount":2}'))
        answers.append(await running.send("k 1"))
        answers.append(await running.send(tenant=None))
        unkeyed = await running.send(None)
        elsewhere = [await running.send("k3", target="/elsewhere"), await running.send(None, target="/elsewhere")]
        assert {response.status for response in [unkeyed, *elsewhere]} == {200}
        now = Scrape((await running.status("/metrics")).body.decode())
        received = len(running.upstream.requests)
    told = Counter(response.header("Idempotency-Status") for response in answers)
    assert told == {"stored": 2, "replayed": 6, "key-reused": 1, "key-invalid": 1, "scope-missing": 1}
    counted = {each.labels["verdict"]: each.value for each in now.named("idempotency_requests_total") if each.value}
    assert counted == {**told, "unkeyed": 1}
    passed = {each.labels["reason"]: each.value for each in now.named("idempotency_unprotected_requests_total")}
    assert passed == {"unkeyed": 1, "no_route_keyed": 1, "no_route": 1, "store_unavailable": 0}
    claims = now.value("idempotency_claims_total", route="charge")
    assert claims == now.value("idempotency_settlements_total", route="charge", event="complete") == 2
    assert received == claims + sum(passed.values())
    for timed in ("overhead", "upstream_duration"):
        assert now.value(f"idempotency_{timed}_seconds_count", route="charge") == claims
    assert now.total("idempotency_upstream_exchanges_total", result="answered") == received
    kept = now.total("idempotency_upstream_connections_reused_total")
    assert now.total("idempotency_upstream_connections_opened_total") + kept == received
    assert now.value("idempotency_in_flight", route="charge") == 0
    assert now.value("idempotency_store_up", tier="durable") == 1


@pytest.mark.parametrize("shape", ["json", "text"])
async def test_the_log_gives_nothing_away(tmp_path: Path, shape: str) -> None:
    """At the most talkative settings no line holds a key, a body, a credential, a scope, a query or an answer."""
    secrets = ["CANARY-key", "CANARY-body", "CANARY-credential", "CANARY-scope", "CANARY-query", "CANARY-answer"]
    key, body, credential, scope, query, answer = secrets
    async with RecordingUpstream() as upstream:
        upstream.on(None, Answer(201, "Created", body=answer.encode()))
        async with logged(tmp_path, upstream.url, level="debug", format=shape, requests="all") as it:
            about = (("Authorization", f"Bearer {credential}"), ("X-Tenant", scope), ("X-Request-Id", "req-7"))
            for target in (f"/charges?{query}", f"/elsewhere?{query}"):
                for one_key in (key, key, f"{key} with a space"):
                    fields = [JSON, *about, ("Idempotency-Key", one_key)]
                    await http.request(it.port, "POST", target, fields, f'{{"amount":"{body}"}}'.encode())
            await eventually(lambda: "/elsewhere" in it.file.read_text(), what="the last request's line")
    written = it.file.read_text()
    assert [secret for secret in secrets if secret in written] == []
    lines = written.splitlines()
    if shape == "json":
        words = [json.loads(line).get("verdict") for line in lines]
        assert [verdict for verdict in words if verdict] == ["stored", "replayed", "key-invalid"]
    assert sum(" 201 " in line and "req-7" in line for line in lines) == 2


async def test_an_upstream_that_cannot_be_reached_is_named_with_the_cause(tmp_path: Path) -> None:
    """Once when that begins and once when it is over, and in the line of each request, protected or not."""
    port = free_port()
    async with logged(tmp_path, f"http://127.0.0.1:{port}", requests="all") as it:
        for target in ("/charges", "/charges", "/elsewhere?secret"):
            assert (await it.send(target)).status == 502
        async with RecordingUpstream(port=port):
            assert (await it.send()).status == 200
    lines = it.lines()
    assert [line["why"].split(":")[0] for line in lines if "why" in line] == ["refused"] * 3
    down, up = [line for line in lines if f":{port} " in line["message"]]
    assert (down["level"], down["message"]) == ("warning", f"http://127.0.0.1:{port} is down")
    assert down["detail"].startswith("connecting to 127.0.0.1")
    assert (up["level"], up["message"]) == ("info", f"http://127.0.0.1:{port} is up")
    assert "secret" not in it.file.read_text()


def test_durations_are_finer_than_a_millisecond(tmp_path: Path) -> None:
    """Requests, attempts and what passes untouched are timed by a clock that does not count whole milliseconds."""
    facts: list[Fact] = []

    async def send() -> None:
        async with RecordingUpstream() as upstream, logged(tmp_path, upstream.url, observer=facts.append) as it:
            for target in ("/charges", "/elsewhere"):
                assert (await it.send(target)).status == 200

    # The loop that serves: its own clock counts whole milliseconds.
    uvloop.run(send())
    timed = {
        (type(fact), name): getattr(fact, name)
        for fact in facts
        for name in ("duration_seconds", "upstream_seconds")
        if isinstance(fact, RequestAnswered | OperationSettled | RequestPassed) and hasattr(fact, name)
    }
    assert len(timed) == 4
    for name, seconds in timed.items():
        assert seconds * 1000 != pytest.approx(round(seconds * 1000), abs=1e-6), name


async def test_an_operation_that_outlives_its_caller_has_its_line(tmp_path: Path) -> None:
    """One that ends after its caller's 504, and one that is sent again, can be found by the ids of their requests."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    traced = ("traceparent", f"00-{trace}-00f067aa0ba902b7-01")
    changes = {"route": {"recovery": "resend"}, "upstream": {"answer_within": "100ms"}}
    hold = asyncio.Event()
    async with RecordingUpstream() as upstream, logged(tmp_path, upstream.url, changes=changes) as it:

        async def ended() -> dict[str, Any] | None:
            return next((line for line in it.lines() if "stopped waiting" in str(line["message"])), None)

        upstream.on("/charges", Answer(502, hold=hold), Answer(201, body=b"CANARY-answer"))
        late = await it.send("/charges", traced, ("X-Request-Id", "req-1"), key="CANARY-key")
        assert late.status == 504
        operation_id = late.json()["operation_id"]
        hold.set()
        line = await eventually(ended)
        again = await it.send("/charges", traced, ("X-Request-Id", "req-2"), key="CANARY-key")
        assert again.status == 201
    which = {"route": "charge", "operation_id": operation_id, "trace_id": trace}
    said = {"verdict": "in-doubt", "status": 502, "upstream_status": 502, "attempt": 1, "request_id": "req-1"}
    assert line is not None
    assert line.items() >= {**which, **said}.items()
    assert isinstance(line["duration_ms"], float)
    (taken,) = [line for line in it.lines() if line["message"] == "in doubt, sent again"]
    assert taken.items() >= {**which, "level": "info", "attempt": 2, "request_id": "req-2"}.items()
    assert "CANARY" not in it.file.read_text()
