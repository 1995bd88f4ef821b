"""The guides in `docs`: their first configurations start as written, and what they show of curl is what comes."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.curl import curl
from tests.support.eventually import eventually
from tests.support.gateway import GatewayProcess
from tests.support.http import Response
from tests.support.upstream import Answer, RecordingUpstream

GUIDES = Path(__file__).parents[2] / "docs"
ENVIRONMENT = {
    "GITHUB_SECRET": "It's a secret to everybody",
    "SERVICE_TOKEN": "t",
    "STORAGE_KEY": "0f" * 32,
}
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
    """The value without what differs from run to run."""
    match value:
        case dict():
            return {name: "N" if name in COUNTS else masked(each) for name, each in value.items()}
        case list():
            return [masked(each) for each in value]
        case str():
            return VARYING.sub("*", value)
        case _:
            return value


def shown_in(guide: str) -> list[Shown]:
    """What stands in the `console` blocks of a guide, in order."""
    text = (GUIDES / guide).read_text()
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        command, _, response = block.partition("\nHTTP/1.1 ")
        head, _, body = response.partition("\n\n")
        status, *lines = head.splitlines()
        headers = dict(line.split(": ", 1) for line in lines)
        is_json = body.lstrip().startswith("{")
        found.append(
            Shown(command.removeprefix("$ "), int(status.split()[0]), headers, json.loads(body) if is_json else None)
        )
    assert found, guide
    return found


@asynccontextmanager
async def running(guide: str, directory: Path) -> AsyncIterator[tuple[GatewayProcess, RecordingUpstream]]:
    """The first configuration of a guide as a process, in front of a service."""
    (text, *_) = re.findall(r"^```yaml\n(.*?)^```$", (GUIDES / guide).read_text(), re.DOTALL | re.MULTILINE)
    assert len(text.splitlines()) <= 14
    config = yaml.safe_load(text)
    async with RecordingUpstream() as upstream:
        config["upstream"]["url"] = upstream.url
        environment = {**ENVIRONMENT, "HOME": str(directory)}
        async with GatewayProcess(config, directory, environment=environment) as gateway:
            yield gateway, upstream


async def compare(shown: Shown, gateway: GatewayProcess) -> None:
    """Send the command until the response is the shown one, or for a while."""
    last: list[Any] = []

    async def is_as_shown() -> bool:
        response: Response = await curl(shown.command, gateway.port)
        found = [response.status, {name: response.header(name) for name in shown.headers}]
        expected: list[Any] = [shown.status, shown.headers]
        if shown.body is not None:
            found.append(response.json())
            expected.append(shown.body)
        last[:] = [masked(found), masked(expected)]
        return bool(last[0] == last[1])

    try:
        await eventually(is_as_shown, 10.0)
    except AssertionError:
        found, expected = last
        assert found == expected, shown.command


async def test_accept(tmp_path: Path) -> None:
    """Accepted while the service refuses, seen, delivered, and repeated."""
    async with running("accept.md", tmp_path) as (gateway, upstream):
        upstream.on("/v1/payments", Answer(503))
        accepted, waiting, result, repeat, withdrawn = shown_in("accept.md")
        await compare(accepted, gateway)
        await compare(waiting, gateway)
        upstream.on("/v1/payments", CREATED)
        for each in (result, repeat, withdrawn):
            await compare(each, gateway)


async def test_inbox(tmp_path: Path) -> None:
    """A genuine message, its repeat, and one that is not genuine."""
    async with running("inbox.md", tmp_path) as (gateway, upstream):
        upstream.on(None, Answer(204))
        for each in shown_in("inbox.md"):
            await compare(each, gateway)
        await upstream.wait_for_requests(1)
        assert len(upstream.requests) == 1


async def test_events(tmp_path: Path) -> None:
    """A payment, and the event about it."""
    async with running("events.md", tmp_path) as (gateway, upstream):
        upstream.on("/v1/payments", CREATED)
        (payment,) = shown_in("events.md")
        await compare(payment, gateway)
        await eventually(lambda: '"specversion"' in gateway.output(), 10.0)
        (line,) = [line for line in gateway.output().splitlines() if '"specversion"' in line]
        (event,) = re.findall(r"^```json\n(.*?)^```$", (GUIDES / "events.md").read_text(), re.DOTALL | re.MULTILINE)
        assert masked(json.loads(line)) == masked(json.loads(event))
