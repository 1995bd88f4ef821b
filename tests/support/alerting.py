"""An alert as Prometheus would judge it on a running gateway, and its entry in the runbook, whose commands are run.

Between two scrapes a minute or so passes for the alert, however soon they follow each other: a condition that has to
last for an hour lasts for a dozen scrapes, and what a counter rose by is forgotten after as many.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.admin.shell import Shell
from tests.observe.promql import History, evaluate, parse, seconds, selectors
from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.fleet import send
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, House, config_text, neighbour, sqlite_store, status_of
from tests.support.http import Response
from tests.support.upstream import RecordingUpstream

ROOT: Final = Path(__file__).parents[2]
RUNBOOK: Final = ROOT / "docs/operate/runbook.md"
ALERTS: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
# The usual interval, and less than what a sample is good for.
_STEP_SECONDS: Final = (15, 240)
_SCRAPES: Final = 12
_PATIENCE_SECONDS: Final = 60.0
Act = Callable[[], Awaitable[object]]


def commands_of(name: str) -> set[str]:
    """The commands in the alert's entry of the runbook, each on one line."""
    entry = RUNBOOK.read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    return {" ".join(found.split()) for found in re.findall(r"`(idempotency-gateway\s[^`]+)`", entry)}


class Alert:
    """The rule of this name, over samples that are added one after the other.

    `ages` replaces limits of its expression, for ages that nobody waits for.
    """

    def __init__(self, name: str, ages: dict[str, str]) -> None:
        self.name, rule = name, ALERTS[name]
        expression: str = rule["expr"]
        for age, shorter in ages.items():
            assert age in expression, f"{name} has no {age}"
            expression = expression.replace(age, shorter)
        self._node = parse(expression)
        self._for_seconds = seconds(rule.get("for", "0s"))
        selected = selectors(expression)
        self._metrics = {selector.metric for selector in selected}
        longest = max(self._for_seconds, *(selector.window_seconds for selector in selected))
        least, most = _STEP_SECONDS
        self._step_seconds = min(max(longest // _SCRAPES, least), most)
        self._histories: dict[tuple[str, frozenset[tuple[str, str]]], History] = {}
        self._since: dict[frozenset[tuple[str, str]], int] = {}
        self._now = int(time.time())

    def add(self, text: str | None) -> bool:
        """What one scrape found, None for nothing; returns whether the alert fires then."""
        self._now += self._step_seconds
        self._take("up", {}, float(text is not None))
        for series in Scrape(text).series if text is not None else ():
            if series.name in self._metrics:
                self._take(series.name, series.labels, series.value)
        found = evaluate(self._node, list(self._histories.values()), self._now)
        assert isinstance(found, dict)
        self._since = {labels: self._since.get(labels, self._now) for labels in found}
        return any(self._now - began >= self._for_seconds for began in self._since.values())

    def _take(self, name: str, labels: dict[str, str], value: float) -> None:
        all_labels = {**labels, "job": "idempotency-gateway", "instance": "here"}
        key = name, frozenset(all_labels.items())
        self._histories.setdefault(key, History(name, all_labels, {})).samples[self._now] = value


@dataclass
class Scene:
    """A gateway, the service behind it, an operator's shell, and the alert."""

    alert: Alert
    upstream: RecordingUpstream
    shell: Shell
    gateway: GatewayProcess | House
    # Commands as processes of their own, where they need the environment of the test.
    spawns: bool = False
    _commands: set[str] = field(default_factory=set)

    @property
    def process(self) -> GatewayProcess:
        assert isinstance(self.gateway, GatewayProcess)
        return self.gateway

    async def send(self, key: str = "k1", body: bytes = BODY, **options: Any) -> Response:
        """A request; see `fleet.send`."""
        return await send(self.gateway.port, key, body, **options)

    def gets(self, expected: int | tuple[int, str | None], *request: Any, **options: Any) -> Act:
        """A request, which gets this status, with this verdict where one is named; see `send`."""

        async def act() -> None:
            response = await self.send(*request, **options)
            assert expected in (response.status, status_of(response)), status_of(response)

        return act

    async def begin(self, key: str = "k1") -> asyncio.Task[Response]:
        task = asyncio.create_task(self.send(key))
        await self.upstream.wait_for_requests(len(self.upstream.requests) + 1)
        return task

    async def run(self, command: str, *, code: int = 0, **given: object) -> str:
        """Run a command of the alert's entry as it is written there, but for what it leaves to the reader; returns what
        it said."""
        assert command in commands_of(self.alert.name), f"the runbook does not say: {command}"
        self._commands.add(command)
        words = [str(given.get(word.replace(".", "_"), word)) for word in shlex.split(command)[1:]]
        return await self.do(*words, code=code)

    async def do(self, *words: object, code: int = 0) -> str:
        """Run a command that its entry leads to without writing it down."""
        run = self.shell.spawned if self.spawns else self.shell
        said = await run(*map(str, words))
        assert said.code == code, said
        return said.out + said.err

    async def wait_logged(self, text: str) -> None:
        """Its lines are written a moment after what they are about."""
        await eventually(lambda: text in self.process.output(), 10.0, f"{text} is logged")

    def rewrite(self, change: Callable[[dict[str, Any]], object]) -> None:
        document = yaml.safe_load(self.process.config_file.read_text())
        change(document)
        self.process.config_file.write_text(yaml.safe_dump(document, sort_keys=False))

    async def reload(self, change: Callable[[dict[str, Any]], object]) -> None:
        self.rewrite(change)
        await self.do("reload")

    async def restart(self, change: Callable[[dict[str, Any]], object]) -> None:
        self.process.terminate()
        self.rewrite(change)
        await self.process.start()

    def check_commands(self) -> None:
        assert self._commands == commands_of(self.alert.name)

    async def until_it_fires(self, act: Act | None = None, *, fires: bool = True) -> None:
        """Scrape until the alert fires; `act` comes before each scrape."""

        async def has_come() -> bool:
            if act is not None:
                await act()
            return self.alert.add(await self._scrape()) is fires

        await eventually(has_come, _PATIENCE_SECONDS, f"{self.alert.name} {'fires' if fires else 'ends'}")

    async def until_it_ends(self, act: Act | None = None) -> None:
        """The same until it fires no more."""
        await self.until_it_fires(act, fires=False)

    async def _scrape(self) -> str | None:
        if isinstance(self.gateway, House):
            # What a gateway counts four times a minute.
            await self.gateway.gateway.parts._tally_taker.run_once()
        try:
            return (await self.gateway.status("/metrics")).body.decode()
        except OSError:
            return None


@asynccontextmanager
async def at_home(
    name: str, directory: Path, store: dict[str, Any] | None = None, /, *, upstream: RecordingUpstream | None = None,
    ages: dict[str, str] | None = None, **changes: Any,
) -> AsyncIterator[Scene]:  # fmt: skip
    """With a gateway in this process, whose tally is taken before each scrape; see `house.config_text` for `changes`.

    A service that is given is there already, or comes when it is entered.
    """
    section = store or sqlite_store(directory)
    async with AsyncExitStack() as stack:
        service = upstream
        if service is None:
            service = await stack.enter_async_context(RecordingUpstream())
        shell = Shell(directory, config_text(service.url, section, directory, **changes))
        home = await stack.enter_async_context(neighbour(section, directory, service, **changes))
        scene = Scene(Alert(name, ages or {}), service, shell, home)
        yield scene
        scene.check_commands()


@asynccontextmanager
async def as_process(
    name: str, directory: Path, store: dict[str, Any] | None = None, /, *, ages: dict[str, str] | None = None,
    spawns: bool = False, **changes: Any,
) -> AsyncIterator[Scene]:  # fmt: skip
    """With a gateway as a process, whose file is the operator's, too; see `house.config_text` for `changes`."""
    async with RecordingUpstream() as upstream:
        text = config_text(upstream.url, store or sqlite_store(directory), directory, **changes)
        gateway, shell = GatewayProcess(yaml.safe_load(text), directory), Shell(directory, "")
        shell.config = gateway.config_file
        async with gateway:
            scene = Scene(Alert(name, ages or {}), upstream, shell, gateway, spawns)
            yield scene
            scene.check_commands()
