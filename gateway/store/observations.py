"""The contract of the table of observations, which no request waits for.

Both durable stores satisfy it, beside `ManagedStore`. Each verb may raise `StoreError`; the caller then drops what it
had. No verb touches a record. The tables hold digests, numbers and names of the program alone, for
`observation.KEEP_US`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.observation import Finding, Observation
from gateway.core.verdict import Verdict

EXAMPLES_MAX: Final = 5
"""How many operations `count_observed` names for each finding."""
FORGOTTEN_MAX: Final = 1_000
"""How many old observations one call of `save_observations` deletes at most."""


@immutable
class ObservedCount:
    """How many observed requests of a route have this finding; how many of them are repeats, and rekeyed; and some of
    their operations, the latest first."""

    route: str
    verdict: Verdict
    is_refused: bool
    number: int
    repeats: int
    rekeyed: int
    operations: tuple[UUID, ...] = ()


class ObservationStore(Protocol):
    """The observations of a service."""

    async def observed_before(self, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
        """The oldest `HISTORY_MAX` observations of each of these operations, in the order in which they began."""

    async def observed_contents(
        self, service: str, contents: Collection[bytes], since_us: int
    ) -> list[tuple[bytes, UUID, int]]:
        """Each operation that was observed with one of these contents since then, and when that was last."""

    async def save_observations(
        self, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int
    ) -> None:
        """Write these observations, in place of earlier ones with the same entry, and delete some of the old ones of
        every service. Repeatable. They need not be durable when it returns."""

    async def count_observed(self, service: str, route: str | None) -> list[ObservedCount]:
        """Count the observations of a route, or of all routes, by what was found."""


CONTENTS_MAX: Final = 100
"""How many operations with one content `observed_contents` returns at most."""


def examples_read(*, is_refused: bool) -> int:
    """How many rows to read for the examples of a finding. There are examples only of what would be refused."""
    return 20 * EXAMPLES_MAX if is_refused else 0


def examples(operation_ids: Iterable[UUID]) -> tuple[UUID, ...]:
    """The first `EXAMPLES_MAX` of these, each once."""
    return tuple(islice(dict.fromkeys(operation_ids), EXAMPLES_MAX))
