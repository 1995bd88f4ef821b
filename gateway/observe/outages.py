"""What the log says of a store or an upstream that is not there: when that begins, why, and when it is over.

Owns which of it is worth a line. An outage is told once with each of its causes, for as long as it lasts, and only so
many of them; one that comes and goes with every request is told from time to time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.observe.facts import TierChanged, UpstreamChanged
from gateway.observe.lines import Entry

# Causes of one outage of a store.
_CAUSES_MAX: Final = 10
# Until the same kind of fault of an upstream is told again.
_QUIET_SECONDS: Final = 60.0


class Outages:
    """What was told already. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Of stores that are down.
        self._causes: dict[str, set[str]] = {}
        # When, by upstream and kind; and upstreams that were not told to be back since.
        self._told: dict[tuple[str, str], float] = {}
        self._unreached: set[str] = set()

    def line(self, fact: TierChanged | UpstreamChanged) -> Entry | None:
        """What the log says of it; None where it was said already."""
        return self._of_tier(fact) if isinstance(fact, TierChanged) else self._of_upstream(fact)

    def _of_tier(self, fact: TierChanged) -> Entry | None:
        name, fields = f"the {fact.tier} store", {"detail": fact.detail or None}
        if fact.up:
            self._causes.pop(fact.tier, None)
            return Entry("info", f"{name} is up", {**fields})
        is_first, told = fact.tier not in self._causes, self._causes.setdefault(fact.tier, set())
        # Causes may take turns for as long as the outage lasts.
        if fact.detail in told or len(told) >= _CAUSES_MAX:
            return None
        told.add(fact.detail)
        return Entry("warning", f"{name} is {'down' if is_first else 'still down'}", {**fields})

    def _of_upstream(self, fact: UpstreamChanged) -> Entry | None:
        if not fact.reason:
            if fact.upstream not in self._unreached:
                return None
            self._unreached.remove(fact.upstream)
            return Entry("info", f"{fact.upstream} is reached again")
        kind, now = (fact.upstream, fact.reason), self._clock()
        told = self._told.get(kind)
        if told is not None and 0 <= now - told < _QUIET_SECONDS:
            return None
        self._told[kind] = now
        self._unreached.add(fact.upstream)
        return Entry("warning", f"{fact.upstream} cannot be reached: {fact.detail}", {"reason": fact.reason})
