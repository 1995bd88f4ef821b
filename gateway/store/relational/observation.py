"""The table of observations, inside transactions of the caller: see `observations.ObservationStore`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from gateway.core.observation import HISTORY_MAX, Finding, Observation, pack, unpack
from gateway.core.verdict import Verdict
from gateway.store.observations import CONTENTS_MAX, FORGOTTEN_MAX, ObservedCount, examples, examples_read
from gateway.store.relational.executor import Cursor


def observed_before(cursor: Cursor, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
    ids = [operation_id.bytes for operation_id in operation_ids]
    rows = cursor.among("select_observations", ids, service, HISTORY_MAX)
    return [
        unpack(UUID(bytes=entry), route, began_us, UUID(bytes=operation_id), content, seen)
        for operation_id, began_us, entry, route, content, seen in sorted(rows)
    ]


def observed_contents(
    cursor: Cursor, service: str, contents: Collection[bytes], since_us: int
) -> list[tuple[bytes, UUID, int]]:
    rows = cursor.among("select_observed_content", list(contents), service, since_us, CONTENTS_MAX)
    return [(content, UUID(bytes=operation_id), last_us) for content, operation_id, last_us in rows]


def save_observations(
    cursor: Cursor, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int
) -> None:
    rows = []
    for seen, finding in found:
        operation_id = None if seen.operation_id is None else seen.operation_id.bytes
        columns = (seen.entry.bytes, service, seen.route, operation_id, seen.began_us, seen.content or None, pack(seen))
        thought = (finding.verdict.value, finding.is_refused, finding.is_repeat, finding.is_rekeyed)
        rows.append((*columns, *thought))
    cursor.change_all("upsert_observation", rows)
    cursor.change("delete_observations", (forget_before_us, FORGOTTEN_MAX))


def count_observed(cursor: Cursor, service: str, route: str | None) -> list[ObservedCount]:
    found = []
    counted = cursor.rows("count_observations", (service, route))
    for name, verdict, is_refused, number, repeats, rekeyed in counted:
        which = (service, name, verdict, is_refused, examples_read(is_refused=is_refused))
        rows = cursor.rows("select_observed_operations", which)
        operations = examples(UUID(bytes=row[0]) for row in rows)
        found.append(ObservedCount(name, Verdict(verdict), bool(is_refused), number, repeats, rekeyed, operations))
    return found
