"""What goes wrong: how often, drawn once per seed, and then case by case."""

from __future__ import annotations

import random
from dataclasses import dataclass, make_dataclass

from tests.simulation.history import Fault, History
from tests.simulation.loop import SimulatedLoop

# How long the network may hold a request back that left in time.
REQUEST_LATE_SECONDS_MAX = 9.0


# Per call: probabilities. Per minute: mean numbers of events, for each gateway or each tier.
_USUAL = {
    "store_refused": 0.03, "store_lost_before": 0.03, "store_lost_after": 0.06, "store_late": 0.02,
    "store_slow": 0.05, "news_lost": 0.3, "fast_failed": 0.1, "fast_slow": 0.1, "disk_full": 0.2, "disk_failed": 0.1,
    "upstream_refused": 0.06, "upstream_reset_before": 0.04, "upstream_reset_after": 0.06, "upstream_cut": 0.06,
    "upstream_late": 0.06, "upstream_silent": 0.04, "upstream_status": 0.2, "request_late": 0.04,
    "request_orphaned": 0.05, "frozen_at_send": 0.02, "client_gone": 0.1, "client_body_cut": 0.03, "crashes": 1.5,
    "freezes": 1.5, "stalls": 3.0, "drains": 1.0, "store_outages": 1.0, "store_failovers": 1.0, "fast_outages": 1.0,
    "fast_flushes": 1.0, "fast_restores": 1.0, "note_lost": 0.3, "clock_jumps": 1.5, "purges": 6.0, "link_late": 0.06,
    "link_lost": 0.06, "link_request_cut": 0.04, "link_response_cut": 0.08, "link_cuts": 3.0, "wrong_wall": 0.3,
}  # fmt: skip
Climate = make_dataclass("Climate", [(kind, float, 0.0) for kind in _USUAL], frozen=True)


def drawn(dice: random.Random) -> Climate:
    """A climate in which about half of the kinds occur at all, some of them often."""
    intensity = dice.choice((0.3, 1.0, 1.0, 3.0))
    return Climate(
        **{kind: usual * intensity * dice.uniform(0.3, 1.7) for kind, usual in _USUAL.items() if dice.random() < 0.5}
    )


CALM = Climate()


@dataclass(frozen=True, slots=True)
class StoreFate:
    """How one question to a store goes: how long it takes there and back, and where it is lost."""

    there_seconds: float
    back_seconds: float
    loss: str | None = None


class Weather:
    """Draws the cases, and is how everybody in a run knows its loop and its history. `calm_down` ends all faults."""

    def __init__(self, loop: SimulatedLoop, history: History, climate: Climate, dice: random.Random) -> None:
        self.loop = loop
        self.history = history
        self.climate = climate
        self.dice = dice

    def calm_down(self) -> None:
        self.climate = CALM

    @property
    def is_calm(self) -> bool:
        return self.climate is CALM

    def note(self, kind: str, seconds: float = 0.0, gateway: str | None = None, detail: str = "") -> None:
        """A fault that begins now and lasts so long."""
        now = self.loop.time()
        self.history.faults.append(Fault(kind, now, now + seconds, gateway, detail))

    def happens(self, kind: str, gateway: str | None = None, seconds: float = 0.0, detail: str = "") -> bool:
        """Whether it goes wrong in this case; if it does it is written down."""
        probability = getattr(self.climate, kind)
        if probability <= 0.0 or self.dice.random() >= probability:
            return False
        self.note(kind, seconds, gateway, detail)
        return True

    def hop_seconds(self) -> float:
        """One way over a healthy network, in ticks: few values, so that things coincide."""
        return self.dice.randrange(1, 6) / 1024

    def store_fate(self, gateway: str, timeout_seconds: float, lease_seconds: float) -> StoreFate:
        there, back = self.hop_seconds(), self.hop_seconds()
        for loss, seconds in (("refused", 0.0), ("lost_before", timeout_seconds), ("lost_after", timeout_seconds)):
            if self.happens(f"store_{loss}", gateway, seconds):
                return StoreFate(there, back, loss)
        if self.climate.store_late and self.dice.random() < self.climate.store_late:
            seconds = self.dice.uniform(0.2, 2.5) * lease_seconds
            self.note("store_late", seconds, gateway)
            return StoreFate(seconds, back) if self.dice.random() < 0.5 else StoreFate(there, seconds)
        if self.climate.store_slow and self.dice.random() < self.climate.store_slow:
            seconds = self.dice.uniform(0.05, 1.5)
            self.note("store_slow", seconds, gateway)
            return StoreFate(there + seconds, back)
        return StoreFate(there, back)
