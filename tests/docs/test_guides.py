"""The pages that show commands: their first configurations start as written, and what they show is what comes."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from gateway.demo.world import CARDS, CardService
from tests.support import http
from tests.support.demo import DemoProcess, curl
from tests.support.eventually import eventually
from tests.support.gateway import GatewayProcess
from tests.support.http import Response
from tests.support.ports import free_port
from tests.support.receiver import Receiver
from tests.support.reference import DOCS
from tests.support.upstream import Answer, RecordingUpstream

ENVIRONMENT = {"GITHUB_SECRET": "It's a secret to everybody", "SERVICE_TOKEN": "t", "STORAGE_KEY": "0f" * 32}
# What differs from run to run.
VARYING = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|evt_[a-z2-7]{26}|\b\d{20}\.\d{16}\b|(?<=\")[0-9a-f]{16,}(?=\")|00-[0-9a-f]{32}-[0-9a-f]{16}-00"
)
CREATED = Answer(
    201,
    headers=(("Content-Type", "application/json"), ("Location", "/v1/payments/pay_9")),
    body=b'{"id": "pay_9", "amount": 1200}',
)
COUNTS = {"attempts", "Retry-After", "token"}


@dataclass(frozen=True)
class Shown:
    """A command of a guide, and the response below it."""

    command: str
    status: int
    headers: dict[str, str]
    body: Any


def masked(value: Any) -> Any:
    match value:
        case dict():
            return {name: "N" if name in COUNTS else masked(each) for name, each in value.items()}
        case list():
            return [masked(each) for each in value]
        case str():
            return VARYING.sub("*", value)
        case _:
            return value


def blocks_in(guide: str, language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / guide).read_text(), re.DOTALL | re.MULTILINE)
    assert found, guide
    return found


def shown_in(guide: str) -> list[Shown]:
    return [_read(block) for block in blocks_in(guide, "console") if block.startswith("$ curl")]


def _read(block: str) -> Shown:
    command, _, response = block.partition("\nHTTP/1.1 ")
    head, _, body = response.partition("\n\n")
    status, *lines = head.splitlines()
    headers = dict(line.split(": ", 1) for line in lines)
    is_json = body.lstrip().startswith("{")
    return Shown(command.removeprefix("$ "), int(status.split()[0]), headers, json.loads(body) if is_json else None)


@asynccontextmanager
async def running(guide: str, directory: Path) -> AsyncIterator[tuple[GatewayProcess, RecordingUpstream]]:
    """The first configuration of a guide as a process, in front of a service."""
    text = blocks_in(guide, "yaml")[0]
    assert len(text.splitlines()) <= 14
    config = yaml.safe_load(text)
    async with RecordingUpstream() as upstream:
        config["upstream"]["url"] = upstream.url
        environment = {**ENVIRONMENT, "HOME": str(directory)}
        async with GatewayProcess(config, directory, environment=environment) as gateway:
            yield gateway, upstream


async def compare(shown: Shown, port: int, *, in_part: bool = False) -> None:
    """Send the command until the response is the shown one, or for a while; `in_part`: it may have more members."""
    expected = masked([shown.status, shown.headers, shown.body])
    found: list[Any] = []

    async def is_as_shown() -> bool:
        response: Response = await curl(shown.command, port)
        body = None if shown.body is None else response.json()
        headers = {name: response.header(name) for name in shown.headers}
        found[:] = masked([response.status, headers, _part_of(body, shown.body) if in_part else body])
        return bool(found == expected)

    with suppress(AssertionError):
        await eventually(is_as_shown, 10.0)
    assert found == expected, shown.command


def _part_of(found: Any, shown: Any) -> Any:
    match found, shown:
        case dict(), dict():
            return {name: _part_of(found[name], each) for name, each in shown.items() if name in found}
        case list(), list():
            return [_part_of(one, each) for one, each in zip(found, shown, strict=False)] + found[len(shown) :]
        case _:
            return found


async def test_readme(tmp_path: Path) -> None:
    with DemoProcess(tmp_path) as demo:
        for each in shown_in("../README.md"):
            await compare(each, demo.port)


@asynccontextmanager
async def trial(directory: Path, guide: str = "quick-start.md") -> AsyncIterator[tuple[GatewayProcess, int]]:
    """The set-up of the quick start, or of another guide with its service, and the port of its admin API."""
    config = yaml.safe_load(blocks_in(guide, "yaml")[0])
    config["admin"]["listen"] = f"127.0.0.1:{free_port()}"
    async with CardService("127.0.0.1", 0) as service:
        config["upstream"]["url"] = f"http://127.0.0.1:{service.port}"
        async with GatewayProcess(config, directory, environment={"HOME": str(directory)}) as gateway:
            yield gateway, int(config["admin"]["listen"].rpartition(":")[2])


async def test_quick_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From the first charge to the resolved doubt, command by command."""
    (answer,) = blocks_in("quick-start.md", "http")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "saved.http").write_text(answer)
    async with trial(tmp_path) as (gateway, _):
        for block in blocks_in("quick-start.md", "console"):
            if block.startswith("$ curl"):
                await compare(_read(block), gateway.port)
                continue
            command, _, output = block.removeprefix("$ .venv/bin/idempotency-gateway ").partition("\n")
            assert await asyncio.to_thread(main, shlex.split(command)) == 0
            assert _ageless(capsys.readouterr().out) == _ageless(output)


def _ageless(output: str) -> list[str]:
    return [re.sub(r"\b\d+(?:ms|s) +", "N ", VARYING.sub("*", line)).rstrip() for line in output.splitlines()]


async def test_losing_responses(tmp_path: Path) -> None:
    """A lost response, its repeat and the ledger are as shown, and the table has the cards of the service."""
    page = (DOCS / "operate" / "losing-responses.md").read_text()
    assert dict(re.findall(r"^\| `(tok_\w+)` \| (.*) \|$", page, re.MULTILINE)) == CARDS
    async with trial(tmp_path, "operate/losing-responses.md") as (gateway, _):
        for each in shown_in("operate/losing-responses.md"):
            await compare(each, gateway.port)


async def test_admin_api(tmp_path: Path) -> None:
    """The doubt of the quick start, listed and ended over HTTP."""
    lost = next(each for each in shown_in("quick-start.md") if each.headers.get("Idempotency-Status") == "in-doubt")
    async with trial(tmp_path) as (gateway, port):
        await compare(lost, gateway.port)
        for each in shown_in("reference/admin-api.md"):
            await compare(each, port, in_part=True)


async def test_accept(tmp_path: Path) -> None:
    """Accepted while the service refuses, seen, delivered, and repeated."""
    async with running("accept.md", tmp_path) as (gateway, upstream):
        upstream.on("/v1/payments", Answer(503))
        accepted, waiting, result, repeat, withdrawn = shown_in("accept.md")
        await compare(accepted, gateway.port)
        await compare(waiting, gateway.port)
        upstream.on("/v1/payments", CREATED)
        for each in (result, repeat, withdrawn):
            await compare(each, gateway.port)


async def test_inbox(tmp_path: Path) -> None:
    """A genuine message, its repeat, and one that is not genuine."""
    async with running("inbox.md", tmp_path) as (gateway, upstream):
        upstream.on(None, Answer(204))
        for each in shown_in("inbox.md"):
            await compare(each, gateway.port)
        await upstream.wait_for_requests(1)
        assert len(upstream.requests) == 1


async def test_events(tmp_path: Path) -> None:
    async with running("events.md", tmp_path) as (gateway, upstream):
        upstream.on("/v1/payments", CREATED)
        (payment,) = shown_in("events.md")
        await compare(payment, gateway.port)
        await eventually(lambda: '"specversion"' in gateway.output(), 10.0)
        (line,) = [line for line in gateway.output().splitlines() if '"specversion"' in line]
        (event,) = blocks_in("events.md", "json")
        assert masked(json.loads(line)) == masked(json.loads(event))


async def test_events_on_the_same_host(tmp_path: Path) -> None:
    """The webhook that is shown gets its event."""
    first, _, shown = blocks_in("events.md", "yaml")
    config = yaml.safe_load(first) | yaml.safe_load(shown)
    environment = {**ENVIRONMENT, "HOME": str(tmp_path), "LEDGER_SECRET": f"whsec_{'0f' * 32}"}
    async with RecordingUpstream() as upstream, Receiver() as receiver:
        upstream.on("/v1/payments", CREATED)
        config["upstream"]["url"] = upstream.url
        config["egress"]["ports"] = [receiver.port]
        (sink,) = config["events"]["sinks"]
        sink["url"] = sink["url"].replace(":9001/", f":{receiver.port}/")
        async with GatewayProcess(config, tmp_path, environment=environment) as gateway:
            (payment,) = shown_in("events.md")
            await compare(payment, gateway.port)
            await receiver.wait_received(1, 30.0)


async def test_telemetry(tmp_path: Path) -> None:
    """The configuration of traces starts, also while there is no collector, and the service gets a parent."""
    async with running("telemetry.md", tmp_path) as (gateway, upstream):
        upstream.on("/v1/payments", CREATED)
        headers = [("Idempotency-Key", "k1"), ("X-Tenant", "t1")]
        response = await http.request(gateway.port, "POST", "/v1/payments", headers, b"{}")
        assert response.status == 201
        assert b"traceparent" in {name.lower() for name, _ in upstream.requests[0].headers}
