"""A whole gateway in this process, in front of a scripted upstream: what tests of the wire talk to."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app.gateway import Gateway, environment_of
from gateway.app.parts import Environment
from gateway.config import parse
from gateway.store.journal import HostJournals
from tests.support import http
from tests.support.http import Response
from tests.support.upstream import Answer, RecordingUpstream

ROUTE: dict[str, Any] = {
    "name": "charge",
    "match": {"path": "/charges"},
    "key": {"header": "Idempotency-Key", "required": True},
    "scope": {"header": "X-Tenant", "from": "any"},
    "outcome": {"preset": "standard"},
}
BODY = b'{"amount":1000,"currency":"eur"}'
JSON = ("Content-Type", "application/json")
NO_JOURNALS = HostJournals(Path("/nonexistent"), "")
_PLAIN = Answer()
Surround = Callable[[Environment], Environment]


def _as_it_is(environment: Environment) -> Environment:
    return environment


@dataclass
class House:
    """A running gateway and the upstream behind it."""

    gateway: Gateway
    upstream: RecordingUpstream
    port: int
    status_port: int

    async def send(
        self,
        key: str | None = "k1",
        body: bytes = BODY,
        *,
        tenant: str | None = "t1",
        headers: Iterable[tuple[str, str]] = (),
        target: str = "/charges",
        method: str = "POST",
        deadline_seconds: float = http.ANSWER_SECONDS,
    ) -> Response:
        named = (("Idempotency-Key", key), ("X-Tenant", tenant))
        fields = [JSON, *headers, *((name, value) for name, value in named if value is not None)]
        response = await http.request(self.port, method, target, fields, body, deadline_seconds=deadline_seconds)
        check_advice(response, method=method)
        return response

    async def begin(
        self, key: str = "k1", *, answer: Answer = _PLAIN, **options: Any
    ) -> tuple[asyncio.Task[Response], asyncio.Event]:
        """A request that the upstream works on until the event is set; then it gives this answer."""
        hold = asyncio.Event()
        self.upstream.on("/charges", replace(answer, hold=hold))
        before = len(self.upstream.requests)
        task = asyncio.create_task(self.send(key, **options))
        await self.upstream.wait_for_requests(before + 1)
        return task, hold

    async def status(self, target: str) -> Response:
        return await http.request(self.status_port, "GET", target)


def sqlite_store(directory: Path) -> dict[str, Any]:
    return {"durable": f"sqlite://{directory}/store/operations.db"}


def store_section(request: pytest.FixtureRequest, directory: Path) -> dict[str, Any]:
    """The `store` section that a fixture's parameter names, on an empty store: sqlite, postgres or postgres-redis."""
    if request.param == "sqlite":
        return sqlite_store(directory)
    section: dict[str, Any] = {"durable": request.getfixturevalue("migrated_url")}
    if request.param == "postgres-redis":
        section["fast"] = request.getfixturevalue("redis_url")
    return section


def stores(*kinds: str, full: Sequence[str] = ()) -> Any:
    """A fixture: the `store` section of an empty store of each of these kinds; of those in `full`, with `--full`."""

    @pytest.fixture(params=[*kinds, *(pytest.param(kind, marks=pytest.mark.full) for kind in full)])
    def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
        return store_section(request, tmp_path)

    return store


def config_text(upstream_url: str, store: dict[str, Any], directory: Path, /, **changes: Any) -> str:
    """The configuration of a house: one route, changed by `route=...`, and other top-level keys as given."""
    route = copy.deepcopy(ROUTE) | changes.pop("route", {})
    routes = changes.pop("routes", [route])
    whole: dict[str, Any] = {
        "service": "shop",
        "listen": "127.0.0.1:0",
        "status": {"listen": "127.0.0.1:0"},
        "state_dir": str(directory / "state"),
        "upstream": {"url": upstream_url, **changes.pop("upstream", {})},
        "store": {**store, **changes.pop("store", {})},
        "shutdown": {"delay": "0s", "drain_timeout": "5s"},
        "routes": routes,
    }
    return yaml.safe_dump(whole | changes, sort_keys=False)


@asynccontextmanager
async def house(
    store: dict[str, Any], directory: Path, /, *, surround: Surround = _as_it_is, **changes: Any
) -> AsyncIterator[House]:
    async with (
        RecordingUpstream() as upstream,
        neighbour(store, directory, upstream, surround=surround, **changes) as running,
    ):
        yield running


@asynccontextmanager
async def neighbour(
    store: dict[str, Any],
    directory: Path,
    upstream: RecordingUpstream,
    /,
    *,
    surround: Surround = _as_it_is,
    **changes: Any,
) -> AsyncIterator[House]:
    """A further gateway in front of an upstream that is there already.

    `surround` changes what it meets: its clock, and what fails in its stores.
    """
    config = parse(config_text(upstream.url, store, directory, **changes))
    gateway = Gateway(config, environment=surround(environment_of(config)))
    await gateway.start()
    try:
        yield House(gateway, upstream, gateway.address[1], gateway.status_address[1])
    finally:
        await gateway.stop()


def status_of(response: Response) -> tuple[int, str | None]:
    return response.status, response.header("Idempotency-Status")


# Of these the gateway knows too little to forbid or to ask for a repeat.
LEFT_TO_THE_CLIENT = frozenset(("no-response", "gateway-failed"))
# What a service that had no effect says with one of these may be another thing a moment later.
_PASSING = frozenset((408, 421, 423, 425, 429, *range(500, 600)))


def problem_of(response: Response) -> dict[str, Any] | None:
    """The members of a problem of the gateway, in both of its forms; None where the response is none."""
    kind, found, needed = response.header("Content-Type"), None, "code"
    if kind == "application/problem+json":
        found = response.json()
    elif kind == "application/json" and response.body.startswith(b'{"error":'):
        found, needed = response.json()["error"], "retryable"
    return found if isinstance(found, dict) and needed in found else None


def should_retry(response: Response) -> bool | None:
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
