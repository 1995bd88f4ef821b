"""A gateway that accepts requests and, unless a test wants that, delivers none: the test says what becomes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from gateway.app.parts import Environment
from gateway.core import operation
from gateway.core.message import StoredResponse
from gateway.core.operation import Snapshot, State
from gateway.store.base import Store
from gateway.store.operations import Query
from tests.support.clocks import Clocks
from tests.support.faulty_store import FaultyStore
from tests.support.house import House, house, sqlite_store
from tests.support.http import Response

ASYNC = ("Prefer", "respond-async")
RESPONSE = StoredResponse(201, b"Created", ((b"Content-Type", b"text/plain"), (b"Location", b"/charges/7")), b"charged")
DAY_US = 86_400_000_000
SECRETS = {"encryption": [{"id": "a", "key": "A" * 43 + "="}], "identity_key": {"id": "i", "key": "1" * 64}}


@dataclass
class Desk:
    """A gateway whose only route accepts requests. `store` is the durable one, which can fail; `clocks` are its own."""

    home: House
    store: FaultyStore
    clocks: Clocks
    made: list[FaultyStore] = field(default_factory=list)

    async def send(self, key: str = "k1", *headers: tuple[str, str], **options: Any) -> Response:
        return await self.home.send(key, headers=headers, **options)

    async def accept(self, key: str = "k1", *headers: tuple[str, str], **options: Any) -> Response:
        """A request of a caller that does not wait."""
        return await self.send(key, ASYNC, *headers, **options)

    async def see(self, target: str, *headers: tuple[str, str], tenant: str | None = "t1", **options: Any) -> Response:
        return await self.home.send(
            None, b"", tenant=tenant, headers=headers, target=target, **{"method": "GET"} | options
        )

    async def record(self, *states: State) -> Snapshot:
        """The only record in one of these states, all by default."""
        query = Query(frozenset(states or State))
        (snapshot,) = await self.behind.cold.find(query)
        return snapshot

    @property
    def behind(self) -> Store:
        return self.store.behind

    async def drive(self, *steps: str) -> None:
        """What becomes of the only operation, as workers, operators and callers would say."""
        for step in steps:
            record = (await self.record()).record
            assert record is not None
            operation_id, token = record.identity.operation_id, record.token
            ids = operation_id, token, record.attempt_id
            commands: dict[str, operation.Command] = {
                "dispatch": operation.Dispatch(operation_id, token, uuid4(), "worker", 30_000_000),
                "complete": operation.Complete(*ids, RESPONSE, DAY_US, 7 * DAY_US, "/charges/7"),
                "complete without a body": operation.Complete(
                    *ids, replace(RESPONSE, body=None), DAY_US, 7 * DAY_US, "/charges/7"
                ),
                "abandon": operation.Abandon(*ids, "reset"),
                "postpone": operation.Postpone(*ids, 30_000_000, "answered_503", True),
                "bury": operation.Bury(*ids, "unauthorized", "answered_401", True),
                "reinstate": operation.Reinstate(operation_id, token, uuid4()),
                "withdraw": operation.Withdraw(operation_id, token, uuid4(), 7 * DAY_US),
                "purge": operation.Purge(operation_id),
            }
            assert isinstance(await self.behind.apply(commands[step]), operation.Applied)


# How to bring an accepted operation into a state.
STEPS: dict[str, tuple[str, ...]] = {
    "accepted": (),
    "postponed": ("dispatch", "postpone"),
    "claimed": ("dispatch",),
    "in doubt": ("dispatch", "abandon"),
    "dead letter": ("dispatch", "bury"),
    "completed": ("dispatch", "complete"),
    "not stored": ("dispatch", "complete without a body"),
    "expired": ("dispatch", "complete", "purge"),
    "withdrawn": ("withdraw",),
}


@asynccontextmanager
async def desk(
    directory: Path, *, delivers: bool = False, accept: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[Desk]:
    """A gateway on SQLite; see `house.config_text` for `changes`, of which `route` adds to the route."""
    clocks = Clocks(directory)
    made: list[FaultyStore] = []

    def surround(environment: Environment) -> Environment:
        environment = clocks.surround(environment)
        made.append(FaultyStore(environment.durable))
        return replace(environment, durable=made[-1])

    async with house(
        sqlite_store(directory), directory, surround=surround, **accepting(delivers=delivers, accept=accept, **changes)
    ) as home:
        yield Desk(home, made[0], clocks, made)


def accepting(*, delivers: bool = False, accept: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The `changes` of a configuration whose route accepts."""
    route = {"accept": {"identity": "unverified"} | (accept or {}), "in_flight": {"wait": "0s"}}
    return {
        "secrets": SECRETS,
        "delivery": {"workers": int(delivers)},
        # Nothing is answered from memory after the test has changed the record.
        "store": {"cache_max_age": "0s"},
        **changes,
        "route": route | changes.get("route", {}),
    }
