"""What enforcement would have done with the requests of observed routes: as values and as texts.

The numbers are those of the last day. A gateway that was just switched to `enforce` remembers none of them: an observed
key is a new key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from gateway.admin.fault import NoSuch
from gateway.core.verdict import Verdict
from gateway.store.observations import ObservationStore, ObservedCount

NO_MEMORY: Final = "Enforcing starts with no memory: an observed key is a new key, and its next repeat runs once more."
"""What an operator has to know before the switch."""


@dataclass(frozen=True, slots=True)
class VerdictShare:
    """So many requests would have got this verdict. `operations` are examples of those that would be refused."""

    verdict: Verdict
    is_refused: bool
    number: int
    share: float
    operations: tuple[UUID, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "verdict": self.verdict.value,
            "refused": self.is_refused,
            "requests": self.number,
            "share": round(self.share, 6),
            "operations": [str(each) for each in self.operations],
        }


@dataclass(frozen=True, slots=True)
class ObservedRoute:
    """What was observed of one route. `mode` is `enforce`, `observe`, or None where the configuration has it no more;
    `enforce_share` is the enforced share of its keys."""

    name: str
    mode: str | None
    enforce_share: float
    requests: int = 0
    refused: int = 0
    repeats: int = 0
    rekeyed: int = 0
    verdicts: tuple[VerdictShare, ...] = ()

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
            "verdicts": [each.document for each in self.verdicts],
            "readiness": self.readiness,
            "note": NO_MEMORY if self.mode == "observe" else None,
        }

    def lines(self) -> Iterator[str]:
        """The same as text."""
        mode = {None: "no longer configured", "observe": "observed", "enforce": "enforced"}[self.mode]
        share = f", {self.enforce_share:.4g} of its keys enforced" if 0 < self.enforce_share < 1 else ""
        yield f"{self.name} ({mode}{share}): {self.readiness}"
        for each in self.verdicts:
            refused = ", refused" if each.is_refused else ""
            yield f"  {each.verdict.value.ljust(20)} {each.number:>10,}  {each.share:7.2%}{refused}"
            for operation_id in each.operations:
                yield f"      {operation_id}"


@dataclass(frozen=True, slots=True)
class RouteMode:
    """How a route is configured: `mode` is `enforce` or `observe`; `enforce_share` is 1 where it is enforced."""

    mode: str = "enforce"
    enforce_share: float = 1.0


async def report(
    store: ObservationStore, service: str, modes: Mapping[str, RouteMode], route: str | None = None
) -> list[ObservedRoute]:
    """The observed routes, and those that were in the last day, by name. Raises as the store's verbs, and
    `NoSuch` for a route that neither the configuration nor the store knows."""
    counts = await store.count_observed(service, route)
    by_route: dict[str, list[ObservedCount]] = {
        name: [] for name, mode in modes.items() if mode.mode == "observe" and route in (None, name)
    }
    for each in counts:
        by_route.setdefault(each.route, []).append(each)
    if route is not None and route not in by_route:
        if route not in modes:
            raise NoSuch("unknown", f"there is no route {route}; there are {', '.join(sorted(modes))}")
        by_route[route] = []
    return [_of_route(name, modes.get(name), found) for name, found in sorted(by_route.items())]


def _of_route(name: str, mode: RouteMode | None, counts: list[ObservedCount]) -> ObservedRoute:
    total = sum(each.number for each in counts)
    return ObservedRoute(
        name,
        None if mode is None else mode.mode,
        0.0 if mode is None else mode.enforce_share,
        total,
        sum(each.number for each in counts if each.is_refused),
        sum(each.repeats for each in counts),
        sum(each.rekeyed for each in counts),
        tuple(
            VerdictShare(each.verdict, each.is_refused, each.number, each.number / total, each.operations)
            for each in sorted(counts, key=lambda each: (not each.is_refused, -each.number))
        ),
    )
