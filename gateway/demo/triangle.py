"""The three corners together: a request that is kept, a webhook that comes twice, and events, through a `kill -9`.

The gateways are processes of their own; the service and the consumer live here, so they see what a gateway that dies
leaves behind. Every figure is compared with what is promised. Then one corner after the other is left out of the
configuration, and the figures show what leaks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gateway import EXIT_FAILED, EXIT_OK
from gateway.app.life import StartError
from gateway.demo import setting
from gateway.demo.story import PrintLine, UnexpectedResult
from gateway.demo.world import Caller, CardService, Consumer, Response

_READY_SECONDS: Final = 20.0
_LOG_LINES_SHOWN: Final = 10


class GatewayProcess:
    """`async with GatewayProcess(directory, text, variables, status_port)`: a gateway that is ready. `text` is its
    configuration, `variables` are in its environment. It is killed at the end, and keeps nothing outside of
    `directory`. Raises `StartError` with the end of its log when it does not get ready."""

    def __init__(self, directory: Path, text: str, variables: Mapping[str, str], status_port: int) -> None:
        self._directory, self._text, self._variables = directory, text, variables
        self._status = Caller("127.0.0.1", status_port)
        self._log = directory / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    async def start(self) -> None:
        """Start it, and return once it is ready."""
        self._launch()
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready():  # noqa: ASYNC110 - another process
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failure(f"did not get ready within {_READY_SECONDS:g} s") from None
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, to it and to whatever it started."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _launch(self) -> None:
        self._directory.mkdir(exist_ok=True)
        config = self._directory / "gateway.yaml"
        config.write_text(self._text)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-m", "gateway", "run", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Nothing of the working directory can take the place of the installed program.
                cwd=self._directory,
                env={**os.environ, **self._variables},
                # Ctrl-C is for the demonstration, which then kills it.
                start_new_session=True,
            )

    async def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise self._failure("ended by itself")
        try:
            return (await self._status.send("GET", "/readyz", {})).status == 200
        except OSError:
            return False

    def _failure(self, what: str) -> StartError:
        self.kill()
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return StartError("\n  ".join((f"the gateway {what}. The end of its log:", *(lines or ["(nothing)"]))))


_HOST: Final = "127.0.0.1"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_COPIES: Final = 3
# The lease of an event, the longest pause between polls, and a slow machine.
_AGAIN_SECONDS: Final = 55.0
_EVENT_SECONDS: Final = 20.0
# An event that is not expected would have come by then.
_QUIET_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.05
_CHARGE: Final = json.dumps({"amount": 1200, "currency": "eur", "source": "tok_slow"}).encode()
_JSON: Final = {"Content-Type": "application/json"}
_WEBHOOK: Final = json.dumps({"id": "evt_1001", "type": "payment.settled", "charge": "ch_7"}).encode()


@dataclass(frozen=True, slots=True)
class _World:
    """A gateway and those around it."""

    gateway: GatewayProcess
    caller: Caller
    service: CardService
    keys: setting.Keys
    is_fast: asyncio.Event

    async def charge(self) -> Response:
        """Send the charge; always the same request."""
        headers = {"Authorization": "Bearer alice", "Idempotency-Key": "order-1001", "Prefer": "respond-async"}
        return await self.caller.send("POST", "/v1/charges", {**headers, **_JSON}, _CHARGE)

    async def deliver_webhook(self) -> Response:
        """Send the webhook as its sender does; always the same event."""
        return await self.caller.send("POST", "/webhooks/stripe", self.keys.signed(_WEBHOOK), _WEBHOOK)


class Triangle:
    """The scenes, in order. `print_line` gets each line."""

    def __init__(self, directory: Path, print_line: PrintLine) -> None:
        self._directory = directory
        self._print = print_line

    async def play(self) -> None:
        """Play every scene. Raises `UnexpectedResult`, `OSError`, or `StartError` from a gateway."""
        keys, port = setting.Keys.new(), _free_port()
        async with Consumer(_HOST, port, keys.consumer) as consumer, self._world("", keys, port) as world:
            await self._kill(world, consumer)
            await self._without_key(keys, port)
            await self._without_inbox(keys, port)
            await self._without_events()
            await self._lose_nothing(world, consumer)

    async def _kill(self, world: _World, consumer: Consumer) -> None:
        self._print("\n1. All three corners, and kill -9\n")
        consumer.acknowledges.clear()
        responses = [await world.charge() for _ in range(_COPIES)]
        self._print(f"   A caller sends a charge three times, and does not wait: {_verdicts(responses)}")
        self._expect(_seen(responses), [(202, "accepted")] * _COPIES, "the verdicts")
        self._expect(len({response.headers["location"] for response in responses}), 1, "operations")
        world.is_fast.set()
        responses = [await world.deliver_webhook() for _ in range(2)]
        self._print(f"   A sender delivers a signed webhook twice: {_verdicts(responses)}")
        self._expect(_seen(responses), [(200, "accepted"), (200, "event-duplicate")], "the verdicts")
        await consumer.wait_deliveries(2, _EVENT_SECONDS)
        self._service_shows(world, charges=1, webhooks=1)
        self._print(f"   The consumer got {len(consumer.deliveries)} events. Before it acknowledges one: kill -9.")
        self._expect(len(consumer.deliveries), 2, "events")
        world.gateway.kill()
        consumer.acknowledges.set()
        await world.gateway.start()
        self._print(
            "   The gateway is started again. Once their lease is over, in 30 seconds, it publishes them again."
        )

    async def _without_key(self, keys: setting.Keys, port: int) -> None:
        self._print("\n2. Meanwhile: the same without a route for charges\n")
        async with self._world("accept", keys, port) as world:
            world.is_fast.set()
            responses = [await world.charge() for _ in range(_COPIES)]
            self._print(f"   The charge is sent three times, with one key: {_verdicts(responses)}")
            self._expect([response.status for response in responses], [201] * _COPIES, "the statuses")
            self._service_shows(world, charges=_COPIES, webhooks=0)

    async def _without_inbox(self, keys: setting.Keys, port: int) -> None:
        self._print("\n3. The same without the inbox\n")
        async with self._world("inbox", keys, port) as world:
            responses = [await world.deliver_webhook() for _ in range(2)]
            self._print(f"   The webhook is delivered twice: {_verdicts(responses)}")
            self._expect([response.status for response in responses], [204] * 2, "the statuses")
            self._service_shows(world, charges=0, webhooks=2)

    async def _without_events(self) -> None:
        """The gateway cannot publish after the change instead of in it, so here a service does, as many do."""
        self._print("\n4. The same without events: the service calls the consumer after each charge\n")
        keys, port = setting.Keys.new(), _free_port()
        calls: list[str] = []

        async def call_consumer() -> None:
            try:
                await Caller(_HOST, port).send("POST", "/events", {}, b"{}")
            except OSError:
                calls.append("lost")
            else:
                calls.append("arrived")

        async with self._world("events", keys, port, charged=call_consumer) as world:
            world.is_fast.set()
            await self._executed(world)
            self._print(f"   The charge is executed while the consumer is away. The call: {', '.join(calls)}")
            self._expect(calls, ["lost"], "calls")
            async with Consumer(_HOST, port, keys.consumer) as consumer:
                response = await world.charge()
                self._print(f"   The consumer is back, and the caller repeats the charge: {_verdicts([response])}")
                self._expect(_seen([response]), [(201, "replayed")], "the verdict")
                await consumer.wait_deliveries(1, _QUIET_SECONDS)
                self._service_shows(world, charges=1, webhooks=0)
                self._print(f"   Events at the consumer: {len(consumer.deliveries)}. Nobody will tell it.")
                self._expect(len(consumer.deliveries), 0, "events")

    async def _executed(self, world: _World) -> None:
        """Send the charge until its response is there."""
        async with asyncio.timeout(_EVENT_SECONDS):
            while (await world.charge()).status != 201:  # noqa: ASYNC110 - as a caller does
                await asyncio.sleep(_POLL_SECONDS)

    async def _lose_nothing(self, world: _World, consumer: Consumer) -> None:
        self._print("\n5. The gateway that was killed\n")
        await consumer.wait_deliveries(4, _AGAIN_SECONDS)
        responses = [await world.charge(), await world.deliver_webhook()]
        self._print(f"   The caller and the sender repeat theirs: {_verdicts(responses)}")
        self._expect(_seen(responses), [(201, "replayed"), (200, "event-duplicate")], "the verdicts")
        self._service_shows(world, charges=1, webhooks=1)
        came, ids = len(consumer.deliveries), len(consumer.effects)
        least_often = min(Counter(consumer.deliveries).values(), default=0)
        self._print(f"   The consumer got {came} events under {ids} ids, and acted on each id once.")
        self._expect(ids, 2, "ids")
        self._expect(least_often >= 2, True, "events that nobody had acknowledged came again")
        self._print("\nOne charge, one effect of the webhook, each event under one id: nothing was done twice or lost.")

    @asynccontextmanager
    async def _world(
        self, without: str, keys: setting.Keys, consumer_port: int, charged: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[_World]:
        """A service of its own behind a gateway of its own, on an empty store."""
        directory = self._directory / (without or "all")
        port, status_port, is_fast = _free_port(), _free_port(), asyncio.Event()
        async with CardService(_HOST, 0, delay=is_fast.wait, charged=charged) as service:
            variables = setting.variables(
                host=_HOST,
                port=port,
                status_port=status_port,
                upstream=f"http://{_HOST}:{service.port}",
                directory=str(directory),
                log_level="error",
            ) | keys.variables(consumer_port)
            text = setting.triangle(without=without)
            async with GatewayProcess(directory, text, variables, status_port) as gateway:
                try:
                    yield _World(gateway, Caller(_HOST, port), service, keys, is_fast)
                finally:
                    is_fast.set()

    def _service_shows(self, world: _World, *, charges: int, webhooks: int) -> None:
        """Compare and print what the service did, which it alone knows."""
        done = world.service.charges, world.service.webhooks
        self._print(f"   At the service: charges {done[0]}, effects of the webhook {done[1]}")
        self._expect(done, (charges, webhooks), "charges and webhooks")

    def _expect(self, value: object, expected: object, what: str) -> None:
        if value != expected:
            raise UnexpectedResult(f"{what}: expected {expected}, not {value}")


async def play(print_line: PrintLine) -> int:
    """Play in a temporary directory; returns the exit code. SIGINT and SIGTERM end it, and leave nothing."""
    loop = asyncio.get_running_loop()
    try:
        temporary = tempfile.TemporaryDirectory(prefix="idempotency-gateway-triangle-")
    except OSError as error:
        raise StartError(f"no temporary directory can be made: {error}. Name a place for it in TMPDIR.") from error
    with temporary as directory:
        scenes = asyncio.create_task(Triangle(Path(directory), print_line).play())
        for number in _SIGNALS:
            loop.add_signal_handler(number, scenes.cancel)
        try:
            await scenes
        except (UnexpectedResult, OSError) as error:
            print_line(f"\nThis is not what should have happened: {str(error) or 'nothing came in time'}")
            return EXIT_FAILED
        except asyncio.CancelledError:
            print_line("\nStopped. Nothing is left.")
            return EXIT_FAILED
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
    return EXIT_OK


def _verdicts(responses: Sequence[Response]) -> str:
    return ", ".join(f"{response.status} {response.verdict}".rstrip() for response in responses)


def _seen(responses: Sequence[Response]) -> list[tuple[int, str]]:
    return [(response.status, response.verdict) for response in responses]


def _free_port() -> int:
    """A port for a process that is told it before it starts."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
