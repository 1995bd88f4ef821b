"""Every setting of the file does what it says in a whole gateway: changed, it changes what is seen.

`@shows(path, (value, seen), ...)` puts a setting to the test. What is shown elsewhere is named in `ELSEWHERE`. A
setting of the configuration that is in neither fails here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from gateway.app.life import StartError
from gateway.app.parts import Environment
from gateway.config import Config
from gateway.core.operation import MICROSECONDS, Snapshot, State
from gateway.store.operations import Query
from tests.app.test_gateway import open_files
from tests.config.support import models_in, settings_of
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


@shows("routes.key.required", (True, "key-missing"), (False, "unkeyed"))
async def verdict_without_a_key(home: House, place: Place) -> object:
    return await verdict(home, place, key=None)


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


@shows("store.clear_keys", (True, "k1"), (False, None))
async def key_of_the_record(home: House, _: Place) -> object:
    await home.send("k1")
    (operation,) = home.upstream.requests[-1].values("Idempotency-Operation")
    record = (await home.gateway._store.read(UUID(operation.decode()))).record
    assert record is not None
    key = record.identity.key
    return key.decode() if isinstance(key, bytes) else key


# -- limits, the end, and hops ---------------------------------------------------------------------------------------


@shows("limits.max_header_bytes", ("1KiB", 431), ("64KiB", 200))
async def with_a_long_field(home: House, _: Place) -> object:
    return (await home.send(headers=[("X-Long", "x" * 2000)])).status


@shows("shutdown.delay", ("0s", None), ("30s", 200), shutdown={"drain_timeout": "1s"})
async def while_it_is_stopping(home: House, _: Place) -> object:
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


@shows("shutdown.drain_timeout", ("0s", (True, "in-doubt")), ("30s", (False, "stored")), shutdown={"delay": "0s"})
async def of_what_is_in_flight_at_a_stop(home: House, _: Place) -> object:
    """Whether the stop is over at once, and what the request gets."""
    task, hold = await home.begin()
    stopping = asyncio.create_task(home.gateway.stop())
    is_at_once = await is_over(stopping)
    hold.set()
    await stopping
    return is_at_once, status_of(await task)[1]


@shows("trusted_proxies", (["127.0.0.0/8"], b"192.0.2.9, 127.0.0.1"), (["10.0.0.0/8"], b"127.0.0.1"))
async def forwarded_for(home: House, _: Place) -> object:
    await home.send(headers=[("X-Forwarded-For", "192.0.2.9")])
    return b", ".join(home.upstream.requests[-1].values("X-Forwarded-For"))


# -- sameness and duplicates -----------------------------------------------------------------------------------------


def repeated_with(first: bytes, second: bytes, *headers: tuple[str, str]) -> Scene:
    """What a key gets that comes again with another body, and these headers."""

    async def scene(home: House, _: Place) -> object:
        await home.send(body=first)
        return status_of(await home.send(body=second, headers=headers))[1]

    return scene


_SAME_JSON = repeated_with(b'{"a":1,"b":2}', b'{"b": 2, "a": 1}')
_ANOTHER_TIME = repeated_with(b'{"a":1,"at":1}', b'{"a":1,"at":2}')
_ANOTHER_ACCOUNT = repeated_with(b"{}", b"{}", ("X-Account", "2"))
shows("routes.fingerprint.body", ("json", "replayed"), ("raw", "key-reused"), ("none", "replayed"))(_SAME_JSON)
shows("routes.fingerprint.ignore", ([], "key-reused"), (["/at"], "replayed"))(_ANOTHER_TIME)
shows("routes.fingerprint.only", (["/a", "/at"], "key-reused"), (["/a"], "replayed"))(_ANOTHER_TIME)
shows("routes.fingerprint.headers", ([], "replayed"), (["X-Account"], "key-reused"))(_ANOTHER_ACCOUNT)


@shows_alone("routes.fingerprint.on_recipe_change", ("refuse", "key-reused"), ("accept", "replayed"))
async def recorded_under_other_settings(place: Place, choice: str) -> object:
    async with place.house(route={"fingerprint": {"only": ["/amount"]}}) as home:
        await home.send()
        await home.gateway.stop()
        async with place.later(home.upstream, route={"fingerprint": {"on_recipe_change": choice}}) as later:
            return status_of(await later.send(body=b'{"amount":1000,"currency":"usd"}'))[1]


REFUSED = {"repeats": {"action": "refuse"}}


@shows("routes.repeats.action", ("count", "stored"), ("refuse", "likely-duplicate"))
async def under_another_key(home: House, place: Place, body: bytes = BODY, seconds: float = 0) -> object:
    await home.send("k1")
    place.clocks.pass_time(seconds, home)
    return status_of(await home.send("k2", body))[1]


@shows("routes.repeats.by", ("fingerprint", "stored"), (["/amount"], "likely-duplicate"), route=REFUSED)
async def under_another_key_in_part(home: House, place: Place) -> object:
    return await under_another_key(home, place, BODY.replace(b"eur", b"usd"))


@shows("routes.repeats.within", ("10s", "stored"), ("1h", "likely-duplicate"), route=REFUSED)
async def under_another_key_later(home: House, place: Place) -> object:
    return await under_another_key(home, place, seconds=60)


AT_ONCE = {"in_flight": {"wait": "0s"}}


@shows("routes.in_flight.wait", ("0s", (409, "in-flight")), ("30s", (200, "replayed")))
@shows("routes.in_flight.status", (409, (409, "in-flight")), (429, (429, "in-flight")), route=AT_ONCE)
async def duplicate(home: House, _: Place, **options: Any) -> object:
    """What it gets: at once, or else after the first request has ended."""
    first, hold = await home.begin()
    second = asyncio.create_task(home.send(**options))
    if not await is_over(second):
        hold.set()
    await second
    hold.set()
    await first
    return status_of(await second)


@shows("routes.in_flight.max_wait", ("100ms", (409, "in-flight")), ("30s", (200, "replayed")), route=AT_ONCE)
async def duplicate_that_asks_to_wait(home: House, place: Place) -> object:
    return await duplicate(home, place, headers=[("Prefer", "wait=20")])


# -- outcomes and retention ------------------------------------------------------------------------------------------


def answered(status: int) -> Scene:
    """What a request gets whose service answers with this status."""

    async def scene(home: House, _: Place) -> object:
        home.upstream.on("/charges", Answer(status))
        return status_of(await home.send())[1]

    return scene


shows("routes.outcome.preset", ("standard", "stored"), ("success_only", "released"))(answered(422))
shows("routes.outcome.final", ([], "released"), ([503], "stored"))(answered(503))
shows("routes.outcome.retryable", ([], "stored"), ([404], "released"))(answered(404))
shows("routes.outcome.in_doubt", ([], "stored"), (["2xx"], "in-doubt"))(answered(200))


def replayed_with(name: str) -> Scene:
    """What a replay has of this header of the response."""

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


@shows_alone("upstream.connect_timeout", ("200ms", True), ("30s", False))
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


async def accept(home: House, status: int = 200) -> None:
    """Have a request accepted, which its service answers with this status."""
    home.upstream.on("/charges", Answer(status))
    assert (await home.send(headers=[ASYNC])).status == 202


DELIVERING: Final = accepting(delivers=True) | {"surround": lambda environment: environment}


@shows("delivery.workers", (0, 0), (1, 1), **DELIVERING)
async def sent_by_this_gateway(home: House, _: Place) -> object:
    await accept(home)
    with suppress(AssertionError):
        await home.upstream.wait_for_requests(1, MOMENT_SECONDS)
    return min(len(home.upstream.requests), 1)


@shows("delivery.schedule", (["1h"], 1), (["24h"], 24), **DELIVERING)
async def hours_until_the_next_attempt(home: House, _: Place) -> object:
    await accept(home, 503)
    await home.upstream.wait_for_requests(1)

    async def attempted() -> list[Snapshot]:
        return list(await home.gateway._store.cold.find(Query(frozenset((State.ACCEPTED, State.DEAD_LETTER)))))

    (snapshot,) = await eventually(attempted, what="the attempt is over")
    assert snapshot.record is not None
    assert snapshot.record.delivery is not None
    # At least the second half of the pause.
    pause_us = snapshot.record.delivery.next_attempt_us - snapshot.record.claimed_us
    return 24 if pause_us > 2 * 3600 * MICROSECONDS else 1


@shows("delivery.deliver_within", ("1m", "dead_letter"), ("1h", "accepted"), **accepting())
async def after_two_minutes(home: House, place: Place) -> object:
    await accept(home)
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


@shows("routes.errors", ("problem", (422, "application/problem+json")), ("stripe", (400, "application/json")))
async def refusal_of_another_request(home: House, _: Place) -> tuple[int, str]:
    await home.send()
    answer = await home.send(body=b"other")
    return answer.status, str(answer.header("Content-Type")).partition(";")[0]


@shows("routes.mismatch_status", (422, 422), (409, 409), (400, 400))
async def status_of_another_request(home: House, place: Place) -> object:
    return (await refusal_of_another_request(home, place))[0]


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


@shows_alone("admin.token", (None, False), ("0123456789abcdef", True))
async def operators_are_listened_to(place: Place, token: str | None) -> object:
    async with place.house(admin={"listen": "127.0.0.1:0"} | ({"token": token} if token else {})) as home:
        port = home.gateway.admin_address[1]
        return port != 0 and (await http.request(port, "GET", "/v1/operations")).status == 401


# -- all of them -----------------------------------------------------------------------------------------------------

# By file, and by test: the settings, of which those that stand in one section share its name.
_ELSEWHERE: Final = """
integration/test_joining.py only_what_needs_a_grant_waits: store.probation
observe/test_tracing.py
  a_request_and_its_attempt: traces.endpoint,headers
  calls_of_the_store_by_choice: traces.detail
  a_stranger_decides_nothing: traces.sample,accept
app/test_gateway.py
  an_address_that_is_taken: listen.address status.listen admin.listen
  the_name_of_its_directory_is_durable: state_dir
admin/test_pages.py
  a_change_needs_its_role: admin.tokens.name,token,role
  hosts: admin.hosts
admin/test_sign_in.py
  a_reload_changes_roles: admin.sign_in.secret
  a_spoofed_header: admin.sign_in.proxy.from
  a_proxy_names_a_person: admin.sign_in.proxy.name
  the_role_of_a_name: admin.sign_in.proxy.groups
  names_and_groups: admin.sign_in.proxy.roles.viewer,operator,admin
  a_token_names_a_person: admin.sign_in.jwt.header,groups,claims admin.sign_in.jwt.roles.operator
  a_token_that_names_nobody: admin.sign_in.jwt.roles.viewer admin.sign_in.jwt.issuer,audience
  a_session_ends_with_its_token: admin.sign_in.jwt.roles.admin admin.sign_in.jwt.leeway
store/test_portable.py the_configured_dialect: store.dialect
app/test_start.py what_is_accepted_of_the_server_is_loud_at_the_start: store.durability
store/test_postgres.py how_many_connections_a_gateway_has: store.connections
store/test_redis_alone.py replicas_that_nobody_counted: store.replicas
store/test_postgres_members.py
  nobody_was_there: store.promotion
  who_has_not_spoken_is_named: store.promotion_wait
  one_that_needs_a_synchronous_standby: store.synchronous
config/test_values.py
  secrets_come_current_first: secrets.identity_key.id
  a_route_overrides_the_delivery_of_all:
    routes.delivery.schedule,deliver_within,max_answers,max_in_flight,unauthorized
  cloud_events_under_another_signature: routes.inbox.cloudevents.signature
  what_a_sink_receives: events.types,include events.sinks.name,types,routes,include,kind
  each_setting_reaches_its_sink: events.source,keep,max_event_bytes egress.allow,deny,ports,https_only
    events.sinks.url,format,stream,fsync,window,max_length,max_age,servers,subject,user,password,ordered,topic,idempotence,tls,ca,mechanism
    events.sinks.secrets.id,key,until
protect/test_kept.py an_old_key_opens_and_does_not_seal: secrets.encryption.id,key
core/test_breaker.py
  failures_in_a_row_open_it: delivery.breaker.failures
  each_opening_is_twice_as_long: delivery.breaker.open,max_open
config/test_mistakes.py a_mistake: routes.accept.identity events.sinks.shares_fast
observe/test_logs.py
  the_level_holds_for_facts: log.level
  a_request_is_one_line_that_can_be_read: log.format
  the_configuration_says_which_requests_get_a_line: log.requests
integration/test_workers.py one_that_is_killed_is_replaced: workers
observe/test_whole.py the_books_balance: routes.name
core/test_identity.py route_identifies_nothing: routes.operation
core/test_routing.py
  method_and_host_decide: routes.match.methods,host
  pattern: routes.match.path
core/test_identity_key.py
  first_alias_present: routes.key.headers
  composed_of_headers: routes.key.compose.header
  composed_of_body: routes.key.compose.body
core/test_identity_scope.py composed: routes.scope.compose.header,api_key
core/test_recovery.py what_an_answer_means: routes.recovery.probe.method routes.recovery.probe.never_happened.where
app/test_settings.py
  what_a_route_says_of_its_service:
    routes.upstream.host,connect_timeout,answer_within,response_timeout,keepalive,max_connections,key,url
    routes.upstream.tls.ca,cert,key,server_name
core/test_inbox.py
  every_living_secret_is_tried: routes.inbox.secrets.until
  the_gateway_signs_what_nobody_else_can: routes.inbox.signing_secrets.id,key,until
events/test_egress.py a_proxy_is_connected_to_and_not_checked: egress.proxy
deliver/test_worker.py
  no_more_than_places: delivery.max_in_flight
  what_an_attempt_comes_to: delivery.unauthorized
  the_reason_of_a_dead_letter: delivery.max_answers
http/gateway/test_recovery.py
  a_service_asks_about_its_own_operations_alone: service
  probe_finds_what_happened: routes.recovery.probe.path,headers
  retries_keep_no_answer_back: routes.recovery.probe.done.status,where
  probe_follows: routes.recovery.probe.follow
  streams_of_others_keep_no_operation_and_no_probe_out: upstream.max_connections
http/gateway/test_tls.py
  both_sides: listen.tls.cert,key upstream.tls.ca
  certificates_that_are_not_accepted: listen.tls.client_ca,client_certificate
  a_caller_by_its_name: routes.scope.client_certificate
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
http/gateway/test_times.py
  lapsed_claim_waits_for_its_owners_journal: store.journal_grace
  a_404_frees_the_key_once_no_request_can_arrive: routes.recovery.probe.never_happened.status
    routes.recovery.probe.settle
http/gateway/test_identity_change.py
  another_identity_key: secrets.identity_key.key
  a_fingerprint_key_that_is_lost: secrets.fingerprint_key.id,key
http/gateway/test_encryption.py
  a_rotation: secrets.unreadable
  only_the_first_request_gets_the_values: routes.response.redact
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
http/gateway/test_order.py
  by_a_header: routes.order.by.header
  a_dead_letter: routes.order.on_stop
  a_request_without_the_value: routes.order.missing
http/gateway/test_spellings.py spellings_that_the_file_lists: routes.match.also unprotected.methods,path,host
http/gateway/test_forward_auth.py
  the_question: routes.scope.forward_auth.url routes.scope.forward_auth.headers
  the_principal_is_the_caller: routes.scope.forward_auth.principal
  what_the_service_gets: routes.scope.forward_auth.copy
  no_decision: routes.scope.forward_auth.timeout
  a_remembered_permission: routes.scope.forward_auth.cache
  over_tls: routes.scope.forward_auth.ca
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
http/gateway/test_likely_duplicates.py a_mismatch_is_explained: routes.fingerprint.explain
http/gateway/test_outcomes.py
  client_time_is_over_and_the_attempt_goes_on: upstream.answer_within
  silence_is_never_nothing: upstream.response_timeout
"""


def _elsewhere() -> Iterator[tuple[str, str]]:
    file = test = ""
    for word in _ELSEWHERE.split():
        if word.endswith(".py"):
            file = word
        elif word.endswith(":"):
            test = word.removesuffix(":")
        else:
            section, _, names = word.rpartition(".")
            for name in names.split(","):
                yield f"{section}.{name}".lstrip("."), f"tests/{file}::test_{test}"


ELSEWHERE: Final = dict(_elsewhere())


def test_every_setting_is_shown() -> None:
    # A part of a composed scope has the settings of the whole one, and so has who authorizes.
    shared = {"scope.compose.jwt.": "scope.jwt.", "scope.compose.client_certificate": "scope.client_certificate"}
    shared |= dict.fromkeys(("scope.compose.forward_auth.", "authorize.forward_auth."), "scope.forward_auth.")
    there = {path for path, field in settings_of(Config) if not any(models_in(field.annotation))}
    for here, whole in shared.items():
        there = {name.replace(f"routes.{here}", f"routes.{whole}") for name in there}
    assert there - SHOWN.keys() - ELSEWHERE.keys() == set(), "show these with `@shows`"
    assert (SHOWN.keys() | ELSEWHERE.keys()) - there == set(), "these are no settings"
    assert SHOWN.keys() & ELSEWHERE.keys() == set()


def test_what_is_shown_elsewhere_is_there() -> None:
    texts = {
        file: (ROOT / file).read_text("utf-8") for file, _, _ in (each.partition("::") for each in ELSEWHERE.values())
    }
    tests = {file: re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE) for file, text in texts.items()}
    there = {f"{file}::{name}" for file, names in tests.items() for name in names}
    assert {path: place for path, place in ELSEWHERE.items() if place not in there} == {}


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
