"""What the tiers in front of the durable store count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TierStats:
    """Counts since the start, for whoever exports them. `shed`: copies and news that were given up for lack of room."""

    cache_hits: int = 0
    fast_hits: int = 0
    fast_misses: int = 0
    fast_failures: int = 0
    shed: int = 0
