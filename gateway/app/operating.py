"""Builds what operators' commands and the admin API need: the routes' policies, and the configured store.

The store is opened as it is: but for `migrate`, commands do not bring it up to date, because that is a decision of its
own, and do not record identity recipes, because they claim nothing. `check_store` compares the recipes, as a start
would. `rekey_stores` encrypts all that is kept with the current key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import time
from uuid import UUID, uuid4

from gateway import EXIT_OK, PROGRAM, CommandError
from gateway.admin.access import Authentication, Voucher, by_proxy, by_token, people_of
from gateway.admin.api import AdminApi
from gateway.admin.commands import Job, Needs
from gateway.admin.operations import Operations
from gateway.admin.reports import memory_state
from gateway.admin.resolution import Declined, Policies, RoutePolicy, Treatment
from gateway.app import stores
from gateway.app.reload import Report
from gateway.app.stores import (
    bare_store,
    delivered_by,
    is_migrated,
    journals_of,
    key_ring,
    make_fast_tier,
    refuse_unreadable_journals,
    sealing_of,
    serving_of,
    shared_note,
    tiered_store,
)
from gateway.callers import TokenVerifier
from gateway.config import Config, digest_of
from gateway.config.effective import effective
from gateway.config.leaf import PostgresUrl, RedisUrl
from gateway.config.models import SignIn
from gateway.config.route import Route
from gateway.core.confidential import Sealing
from gateway.core.operation import microseconds
from gateway.observe.facts import Events
from gateway.observe.metrics import Metrics
from gateway.observe.status import Health
from gateway.protect.identification import Callers
from gateway.store.agreement import agree, strays, why_unfinished
from gateway.store.base import Indefinite, NotApplied, StartRefused, Store, StoreError, boot_seconds
from gateway.store.journal import HostJournals
from gateway.store.operations import ObservationStore
from gateway.store.postgres.schema import capabilities
from gateway.store.sealed import Place, SealedStore, rekey
from gateway.store.tiered import Tiered
from gateway.upkeep.activity import Buckets


def policies_of(config: Config) -> Policies:
    secret = config.secrets.identity_secret
    # The identity key is never rotated; encryption keys are.
    rotated = [key.key.get_secret_value() for key in config.secrets.encryption]
    return Policies(
        config.service,
        [_policy(config, route) for route in config.routes],
        {sink.name: sink.kind for sink in config.events.sinks},
        identity_secret=secret,
        decision_secrets=rotated if secret is None else [secret],
        delivering=delivered_by(config),
    )


def _policy(config: Config, route: Route) -> RoutePolicy:
    return RoutePolicy(
        name=route.name,
        operation=route.operation,
        key=route.key_spec,
        scope=route.scope_spec,
        treatment=Treatment(
            keep=route.keep_policy,
            replay_us=route.retention.replay_us,
            remember_us=route.retention.remember_us,
            settle_us=microseconds(config.settle_for(route)),
            status=route.status_policy,
            recovery=config.recovery_for(route),
            deliver_within_us=microseconds(config.delivery_for(route).deliver_within),
        ),
        mode=config.mode_of(route),
        enforce_share=config.share_of(route),
    )


def operations_on(
    config: Config,
    store: Tiered,
    journals: HostJournals,
    observations: ObservationStore | None = None,
    counted: Callable[[], Buckets] = dict,
) -> Operations:
    """Operators' actions on a store with its copies, on these journals, and on this table of observations; `counted` is
    what this process counted lately."""
    # With a fast tier every gateway is notified of a purge.
    cache_seconds = config.store.cache_max_age if config.store.fast is None else 0.0
    return Operations(
        store,
        policies_of(config),
        journals,
        purges_pending=lambda: store.purges_pending,
        cache_seconds=cache_seconds,
        observations=observations,
        counted=counted,
    )


def admin_api(
    config: Config,
    store: Tiered,
    events: Events,
    health: Health,
    metrics: Metrics,
    *,
    callers: Callers,
    observations: ObservationStore | None = None,
    counted: Callable[[], Buckets] = dict,
    reload: Callable[[], Awaitable[Report]] | None = None,
    before: AdminApi | None = None,
) -> AdminApi | None:
    """The admin port of a gateway, which may follow that of the gateway before; None when it is off. `callers` verify
    the tokens of those who sign in."""
    if not config.admin.is_on:
        return None
    # Loaded only here: a gateway without the port, and a command, start faster without templates.
    from gateway.admin.console import Console, Process
    from gateway.explain import Explainer

    admin = config.admin
    own = [] if admin.token is None else [("token", admin.token.get_secret_value(), "admin")]
    authentication = Authentication(
        people_of(own + [(each.name, each.token.get_secret_value(), each.role) for each in admin.tokens]),
        {*admin.hosts, admin.listen.host},
        clock=boot_seconds,
        wall_clock=time,
        vouchers=_vouchers_of(admin.sign_in, callers),
        before=None if before is None else before.authentication,
    )
    operations = operations_on(config, store, journals_of(config, sealing_of(config)), observations, counted)
    process = Process(
        health.parts,
        lambda: effective(config),
        lambda: digest_of(config),
        lambda: metrics.requests,
        Explainer(config, operations),
        reload,
    )
    return AdminApi(
        operations,
        authentication,
        events,
        response_bytes_max=max(route.response.max_stored_bytes for route in config.routes),
        reload=reload,
        pages=Console(operations, authentication, process),
    )


def _vouchers_of(sign_in: SignIn | None, callers: Callers) -> list[Voucher]:
    if sign_in is None:
        return []
    found, secret = [], sign_in.secret.get_secret_value().encode()
    if (proxy := sign_in.proxy) is not None:
        found.append(by_proxy(proxy, secret))
    if (jwt := sign_in.jwt) is not None:
        verifier = callers.verifiers[jwt.scope.compiled]
        if not isinstance(verifier, TokenVerifier):
            raise RuntimeError("a signed token is verified by another verifier")
        found.append(by_token(jwt, secret, verifier.whose))
    return found


async def operate(config: Config, job: Job) -> int:
    """Carry out a command on the stores that it needs; returns its exit code. Raises `CommandError`."""
    sealing = sealing_of(config)
    journals = journals_of(config, sealing)
    bare = bare_store(config, sealing)
    store: Store = SealedStore(bare, sealing)
    operations = Operations(store, policies_of(config), journals, observations=bare)
    try:
        if job.needs is Needs.JOURNAL:
            return await job.run(operations) or EXIT_OK
        if not await is_migrated(config):
            raise CommandError(
                "the store does not exist, or its schema is older than this program. Check that this is the gateway's "
                "configuration, and run as the gateway's user. To bring an older schema up to date: "
                f"{PROGRAM} migrate"
            )
        fast_tier = make_fast_tier(config, sealing) if job.needs is Needs.TIERS else None
        if job.needs is Needs.TIERS:
            tiered = tiered_store(config, store, fast_tier, Events())
            store, operations = tiered, operations_on(config, tiered, journals, bare)
        try:
            await store.start()
            if fast_tier is not None:
                epoch = await store.cold.check_memory()
                fast_tier.bind(epoch.identity, epoch.generation)
            return await job.run(operations) or EXIT_OK
        finally:
            await store.close()
    except Declined as error:
        raise CommandError(str(error)) from None
    except StoreError as error:
        if not job.changes:
            raise CommandError(f"the store could not be read: {error}") from error
        # After an indefinite error nobody knows whether something was changed.
        effect = "" if isinstance(error, Indefinite) else "nothing was changed: "
        raise CommandError(f"{effect}{error}") from error


async def look_at_server(config: Config) -> list[str]:
    """What the durable store's server allows, if that is a PostgreSQL. `check_store` says what is wrong with one that
    cannot be reached."""
    store = config.store
    if not isinstance(store.durable, PostgresUrl) or store.dialect == "portable":
        return []
    try:
        return [str(each) for each in await capabilities(store.durable.dsn.get_secret_value(), store.durability)]
    except NotApplied:
        return []


async def migrate(config: Config, grant_to: str | None = None) -> list[str]:
    """Bring the durable store's schema up to date; returns what was done. Raises `CommandError`."""
    try:
        return await stores.migrate_store(config, grant_to)
    except StoreError as error:
        raise CommandError(f"the durable store could not be migrated: {error}") from error


async def finish_upgrade(config: Config) -> bool:
    """Raise the level of the durable store to this program's; returns whether it was lower. Raises `CommandError`."""
    try:
        return await stores.finish_upgrade(config)
    except StoreError as error:
        raise CommandError(f"the upgrade cannot be finished: {error}") from error


async def check_store(config: Config) -> list[str]:
    """What a start with this configuration would warn about; leaves nothing changed. Raises `CommandError` with the
    text of the start's refusal, or because the store cannot be read or written."""
    sealing, serving = sealing_of(config), serving_of(config)
    store = bare_store(config, sealing)
    try:
        if not await is_migrated(config):
            return ["the store has nothing to compare yet: a start prepares its schema"]
        try:
            await store.start()
            warnings = await agree(store.cold, serving, sealing, is_trial=True)
            await refuse_unreadable_journals(config)
            stray_warnings = await strays(store.cold, serving)
            memory = await memory_state(store.cold)
            unfinished = why_unfinished((await store.cold.check_memory()).level)
            await _try_write(store, config)
        finally:
            await store.close()
    except StartRefused as error:
        raise CommandError(f"the durable store must not be used: {error}") from error
    except StoreError as error:
        raise CommandError(f"the store could not be read: {error}") from error
    return [
        *warnings,
        *([memory.text] if memory.is_lost else []),
        *([unfinished] if unfinished is not None else []),
        *stray_warnings,
        *await _look_at_fast_tier(config),
    ]


async def _try_write(store: Store, config: Config) -> None:
    """Write something, and take it back. Raises `CommandError` where that is not acknowledged as a grant would be."""
    nobody = str(uuid4())
    try:
        if isinstance(config.store.durable, RedisUrl):
            await store.cold.note_running(UUID(nobody), is_running=True)
            await store.cold.note_running(UUID(nobody), is_running=False)
        else:
            # Of all that a store writes durably, a suspension of what does not exist has no consequence.
            await store.cold.suspend_sink(config.service, nobody, "check --store")
            await store.cold.resume_sink(config.service, nobody)
    except StoreError as error:
        raise CommandError(
            f"the store can be read, and takes no change: {error}. A gateway that starts would refuse first requests"
        ) from error


async def _look_at_fast_tier(config: Config) -> list[str]:
    if (note := shared_note(config)) is None:
        return []
    try:
        await note.read()
    except StoreError as error:
        return [f"the fast tier cannot be used: {error}. A start does not need it; the durable store bears the load"]
    return []


# -- rekeying ----------------------------------------------------------------------------------------------------------

# Records last: a start asks them which keys are still needed.
_WHAT = {
    Place.REQUESTS: "kept requests",
    Place.AUDITS: "audits",
    Place.PAUSES: "pauses",
    Place.PAUSE_AUDITS: "audits of pauses",
    Place.SUSPENSIONS: "suspensions of sinks",
    Place.EVENTS: "events",
    Place.RECORDS: "records",
}


async def rekey_stores(config: Config, say: Callable[[str], None], progress: Callable[[str], None]) -> int:
    """Encrypt the durable store and this host's journals with the current key, and drop the copies; returns how much is
    left under other keys, or cannot be read. `say` gets what was done, `progress` what is under way. May be stopped at
    any point, and run again. Raises `CommandError`."""
    ring = key_ring(config)
    if ring is None:
        raise CommandError("there is no key to encrypt with: write secrets: {encryption: [{id: NAME, key: SECRET}]}")
    sealing, current_id, left = Sealing(ring), ring.current_id, 0
    store = bare_store(config, sealing)
    try:
        if not await is_migrated(config):
            raise CommandError(
                f"the store does not exist, or its schema is old; bring it up to date: {PROGRAM} migrate"
            )
        try:
            await store.start()
            for place, what in _WHAT.items():
                done = await rekey(store, place, sealing, _reporting(progress, what))
                left += done.left
                why = f"; left {done.left}: {done.why or 'changed each time'}" if done.left else ""
                say(f"{what}: encrypted {done.changed} with key '{current_id}'{why}")
            changed, stuck = await asyncio.to_thread(journals_of(config, sealing).reseal)
            left += stuck
            say(
                f"journals of this host: encrypted {changed}"
                + (f"; left {stuck}, which cannot be read" if stuck else "")
            )
            if (fast_tier := make_fast_tier(config, sealing)) is not None:
                epoch = await store.check_memory()
                fast_tier.bind(epoch.identity, epoch.generation)
                say(f"copies in Redis: dropped {await fast_tier.drop_copies()}")
            sealed = (await store.tally()).sealed
        finally:
            await store.close()
    except StoreError as error:
        raise CommandError(f"{error}. What was encrypted stays so; run this again to go on") from error
    # Written meanwhile, by gateways that have another key first.
    for key_id, number in sorted(sealed.items()):
        if key_id != current_id:
            say(f"key '{key_id}' is still used by {number} records")
            left = max(left, number)
    return left


def _reporting(progress: Callable[[str], None], what: str) -> Callable[[int], None]:
    return lambda number: progress(f"{what}: {number} ...")
