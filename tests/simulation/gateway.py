"""A gateway of a run: the product's own parts, put together as `gateway.app` does, on simulated stores and upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import yaml

from gateway.admin.operations import Operations
from gateway.admin.resolution import Changed, Refused
from gateway.app.operating import operations_on
from gateway.app.parts import Environment, Parts
from gateway.app.stores import key_ring
from gateway.config import Config, parse
from gateway.config import delivery as asked
from gateway.http.connection import ClientGone
from gateway.observe.facts import (
    Events,
    Fact,
    LeaseLost,
    LoopStalled,
    OperationClaimed,
    OperationSettled,
    WriteRefused,
)
from gateway.protect.reply import RequestCut
from gateway.protect.request import Request, Untouched
from gateway.store.base import StoreError
from gateway.upstream import Upstream
from tests.simulation.clocks import Wall
from tests.simulation.disk import AttemptNotes, Disk, DiskJournal
from tests.simulation.fast import FastDriver, FastNote, FastServer
from tests.simulation.history import Life
from tests.simulation.link import Link, LinkClient
from tests.simulation.loop import Process
from tests.simulation.store import Database, Durable
from tests.simulation.upstream import Client, Service, current_call
from tests.simulation.wire import Body, Connection
from tests.support.house import NO_JOURNALS

REGIONS = ("eu", "us")
"""Those of a run that has some."""
_EDGE_GRACE_SECONDS = 1.0


_TEXT: Final = Path(__file__).with_name("gateway.yaml").read_text()
# What is over several keys is kept by one store.
_OF_ONE_STORE: Final = ("order", "repeats")


@cache
def configuration(region: str = "") -> Config:
    """What the gateways of a run are told, of one region if there are several."""
    document: dict[str, Any] = yaml.safe_load(_TEXT)
    every = document.pop("every_route")
    document["routes"] = [
        {
            **every,
            **{section: value for section, value in route.items() if not region or section not in _OF_ONE_STORE},
            "match": {"path": f"/{route['name']}"},
            "key": every["key"] | route.get("key", {}),
        }
        for route in document["routes"]
    ]
    if region:
        homes = [{"name": name, "url": f"https://{name}"} for name in REGIONS]
        document["regions"] = {"here": region, "homes": homes, "key": "7" * 64}
    return parse(yaml.safe_dump(document, sort_keys=False))


Links = Mapping[str, Link]


class SimulatedGateway:
    """One name behind which gateways come and go."""

    def __init__(
        self, name: str, database: Database, fast: FastServer | None, service: Service, wall: Wall, links: Links
    ) -> None:
        """`wall` is what other regions hear of its clock. `links` lead to them."""
        self.name, self.region, self.wall, self.links = name, database.region, wall, links
        self.database, self.fast, self.service, self.disk = database, fast, service, Disk()
        self.weather = weather = database.weather
        self.loop, self.history = weather.loop, weather.history
        self.life: GatewayLife | None = None
        self._lives: list[GatewayLife] = []

    def boot(self) -> None:
        """Begin a life; an earlier one may still be draining. Where none is, the host's note may be gone."""
        if self._lives and not self.unfinished_lives and self.weather.happens("note_lost", self.name):
            self.disk.seen = None
        self.life = GatewayLife(self, f"{self.name}.{len(self._lives) + 1}")
        self._lives.append(self.life)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP for whatever lives under this name."""
        for life in self.unfinished_lives:
            life.process.freeze(seconds)

    def thaw(self) -> None:
        for life in self.unfinished_lives:
            life.process.frozen_until = 0.0

    @property
    def unfinished_lives(self) -> list[GatewayLife]:
        return [life for life in self._lives if not life.over.done()]

    @property
    def is_listening(self) -> bool:
        return self.life is not None and self.life.is_listening

    def connect(self, connection: Connection, body: Body) -> Process | None:
        """A client's request begins to arrive; None when nobody listens."""
        life = self.life
        if life is None or not life.is_listening:
            return None
        life.process.deliver(self.weather.hop_seconds(), life.accept, connection, body)
        return life.process


class GatewayLife:
    """One gateway process from its start to its end."""

    def __init__(self, house: SimulatedGateway, holder: str) -> None:
        self._house = house
        self._holder = holder
        self._loop = house.loop
        self._began = house.loop.time()
        self.process = house.loop.add_process(house.name)
        self.is_listening = self.is_leaving = False
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._upkeep: list[asyncio.Task[None]] = []
        self._commands: set[asyncio.Task[Changed | Refused]] = set()
        self.over: asyncio.Future[None] = house.loop.create_future()
        # Boot clocks of different machines have nothing to do with each other.
        offset = float(sum(holder.encode()) * 1000)
        self._clock = lambda: house.loop.time() + offset
        self.process.context.run(self._build)
        self._main = self.process.start(self._run())

    def _build(self) -> None:
        house, config, clock = self._house, configuration(self._house.region), self._clock
        shared_note = None if house.fast is None else FastNote(house.fast, self.process)
        # What of the gateway is simulated stands here; how it is put together is the product's.
        self._journal = DiskJournal(house.disk, self._holder, self.process, house.weather)
        environment = Environment(
            holder=self._holder,
            durable=Durable(house.database, self.process),
            fast=None if house.fast is None else FastDriver(house.fast, self.process, clock),
            seen_file=house.disk,
            shared_note=shared_note,
            ring=key_ring(config),
            attempt_files=AttemptNotes(house.disk, self.process),
            journal=self._journal,
            clock=clock,
            wall_seconds=house.wall,
        )
        self._parts = Parts(config, environment, Events(self._hear), self._upstream)
        self._routes = {route.name: route for route in self._parts.routes}
        self._operations = operations_on(config, self._parts.store, NO_JOURNALS)

    def _upstream(self, settings: asked.Upstream) -> Upstream:
        house, link = self._house, self._house.links.get(settings.url.host)
        make = partial(Client, house.service) if link is None else partial(LinkClient, link)
        return make(self.process, house.weather, settings)

    def _hear(self, fact: Fact) -> None:
        match fact:
            case OperationClaimed():
                heard = "claimed", str(fact.token)
            case OperationSettled():
                heard = "settled", f"{fact.token} {fact.event.value}"
            case WriteRefused():
                heard = "refused", f"{fact.token} {fact.event.value}"
            case LeaseLost() | LoopStalled():
                heard = type(fact).__name__, ""
            case _:
                return
        self._house.history.facts.append((self._house.name, *heard))

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        is_store_there = await self._parts.start_store()
        self._upkeep = [asyncio.create_task(work) for work in (self._parts.leases.run(), *self._parts.upkeep())]
        self.is_listening = True
        if not is_store_there:
            await self._parts.keep_starting()

    def drain(self) -> asyncio.Task[None]:
        """SIGTERM."""
        self.is_leaving = True
        return self.process.start(self._drain())

    def operate(self, say: Callable[[Operations], Coroutine[Any, Any, Changed | Refused]]) -> asyncio.Task[Any]:
        """An operator's command arrives at the admin port. It ends as the gateway does, or never."""
        task = self.process.start(say(self._operations))
        self._commands.add(task)
        task.add_done_callback(self._operated)
        return task

    def _operated(self, task: asyncio.Task[Changed | Refused]) -> None:
        self._commands.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreError):
            self._house.history.errors.append(f"a command failed: {error!r}")

    async def _drain(self) -> None:
        unsaid = 0
        try:
            unsaid = await self._drain_in_order()
        except Exception as error:  # noqa: BLE001 -- the auditor hears of it
            # Of one that was killed meanwhile only the interpreter goes on, to take it apart.
            if self.process.is_alive:
                self._house.history.errors.append(f"a drain failed: {error!r}")
        self.end("drained", unsaid, self._leftovers())

    async def _drain_in_order(self) -> int:
        self._parts.stop_upkeep()
        self.is_listening = False
        drained, waiting = await self._parts.drain()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=_EDGE_GRACE_SECONDS)
        left: list[asyncio.Task[Any]] = [*self._connections, *self._upkeep, *self._commands, self._main]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._journal.close()
        await self._parts.end_asking()
        await self._parts.store.close()
        return drained.unrecorded + waiting

    def _leftovers(self) -> tuple[str, ...]:
        tasks = [task for task in self.process.unfinished if task is not asyncio.current_task()]
        parts = self._parts
        found = {
            "runs": parts.coordinator.in_flight,
            "waiters": parts.coordinator.waiters,
            "pursuits": len(parts.claiming.pursuits),
            "leases": len(parts.leases.held),
            "forwards": 0 if parts.regions is None else parts.regions.in_progress,
        }
        names = [getattr(task.get_coro(), "__qualname__", "?") for task in tasks]
        return (*(f"{count} {name}" for name, count in found.items() if count), *names)

    def end(self, ending: str, unsaid: int = 0, leftovers: tuple[str, ...] = ()) -> None:
        self.is_listening = False
        self.process.kill()
        now = self._loop.time()
        life = Life(self._house.name, self._holder, self._began, now, ending, unsaid, leftovers)
        self._house.history.lives.append(life)
        if self._house.life is self:
            self._house.life = None
        self.over.set_result(None)
        for connection in list(self._connections.values()):
            self._break_off(connection)

    def _break_off(self, connection: Connection) -> None:
        """The client sees it a moment later."""
        self._loop.world.deliver(self._house.weather.hop_seconds(), connection.break_off)

    # -- requests -----------------------------------------------------------------------------------------------------

    def accept(self, connection: Connection, body: Body) -> None:
        if not self.is_listening:
            self._break_off(connection)
            return
        call = current_call.set(connection.call.number)
        task = self._loop.create_task(self._serve(connection, body))
        current_call.reset(call)
        self._connections[task] = connection
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        connection = self._connections.pop(task)
        self._loop.world.deliver(1.0, connection.break_off)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._house.history.errors.append(f"a handler failed: {error!r}")

    async def _serve(self, connection: Connection, body: Body) -> None:
        call = connection.call
        call.reached_gateway = self._loop.time()
        route = self._routes[call.route]
        incoming = Request(connection.head, body, connection.hop)
        try:
            answer = await self._parts.coordinator.respond(incoming, route)
            if isinstance(answer, Untouched):
                verdict = answer.verdict
                reply = await self._parts.forward(answer.request, connection, route, verdict)
                answer.request.body.close()
                if reply is None:
                    return
                answer = replace(reply, verdict=reply.verdict or verdict)
        except (RequestCut, ClientGone):
            self._break_off(connection)
            return
        call.left_gateway = self._loop.time()
        await connection.write(answer)
