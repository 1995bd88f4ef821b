"""The faults that strike whole processes and tiers: when, for how long, and what follows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

from tests.simulation.fast import FastServer
from tests.simulation.gateway import SimulatedGateway
from tests.simulation.link import LINK, Way
from tests.simulation.store import Database

_HOUR_SECONDS = 3600.0


class Storm:
    """Strikes at random from `begin` to `end`; then everything is up again."""

    def __init__(
        self,
        gateways: list[SimulatedGateway],
        database: Database,
        fast: FastServer | None,
        dice: random.Random,
        ways: Sequence[Way] = (),
    ) -> None:
        """`ways` are both of a link between two regions."""
        self._gateways, self._database, self._fast, self._ways, self._dice = gateways, database, fast, ways, dice
        self._weather = weather = database.weather
        self._loop, self._history = weather.loop, weather.history
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        climate = self._weather.climate
        strikes: list[tuple[float, Callable[[], None]]] = [
            (climate.store_outages, self._break_store),
            (climate.clock_jumps, self._set_clock),
        ]
        if (fast := self._fast) is not None:
            strikes += [
                (climate.fast_outages, partial(self._break_fast, fast)),
                (climate.fast_flushes, partial(self._change_fast, "fast_flush", fast.flush, fast.save)),
                (climate.fast_restores, partial(self._change_fast, "fast_restore", fast.restore, fast.save)),
            ]
        for gateway in self._gateways:
            strikes += [
                (climate.crashes, partial(self._crash, gateway)),
                (climate.freezes, partial(self._freeze, gateway, "freeze", 1.0, 15.0)),
                (climate.stalls, partial(self._freeze, gateway, "stall", 0.02, 3.0)),
                (climate.drains, partial(self._restart, gateway)),
            ]
        if climate.store_failovers:
            strikes += [(climate.store_failovers, self._fail_over), (60.0, self._database.copy_to_standby)]
        if self._ways:
            strikes.append((climate.link_cuts, self._cut_link))
        self._tasks = [asyncio.create_task(self._now_and_then(rate, strike)) for rate, strike in strikes if rate]

    async def end(self) -> None:
        """Nothing strikes any more, and what was down is up."""
        self._weather.calm_down()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        now = self._loop.time()
        self._database.down_until = now
        if self._history.jumps and self._dice.random() < 0.5:
            self._note_clock(0.0)
        if self._fast is not None:
            self._fast.down_until = self._fast.slow_until = now
        for way in self._ways:
            way.cut_until = now
        for gateway in self._gateways:
            gateway.thaw()
            self._boot(gateway)

    async def _now_and_then(self, per_minute: float, strike: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self._dice.expovariate(per_minute / 60.0))
            strike()

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        async def wait_and_work() -> None:
            await asyncio.sleep(seconds)
            work()

        self._tasks.append(asyncio.create_task(wait_and_work()))

    # -- gateways -----------------------------------------------------------------------------------------------------

    def _crash(self, gateway: SimulatedGateway) -> None:
        if gateway.life is None:
            return
        away = self._dice.choice((0.02, 0.5, 3.0, 9.0))
        self._weather.note("crash", away, gateway.name)
        gateway.life.end("crashed")
        self._later(away, partial(self._boot, gateway))

    def _freeze(self, gateway: SimulatedGateway, kind: str, shortest: float, longest: float) -> None:
        seconds = self._dice.uniform(shortest, longest)
        self._weather.note(kind, seconds, gateway.name)
        gateway.freeze(seconds)

    def _restart(self, gateway: SimulatedGateway) -> None:
        """SIGTERM; the next life begins at once beside the old one, or after it, whichever the deployment does."""
        life = gateway.life
        if life is None or life.is_leaving:
            return
        self._weather.note("drain", 6.0, gateway.name)
        life.drain()
        self._later(self._dice.choice((0.0, 1.0, 8.0)), partial(self._boot, gateway))

    def _boot(self, gateway: SimulatedGateway) -> None:
        if gateway.life is None or gateway.life.is_leaving:
            gateway.boot()

    # -- tiers --------------------------------------------------------------------------------------------------------

    def _break_store(self) -> None:
        seconds = self._dice.choice((0.05, 1.0, 4.0, 12.0))
        self._weather.note("store_outage", seconds)
        self._database.break_down(seconds)

    def _set_clock(self) -> None:
        """Somebody sets the store's clock, for better or worse."""
        farthest = self._dice.choice((2.0, 10.0, 60.0, _HOUR_SECONDS))
        self._note_clock(self._dice.choice((0.0, 1.0, 1.0, -1.0, -1.0)) * farthest * self._dice.random())

    def _note_clock(self, offset_seconds: float) -> None:
        self._weather.note("clock_jump", detail=f"{offset_seconds:.6f} s ahead")
        self._database.set_clock(offset_seconds)

    def _fail_over(self) -> None:
        self._weather.note("store_failover", 10.0)
        self._database.fail_over(self._dice.choice((0.0, 0.3, 2.0, 6.0)))

    def _cut_link(self) -> None:
        """In one direction, or in both."""
        seconds = self._dice.choice((0.05, 1.0, 5.0, 15.0))
        there, back = self._ways
        cut = self._dice.choice(((there,), (back,), (there, back)))
        self._weather.note("link_cut", seconds, LINK, f"{len(cut)} of 2 ways")
        for way in cut:
            way.cut(seconds)

    def _break_fast(self, fast: FastServer) -> None:
        seconds = self._dice.choice((0.3, 2.0, 10.0))
        self._weather.note("fast_outage", seconds)
        setattr(fast, "down_until" if self._dice.random() < 0.5 else "slow_until", self._loop.time() + seconds)

    def _change_fast(self, kind: str, change: Callable[[], None], save: Callable[[], None]) -> None:
        self._weather.note(kind)
        change()
        self._later(self._dice.uniform(0.0, 10.0), save)
