"""Whole gateways whose time passes only when a test says so: the clock of their store, and their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.app.parts import Environment
from gateway.store.sqlite.store import SqliteStore
from tests.support.house import House
from tests.support.memory_store import ManualClock


@dataclass
class Clocks:
    """The clocks of the gateways on one SQLite store in `directory`, where `house.sqlite_store` puts it."""

    directory: Path
    store: ManualClock = field(default_factory=ManualClock)
    gateway_seconds: float = 1000.0

    def surround(self, environment: Environment) -> Environment:
        """For a gateway that sees time pass."""
        return replace(self.frozen(environment), clock=lambda: self.gateway_seconds)

    def frozen(self, environment: Environment) -> Environment:
        """For a gateway that sees no time pass: it renews no lease, as one that was stopped."""
        path = self.directory / "store" / "operations.db"
        durable = SqliteStore(path, clock_us=self.store)
        return replace(environment, durable=durable, clock=lambda: 1000.0)

    def pass_time(self, seconds: float, *homes: House) -> None:
        """For the store and for whoever sees time pass; the loops of `homes` were not stuck meanwhile."""
        self.store.advance(seconds)
        self.gateway_seconds += seconds
        for home in homes:
            home.gateway.parts.leases.run_once()
