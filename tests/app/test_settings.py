"""Every setting of the file does what it says in a whole gateway: changed, it changes what is seen.

`@shows(path, (value, seen), ...)` puts a setting to the test. What is shown elsewhere is named in `ELSEWHERE`. A
setting of the configuration that is in neither fails here.
"""

from __future__ import annotations

import ast
import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args
from uuid import UUID

import pytest
from pydantic import BaseModel

from gateway.app.life import StartError
from gateway.app.parts import Environment
from gateway.config import Config
from gateway.core.operation import MICROSECONDS, Snapshot, State
from gateway.store.operations import Query
from tests.support import http
from tests.support.accepting import ASYNC, accepting
from tests.support.clocks import Clocks
from tests.support.eventually import eventually
from tests.support.faulty_store import FaultyStore, refused
from tests.support.house import BODY, ROUTE, House, house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer, RecordingUpstream

ROOT = Path(__file__).parents[2]
# Longer than a machine that is busy needs, and far shorter than what is waited for where it is to be seen.
MOMENT_SECONDS = 1.5
AT_ONCE: dict[str, Any] = {"in_flight": {"wait": "0s"}}
FORTY_BYTES = "x" * 40


@dataclass
class Place:
    """An empty directory, and the clocks of whatever runs in it."""

    directory: Path
    clocks: Clocks

    def house(self, **changes: Any) -> AbstractAsyncContextManager[House]:
        """A gateway on these clocks."""
        options = {"surround": self.clocks.surround} | changes
        return house(sqlite_store(self.directory), self.directory, **options)

    def later(self, upstream: RecordingUpstream, **changes: Any) -> AbstractAsyncContextManager[House]:
        """Another gateway on the same data, on this host."""
        options = {"surround": self.clocks.surround} | changes
        return neighbour(sqlite_store(self.directory), self.directory, upstream, **options)


Show = Callable[[Place, Any], Awaitable[object]]
SHOWN: dict[str, tuple[Show, tuple[tuple[Any, object], ...]]] = {}


def shows(path: str, *pairs: tuple[Any, object]) -> Callable[[Show], Show]:
    """The function gives what is seen with a value of this setting; each pair is a value and what it must give."""
    assert len({repr(seen) for _, seen in pairs}) > 1, f"nothing is seen to change by {path}"

    def decorate(show: Show) -> Show:
        assert path not in SHOWN
        SHOWN[path] = show, pairs
        return show

    return decorate


async def is_over(task: asyncio.Task[Any]) -> bool:
    """Whether it ends in a moment."""
    done, _ = await asyncio.wait((task,), timeout=MOMENT_SECONDS)
    return bool(done)


async def _verdict(place: Place, changes: dict[str, Any], *sent: Any, **options: Any) -> str | None:
    """What one request gets of a gateway with these settings."""
    async with place.house(**changes) as home:
        return status_of(await home.send(*sent, **options))[1]


# -- the stores ------------------------------------------------------------------------------------------------------


@shows("store.lease", ("10s", "in-doubt"), ("60s", "in-flight"))
async def of_a_gateway_that_stands_still(place: Place, lease: str) -> object:
    store = {"lease": lease, "journal_grace": "1h"}
    async with (
        place.house(surround=place.clocks.frozen, store=store) as owner,
        neighbour(
            sqlite_store(place.directory), place.directory / "n", owner.upstream,
            surround=place.clocks.surround, store=store, route=AT_ONCE,
        ) as other,
    ):  # fmt: skip
        task, hold = await owner.begin()
        place.clocks.pass_time(20, other)
        verdict = status_of(await other.send())[1]
        hold.set()
        await task
        return verdict


shows("store.amnesia_window", ("1m", "stored"), ("1h", "store-amnesia"))(
    lambda p, v: _so_long_after_a_loss(p, 120, store={"amnesia_window": v})
)


async def _so_long_after_a_loss(place: Place, seconds: float, **changes: Any) -> str | None:
    async with place.house(**changes) as home:
        assert status_of(await home.send("before"))[1] == "stored"
        await home.gateway.stop()
        for file in (place.directory / "store").iterdir():
            file.unlink()
        async with place.later(home.upstream, **changes) as later:
            assert status_of(await later.send())[1] == "store-amnesia"
            place.clocks.pass_time(seconds, later)
            return status_of(await later.send())[1]


shows("store.cache_max_age", ("10s", 0), ("1m", 1), ("0s", 0))(
    lambda p, v: _answered_from_memory(p, 20, cache_max_age=v)
)
shows("store.cache_bytes", ("0", 0), ("64MiB", 1))(lambda p, v: _answered_from_memory(p, 0, cache_bytes=v))


async def _answered_from_memory(place: Place, seconds: float, **store: str) -> int:
    async with place.house(store=store) as home:
        await home.send()
        place.clocks.pass_time(seconds, home)
        assert status_of(await home.send())[1] == "replayed"
        return home.gateway._store.stats.cache_hits


@shows("store.clear_keys", (True, "k1"), (False, None))
async def key_of_the_record(place: Place, is_clear: bool) -> object:
    async with place.house(store={"clear_keys": is_clear}) as home:
        await home.send("k1")
        (operation,) = home.upstream.requests[-1].values("Idempotency-Operation")
        record = (await home.gateway._store.read(UUID(operation.decode()))).record
        assert record is not None
        key = record.identity.key
        return key.decode() if isinstance(key, bytes) else key


# -- limits and the end ----------------------------------------------------------------------------------------------


@shows("limits.max_header_bytes", ("1KiB", 431), ("64KiB", 200))
async def with_a_long_field(place: Place, size: str) -> object:
    async with place.house(limits={"max_header_bytes": size}) as home:
        return (await home.send(headers=[("X-Long", "x" * 2000)])).status


@shows("shutdown.delay", ("0s", None), ("30s", 200))
async def while_it_is_stopping(place: Place, delay: str) -> object:
    async with place.house(shutdown={"delay": delay, "drain_timeout": "1s"}) as home:
        stopping = asyncio.create_task(home.gateway.stop())
        await eventually(lambda: home.gateway.health.draining)
        await asyncio.wait((stopping,), timeout=0.2)
        try:
            status = (await home.send()).status
        except OSError:
            status = None
        home.gateway.skip_delay()
        await stopping
        return status


@shows("shutdown.drain_timeout", ("0s", "in-doubt"), ("30s", "stored"))
async def of_what_is_in_flight_at_a_stop(place: Place, seconds: str) -> object:
    async with place.house(shutdown={"delay": "0s", "drain_timeout": seconds}) as home:
        task, hold = await home.begin()
        stopping = asyncio.create_task(home.gateway.stop())
        assert await is_over(stopping) == (seconds == "0s")
        hold.set()
        await stopping
        return status_of(await task)[1]


# -- callers and hops ------------------------------------------------------------------------------------------------


@shows("trusted_proxies", (["127.0.0.0/8"], b"192.0.2.9, 127.0.0.1"), (["10.0.0.0/8"], b"127.0.0.1"))
async def forwarded_for(place: Place, networks: list[str]) -> object:
    async with place.house(trusted_proxies=networks) as home:
        await home.send(headers=[("X-Forwarded-For", "192.0.2.9")])
        return b", ".join(home.upstream.requests[-1].values("X-Forwarded-For"))


shows("routes.scope.from", ("any", "stored"), (["127.0.0.0/8"], "stored"), (["10.0.0.0/8"], "scope-missing"))(
    lambda p, v: _verdict(p, {"route": {"scope": {"header": "X-Tenant", "from": v}}})
)
shows("routes.scope.compose.from", ("any", "stored"), (["10.0.0.0/8"], "scope-missing"))(
    lambda p, v: _verdict(
        p,
        {"route": {"scope": {"compose": [{"header": "X-Tenant", "from": v}, {"api_key": "X-Api-Key"}]}}},
        headers=[("X-Api-Key", "s3cret")],
    )
)
shows("routes.key.required", (True, "key-missing"), (False, "unkeyed"))(
    lambda p, v: _verdict(p, {"route": {"key": {"header": "Idempotency-Key", "required": v}}}, None)
)
shows("routes.key.format", ("any", "stored"), ("uuid", "key-invalid"))(
    lambda p, v: _verdict(p, {"route": {"key": {"header": "Idempotency-Key", "required": True, "format": v}}}, "k1")
)


# -- sameness --------------------------------------------------------------------------------------------------------


async def _repeated_with(place: Place, fingerprint: dict[str, Any], first: bytes, second: bytes, **options: Any) -> str:
    async with place.house(route={"fingerprint": fingerprint}) as home:
        await home.send(body=first)
        return str(status_of(await home.send(body=second, **options))[1])


shows("routes.fingerprint.body", ("json", "replayed"), ("raw", "key-reused"), ("none", "replayed"))(
    lambda p, v: _repeated_with(p, {"body": v}, b'{"a":1,"b":2}', b'{"b": 2, "a": 1}')
)
shows("routes.fingerprint.ignore", ([], "key-reused"), (["/at"], "replayed"))(
    lambda p, v: _repeated_with(p, {"ignore": v}, b'{"a":1,"at":1}', b'{"a":1,"at":2}')
)
shows("routes.fingerprint.only", (["/a", "/at"], "key-reused"), (["/a"], "replayed"))(
    lambda p, v: _repeated_with(p, {"only": v}, b'{"a":1,"at":1}', b'{"a":1,"at":2}')
)
shows("routes.fingerprint.headers", ([], "replayed"), (["X-Account"], "key-reused"))(
    lambda p, v: _repeated_with(p, {"headers": v}, b"{}", b"{}", headers=[("X-Account", "2")])
)


@shows("routes.fingerprint.on_recipe_change", ("refuse", "key-reused"), ("accept", "replayed"))
async def recorded_under_other_settings(place: Place, choice: str) -> object:
    async with place.house(route={"fingerprint": {"only": ["/amount"]}}) as home:
        await home.send()
        await home.gateway.stop()
        async with place.later(home.upstream, route={"fingerprint": {"on_recipe_change": choice}}) as later:
            return status_of(await later.send(body=b'{"amount":1000,"currency":"usd"}'))[1]


async def _under_another_key(place: Place, body: bytes = BODY, seconds: float = 0, **repeats: Any) -> str | None:
    async with place.house(route={"repeats": {"action": "refuse"} | repeats}) as home:
        await home.send("k1")
        place.clocks.pass_time(seconds, home)
        return status_of(await home.send("k2", body))[1]


shows("routes.repeats.action", ("count", "stored"), ("refuse", "likely-duplicate"))(
    lambda p, v: _under_another_key(p, action=v)
)
shows("routes.repeats.by", ("fingerprint", "stored"), (["/amount"], "likely-duplicate"))(
    lambda p, v: _under_another_key(p, BODY.replace(b"eur", b"usd"), by=v)
)
shows("routes.repeats.within", ("10s", "stored"), ("1h", "likely-duplicate"))(
    lambda p, v: _under_another_key(p, seconds=60, within=v)
)


# -- duplicates ------------------------------------------------------------------------------------------------------


async def _duplicate(place: Place, in_flight: dict[str, Any], **options: Any) -> tuple[int, str | None]:
    """What a duplicate gets: at once, or else after the first request has ended."""
    async with place.house(route={"in_flight": in_flight}) as home:
        first, hold = await home.begin()
        second = asyncio.create_task(home.send(**options))
        if not await is_over(second):
            hold.set()
        await second
        hold.set()
        await first
        return status_of(await second)


shows("routes.in_flight.wait", ("0s", (409, "in-flight")), ("30s", (200, "replayed")))(
    lambda p, v: _duplicate(p, {"wait": v})
)
shows("routes.in_flight.max_wait", ("100ms", (409, "in-flight")), ("30s", (200, "replayed")))(
    lambda p, v: _duplicate(p, {"wait": "0s", "max_wait": v}, headers=[("Prefer", "wait=20")])
)
shows("routes.in_flight.status", (409, (409, "in-flight")), (429, (429, "in-flight")))(
    lambda p, v: _duplicate(p, {"wait": "0s", "status": v})
)


# -- outcomes and retention ------------------------------------------------------------------------------------------


async def _answered(place: Place, status: int, **outcome: Any) -> str | None:
    secrets = {"fingerprint_key": {"id": "k1", "key": FORTY_BYTES}}
    route = {"outcome": {"preset": "standard"} | outcome}
    async with place.house(route=route, secrets=secrets) as home:
        home.upstream.on("/charges", Answer(status))
        return status_of(await home.send())[1]


shows("routes.outcome.preset", ("standard", "stored"), ("success_only", "released"))(
    lambda p, v: _answered(p, 422, preset=v)
)
shows("routes.outcome.final", ([], "released"), ([503], "stored"))(lambda p, v: _answered(p, 503, final=v))
shows("routes.outcome.retryable", ([], "stored"), ([404], "released"))(lambda p, v: _answered(p, 404, retryable=v))
shows("routes.outcome.in_doubt", ([], "stored"), (["2xx"], "in-doubt"))(lambda p, v: _answered(p, 200, in_doubt=v))


async def _fields_of_a_replay(place: Place, response: dict[str, Any]) -> dict[str, str | None]:
    fields = (("Content-Type", "text/plain"), ("X-Trace", "1"), ("Set-Cookie", "a=b"))
    async with place.house(route={"response": response}) as home:
        home.upstream.on("/charges", Answer(headers=fields))
        await home.send()
        again = await home.send()
        assert status_of(again)[1] == "replayed"
        return {name: again.header(name) for name in ("X-Trace", "Set-Cookie")}


@shows("routes.response.strip", ([], "1"), (["X-Trace"], None))
async def replayed_with_a_field(place: Place, names: list[str]) -> object:
    return (await _fields_of_a_replay(place, {"strip": names}))["X-Trace"]


@shows("routes.response.keep", ([], None), (["Set-Cookie"], "a=b"))
async def replayed_with_a_cookie(place: Place, names: list[str]) -> object:
    return (await _fields_of_a_replay(place, {"keep": names}))["Set-Cookie"]


async def _again_after(place: Place, seconds: float, **retention: Any) -> tuple[int, str | None]:
    async with place.house(route={"retention": retention}) as home:
        await home.send()
        place.clocks.pass_time(seconds, home)
        return status_of(await home.send())


shows("routes.retention.replay", ("10s", (410, "key-expired")), ("1h", (200, "replayed")))(
    lambda p, v: _again_after(p, 60, replay=v)
)
shows("routes.retention.remember", ("30s", (200, "stored")), ("1h", (410, "key-expired")))(
    lambda p, v: _again_after(p, 60, replay="10s", remember=v)
)


# -- requests --------------------------------------------------------------------------------------------------------


@shows("routes.body.spool_over", ("0", 1), ("1KiB", 0))
async def files_open_for_a_body(place: Place, size: str) -> object:
    async with place.house(route={"body": {"spool_over": size}}) as home:
        task, hold = await home.begin()
        spool = str(place.directory / "state" / "spool")
        count = sum(target.startswith(spool) for target in _open_files())
        hold.set()
        await task
        return count


def _open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return found


# -- the service -----------------------------------------------------------------------------------------------------


@shows("upstream.connect_timeout", ("200ms", True), ("30s", False))
async def refused_by_nobody(place: Place, seconds: str) -> object:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with place.house(upstream={"url": url, "connect_timeout": seconds}) as home:
            task = asyncio.create_task(home.send())
            is_refused = await is_over(task)
            listener.close()
            for filler in fillers:
                filler.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return is_refused


@shows("upstream.keepalive", ("0s", False), ("10s", True))
async def sent_on_a_used_connection(place: Place, seconds: str) -> object:
    async with place.house(upstream={"keepalive": seconds}) as home:
        for number in range(60):
            await home.send(f"k{number}")
            (stats,) = home.gateway._upstreams.stats.values()
            if stats.reused:
                return True
            await asyncio.sleep(MOMENT_SECONDS / 60)
        return False


@shows("upstream.host", ("preserve", b"shop.example"), ("upstream", None), ("other.example", b"other.example"))
async def host_that_the_service_gets(place: Place, host: str) -> object:
    async with place.house(upstream={"host": host}) as home:
        await home.send(headers=[("Host", "shop.example")])
        (got,) = home.upstream.requests[-1].values("Host")
        return None if got == f"127.0.0.1:{home.upstream.port}".encode() else got


@shows("upstream.key", ("original", "the caller's"), ("operation_id", "the operation's"), ("none", "none"))
async def key_that_the_service_gets(place: Place, key: str) -> object:
    async with place.house(upstream={"key": key}) as home:
        await home.send("k1")
        request = home.upstream.requests[-1]
        keys = request.values("Idempotency-Key")
        return {(): "none", (b"k1",): "the caller's"}.get(
            tuple(keys), "the operation's" if keys == request.values("Idempotency-Operation") else "another"
        )


# -- what is accepted and delivered later ------------------------------------------------------------------------------


@asynccontextmanager
async def _accepted(place: Place, status: int, delivery: dict[str, Any]) -> AsyncIterator[House]:
    """A gateway that has accepted a request, which its service answers with this status."""
    changes = accepting(delivers=True) | {"delivery": delivery, "surround": lambda environment: environment}
    async with place.house(**changes) as home:
        home.upstream.on("/charges", Answer(status))
        assert (await home.send(headers=[ASYNC])).status == 202
        yield home


async def _sent_in_a_moment(home: House, count: int) -> int:
    with suppress(AssertionError):
        await home.upstream.wait_for_requests(count, MOMENT_SECONDS)
    return min(len(home.upstream.requests), count)


async def _after_an_attempt(home: House) -> Snapshot:
    await home.upstream.wait_for_requests(1)
    undelivered = Query(frozenset((State.ACCEPTED, State.DEAD_LETTER)))
    found: list[Snapshot] = []

    async def is_over() -> bool:
        found[:] = await home.gateway._store.cold.find(undelivered)
        return bool(found)

    await eventually(is_over, what="the attempt is over")
    return found[0]


@shows("delivery.workers", (0, 0), (1, 1))
async def sent_by_this_gateway(place: Place, workers: int) -> object:
    async with _accepted(place, 200, {"workers": workers}) as home:
        return await _sent_in_a_moment(home, 1)


@shows("delivery.schedule", (["1h"], 1), (["24h"], 24))
async def hours_until_the_next_attempt(place: Place, pauses: list[str]) -> object:
    async with _accepted(place, 503, {"schedule": pauses}) as home:
        snapshot = await _after_an_attempt(home)
        assert snapshot.record is not None
        assert snapshot.record.delivery is not None
        # At least the second half of the pause.
        pause_us = snapshot.record.delivery.next_attempt_us - snapshot.record.claimed_us
        return 24 if pause_us > 2 * 3600 * MICROSECONDS else 1


@shows("delivery.deliver_within", ("1m", "dead_letter"), ("1h", "accepted"))
async def after_two_minutes(place: Place, seconds: str) -> object:
    async with place.house(**accepting() | {"delivery": {"workers": 0, "deliver_within": seconds}}) as home:
        await home.send(headers=[ASYNC])
        place.clocks.pass_time(120, home)
        (found,) = await home.gateway._store.cold.find(Query(frozenset(State)))
        return str(found.state)


@shows("routes.accept.headers", ({}, [b"Bearer ours"]), ({"Authorization": "Bearer its"}, [b"Bearer its"]))
async def credentials_of_a_delivery(place: Place, headers: dict[str, str]) -> object:
    async with place.house(**accepting(delivers=True, accept={"headers": headers})) as home:
        await home.send(headers=[("Prefer", "respond-async, wait=9"), ("Authorization", "Bearer ours")])
        return home.upstream.requests[0].values("Authorization")


# -- answers of the gateway's own ------------------------------------------------------------------------------------


@shows("routes.errors", ("problem", (422, "application/problem+json")), ("stripe", (400, "application/json")))
async def refusal_of_another_request(place: Place, shape: str) -> object:
    async with place.house(route={"errors": shape}) as home:
        await home.send()
        answer = await home.send(body=b"other")
        return answer.status, str(answer.header("Content-Type")).partition(";")[0]


@shows("routes.mismatch_status", (422, 422), (409, 409), (400, 400))
async def status_of_another_request(place: Place, status: int) -> object:
    async with place.house(route={"mismatch_status": status}) as home:
        await home.send()
        return (await home.send(body=b"other")).status


@shows("routes.store_unavailable", ("refuse", "store-unavailable"), ("forward", "unprotected"))
async def without_a_store(place: Place, choice: str) -> object:
    made: list[FaultyStore] = []

    def surround(environment: Environment) -> Environment:
        environment = place.clocks.surround(environment)
        made.append(FaultyStore(environment.durable))
        return replace(environment, durable=made[0])

    async with place.house(surround=surround, route={"store_unavailable": choice}) as home:
        made[0].break_("claim", "read", fault=refused())
        return status_of(await home.send())[1]


@shows("routes.identity_change", ("refuse", False), ("accept", True))
async def started_with_another_scope(place: Place, choice: str) -> object:
    async with place.house() as home:
        await home.send()
        await home.gateway.stop()
        route = {"scope": {"api_key": "X-Api-Key"}, "identity_change": choice}
        try:
            async with place.later(home.upstream, route=route):
                return True
        except StartError:
            return False


@shows("admin.token", (None, False), ("0123456789abcdef", True))
async def operators_are_listened_to(place: Place, token: str | None) -> object:
    admin = {"listen": "127.0.0.1:0"} | ({} if token is None else {"token": token})
    async with place.house(admin=admin) as home:
        port = home.gateway.admin_address[1]
        return port != 0 and (await http.request(port, "GET", "/v1/operations")).status == 401


# -- all of them -----------------------------------------------------------------------------------------------------

# By file, and by test: the settings, of which those that stand in one section share its name.
_ELSEWHERE: Final = """
integration/test_joining.py
  only_what_needs_a_grant_waits: store.probation
observe/test_tracing.py
  a_request_and_its_attempt: traces.endpoint,headers
  calls_of_the_store_by_choice: traces.detail
  a_stranger_decides_nothing: traces.sample,accept
http/gateway/test_recovery.py
  a_service_asks_about_its_own_operations_alone: service
app/test_gateway.py
  an_address_that_is_taken: listen.address status.listen admin.listen
  the_name_of_its_directory_is_durable: state_dir
http/gateway/test_tls.py
  both_sides: listen.tls.cert,key upstream.tls.ca
http/gateway/test_regions.py
  a_key_runs_once_whichever_region_it_meets: regions.here regions.homes.url
  living_keys_keep_their_homes: regions.homes.name
  tls_between_regions: regions.homes.tls.ca,cert,key,server_name
  regions_that_disagree_execute_nothing: regions.key
http/gateway/test_observe.py
  a_mode_for_all_routes: mode observe.header
  nobody_notices: routes.mode
  enforcing_starts_with_no_memory: routes.mode_change
  a_key_stays_on_its_side: routes.enforce_share
http/gateway/test_resource.py
  an_absent_member_counts_as_its_default: routes.fingerprint.defaults
  outcome_by_body: routes.outcome.when.is,status,where
  a_reference_stays_in_its_segment: routes.response.fetch
  another_version_by_a_header: routes.response.on_version_change routes.response.version.header
  resource_of_a_response_that_is_not_kept: routes.response.reference
  a_repeat_is_fetched_by_its_own_caller: routes.response.replay
admin/test_pages.py
  a_change_needs_its_role: admin.tokens.name,token,role
  hosts: admin.hosts
admin/test_sign_in.py
  a_reload_changes_roles: admin.sign_in.secret
  a_spoofed_header: admin.sign_in.proxy.from
  a_proxy_names_a_person: admin.sign_in.proxy.name
  the_role_of_a_name: admin.sign_in.proxy.groups
  the_role_of_a_group: admin.sign_in.proxy.roles.viewer,operator,admin
  a_token_names_a_person: admin.sign_in.jwt.header,groups,claims admin.sign_in.jwt.roles.operator
  a_token_that_names_nobody: admin.sign_in.jwt.roles.viewer admin.sign_in.jwt.issuer,audience
  a_session_ends_with_its_token: admin.sign_in.jwt.roles.admin admin.sign_in.jwt.leeway
http/gateway/test_tokens.py
  keys_from_elsewhere: admin.sign_in.jwt.keys.secret admin.sign_in.jwt.algorithms routes.scope.jwt.keys.secret
    routes.scope.jwt.algorithms
  a_private_authority: admin.sign_in.jwt.ca routes.scope.jwt.ca
  an_issuer_that_is_away: admin.sign_in.jwt.stale_for routes.scope.jwt.stale_for
  callers_are_told_apart: routes.scope.jwt.issuer,claims
  what_is_no_token_of_ours_gets_nothing: routes.scope.jwt.audience
  a_refreshed_token_is_the_same_caller: routes.scope.jwt.leeway
http/gateway/test_verdicts.py
  rule_11_response_not_stored: routes.response.max_stored_bytes
  waiters_are_bounded: routes.in_flight.max_waiters
  rule_6_body_too_large: routes.body.max_bytes
  status_header_can_be_switched_off: routes.status_header
  rule_1_and_4_what_no_route_protects_passes: upstream.url
  rule_10_replayed: store.durable,fast
  body_key_before_scope: routes.key.body
  rules_2_to_7_refuse_before_anything_is_sent: routes.key.header routes.scope.header routes.scope.api_key
http/gateway/test_advice.py
  each_verdict_with_each_status: routes.retention.expired_status limits.max_in_flight
  a_problem_of_the_status_resource: errors.type_base
http/upstream/test_tls.py
  a_client_certificate_is_shown: upstream.tls.cert,key
  a_certificate_for_somebody_else_sent_nothing: upstream.tls.server_name
store/test_portable.py
  the_configured_dialect: store.dialect
app/test_start.py
  what_is_accepted_of_the_server_is_loud_at_the_start: store.durability
store/test_postgres.py
  how_many_connections_a_gateway_has: store.connections
store/test_redis_alone.py
  replicas_that_nobody_counted: store.replicas
store/test_postgres_members.py
  the_operators_word: store.promotion
  who_has_not_spoken_is_named: store.promotion_wait
  one_that_needs_a_synchronous_standby: store.synchronous
http/gateway/test_times.py
  lapsed_claim_waits_for_its_owners_journal: store.journal_grace
  a_404_frees_the_key_once_no_request_can_arrive: routes.recovery.probe.never_happened.status
    routes.recovery.probe.settle
config/test_values.py
  secrets_come_current_first: secrets.identity_key.id
http/gateway/test_identity_change.py
  another_identity_key: secrets.identity_key.key
  a_fingerprint_key_that_is_lost: secrets.fingerprint_key.id,key
http/gateway/test_encryption.py
  a_rotation: secrets.unreadable
protect/test_kept.py
  an_old_key_opens_and_does_not_seal: secrets.encryption.id,key
http/gateway/test_accept.py
  what_a_caller_gets_whose_request_is_kept: public_url
  who_is_accepted: routes.accept.mode
  only_short_bodies_are_kept: routes.accept.max_bytes
  a_full_backlog_takes_nothing_new: routes.accept.max_pending,max_pending_per_scope
  many_bytes_take_nothing_new: routes.accept.max_pending_bytes
  a_dead_letter_is_requeued_by_a_repeat_where_the_route_says_so: routes.dead_letter.on_repeat,requeue_after
http/gateway/test_cors.py
  a_replay_to_another_origin: cors.origins
  a_problem_of_the_gateway: cors.credentials
http/gateway/test_status.py
  the_path_is_the_gateways_where_it_needs_one: operations.path
  a_route_may_refuse_withdrawals: routes.accept.withdraw
core/test_breaker.py
  failures_in_a_row_open_it: delivery.breaker.failures
  each_opening_is_twice_as_long: delivery.breaker.open,max_open
config/test_mistakes.py
  a_mistake: routes.accept.identity events.sinks.shares_fast
config/test_values.py
  a_route_overrides_the_delivery_of_all:
    routes.delivery.schedule,deliver_within,max_answers,max_in_flight,unauthorized
http/gateway/test_order.py
  by_a_header: routes.order.by.header
  a_dead_letter: routes.order.on_stop
  a_request_without_the_value: routes.order.missing
observe/test_logs.py
  the_level_holds_for_facts: log.level
  a_request_is_one_line_that_can_be_read: log.format
  the_configuration_says_which_requests_get_a_line: log.requests
integration/test_workers.py
  both_serve: workers
observe/test_whole.py
  the_books_balance: routes.name
core/test_identity.py
  route_identifies_nothing: routes.operation
core/test_routing.py
  method_and_host_decide: routes.match.methods,host
  pattern: routes.match.path
http/gateway/test_spellings.py
  spellings_that_the_file_lists: routes.match.also unprotected.methods,path,host
core/test_identity_key.py
  first_alias_present: routes.key.headers
  composed_of_headers: routes.key.compose.header
  composed_of_body: routes.key.compose.body
core/test_identity_scope.py
  composed: routes.scope.compose.header,api_key
http/gateway/test_tls.py
  certificates_that_are_not_accepted: listen.tls.client_ca,client_certificate
  a_caller_by_its_name: routes.scope.client_certificate
http/gateway/test_forward_auth.py
  the_question: routes.scope.forward_auth.url
  the_principal_is_the_caller: routes.scope.forward_auth.principal
  the_question: routes.scope.forward_auth.headers
  what_the_service_gets: routes.scope.forward_auth.copy
  no_decision: routes.scope.forward_auth.timeout
  a_remembered_permission: routes.scope.forward_auth.cache
  over_tls: routes.scope.forward_auth.ca
http/gateway/test_recovery.py
  probe_finds_what_happened: routes.recovery.probe.path,headers
  retries_keep_no_answer_back: routes.recovery.probe.done.status,where
  probe_follows: routes.recovery.probe.follow
  streams_of_others_keep_no_operation_and_no_probe_out: upstream.max_connections
core/test_recovery.py
  what_an_answer_means: routes.recovery.probe.method routes.recovery.probe.never_happened.where
app/test_settings.py
  what_a_route_says_of_its_service:
    routes.upstream.host,connect_timeout,answer_within,response_timeout,keepalive,max_connections,key,url
    routes.upstream.tls.ca,cert,key,server_name
http/gateway/test_inbox.py
  accepted_and_delivered_once: routes.inbox.preset
  what_is_not_genuine_leaves_a_counter: routes.inbox.secrets.id,key
  what_cannot_be_an_event: routes.inbox.tolerance
  a_late_delivery_is_signed_again: routes.inbox.sign_again
  the_gateway_signs_deliveries_by_itself: routes.inbox.as
  ids_that_are_not_signed: routes.inbox.replay_guard
  what_a_repeat_does_where_the_route_says_so: routes.inbox.on_change
  the_handshake_of_cloud_events: routes.inbox.cloudevents.origins
  a_sender_without_a_preset: routes.inbox.hmac.header,prefix,signed,digest,encoding,id,timestamp
  what_a_sender_without_a_preset_says_beside_the_body: routes.inbox.hmac.about
core/test_inbox.py
  every_living_secret_is_tried: routes.inbox.secrets.until
  the_gateway_signs_what_nobody_else_can: routes.inbox.signing_secrets.id,key,until
config/test_values.py
  cloud_events_under_another_signature: routes.inbox.cloudevents.signature
config/test_values.py
  what_a_sink_receives: events.types,include events.sinks.name,types,routes,include,kind
  each_setting_reaches_its_sink: events.source,keep,max_event_bytes egress.allow,deny,ports,https_only
    events.sinks.url,format,stream,fsync,window,max_length,max_age,servers,subject,user,password,ordered,topic,idempotence,tls,ca,mechanism
    events.sinks.secrets.id,key,until
events/test_egress.py
  a_proxy_is_connected_to_and_not_checked: egress.proxy
http/gateway/test_encryption.py
  only_the_first_request_gets_the_values: routes.response.redact
http/gateway/test_likely_duplicates.py
  a_mismatch_is_explained: routes.fingerprint.explain
deliver/test_worker.py
  no_more_than_places: delivery.max_in_flight
  what_an_attempt_comes_to: delivery.unauthorized
  the_reason_of_a_dead_letter: delivery.max_answers
http/gateway/test_outcomes.py
  client_time_is_over_and_the_attempt_goes_on: upstream.answer_within
  silence_is_never_nothing: upstream.response_timeout
"""


def _elsewhere() -> Iterator[tuple[str, str]]:
    file = ""
    for line in re.sub(r"\n {4}", " ", _ELSEWHERE).strip().split("\n"):
        if not line.startswith(" "):
            file = line
            continue
        test, _, paths = line.strip().partition(": ")
        for section, _, names in (path.rpartition(".") for path in paths.split()):
            for name in names.split(","):
                yield f"{section}.{name}".lstrip("."), f"tests/{file}::test_{test}"


ELSEWHERE: Final = dict(_elsewhere())


def _settings(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key of the file that has a value of its own."""
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}".lstrip(".")
        sections = list(_sections(field.annotation))
        if not sections:
            yield here
        for section in sections:
            yield from _settings(section, here)


def _sections(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in get_args(kind):
        yield from _sections(argument)


def test_every_setting_is_shown() -> None:
    """Whoever adds a setting shows what it changes."""
    # A part of a composed scope has the settings of the whole one, and so has who authorizes.
    shared = {"scope.compose.jwt.": "scope.jwt.", "scope.compose.client_certificate": "scope.client_certificate"}
    shared |= dict.fromkeys(("scope.compose.forward_auth.", "authorize.forward_auth."), "scope.forward_auth.")
    there = set(_settings(Config))
    for here, whole in shared.items():
        there = {name.replace(f"routes.{here}", f"routes.{whole}") for name in there}
    assert there - SHOWN.keys() - ELSEWHERE.keys() == set(), "show these with `@shows`"
    assert (SHOWN.keys() | ELSEWHERE.keys()) - there == set(), "these are no settings"
    assert SHOWN.keys() & ELSEWHERE.keys() == set()


@pytest.mark.parametrize("place", sorted(set(ELSEWHERE.values())))
def test_what_is_shown_elsewhere_is_there(place: str) -> None:
    """The test that is named for a setting exists."""
    file, _, name = place.partition("::")
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    body = ast.parse((ROOT / file).read_text("utf-8")).body
    assert name in {node.name for node in body if isinstance(node, functions)}


@pytest.mark.parametrize(
    ("path", "value", "seen"),
    [
        pytest.param(path, value, seen, id=f"{path}-{value}")
        for path, (_, pairs) in SHOWN.items()
        for value, seen in pairs
    ],
)
async def test_a_setting_changes_what_is_seen(path: str, value: object, seen: object, tmp_path: Path) -> None:
    """With this value a whole gateway does this."""
    show, _ = SHOWN[path]
    assert await show(Place(tmp_path, Clocks(tmp_path)), value) == seen


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
    retention = {"replay": "1h", "remember": "1h"}
    routes = [ROUTE, {**ROUTE, "name": "brief", "match": {"path": "/brief"}, "retention": retention}]
    place = Place(tmp_path, Clocks(tmp_path))
    assert await _so_long_after_a_loss(place, 7200, routes=routes) == "store-amnesia"
