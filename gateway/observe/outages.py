"""What the log says of a store or an upstream that is not there: when that begins, why, and when it is over.

Owns which of it is worth a line. An outage is told once with each of its causes, for as long as it lasts, and only so
many of them. A store that comes and goes, as one on a full disk does, which can be read and takes no writes, is said to
do that, and then nothing until it has stayed up for a while. An upstream that does is told from time to time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.observe.facts import TierChanged, UpstreamChanged
from gateway.observe.lines import Entry

# Causes of one outage of a store.
_CAUSES_MAX: Final = 10
# Until the same kind of fault of an upstream is told again.
_QUIET_SECONDS: Final = 60.0
# A store that was up for less than this was not well in between.
_STEADY_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Outage:
    """What was told of a store's outage, and since when it is over, None while it is not."""

    causes: set[str] = field(default_factory=set)
    over_seconds: float | None = None
    comes_and_goes: bool = False


class Outages:
    """What was told already. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Of stores that are down, or have not been up for long since.
        self._outages: dict[str, _Outage] = {}
        # When, by upstream and kind; and upstreams that were not told to be back since.
        self._told: dict[tuple[str, str], float] = {}
        self._unreached: set[str] = set()

    def line(self, fact: TierChanged | UpstreamChanged) -> Entry | None:
        """What the log says of it; None where it was said already."""
        return self._of_tier(fact) if isinstance(fact, TierChanged) else self._of_upstream(fact)

    def lasting(self) -> list[Entry]:
        """What is to be said of stores that came and went, and stay up now. To be asked from time to time."""
        lasting = [tier for tier, outage in self._outages.items() if self._has_lasted(outage)]
        ended = [(tier, self._outages.pop(tier)) for tier in lasting]
        return [Entry("info", f"the {tier} store stays up") for tier, outage in ended if outage.comes_and_goes]

    def _of_tier(self, fact: TierChanged) -> Entry | None:
        name, fields = f"the {fact.tier} store", {"detail": fact.detail or None}
        outage = self._outages.get(fact.tier)
        if fact.up:
            if outage is not None:
                outage.over_seconds = self._clock()
            return None if outage is not None and outage.comes_and_goes else Entry("info", f"{name} is up", {**fields})
        is_first = outage is None or self._has_lasted(outage)
        if outage is None or is_first:
            outage = self._outages[fact.tier] = _Outage()
        is_back, outage.over_seconds = outage.over_seconds is not None, None
        if is_back and not outage.comes_and_goes:
            outage.comes_and_goes = True
            outage.causes.add(fact.detail)
            return Entry("warning", f"{name} comes and goes; it will be told when it stays up", {**fields})
        # Causes may take turns for as long as the outage lasts.
        if fact.detail in outage.causes or len(outage.causes) >= _CAUSES_MAX:
            return None
        outage.causes.add(fact.detail)
        return Entry("warning", f"{name} is {'down' if is_first else 'still down'}", {**fields})

    def _has_lasted(self, outage: _Outage) -> bool:
        """Whether a store has been up for long enough; also where the clock was set back, for nobody knows then."""
        return outage.over_seconds is not None and not 0 <= self._clock() - outage.over_seconds < _STEADY_SECONDS

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
