"""One run: gateways, stores, service, clients, operator and weather put together, from a seed to a history.

Under some seeds there are two regions: each has a store, gateways, an operator and a storm of its own, and clients call
gateways of both.

The plan of a run: clients live while things go wrong; then it becomes calm, what is under way ends, everybody who ever
wanted something asks once more, and the gateways are drained. A run under load has another: nothing goes wrong, callers
come at random for as long as is asked for, and the gateways are drained when the last of them is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.clients import Clients
from tests.simulation.clocks import Wall, jumping_wall, shown, steady_wall, wall_of_region
from tests.simulation.fast import FastServer
from tests.simulation.faults import CALM, Weather, drawn
from tests.simulation.gateway import REGIONS, SimulatedGateway, configuration
from tests.simulation.history import DELIVER_SECONDS, History, Terms
from tests.simulation.link import LINK, Link, Way
from tests.simulation.loop import SimulatedLoop
from tests.simulation.operator import Operator, Purger
from tests.simulation.store import SINKS, Database, view
from tests.simulation.storm import Storm
from tests.simulation.upstream import RESPONSE_BYTES_MAX, Service
from tests.support.memory_store import EPOCH_US

_STORM_SECONDS = 40.0
# Longer than anything that went wrong may last, a lease after it, and what a probe waits before it believes in nothing.
_SETTLE_SECONDS = 64.0
# For as long their clocks jump.
_WALLS_SECONDS = 300.0
_REGIONAL_SHARE = 0.2
# Of a run under load.
_OPERATIONS_PER_SECOND = 0.8
# Between those of two stores; the first one's are all smaller.
_TOKENS_APART = 1_000_000_000


def run(seed: int, *, is_calm: bool = False, load_seconds: float | None = None, walls_jump: bool = True) -> History:
    """Everything that happens under this seed.

    With `is_calm` nothing goes wrong in it; with `load_seconds` neither, and callers come and go for so long. With
    `walls_jump` False the wall clocks of the gateways are right, and everything else is the same.
    """
    is_loaded = load_seconds is not None
    with _entropy(seed), _complaints() as complaints:
        world = World(seed, is_calm=is_calm or is_loaded, is_loaded=is_loaded)
        with shown(world.wall if walls_jump else steady_wall(world.loop)):
            world.loop.run(world.live() if load_seconds is None else world.bear(load_seconds))
        world.history.errors.extend([*complaints, *world.loop.complaints])
        world.history.rounds = world.loop.rounds
        return world.history


def has_regions(seed: int) -> bool:
    """Whether there are two regions under this seed; never under load."""
    return random.Random(f"{seed}/has-regions").random() < _REGIONAL_SHARE


@dataclass(frozen=True, slots=True)
class Region:
    """What shares a store, and who works on that. In most runs all do, and that has no name."""

    name: str
    database: Database
    gateways: list[SimulatedGateway]
    operator: Operator
    purger: Purger
    storm: Storm


class World:
    """See the module. `live` or `bear` is to be run on its loop, once."""

    def __init__(self, seed: int, *, is_calm: bool, is_loaded: bool) -> None:
        dice, self._regional = random.Random(f"{seed}/world"), random.Random(f"{seed}/regions")
        is_regional = has_regions(seed) and not is_loaded
        config = configuration(REGIONS[0] if is_regional else "")
        store_timeout = dice.choice((1.0, 3.0, 8.0))
        terms = Terms(
            lease_seconds=config.store.lease,
            cache_max_age_seconds=config.store.cache_max_age,
            wait_seconds_max=config.routes[0].in_flight.max_wait,
            answer_within_seconds=config.upstream.answer_within,
            store_timeout_seconds=store_timeout,
            stored_bytes_max=RESPONSE_BYTES_MAX,
            resent=frozenset(route.name for route in config.routes if route.recovery == "resend"),
            answer_within_by_route={route.name: config.upstream_for(route).answer_within for route in config.routes},
            refusing_repeats=frozenset(route.name for route in config.routes if route.repeats is not None),
            ordered=frozenset(route.name for route in config.routes if route.order is not None),
            sinks=SINKS,
            homes=REGIONS if is_regional else (),
        )
        self.loop = loop = SimulatedLoop(random.Random(f"{seed}/order"))
        self.history = history = History(seed, terms, EPOCH_US)
        climate = CALM if is_calm else drawn(random.Random(f"{seed}/climate"))
        self.weather = weather = Weather(loop, history, climate, random.Random(f"{seed}/weather"))
        has_fast = dice.random() < 0.8
        self._service = Service(weather, config.upstream.response_timeout, is_varied=is_loaded)
        count = dice.choice((3, 4) if is_loaded else (1, 2, 2, 3, 3, 4))
        self.regions = self._two_regions() if is_regional else [self._region("", has_fast, count)]
        self.gateways = [gateway for region in self.regions for gateway in region.gateways]
        history.region_of = {gateway.name: gateway.region for gateway in self.gateways}
        self.clients = Clients(self.gateways, weather, random.Random(f"{seed}/clients"), is_loaded=is_loaded)
        self._intents = dice.choice((2, 6, 10, 14))
        names = [gateway.name for gateway in self.gateways]
        self.wall = jumping_wall(loop, random.Random(f"{seed}/walls"), names, _WALLS_SECONDS)

    async def live(self) -> None:
        """A whole run in which things go wrong."""
        self.clients.make_intents(self._intents)
        await self._begin()
        work = [self.clients.live(intent, _STORM_SECONDS) for intent in self.clients.intents]
        for region in self.regions:
            work.append(region.operator.work(_STORM_SECONDS + _SETTLE_SECONDS))
            work.append(region.purger.work(_STORM_SECONDS, self.weather.climate.purges))
        everybody = [asyncio.create_task(each) for each in work]
        for region in self.regions:
            region.storm.begin()
        await asyncio.sleep(_STORM_SECONDS)
        for region in self.regions:
            await region.storm.end()
        calm_from = self.loop.time()
        await asyncio.gather(*everybody)
        await asyncio.sleep(max(0.0, calm_from + _SETTLE_SECONDS - self.loop.time()))
        await asyncio.gather(*[self.clients.check(intent) for intent in self.clients.intents])
        await asyncio.sleep(DELIVER_SECONDS)
        await self._end()

    async def bear(self, seconds: float) -> None:
        """A whole run under load, without faults."""
        self.clients.make_intents(round(_OPERATIONS_PER_SECOND * seconds))
        await self._begin()
        await asyncio.gather(*[self.clients.live(intent, seconds) for intent in self.clients.intents])
        await asyncio.sleep(max(0.0, seconds - self.loop.time()))
        await self._end()

    def _two_regions(self) -> list[Region]:
        """Each with a store of its own, and a link between them."""
        dice, there, back = self._regional, Way(self.loop), Way(self.loop)
        first, second = REGIONS
        links = {first: Link(first, back, there), second: Link(second, there, back)}
        regions = [
            self._region(name, dice.random() < 0.8, dice.choice((1, 1, 2)), links, ways)
            for name, ways in zip(REGIONS, ((there, back), ()), strict=True)
        ]
        for region in regions:
            links[region.name].listeners = region.gateways
        return regions

    def _region(
        self, name: str, has_fast: bool, count: int, links: Mapping[str, Link] | None = None, ways: Sequence[Way] = ()
    ) -> Region:
        """`ways` are those that its storm cuts."""
        weather = self.weather
        first_token = _TOKENS_APART * REGIONS.index(name) if name else 0
        database = Database(weather, region=name, first_token=first_token)
        fast = FastServer(weather) if has_fast else None
        gateways = [
            SimulatedGateway(each, database, fast, self._service, self._wall_of(each, name), links or {})
            for each in (f"{name or 'g'}{number}" for number in range(count))
        ]

        def dice(whose: str) -> random.Random:
            return random.Random(f"{self.history.seed}/{whose}/{name}".rstrip("/"))

        operator, purger = Operator(database, dice("operator")), Purger(gateways, database, dice("purger"))
        return Region(name, database, gateways, operator, purger, Storm(gateways, database, fast, dice("fate"), ways))

    def _wall_of(self, gateway: str, region: str) -> Wall:
        if not region:
            return steady_wall(self.loop)
        wrong_seconds = self._regional.uniform(0.0, _STORM_SECONDS)
        is_wrong = self.weather.happens("wrong_wall", LINK, wrong_seconds, gateway)
        return wall_of_region(self.loop, self._regional, wrong_seconds if is_wrong else 0.0)

    async def _begin(self) -> None:
        for gateway in self.gateways:
            gateway.boot()
        await asyncio.sleep(0.1)

    async def _end(self) -> None:
        history = self.history
        for region in self.regions:
            records = {str(each): view(found.record) for each, found in region.database.settled().items()}
            history.final.update({each: record for each, record in records.items() if record is not None})
        for gateway in self.gateways:
            for life in gateway.unfinished_lives:
                if not life.is_leaving:
                    life.drain()
                await life.over
        history.events = [event for region in self.regions for event in region.database.events()]
        history.ended = self.loop.time()


@contextmanager
def _entropy(seed: int) -> Iterator[None]:
    """What the program takes for chance comes from the seed."""
    dice, state, urandom = random.Random(f"{seed}/entropy"), random.getstate(), os.urandom
    random.seed(seed)
    os.urandom = dice.randbytes
    try:
        yield
    finally:
        os.urandom = urandom
        random.setstate(state)


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What the program complains of."""
    heard: list[str] = []

    def hear(record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        heard.append(f"{record.getMessage()}{'' if error is None else f': {error!r}'}")

    ear, log = logging.Handler(logging.ERROR), logging.getLogger("gateway")
    ear.emit = hear
    propagates, log.propagate = log.propagate, False
    log.addHandler(ear)
    try:
        yield heard
    finally:
        log.removeHandler(ear)
        log.propagate = propagates
