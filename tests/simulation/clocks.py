"""What the clocks on the walls show: each gateway's jumps by up to an hour whenever it likes, and nobody may care."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tests.simulation.loop import SimulatedLoop, running_process
from tests.support.memory_store import EPOCH_US

_EPOCH_SECONDS: Final = EPOCH_US / 1_000_000
_HOUR_SECONDS: Final = 3600.0
_BETWEEN_SECONDS: Final = 15.0
# Two that are both that far off still believe each other's signatures.
_NEAR_SECONDS: Final = 14.0

Wall = Callable[[], float]


def steady_wall(loop: SimulatedLoop) -> Wall:
    """Everybody's clock is right."""
    return lambda: _EPOCH_SECONDS + loop.time()


def wall_of_region(loop: SimulatedLoop, dice: random.Random, wrong_until: float) -> Wall:
    """A clock as regions need it, some seconds off. Until a moment of the run it is wrong by an hour."""
    near, far = dice.uniform(-_NEAR_SECONDS, _NEAR_SECONDS), dice.choice((1.0, -1.0)) * _HOUR_SECONDS
    return lambda: _EPOCH_SECONDS + loop.time() + near + (far if loop.time() < wrong_until else 0.0)


def jumping_wall(loop: SimulatedLoop, dice: random.Random, gateways: list[str], until: float) -> Wall:
    """Each gateway's clock jumps, now and then, until a moment of the run."""
    jumps = {name: _draw(dice, until) for name in gateways}

    def wall() -> float:
        process = running_process()
        moments, offsets = jumps.get("" if process is None else process.name, ([], [0.0]))
        return _EPOCH_SECONDS + loop.time() + offsets[bisect_right(moments, loop.time())]

    return wall


def _draw(dice: random.Random, until: float) -> tuple[list[float], list[float]]:
    moments: list[float] = []
    offsets = [dice.uniform(-_HOUR_SECONDS, _HOUR_SECONDS)]
    at = 0.0
    while (at := at + dice.expovariate(1 / _BETWEEN_SECONDS)) < until:
        moments.append(at)
        offsets.append(dice.choice((1.0, -1.0)) * dice.choice((2.0, 60.0, _HOUR_SECONDS)) * dice.random())
    return moments, offsets


@contextmanager
def shown(wall: Wall) -> Iterator[None]:
    """Whoever looks at the wall meanwhile sees this one."""
    real = time.time, time.time_ns
    time.time, time.time_ns = wall, lambda: round(wall() * 1_000_000_000)
    try:
        yield
    finally:
        time.time, time.time_ns = real
