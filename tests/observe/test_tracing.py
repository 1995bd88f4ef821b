"""Spans of requests, as a real collector gets them over OTLP; and what a collector that hangs cannot do."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.app.gateway import Gateway
from tests.admin.test_api import served
from tests.http.gateway.test_recovery import probed
from tests.observe.scrape import scrape
from tests.support import http
from tests.support.accepting import accepting
from tests.support.eventually import eventually
from tests.support.house import BODY, JSON, House, house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = ("traceparent", f"00-{TRACE}-{PARENT}-01")
SENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")


class Collector(RecordingUpstream):
    """A collector of traces."""

    @property
    def endpoint(self) -> str:
        return f"{self.url}/v1/traces"

    @property
    def spans(self) -> list[Span]:
        """What it has got, in the order of their ends."""
        batches = [ExportTraceServiceRequest.FromString(request.body) for request in self.requests]
        scopes = (scope for batch in batches for each in batch.resource_spans for scope in each.scope_spans)
        return [span for scope in scopes for span in scope.spans]

    async def wait_for(self, count: int) -> list[Span]:
        """The first spans, when there are so many."""
        await eventually(lambda: len(self.spans) >= count, 10.0)
        assert len(self.spans) == count
        return self.spans

    async def named(self, name: str) -> Span:
        """The first span of this name, once there is one."""
        (found, *_) = await eventually(lambda: [span for span in self.spans if span.name == name], 10.0)
        return found


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as found:
        yield found
    # One that was left in an exchange ends with it, and tries no more.
    for thread in [each for each in threading.enumerate() if each.name == "traces"]:
        await asyncio.to_thread(thread.join, 10.0)
        assert not thread.is_alive()


@asynccontextmanager
async def traced(
    directory: Path, collector: Collector, *, route: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[House]:
    """A gateway that traces every request, and trusts its neighbour."""
    traces = {"endpoint": collector.endpoint, "sample": 1.0} | settings
    changes = {"traces": traces, "trusted_proxies": ["127.0.0.1/32"], "route": route or {}}
    async with house(sqlite_store(directory), directory, **changes) as running:
        running.upstream.on("/charges", Answer(201))
        yield running


def about(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


def named(request: Received) -> tuple[str, str]:
    """Trace and parent that the service was given."""
    (value,) = request.values("traceparent")
    found = SENT.fullmatch(value.decode())
    assert found is not None, value
    return found[1], found[2]


def assert_follows(span: Span, attempt: Span) -> None:
    """It is in a trace of its own, and links to that attempt."""
    assert (span.parent_span_id, span.trace_id == attempt.trace_id) == (b"", False)
    assert [(link.trace_id, link.span_id) for link in span.links] == [(attempt.trace_id, attempt.span_id)]


async def doubted(running: House, **options: Any) -> None:
    """Send a request that ends in doubt, about which the service knows nothing."""
    running.upstream.on("/charges", Answer(ending=Ending.RESET, bytes_max=0))
    running.upstream.on(None, Answer(503))
    assert status_of(await running.send(**options)) == (502, "in-doubt")


@asynccontextmanager
async def asked(running: House, **options: Any) -> AsyncIterator[None]:
    """While a caller waits for what becomes of it."""
    asking = asyncio.create_task(running.send(**options))
    yield
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_request_and_its_attempt(collector: Collector, tmp_path: Path) -> None:
    """The request is the caller's child, the attempt the request's, and the service's parent is the attempt."""
    target = "/charges?card=4000056655665556"
    async with traced(tmp_path, collector, headers={"X-Token": "secret"}) as running:
        assert status_of(await running.send(headers=[CALLER], target=target)) == (201, "stored")
        request, attempt = await collector.wait_for(2)
        assert named(running.upstream.requests[0]) == (TRACE, attempt.span_id.hex())
        counts = {"exported": 2, "dropped": 0, "failed": 0}
        await eventually(lambda: running.gateway._readings()["spans_total"] == counts)
        assert (await scrape(running.gateway.metrics)).value("idempotency_spans_total", result="exported") == 2
    assert (request.name, request.kind) == ("POST /charges", Span.SPAN_KIND_SERVER)
    assert request.parent_span_id.hex() == PARENT
    assert (attempt.name, attempt.kind, attempt.parent_span_id) == ("POST", Span.SPAN_KIND_CLIENT, request.span_id)
    assert {span.trace_id.hex() for span in (request, attempt)} == {TRACE}
    known = {"idempotency.status": "stored", "idempotency.kind": "executed", "idempotency.attempt": 1}
    known |= {"http.route": "/charges", "url.path": "/charges", "http.response.status_code": 201}
    assert about(request).items() >= known.items()
    assert about(attempt)["idempotency.outcome"] == "final"
    assert request.start_time_unix_nano <= attempt.start_time_unix_nano <= attempt.end_time_unix_nano
    assert {each.values("X-Token")[0] for each in collector.requests} == {b"secret"}
    shown = f"{about(request)}{about(attempt)}"
    assert not any(secret in shown for secret in ("k1", "t1", "4000056655665556", "amount", "secret"))


async def test_a_repeat_links_to_the_attempt_that_ran(collector: Collector, tmp_path: Path) -> None:
    """In its own trace, also after a restart; it is no child of the attempt."""
    async with traced(tmp_path, collector) as running:
        await running.send()
        await collector.wait_for(2)
        await running.send()
        await collector.wait_for(3)
        again = {"endpoint": collector.endpoint, "sample": 1.0}
        async with neighbour(sqlite_store(tmp_path), tmp_path, running.upstream, traces=again) as later:
            assert status_of(await later.send()) == (201, "replayed")
            first, _, *repeats = await collector.wait_for(4)
        assert len(running.upstream.requests) == 1
    for repeat in repeats:
        assert_follows(repeat, first)
        assert about(repeat)["idempotency.replayed"] is True


async def test_one_that_waited_links_to_the_attempt_that_it_waited_for(collector: Collector, tmp_path: Path) -> None:
    """It is told apart from a replay that was there already."""
    async with traced(tmp_path, collector) as running:
        first, hold = await running.begin()
        second = asyncio.create_task(running.send())
        await eventually(lambda: running.gateway.coordinator.waiters == 1)
        hold.set()
        await asyncio.gather(first, second)
        spans = await collector.wait_for(4)
    (ran,) = [span for span in spans if about(span).get("idempotency.kind") == "executed"]
    (waited,) = [span for span in spans if about(span).get("idempotency.kind") == "waited"]
    (wait,) = [span for span in spans if span.name == "idempotency wait"]
    assert [link.span_id for link in waited.links] == [ran.span_id]
    assert (wait.parent_span_id, [link.span_id for link in wait.links]) == (waited.span_id, [ran.span_id])
    assert about(wait)["idempotency.status"] == "replayed"
    assert waited.start_time_unix_nano <= wait.start_time_unix_nano < wait.end_time_unix_nano


async def test_calls_of_the_store_by_choice(collector: Collector, tmp_path: Path) -> None:
    """With that detail, each is a child of its own request, also on one connection; never of another's."""
    async with traced(tmp_path, collector, detail="store") as running:
        async with http.Connection(running.port) as connection:
            for key in ("k1", "k2"):
                headers = [JSON, ("X-Tenant", "t1"), ("Idempotency-Key", key)]
                await connection.send(http.request_bytes("POST", "/charges", headers, BODY))
                assert (await connection.read_response("POST")).status == 201
        spans = await collector.wait_for(8)
    servers = {span.span_id: span.trace_id for span in spans if span.kind == Span.SPAN_KIND_SERVER}
    calls = [span for span in spans if span.name.startswith("idempotency store ")]
    assert [servers[span.parent_span_id] for span in calls] == [span.trace_id for span in calls]
    assert sorted(span.name.split()[-1] for span in calls) == ["claim", "claim", "complete", "complete"]
    assert {about(span)["db.system.name"] for span in calls} == {"sqlite"}


HOSTILE = (
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{PARENT}-01",
    f"00-{TRACE.upper()}-{PARENT}-01",
    f"00-{TRACE}-{PARENT}",
    "x" * 5000,
)


async def test_what_is_no_traceparent_begins_a_trace(collector: Collector, tmp_path: Path) -> None:
    """As if it had not been sent, and the service gets a valid one; the state of that trace is dropped."""
    async with traced(tmp_path, collector) as running:
        for number, value in enumerate(HOSTILE):
            headers = [("traceparent", value), ("tracestate", "a=b")]
            assert status_of(await running.send(f"k{number}", headers=headers)) == (201, "stored")
        spans = await collector.wait_for(2 * len(HOSTILE))
        for received, request, attempt in zip(running.upstream.requests, spans[::2], spans[1::2], strict=True):
            assert named(received) == (request.trace_id.hex(), attempt.span_id.hex())
            assert received.values("tracestate") == []
            assert request.parent_span_id == b""
            assert request.trace_id.hex() != TRACE


async def test_a_stranger_decides_nothing(collector: Collector, tmp_path: Path) -> None:
    """Without trust a `traceparent` is neither parent nor decision, and passes unchanged where nothing is sampled."""
    async with traced(tmp_path, collector, accept="none", sample=0.0) as running:
        await running.send(headers=[CALLER])
        assert running.upstream.requests[0].values("traceparent") == [CALLER[1].encode()]
    async with traced(tmp_path / "other", collector, accept="none") as running:
        await running.send(headers=[CALLER])
        request, _ = await collector.wait_for(2)
    assert (request.parent_span_id, request.trace_id.hex() == TRACE) == (b"", False)


@pytest.mark.parametrize("way", ["delivery", "probe"])
async def test_a_stranger_has_nothing_that_follows_sampled(collector: Collector, tmp_path: Path, way: str) -> None:
    """Neither a delivery nor a probe of its request, whatever trace id it forges."""
    forged = ("traceparent", f"00-0af7651916cd43dd{'0' * 16}-{PARENT}-01")
    traces = {"endpoint": collector.endpoint, "sample": 1e-9}
    changes = accepting(delivers=True) if way == "delivery" else {"route": probed()}
    async with house(sqlite_store(tmp_path), tmp_path, **changes, traces=traces) as running:
        if way == "delivery":
            running.upstream.on("/charges", Answer(201))
            assert (await running.send(headers=[("Prefer", "respond-async"), forged])).status == 202
            await eventually(lambda: len(running.upstream.requests) == 1)
        else:
            await doubted(running, headers=[forged])
            async with asked(running, headers=[forged]):
                await eventually(lambda: len(running.upstream.requests) == 2)
                running.upstream.on(None, Answer(200))
                await eventually(lambda: len(running.upstream.requests) == 3)
    assert collector.spans == []


async def test_a_trusted_caller_may_decide_against_it(collector: Collector, tmp_path: Path) -> None:
    """A clear flag is kept, whatever the share. A request that its route does not protect has no spans at all; of both
    the service gets what the caller sent."""
    cleared = (CALLER[0], f"00-{TRACE}-{PARENT}-00")
    async with traced(tmp_path, collector, route={"key": {"header": "Idempotency-Key"}}) as running:
        await running.send("k1", headers=[cleared])
        await running.send(None, headers=[CALLER])
        await running.send("k2", headers=[CALLER])
        assert {span.trace_id.hex() for span in await collector.wait_for(2)} == {TRACE}
        for received, (_, value) in zip(running.upstream.requests, (cleared, CALLER), strict=False):
            assert received.values("traceparent") == [value.encode()]


async def test_a_collector_that_hangs_hinders_nobody(collector: Collector, tmp_path: Path) -> None:
    """Requests are served while a batch hangs, and the stop takes no more than two seconds longer."""
    loop = asyncio.get_running_loop()
    collector.on(None, Answer(hold=asyncio.Event()))
    async with traced(tmp_path, collector) as running:
        await running.send("k0")
        await collector.wait_for_requests(1)
        for number in range(1, 6):
            assert status_of(await running.send(f"k{number}")) == (201, "stored")
        stopping = loop.time()
    assert loop.time() - stopping < 4.0


async def test_a_resend_links_to_the_attempt_in_doubt(collector: Collector, tmp_path: Path) -> None:
    """It is an execution of its own, in the trace of its caller."""
    async with traced(tmp_path, collector, route={"recovery": "resend"}) as running:
        running.upstream.on("/charges", Answer(ending=Ending.RESET, bytes_max=0), Answer(201))
        assert status_of(await running.send()) == (502, "in-doubt")
        assert status_of(await running.send()) == (201, "stored")
        first, _, again, attempt = await collector.wait_for(4)
    assert_follows(again, first)
    assert about(attempt)["http.request.resend_count"] == 1


async def test_what_was_sampled_is_followed_after_a_reload(collector: Collector, tmp_path: Path) -> None:
    """A probe of a request that was sampled is, too, although hardly any request is from now on."""
    async with traced(tmp_path, collector, route=probed()) as running:
        await doubted(running)
        config = running.gateway.config
        assert config.traces is not None
        traces = config.traces.model_copy(update={"sample": 1e-9})
        follower = Gateway(config.model_copy(update={"traces": traces}), before=running.gateway)
        await follower.start()
        follower.take_over()
        await running.gateway.retire()
        # The one before may have asked by itself.
        collector.requests.clear()
        try:
            async with asked(running):
                probe = await collector.named("idempotency probe")
        finally:
            await follower.stop()
    assert (about(probe)["idempotency.finding"], len(probe.links)) == ("ask_again", 1)


async def test_a_delivery_links_to_the_accepted_request(collector: Collector, tmp_path: Path) -> None:
    traces = {"endpoint": collector.endpoint, "sample": 1.0}
    async with house(sqlite_store(tmp_path), tmp_path, **accepting(delivers=True, traces=traces)) as running:
        running.upstream.on("/charges", Answer(201))
        assert (await running.send(headers=[("Prefer", "respond-async")])).status == 202
        await collector.wait_for(2)
        accepted, delivery = [await collector.named(name) for name in ("POST /charges", "idempotency delivery")]
    assert_follows(delivery, accepted)
    assert about(delivery)["idempotency.outcome"] == "completed"


async def test_an_operators_action_is_always_traced(collector: Collector, tmp_path: Path) -> None:
    """It links to the attempt where the record has its trace. Never with the reason, or with who it was."""
    changes = {"traces": {"endpoint": collector.endpoint, "sample": 0.0}, "trusted_proxies": ["127.0.0.1/32"]}
    asked = {"why": "the reason", "by": "alice"}
    nothing = {"never_happened": True, "force": True}
    async with served(sqlite_store(tmp_path), tmp_path, **changes) as (running, admin):
        running.upstream.on("/charges", Answer(ending=Ending.RESET, bytes_max=0), Answer(201))
        operation_id = (await running.send(headers=[CALLER])).json()["operation_id"]
        resolved = await admin("POST", f"/operations/{operation_id}/resolve", asked | nothing)
        assert resolved.status == 200, resolved.body
        await running.send("k2")
        listed = await admin("GET", "/operations?state=completed")
        other_id = listed.json()["operations"][0]["operation_id"]
        assert (await admin("POST", f"/operations/{other_id}/purge", asked)).status == 200
        request, _, resolve, purge = await collector.wait_for(4)
    assert (resolve.name, resolve.kind) == ("idempotency resolve", Span.SPAN_KIND_INTERNAL)
    assert [link.span_id for link in resolve.links] == [request.span_id]
    assert request.status.code == Status.STATUS_CODE_ERROR
    assert (purge.name, about(purge)["idempotency.operation.id"]) == ("idempotency purge", other_id)
    assert not purge.links
    assert not any(text in f"{resolve}{purge}" for text in ("the reason", "alice"))
