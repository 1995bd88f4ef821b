"""Encrypts all that is kept with the current key: `idempotency-gateway rekey`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from gateway import PROGRAM, CommandError
from gateway.app.stores import bare_store, is_migrated, journals_of, key_ring, make_fast_tier
from gateway.config import Config
from gateway.core.confidential import Sealing
from gateway.store.base import StoreError
from gateway.store.sealed import Place, rekey

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
    left under other keys, or cannot be read. `say` gets what was done, `progress` what is under way.

    May be stopped at any point, and run again. Raises `CommandError`.
    """
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
                done = await rekey(store, place, sealing, partial(_report, progress, what))
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


def _report(progress: Callable[[str], None], what: str, number: int) -> None:
    progress(f"{what}: {number} ...")
