"""Every setting of the file does what it says in a whole gateway: changed, it changes what is seen.

`@shows(path, (value, seen), ...)` puts a setting to the test. A setting of the configuration that is put to the test
neither here nor where another test names it fails here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.app.life import StartError
from gateway.app.parts import Environment
from gateway.config import Config
from gateway.core.operation import State
from gateway.store.operations import Query
from tests.app.test_gateway import open_files
from tests.config.support import models_in, settings_of
from tests.support.accepting import ASYNC, accepting
from tests.support.clocks import Clocks
from tests.support.faulty_store import FaultyStore, refused
from tests.support.house import ROUTE, House, house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer, RecordingUpstream

ROOT = Path(__file__).parents[2]
NAMING_ALL: Final = ("test_mistakes.py", "test_document.py", "test_settings.py", "reference.py")
# Longer than a machine that is busy needs, and far shorter than what is waited for where it is to be seen.
MOMENT_SECONDS = 1.5


@dataclass
class Place:
    """An empty directory, the clocks of whatever runs in it, and the settings of the gateways there."""

    directory: Path
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clocks = Clocks(self.directory)

    def _merged(self, changes: dict[str, Any]) -> dict[str, Any]:
        whole = merged(self.changes, changes)
        if "route" in whole:
            whole["route"] = merged(ROUTE, whole["route"])
        return {"surround": self.clocks.surround} | whole

    def house(self, **changes: Any) -> AbstractAsyncContextManager[House]:
        """A gateway on these clocks, with these changes beside the settings of the place."""
        return house(sqlite_store(self.directory), self.directory, **self._merged(changes))

    def later(self, upstream: RecordingUpstream, **changes: Any) -> AbstractAsyncContextManager[House]:
        """Another gateway on the same data, on this host."""
        return neighbour(sqlite_store(self.directory), self.directory, upstream, **self._merged(changes))


def merged(one: Any, other: Any) -> Any:
    """The other one, with what it leaves out as it is in the one."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    return one | {name: merged(one.get(name), value) for name, value in other.items()}


Show = Callable[[Place, Any], Awaitable[object]]
Scene = Callable[[House, Place], Awaitable[object]]
SHOWN: dict[str, tuple[Show, tuple[tuple[Any, object], ...]]] = {}


def shows_alone(path: str, *pairs: tuple[Any, object]) -> Callable[[Show], Show]:
    """The function gives what is seen with a value of this setting; each pair is a value and what it must give."""
    assert len({repr(seen) for _, seen in pairs}) > 1, f"nothing is seen to change by {path}"

    def decorate(show: Show) -> Show:
        assert path not in SHOWN
        SHOWN[path] = show, pairs
        return show

    return decorate


def shows(path: str, *pairs: tuple[Any, object], **beside: Any) -> Callable[[Scene], Scene]:
    """The same of a function that is given a gateway with the value in its place, and these changes beside it."""
    keys = path.replace("routes.", "route.").split(".")

    def decorate(scene: Scene) -> Scene:
        @shows_alone(path, *pairs)
        async def show(place: Place, value: Any) -> object:
            setting = reduce(lambda inner, key: {key: inner}, reversed(keys), value)
            place.changes = merged(beside, setting)
            async with place.house() as home:
                return await scene(home, place)

        return scene

    return decorate


async def is_over(task: asyncio.Task[Any]) -> bool:
    done, _ = await asyncio.wait((task,), timeout=MOMENT_SECONDS)
    return bool(done)


@shows("routes.scope.from", ("any", "stored"), (["127.0.0.0/8"], "stored"), (["10.0.0.0/8"], "scope-missing"))
@shows("routes.key.format", ("any", "stored"), ("uuid", "key-invalid"))
async def verdict(home: House, _: Place, **options: Any) -> str | None:
    return status_of(await home.send(**options))[1]


@shows_alone("routes.scope.compose.from", ("any", "stored"), (["10.0.0.0/8"], "scope-missing"))
async def verdict_of_a_composed_scope(place: Place, networks: object) -> object:
    scope = [{"header": "X-Tenant", "from": networks}, {"api_key": "X-Api-Key"}]
    async with house(sqlite_store(place.directory), place.directory, route={"scope": {"compose": scope}}) as home:
        return await verdict(home, place, headers=[("X-Api-Key", "s3cret")])


# -- the stores ------------------------------------------------------------------------------------------------------


@shows_alone("store.lease", ("10s", "in-doubt"), ("60s", "in-flight"))
async def of_a_gateway_that_stands_still(place: Place, lease: str) -> object:
    changes: Any = {"store": {"lease": lease, "journal_grace": "1h"}, "route": {"in_flight": {"wait": "0s"}}}
    store, clocks = sqlite_store(place.directory), place.clocks
    async with (
        house(store, place.directory, surround=clocks.frozen, **changes) as owner,
        neighbour(store, place.directory / "n", owner.upstream, surround=clocks.surround, **changes) as other,
    ):
        task, hold = await owner.begin()
        clocks.pass_time(20, other)
        found = status_of(await other.send())[1]
        hold.set()
        await task
        return found


@shows("store.amnesia_window", ("1m", "stored"), ("1h", "store-amnesia"))
async def so_long_after_a_loss(home: House, place: Place, seconds: float = 120) -> object:
    assert status_of(await home.send("before"))[1] == "stored"
    await home.gateway.stop()
    for file in (place.directory / "store").iterdir():
        file.unlink()
    async with place.later(home.upstream) as later:
        assert status_of(await later.send())[1] == "store-amnesia"
        place.clocks.pass_time(seconds, later)
        return status_of(await later.send())[1]


@shows("store.cache_max_age", ("10s", 0), ("1m", 1), ("0s", 0))
@shows("store.cache_bytes", ("0", 0), ("64MiB", 1))
async def answered_from_memory(home: House, place: Place) -> object:
    await home.send()
    place.clocks.pass_time(20, home)
    assert status_of(await home.send())[1] == "replayed"
    return home.gateway._store.stats.cache_hits


# -- limits, the end, and hops ---------------------------------------------------------------------------------------


@shows("limits.max_header_bytes", ("1KiB", 431), ("64KiB", 200))
async def with_a_long_field(home: House, _: Place) -> object:
    return (await home.send(headers=[("X-Long", "x" * 2000)])).status


@shows("shutdown.drain_timeout", ("0s", (True, "in-doubt")), ("30s", (False, "stored")), shutdown={"delay": "0s"})
async def of_what_is_in_flight_at_a_stop(home: House, _: Place) -> object:
    """Whether the stop is over at once, and what the request gets."""
    task, hold = await home.begin()
    stopping = asyncio.create_task(home.gateway.stop())
    is_at_once = await is_over(stopping)
    hold.set()
    await stopping
    return is_at_once, status_of(await task)[1]


# -- sameness and duplicates -----------------------------------------------------------------------------------------


def repeated_with(first: bytes, second: bytes) -> Scene:
    async def scene(home: House, _: Place) -> object:
        await home.send(body=first)
        return status_of(await home.send(body=second))[1]

    return scene


_SAME_JSON = repeated_with(b'{"a":1,"b":2}', b'{"b": 2, "a": 1}')
_ANOTHER_TIME = repeated_with(b'{"a":1,"at":1}', b'{"a":1,"at":2}')
shows("routes.fingerprint.body", ("json", "replayed"), ("raw", "key-reused"), ("none", "replayed"))(_SAME_JSON)
shows("routes.fingerprint.ignore", ([], "key-reused"), (["/at"], "replayed"))(_ANOTHER_TIME)
shows("routes.fingerprint.only", (["/a", "/at"], "key-reused"), (["/a"], "replayed"))(_ANOTHER_TIME)


REFUSED = {"repeats": {"action": "refuse"}}


@shows("routes.repeats.within", ("10s", "stored"), ("1h", "likely-duplicate"), route=REFUSED)
async def under_another_key_later(home: House, place: Place) -> object:
    await home.send("k1")
    place.clocks.pass_time(60, home)
    return await verdict(home, place, key="k2")


# -- outcomes and retention ------------------------------------------------------------------------------------------


def replayed_with(name: str) -> Scene:
    async def scene(home: House, _: Place) -> object:
        fields = (("Content-Type", "text/plain"), ("X-Trace", "1"), ("Set-Cookie", "a=b"))
        home.upstream.on("/charges", Answer(headers=fields))
        await home.send()
        again = await home.send()
        assert status_of(again)[1] == "replayed"
        return again.header(name)

    return scene


shows("routes.response.strip", ([], "1"), (["X-Trace"], None))(replayed_with("X-Trace"))
shows("routes.response.keep", ([], None), (["Set-Cookie"], "a=b"))(replayed_with("Set-Cookie"))


@shows("routes.retention.replay", ("10s", (410, "key-expired")), ("1h", (200, "replayed")))
@shows(
    "routes.retention.remember",
    ("30s", (200, "stored")),
    ("1h", (410, "key-expired")),
    route={"retention": {"replay": "10s"}},
)
async def again_after_a_minute(home: House, place: Place) -> object:
    await home.send()
    place.clocks.pass_time(60, home)
    return status_of(await home.send())


# -- requests and the service ----------------------------------------------------------------------------------------


@shows("routes.body.spool_over", ("0", 1), ("1KiB", 0))
async def files_open_for_a_body(home: House, place: Place) -> object:
    task, hold = await home.begin()
    found = open_files(place.directory / "state" / "spool")
    hold.set()
    await task
    return len(found)


@shows("upstream.keepalive", ("0s", False), ("10s", True))
async def sent_on_a_used_connection(home: House, _: Place) -> object:
    for number in range(60):
        await home.send(f"k{number}")
        (stats,) = home.gateway._upstreams.stats.values()
        if stats.reused:
            return True
        await asyncio.sleep(MOMENT_SECONDS / 60)
    return False


@shows("upstream.host", ("preserve", b"shop.example"), ("upstream", None), ("other.example", b"other.example"))
async def host_that_the_service_gets(home: House, _: Place) -> object:
    await home.send(headers=[("Host", "shop.example")])
    (got,) = home.upstream.requests[-1].values("Host")
    return None if got == f"127.0.0.1:{home.upstream.port}".encode() else got


@shows("upstream.key", ("original", "the caller's"), ("operation_id", "the operation's"), ("none", "none"))
async def key_that_the_service_gets(home: House, _: Place) -> object:
    await home.send("k1")
    request = home.upstream.requests[-1]
    keys = request.values("Idempotency-Key")
    return {(): "none", (b"k1",): "the caller's"}.get(
        tuple(keys), "the operation's" if keys == request.values("Idempotency-Operation") else "another"
    )


# -- what is accepted and delivered later ------------------------------------------------------------------------------


@shows("delivery.deliver_within", ("1m", "dead_letter"), ("1h", "accepted"), **accepting())
async def after_two_minutes(home: House, place: Place) -> object:
    assert (await home.send(headers=[ASYNC])).status == 202
    place.clocks.pass_time(120, home)
    (found,) = await home.gateway._store.cold.find(Query(frozenset(State)))
    return str(found.state)


@shows(
    "routes.accept.headers",
    ({}, [b"Bearer ours"]),
    ({"Authorization": "Bearer its"}, [b"Bearer its"]),
    **accepting(delivers=True),
)
async def credentials_of_a_delivery(home: House, _: Place) -> object:
    await home.send(headers=[("Prefer", "respond-async, wait=9"), ("Authorization", "Bearer ours")])
    return home.upstream.requests[0].values("Authorization")


# -- answers of the gateway's own ------------------------------------------------------------------------------------


@shows_alone("routes.store_unavailable", ("refuse", "store-unavailable"), ("forward", "unprotected"))
async def without_a_store(place: Place, choice: str) -> object:
    made: list[FaultyStore] = []

    def surround(environment: Environment) -> Environment:
        environment = place.clocks.surround(environment)
        made.append(FaultyStore(environment.durable))
        return dataclasses.replace(environment, durable=made[0])

    async with place.house(surround=surround, route={"store_unavailable": choice}) as home:
        made[0].break_("claim", "read", fault=refused())
        return await verdict(home, place)


@shows_alone("routes.identity_change", ("refuse", False), ("accept", True))
async def started_with_another_scope(place: Place, choice: str) -> object:
    async with place.house() as home:
        await home.send()
        await home.gateway.stop()
        route = {"scope": {"api_key": "X-Api-Key"}, "identity_change": choice}
        try:
            async with neighbour(sqlite_store(place.directory), place.directory, home.upstream, route=route):
                return True
        except StartError:
            return False


# -- all of them -----------------------------------------------------------------------------------------------------


def test_every_setting_is_shown() -> None:
    """Here, or by another test, which names it with its section."""
    there = {path for path, field in settings_of(Config) if not any(models_in(field.annotation))}
    assert SHOWN.keys() - there == set(), "these are no settings"
    names = [
        set(re.findall(r"\w+", file.read_text("utf-8")))
        for file in (ROOT / "tests").rglob("*.py")
        if file.parent.name not in ("docs", "catalogue") and file.name not in NAMING_ALL
    ]
    asked = {path: set(path.removeprefix("routes.").split(".")[-2:]) for path in there - SHOWN.keys()}
    unnamed = {path for path, words in asked.items() if not any(words <= each for each in names)}
    # It lets a mistake pass, and is named by the suite of those alone.
    assert unnamed - {"events.sinks.shares_fast"} == set(), "show these with `@shows`"


@pytest.mark.parametrize(
    ("path", "value", "seen"),
    [
        pytest.param(path, value, seen, id=f"{path}-{value}")
        for path, (_, pairs) in SHOWN.items()
        for value, seen in pairs
    ],
)
async def test_a_setting_changes_what_is_seen(path: str, value: object, seen: object, tmp_path: Path) -> None:
    show, _ = SHOWN[path]
    assert await show(Place(tmp_path), value) == seen


async def test_what_a_route_says_of_its_service(tmp_path: Path) -> None:
    """Key by key it stands in place of what is said for all; what it leaves out is that."""
    async with RecordingUpstream() as own, house(
        sqlite_store(tmp_path),
        tmp_path,
        upstream={"host": "all.example", "key": "operation_id"},
        routes=[
            ROUTE,
            {**ROUTE, "name": "own", "match": {"path": "/own"}, "upstream": {"url": own.url, "key": "original"}},
        ],
    ) as home:  # fmt: skip
        assert status_of(await home.send("k1")) == (200, "stored")
        assert status_of(await home.send("k1", target="/own")) == (200, "stored")
        (there,), (here,) = home.upstream.requests, own.requests
        assert there.values("Host") == here.values("Host") == [b"all.example"]
        assert there.values("Idempotency-Key") == there.values("Idempotency-Operation")
        assert here.values("Idempotency-Key") == [b"k1"]


async def test_how_long_absent_keys_are_refused(tmp_path: Path) -> None:
    """After a loss, and where nothing else is said: for as long as any route remembers its keys."""
    brief = {**ROUTE, "name": "brief", "match": {"path": "/brief"}, "retention": {"replay": "1h", "remember": "1h"}}
    place = Place(tmp_path, {"routes": [ROUTE, brief]})
    async with place.house() as home:
        assert await so_long_after_a_loss(home, place, 7200) == "store-amnesia"
