"""All the defects, by what they are about."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from tests.defects.defect import Defect

_MODULES: Final = [import_module(found.name) for found in iter_modules(__path__, f"{__name__}.")]
DEFECTS: Final[dict[str, Defect]] = {defect.name: defect for module in _MODULES for defect in module.DEFECTS}

# Those that take seconds to be noticed, by waiting for servers and leases. They are in no sample.
SLOW: Final = frozenset((
    "drained-for-another-time", "known-key-is-cut-off", "member-forgotten", "nobody-probes-in-the-background",
    "nobody-renews", "notes-of-the-one-in-charge-alone", "others-operations-probed",
    "promoted-memory-keeps-its-identity", "postgres-changes-what-it-has-not-locked",
    "postgres-holds-locks-for-the-vanished", "replacement-with-the-first-configuration", "reused-while-running",
    "stale-contact-is-fresh", "votes-not-counted-by-the-store", "slow-tls-reader-cut-off", "tombstone-executes",
    "waiters-unbounded",
))  # fmt: skip
