"""The table of observations in Postgres: see `observations.ObservationStore`. Each statement is its own transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.observation import HISTORY_MAX, Finding, Observation, pack, unpack
from gateway.core.verdict import Verdict
from gateway.store.observations import CONTENTS_MAX, FORGOTTEN_MAX, ObservedCount, examples, examples_read
from gateway.store.postgres.statements import load

_HISTORY: Final = load("select_observations")
_CONTENTS: Final = load("select_observed_contents")
_SAVE: Final = load("save_observations")
_COUNT: Final = load("count_observations")
_OPERATIONS: Final = load("select_observed_operations")

Fetch = Callable[..., Awaitable[Sequence[Any]]]


async def observed_before(fetch: Fetch, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
    return [unpack(*row) for row in await fetch(_HISTORY, service, list(operation_ids), HISTORY_MAX)]


async def observed_contents(
    fetch: Fetch, service: str, contents: Collection[bytes], since_us: int
) -> list[tuple[bytes, UUID, int]]:
    rows = await fetch(_CONTENTS, service, list(contents), since_us, CONTENTS_MAX)
    return [(content, operation_id, last_us) for content, operation_id, last_us in rows]


async def save(fetch: Fetch, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int) -> None:
    rows = [
        (
            *(seen.entry, seen.route, seen.operation_id, seen.began_us, seen.content or None, pack(seen)),
            *(finding.verdict.value, finding.is_refused, finding.is_repeat, finding.is_rekeyed),
        )
        for seen, finding in found
    ]
    if rows:
        columns = map(list, zip(*rows, strict=True))
        await fetch(_SAVE, service, *columns, forget_before_us, FORGOTTEN_MAX)


async def count(fetch: Fetch, service: str, route: str | None) -> list[ObservedCount]:
    found = []
    for name, verdict, is_refused, number, repeats, rekeyed in await fetch(_COUNT, service, route):
        which = (service, name, verdict, is_refused, examples_read(is_refused=is_refused))
        operations = examples(row[0] for row in await fetch(_OPERATIONS, *which))
        found.append(ObservedCount(name, Verdict(verdict), is_refused, number, repeats, rekeyed, operations))
    return found
