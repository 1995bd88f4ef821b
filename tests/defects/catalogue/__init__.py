"""All the defects, by what they are about."""

from __future__ import annotations

from typing import Final

from tests.defects.catalogue import (
    acceptance,
    callers,
    claims,
    delivery,
    doubt,
    events,
    execution,
    fast_tier,
    identity,
    inbox,
    observing,
    promotions,
    redis_alone,
    regions,
    stores,
    upkeep,
    wire,
    wiring,
)
from tests.defects.defect import Defect

DEFECTS: Final[dict[str, Defect]] = {
    defect.name: defect
    for module in (
        claims,
        execution,
        doubt,
        acceptance,
        delivery,
        inbox,
        events,
        identity,
        callers,
        wire,
        stores,
        fast_tier,
        wiring,
        observing,
        regions,
        promotions,
        upkeep,
        redis_alone,
    )
    for defect in module.DEFECTS
}

# Those that take seconds to be noticed, by waiting for servers and leases. They are in no sample.
SLOW: Final = frozenset(
    (
        "drained-for-another-time",
        "known-key-is-cut-off",
        "member-forgotten",
        "nobody-probes-in-the-background",
        "nobody-renews",
        "notes-of-the-one-in-charge-alone",
        "others-operations-probed",
        "promoted-memory-keeps-its-identity",
        "postgres-changes-what-it-has-not-locked",
        "postgres-holds-locks-for-the-vanished",
        "replacement-with-the-first-configuration",
        "reused-while-running",
        "stale-contact-is-fresh",
        "votes-not-counted-by-the-store",
        "slow-tls-reader-cut-off",
        "tombstone-executes",
        "waiters-unbounded",
    )
)
