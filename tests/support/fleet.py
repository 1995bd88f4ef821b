"""Gateways as processes, and callers that put up with what becomes of them."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from tests.support import http
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, JSON, config_text, status_of
from tests.support.http import Response
from tests.support.upstream import Received, RecordingUpstream

T = TypeVar("T")
NOW: Final = (("Prefer", "wait=0"),)
"""A duplicate with this does not wait for the first request."""
_PAUSE_SECONDS = 0.1


@asynccontextmanager
async def gateways(
    *configs: tuple[Mapping[str, Any], Path], environments: Sequence[Mapping[str, str]] = ()
) -> AsyncIterator[list[GatewayProcess]]:
    """Gateway processes of these configurations and directories, started together, all ready.

    The first of them get these additions to their environment.
    """
    started = [
        GatewayProcess(config, directory, environment=environment)
        for (config, directory), environment in itertools.zip_longest(configs, environments)
    ]
    try:
        for gateway in started:
            gateway.launch()
        for gateway in started:
            await gateway.wait_ready()
        yield started
    finally:
        for gateway in started:
            gateway.kill()


@asynccontextmanager
async def gateways_on(
    store: Mapping[str, Any], directory: Path, upstream_url: str, names: Iterable[str], /,
    environments: Sequence[Mapping[str, str]] = (), **changes: Any,
) -> AsyncIterator[list[GatewayProcess]]:  # fmt: skip
    places = [directory / name for name in names]
    configs = [(config_of(store, place, upstream_url, **changes), place) for place in places]
    async with gateways(*configs, environments=environments) as started:
        yield started


async def kill_in_turn(
    victims: Sequence[GatewayProcess], kills: int, life_seconds: tuple[float, float], dice: random.Random
) -> None:
    """Let one after the other live for so long, and start it again."""
    for number in range(kills):
        await asyncio.sleep(dice.uniform(*life_seconds))
        victims[number % len(victims)].kill()
        await victims[number % len(victims)].start()


@asynccontextmanager
async def calling(
    call: Callable[[T, asyncio.Event], Coroutine[Any, Any, None]], callers: Iterable[T]
) -> AsyncIterator[None]:
    """Meanwhile each of these calls, until the event is set at the end."""
    is_over = asyncio.Event()
    tasks = [asyncio.create_task(call(caller, is_over)) for caller in callers]
    try:
        yield
    finally:
        is_over.set()
        await asyncio.gather(*tasks)


def config_of(store: Mapping[str, Any], directory: Path, upstream_url: str, /, **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(config_text(upstream_url, dict(store), directory, **changes))
    return config


@asynccontextmanager
async def process(
    store: Mapping[str, Any], directory: Path, upstream: str | RecordingUpstream, /,
    environment: Mapping[str, str] | None = None, **changes: Any,
) -> AsyncIterator[GatewayProcess]:  # fmt: skip
    url = upstream if isinstance(upstream, str) else upstream.url
    config = config_of(store, directory, url, **changes)
    async with GatewayProcess(config, directory, environment=environment) as gateway:
        yield gateway


async def send(
    port: int,
    key: str,
    body: bytes = BODY,
    *,
    target: str = "/charges",
    headers: tuple[tuple[str, str], ...] = (),
    deadline_seconds: float = http.ANSWER_SECONDS,
) -> Response:
    fields = [JSON, ("Idempotency-Key", key), ("X-Tenant", "t1"), *headers]
    return await http.request(port, "POST", target, fields, body, deadline_seconds=deadline_seconds)


async def try_send(port: int, key: str, body: bytes = BODY, **how: Any) -> Response | None:
    """The same; None when the connection was refused or lost, or broke off inside the answer."""
    try:
        response = await send(port, key, body, **how)
    except OSError:
        return None
    return response if response.complete else None


async def wait_answered(
    port: int, key: str, body: bytes = BODY, *, verdicts: frozenset[str], deadline_seconds: float = 20.0, **how: Any
) -> Response:
    """Retry until the answer has one of these verdicts, as long as the others only mean "come back later".

    An AssertionError when it has another one, or at the deadline.
    """
    seen: list[tuple[int, str | None] | None] = []
    try:
        async with asyncio.timeout(deadline_seconds):
            while True:
                response = await try_send(port, key, body, **how)
                seen.append(status_of(response) if response is not None else None)
                if response is not None:
                    verdict = response.header("Idempotency-Status")
                    if verdict in verdicts:
                        return response
                    assert verdict in PASSING, f"{key}: {seen}"
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise AssertionError(f"{key} got no answer of {sorted(verdicts)} in {deadline_seconds:g} s: {seen}") from None


PASSING: Final = frozenset(
    ("in-flight", "in-doubt", "released", "overloaded", "store-unavailable", "upstream-unreachable")
)
"""Words after which a well-behaved client sends the same request again."""


def key_of(received: Received) -> str:
    (key,) = received.values("Idempotency-Key")
    return key.decode()


def nonce_of(response: Response) -> str | None:
    return response.header("X-Nonce")


async def no_one_listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        # It was among those that a listener which closed at this moment had not taken.
        return False
    writer.close()
    return False
