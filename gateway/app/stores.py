"""The configured stores, and the sinks of what they write of events."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from gateway.config import Config
from gateway.config.leaf import PostgresUrl, RedisUrl, SqliteUrl
from gateway.config.models import KafkaSink as KafkaConfig
from gateway.config.models import NatsSink as NatsConfig
from gateway.config.models import RedisStreamSink as RedisStreamConfig
from gateway.config.models import Sink as SinkConfig
from gateway.config.models import StdoutSink as StdoutConfig
from gateway.config.models import WebhookSink as WebhookConfig
from gateway.core.confidential import NO_SEALING, EncryptionKey, KeyRing, Sealing
from gateway.core.delivery import Delivering, delivering_of
from gateway.core.identity.body import digest, framed
from gateway.core.identity.key import identity_recipe
from gateway.core.operation import microseconds
from gateway.core.outbox import Outbox, Part, Subscription
from gateway.core.routing import ServedRoute
from gateway.events.brokers import KafkaSink, NatsSink
from gateway.events.relay import Relay, Sink, StdoutSink
from gateway.events.webhook import WebhookSink
from gateway.observe.facts import (
    Events,
    RecordUnreadable,
    TierChanged,
)
from gateway.store.base import FastTier, OnPurge, StartRefused, Store, boot_seconds
from gateway.store.journal import HostJournals
from gateway.store.memory.epoch import SeenFile, WitnessFiles
from gateway.store.operations import Publications, Serving
from gateway.store.postgres import store as postgres
from gateway.store.postgres.store import PostgresStore
from gateway.store.sealed import why_unreadable
from gateway.store.sqlite import store as sqlite
from gateway.store.sqlite.store import SqliteStore
from gateway.store.tiered import Tiered

if TYPE_CHECKING:
    from gateway.store.redis.durable import RedisStore
    from gateway.store.redis.store import RedisFastTier, RedisSeen

# -- encryption --------------------------------------------------------------------------------------------------------
# Of records that cannot be decrypted, one in this time is logged. All are counted.
_LOG_PAUSE_SECONDS: Final = 60.0


def key_ring(config: Config) -> KeyRing | None:
    """The keys of `secrets.encryption`, None where there are none."""
    keys = keys_of(config)
    return KeyRing(keys, os.urandom) if keys else None


def keys_of(config: Config) -> list[EncryptionKey]:
    """The keys of `secrets.encryption`, the one that encrypts first."""
    return [EncryptionKey(key.id, key.key.get_secret_value()) for key in config.secrets.encryption]


def sealing_of(config: Config) -> Sealing:
    """What seals and opens, and reports nothing."""
    return Sealing(key_ring(config))


def reporting_sealing(ring: KeyRing | None, events: Events, clock: Callable[[], float]) -> Sealing:
    """Seals and opens with these keys, and publishes what cannot be opened. Only for the thread of the event loop."""
    logged_seconds = float("-inf")

    def report(operation_id: UUID, why: str) -> None:
        nonlocal logged_seconds
        now_seconds = clock()
        is_logged = now_seconds - logged_seconds >= _LOG_PAUSE_SECONDS
        if is_logged:
            logged_seconds = now_seconds
        events.publish(RecordUnreadable(operation_id, why, is_logged))

    return Sealing(ring, report)


# -- serving -----------------------------------------------------------------------------------------------------------
# Enough to tell two secrets apart, and of no use to who guesses one.
_CHECK_BYTES: Final = 4


def serving_of(config: Config) -> Serving:
    """What a gateway with this configuration serves, to compare with what its store has recorded."""
    secrets = config.secrets
    return Serving(
        gateway_id=uuid4(),
        service=config.service,
        recipes=_recipes(config),
        routes=tuple(
            ServedRoute(config.service, route.operation, rule, config.share_of(route))
            for route in config.routes
            for rule in route.rules
        ),
        accepted=frozenset(route.operation for route in config.routes if route.identity_change == "accept"),
        key_ids=None if secrets.unreadable == "accept" else frozenset(key.id for key in secrets.encryption),
        mode_accepted=frozenset(route.operation for route in config.routes if route.mode_change == "accept"),
        replay_us=max(route.retention.replay_us for route in config.routes),
        # Redis alone keeps no requests, and refuses to look for them.
        delivering=None if isinstance(config.store.durable, RedisUrl) else delivered_by(config),
        fingerprint_keys={
            key.id: hmac.digest(key.key.get_secret_value(), b"fingerprint key", "sha256")[:_CHECK_BYTES].hex()
            for key in secrets.fingerprint_keys
        },
        compare_accepted=frozenset(route.operation for route in config.routes)
        - frozenset(route.operation for route in config.routes if route.fingerprint.on_recipe_change != "accept"),
    )


def is_same(one: Serving, other: Serving) -> bool:
    """Whether both find the same keys, and keep responses for as long."""
    return (one.recipes, one.routes, one.replay_us, one.fingerprint_keys) == (
        other.recipes,
        other.routes,
        other.replay_us,
        other.fingerprint_keys,
    )


def delivered_by(config: Config) -> Delivering:
    operations = {route.name: route.operation for route in config.routes}
    return delivering_of(operations, [route.name for route in config.routes if route.is_accepting])


def _recipes(config: Config) -> dict[str, bytes]:
    """The digest of the identity recipes of each operation name, over all routes that share it."""
    found: dict[str, set[bytes]] = {}
    secret = config.secrets.identity_secret
    for route in config.routes:
        recipe = identity_recipe(config.service, route.operation, route.scope_spec, route.key_spec, secret)
        found.setdefault(route.operation, set()).add(recipe)
    # Where operations are at home is a part of what finds them.
    homes = [] if config.regions is None else [home.name.encode() for home in config.regions.homes]
    where = [framed(b"regions", *homes)] if homes else []
    return {operation: digest(b"recipes", *sorted(each), *where) for operation, each in found.items()}


# -- stores ------------------------------------------------------------------------------------------------------------

# The stores on Redis take a part of every start and every command; they are loaded where they are configured.


def amnesia_window_us(config: Config) -> int:
    """How long absent keys are refused after the durable store lost data."""
    longest_seconds = max(route.retention.remember for route in config.routes)
    return microseconds(longest_seconds if config.store.amnesia_window is None else config.store.amnesia_window)


def tiered_store(
    config: Config,
    durable: Store,
    fast: FastTier | None,
    events: Events,
    clock: Callable[[], float] = boot_seconds,
    on_purge: OnPurge | None = None,
) -> Tiered:
    return Tiered(
        durable,
        fast,
        cache_bytes=config.store.cache_bytes,
        cache_max_age_seconds=config.store.cache_max_age,
        clock=clock,
        on_tier=lambda tier, up, why: events.publish(TierChanged(tier, up, why)),
        on_purge=on_purge,
    )


def make_fast_tier(config: Config, sealing: Sealing) -> RedisFastTier | None:
    """The fast tier, to be bound to the durable store before use; None without one. `sealing` opens its copies."""
    if (fast := config.store.fast) is None:
        return None
    from gateway.store.redis.store import RedisFastTier

    return RedisFastTier(fast.url.get_secret_value(), sealing=sealing)


def shared_note(config: Config) -> RedisSeen | None:
    """What all gateways know of the durable store's epoch, kept in the fast tier; None without one."""
    if (fast := config.store.fast) is None:
        return None
    from gateway.store.redis.store import RedisSeen

    return RedisSeen(fast.url.get_secret_value(), name_of(config))


def seen_file(config: Config) -> SeenFile:
    return SeenFile(config.state_dir / "store-seen.json")


def journal_directory(config: Config) -> Path:
    return config.state_dir / "journal"


def journals_of(config: Config, sealing: Sealing = NO_SEALING) -> HostJournals:
    return HostJournals(journal_directory(config), name_of(config), sealing)


def name_of(config: Config) -> str:
    """The name of service and durable store together, without a secret. A Postgres is named by its database alone,
    because hosts change in a failover; so do those of a Redis."""
    match config.store.durable:
        case SqliteUrl(path):
            store = f"sqlite {path}"
        case PostgresUrl(dsn):
            store = f"postgresql {urlsplit(dsn.get_secret_value()).path.strip('/')}"
        case RedisUrl(url):
            store = f"redis {urlsplit(url.get_secret_value()).path.strip('/')}"
        case url:
            assert_never(url)
    return f"service {config.service}, {store}"


def bare_store(
    config: Config, sealing: Sealing, witness_files: WitnessFiles | None = None
) -> SqliteStore | PostgresStore | RedisStore:
    """The durable store without its guard. It seals events, and notes in `witness_files` what it acknowledges."""
    match config.store.durable:
        case SqliteUrl(path):
            return SqliteStore(path, witness_files=witness_files, outbox=outbox_of(config, sealing))
        case PostgresUrl(dsn):
            return PostgresStore(
                dsn.get_secret_value(),
                connections=config.store.connections,
                durability=config.store.durability,
                witness_files=witness_files,
                outbox=outbox_of(config, sealing),
                met=_met(config),
                dialect=config.store.dialect,
            )
        case RedisUrl() as url:
            return _redis_store(config, sealing, url, witness_files)
        case url:
            assert_never(url)


def _redis_store(config: Config, sealing: Sealing, url: RedisUrl, witness_files: WitnessFiles | None) -> RedisStore:
    from gateway.store.redis.durable import RedisStore

    replicas, outbox = config.store.replicas, outbox_of(config, sealing)
    return RedisStore(url.url.get_secret_value(), replicas=replicas, witness_files=witness_files, outbox=outbox)


def _met(config: Config) -> str:
    """The memory that this host saw last, by its note; empty without one. The guard reports a damaged note."""
    with contextlib.suppress(StartRefused):
        if (seen := seen_file(config).read()) is not None:
            return seen.identity
    return ""


async def is_migrated(config: Config) -> bool:
    """Whether the store exists with a schema that needs no migration. Changes nothing; raises as `Store.start`."""
    match config.store.durable:
        case SqliteUrl(path):
            return await asyncio.to_thread(sqlite.is_migrated, path)
        case PostgresUrl(dsn):
            return await postgres.is_migrated(dsn.get_secret_value(), config.store.durability, config.store.dialect)
        case RedisUrl() as url:
            return await _redis_store(config, NO_SEALING, url, None).has_begun()
        case url:
            assert_never(url)


async def migrate_store(config: Config, grant_to: str | None = None) -> list[str]:
    """Bring the schema up to date and grant rights to `grant_to`; returns what was done. Raises as `Store.start`."""
    match config.store.durable:
        case SqliteUrl(path):
            if grant_to is not None:
                raise StartRefused("SQLite has no roles; leave out --grant")
            store = SqliteStore(path)
            await store.start()
            await store.close()
            return []
        case PostgresUrl(dsn):
            url, durability, dialect = dsn.get_secret_value(), config.store.durability, config.store.dialect
            return await postgres.migrate(url, durability, dialect, grant_to=grant_to)
        case RedisUrl():
            if grant_to is not None:
                raise StartRefused("Redis has no roles; leave out --grant")
            return []
        case url:
            assert_never(url)


async def finish_upgrade(config: Config) -> bool:
    """Raise the level of the store to this program's; returns whether it was lower. Raises as `Store.start`, and
    `StartRefused` while gateways of an older program run."""
    store = bare_store(config, NO_SEALING)
    try:
        await store.start()
        return await store.raise_level()
    finally:
        await store.close()


async def refuse_unreadable_journals(config: Config) -> None:
    """Raises `StartRefused` where outcomes that wait on this host need a key that is not configured, and `StoreError`
    where that cannot be read."""
    if config.secrets.unreadable == "accept":
        return
    sealed = await asyncio.to_thread(journals_of(config).sealed)
    if why := why_unreadable(sealed, [key.id for key in config.secrets.encryption]):
        raise StartRefused(why)


# -- events ------------------------------------------------------------------------------------------------------------

_LOG = logging.getLogger("gateway")


def outbox_of(config: Config, sealing: Sealing) -> Outbox:
    """Which events the durable store writes, and with what it seals them."""
    events = config.events
    return Outbox(
        config.service,
        events.source or f"urn:idempotency-gateway:{config.service}",
        tuple(
            Subscription(
                sink.name,
                events.types_for(sink),
                None if sink.routes is None else frozenset(sink.routes),
                frozenset(Part(name) for name in events.include_for(sink)),
                sink.ordered,
            )
            for sink in events.sinks
        ),
        events.max_event_bytes,
        sealing,
    )


def relay_of(config: Config, store: Publications, events: Events, clock: Callable[[], float]) -> Relay | None:
    if not config.events.sinks:
        return None
    return Relay(
        store,
        {sink.name: sink_of(config, sink) for sink in config.events.sinks},
        events,
        service=config.service,
        keep_us=microseconds(config.events.keep),
        breaker=config.delivery.breaker.compiled,
        clock=clock,
    )


def sink_of(config: Config, sink: SinkConfig) -> Sink:
    """The sink, not yet open."""
    warn = partial(_LOG.warning, "sink %s: %s", sink.name)
    match sink:
        case WebhookConfig():
            return WebhookSink(sink, config.egress.policy)
        case RedisStreamConfig():
            # Its driver takes long to load.
            from gateway.events.redis_stream import RedisStreamSink

            return RedisStreamSink(sink, warn)
        case NatsConfig():
            return NatsSink(sink, warn)
        case KafkaConfig():
            return KafkaSink(sink)
        case StdoutConfig():
            return StdoutSink()
        case _:
            assert_never(sink)
