"""Encryption of what is kept, as configured."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final
from uuid import UUID

from gateway.config import Config
from gateway.core.confidential import Sealing
from gateway.core.sealing import EncryptionKey, KeyRing
from gateway.observe.facts import Events, RecordUnreadable

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
