"""What enforcement would have done with the requests of observed routes: as values and as texts.

The numbers are those of the last day. A gateway that was just switched to `enforce` remembers none of them: an observed
key is a new key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.admin.fault import NoSuch
from gateway.admin.resolution import Policies
from gateway.store.observations import ObservationStore, ObservedCount

NO_MEMORY: Final = "Enforcing starts with no memory: an observed key is a new key, and its next repeat runs once more."
"""What an operator has to know before the switch."""


@dataclass(frozen=True, slots=True)
class ObservedRoute:
    """What was observed of one route. `mode` is `enforce`, `observe`, or None where the configuration has it no more;
    `enforce_share` is the enforced share of its keys. `counts` are by verdict, with examples of what would be refused.
    """

    name: str
    mode: str | None
    enforce_share: float
    counts: Sequence[ObservedCount]

    @property
    def requests(self) -> int:
        return sum(each.number for each in self.counts)

    @property
    def refused(self) -> int:
        return sum(each.number for each in self.counts if each.is_refused)

    @property
    def repeats(self) -> int:
        return sum(each.repeats for each in self.counts)

    @property
    def rekeyed(self) -> int:
        return sum(each.rekeyed for each in self.counts)

    @property
    def readiness(self) -> str:
        """Whether it is ready to be enforced, in a sentence."""
        if not self.requests:
            return "Nothing was observed in the last 24 hours."
        rekeyed = f" {self.rekeyed:,} came under a new key each: fix that client first." if self.rekeyed else ""
        return (
            f"{self.refused:,} of {self.requests:,} would have been refused; {self.repeats:,} would not have run "
            f"again.{rekeyed}"
        )

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "route": self.name,
            "mode": self.mode,
            "enforce_share": self.enforce_share,
            "requests": self.requests,
            "refused": self.refused,
            "repeats": self.repeats,
            "rekeyed": self.rekeyed,
            "verdicts": [
                {
                    "verdict": each.verdict.value,
                    "refused": each.is_refused,
                    "requests": each.number,
                    "share": round(each.number / self.requests, 6),
                    "operations": [str(operation_id) for operation_id in each.operations],
                }
                for each in self.counts
            ],
            "readiness": self.readiness,
            "note": NO_MEMORY if self.mode == "observe" else None,
        }

    def lines(self) -> Iterator[str]:
        """The same as text."""
        mode = {None: "no longer configured", "observe": "observed", "enforce": "enforced"}[self.mode]
        share = f", {self.enforce_share:.4g} of its keys enforced" if 0 < self.enforce_share < 1 else ""
        yield f"{self.name} ({mode}{share}): {self.readiness}"
        for each in self.counts:
            refused = ", refused" if each.is_refused else ""
            yield f"  {each.verdict.value.ljust(20)} {each.number:>10,}  {each.number / self.requests:7.2%}{refused}"
            for operation_id in each.operations:
                yield f"      {operation_id}"


async def report(store: ObservationStore, policies: Policies, route: str | None = None) -> list[ObservedRoute]:
    """The observed routes, and those that were in the last day, by name. Raises as the store's verbs, and
    `NoSuch` for a route that neither the configuration nor the store knows."""
    configured = {each.name: each for each in policies.routes}
    by_route: dict[str, list[ObservedCount]] = {
        name: [] for name, each in configured.items() if each.mode == "observe" and route in (None, name)
    }
    for count in await store.count_observed(policies.service, route):
        by_route.setdefault(count.route, []).append(count)
    if route is not None and route not in by_route:
        if route not in configured:
            raise NoSuch("unknown", f"there is no route {route}; there are {', '.join(sorted(configured))}")
        by_route[route] = []
    found = []
    for name, counts in sorted(by_route.items()):
        policy = configured.get(name)
        mode, share = (None, 0.0) if policy is None else (policy.mode, policy.enforce_share)
        counts.sort(key=lambda each: (not each.is_refused, -each.number))
        found.append(ObservedRoute(name, mode, share, counts))
    return found
