"""The table of observations, inside transactions of the caller: see `observations.ObservationStore`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from gateway.core.observation import HISTORY_MAX, Finding, Observation, pack, unpack
from gateway.core.verdict import Verdict
from gateway.store.observations import CONTENTS_MAX, FORGOTTEN_MAX, ObservedCount, examples, examples_read
from gateway.store.relational.executor import Cursor


def observed_before(cursor: Cursor, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
    found = []
    for operation_id in operation_ids:
        for entry, route, began_us, content, seen in cursor.rows(
            "select_observations", (service, operation_id.bytes, HISTORY_MAX)
        ):
            found.append(unpack(UUID(bytes=entry), route, began_us, operation_id, content, seen))
    return found


def observed_contents(
    cursor: Cursor, service: str, contents: Collection[bytes], since_us: int
) -> list[tuple[bytes, UUID, int]]:
    return [
        (content, UUID(bytes=operation_id), last_us)
        for content in contents
        for operation_id, last_us in cursor.rows("select_observed_content", (service, content, since_us, CONTENTS_MAX))
    ]


def save(cursor: Cursor, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int) -> None:
    for seen, finding in found:
        operation_id = None if seen.operation_id is None else seen.operation_id.bytes
        columns = (seen.entry.bytes, service, seen.route, operation_id, seen.began_us, seen.content or None, pack(seen))
        thought = (finding.verdict.value, finding.is_refused, finding.is_repeat, finding.is_rekeyed)
        cursor.change("upsert_observation", (*columns, *thought))
    cursor.change("delete_observations", (forget_before_us, FORGOTTEN_MAX))


def count(cursor: Cursor, service: str, route: str | None) -> list[ObservedCount]:
    found = []
    counted = cursor.rows("count_observations", (service, route))
    for name, verdict, is_refused, number, repeats, rekeyed in counted:
        which = (service, name, verdict, is_refused, examples_read(is_refused=is_refused))
        rows = cursor.rows("select_observed_operations", which)
        operations = examples(UUID(bytes=row[0]) for row in rows)
        found.append(ObservedCount(name, Verdict(verdict), bool(is_refused), number, repeats, rekeyed, operations))
    return found
