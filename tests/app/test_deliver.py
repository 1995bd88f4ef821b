"""The whole program delivers what it accepted, by itself or by a process that serves nobody."""

from __future__ import annotations

import asyncio
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gateway import EXIT_FAILED, EXIT_OK
from gateway.cli import main
from tests.app.test_start import configuration
from tests.support.depot import KEY, accepting
from tests.support.eventually import eventually
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, JSON, sqlite_store
from tests.support.http import Response, request
from tests.support.upstream import RecordingUpstream

LATER = [JSON, ("X-Tenant", "t1"), ("Prefer", "respond-async")]


def later(directory: Path, upstream: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a gateway with one route that accepts."""
    whole = configuration(directory, upstream, sqlite_store(directory), route=accepting(), **changes)
    return whole | {"secrets": {"encryption": [{"id": "a", "key": KEY.hex()}]}}


async def accept(gateway: GatewayProcess, key: str = "k1") -> Response:
    return await request(gateway.port, "POST", "/charges", [*LATER, ("Idempotency-Key", key)], BODY)


async def replay(gateway: GatewayProcess, key: str = "k1") -> Response:
    return await request(gateway.port, "POST", "/charges", [*LATER[:2], ("Idempotency-Key", key)], BODY)


async def test_a_process_that_only_delivers(tmp_path: Path) -> None:
    """A gateway that accepts alone delivers nothing; the other process finds it in the store."""
    async with RecordingUpstream() as upstream:
        only_accepts = later(tmp_path, upstream.url) | {"delivery": {"workers": 0}}
        async with GatewayProcess(only_accepts, tmp_path / "a") as gateway:
            assert (await accept(gateway)).status == 202
            async with GatewayProcess(only_accepts, tmp_path / "b", command="deliver") as delivering:
                await upstream.wait_for_requests(1)
                with pytest.raises(ConnectionRefusedError):
                    await accept(delivering)
                assert (await delivering.status("/metrics")).status == 200
                assert delivering.terminate() == EXIT_OK
            assert (await replay(gateway)).header("Idempotency-Status") == "replayed"
            assert len(upstream.requests) == 1


@pytest.mark.parametrize("is_gone", [False, True], ids=["accepts-no-more", "gone"])
async def test_what_waits_without_a_route_is_told_of(tmp_path: Path, is_gone: bool) -> None:
    """Whoever takes `accept` or the route away hears of it at the start and in `check --store`; a route that only got
    another name delivers what waits."""
    async with RecordingUpstream() as upstream:
        whole = later(tmp_path, upstream.url) | {"delivery": {"workers": 0}}
        (route,) = whole["routes"]
        async with GatewayProcess(whole, tmp_path / "a") as gateway:
            assert (await accept(gateway)).status == 202
        without = {name: value for name, value in route.items() if name != "accept"}
        if is_gone:
            without |= {"name": "another", "match": {"path": "/others"}}
        said = f"route {route['name']} has 1 accepted requests that wait, and no route of this configuration delivers"
        async with GatewayProcess(whole | {"routes": [without]}, tmp_path / "b") as gateway:
            await eventually(lambda: said in gateway.output(), 10.0)
            assert said in await asyncio.to_thread(_checked, gateway.config_file)
        renamed = route | {"name": "renamed", "operation": route["name"]}
        async with GatewayProcess(whole | {"routes": [renamed]}, tmp_path / "c") as gateway:
            assert "accepted requests that wait" not in await asyncio.to_thread(_checked, gateway.config_file)


def _checked(config_file: Path) -> str:
    with redirect_stdout(StringIO()) as output:
        assert main(["check", "--config", str(config_file), "--store"]) == EXIT_OK
    return output.getvalue()


async def test_nothing_to_deliver(tmp_path: Path) -> None:
    delivering = GatewayProcess(
        configuration(tmp_path, "http://127.0.0.1:9", sqlite_store(tmp_path)), tmp_path, command="deliver"
    )
    delivering.launch()
    assert await delivering.wait_exit() == EXIT_FAILED
    await eventually(lambda: "no route of this configuration has `accept`" in delivering.output())
