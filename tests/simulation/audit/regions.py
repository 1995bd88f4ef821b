"""Invariants of regions: where an operation may be, and what is said while its home cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from tests.simulation.audit.case import Case
from tests.simulation.history import Sent


def invariant_42_an_operation_has_one_home(case: Case) -> Iterator[str]:
    """Nothing of it is in another region's store, and nothing is sent for it from there."""
    homes, region_of = case.history.terms.homes, case.history.region_of
    if not homes:
        return
    for change in case.history.changes:
        home = _home_of(change.operation_id, homes)
        if change.region != home:
            yield f"{change.operation_id}: {change.event} in the store of {change.region}, and its home is {home}"
    for sent in case.history.sent:
        for operation_id in _operations_of(case, sent):
            home = _home_of(operation_id, homes)
            if region_of[sent.gateway] != home:
                yield f"{operation_id}: sent by {sent.gateway} in {region_of[sent.gateway]}, and its home is {home}"


def _home_of(operation_id: str, homes: tuple[str, ...]) -> str:
    return homes[UUID(operation_id).int % len(homes)]


def _operations_of(case: Case, sent: Sent) -> set[str]:
    """What was sent for it: named by itself, by a probe, or known by the key of what goes unprotected."""
    named = sent.operation_id or sent.target.partition("operation=")[2]
    if named:
        return {named}
    return case.operations.get(sent.subject, set()) if sent.key else set()


def invariant_43_a_home_that_is_away_is_admitted(case: Case) -> Iterator[str]:
    """Where nothing left for the home, the answer names it and says that nothing happened; where something left and no
    answer came, the answer never says so."""
    for forward in case.history.forwards:
        answer = None if forward.call is None else case.history.calls[forward.call].answer
        if answer is None or not answer.is_whole or forward.answered is not None:
            continue
        said = answer.status, answer.verdict
        if forward.sent is not None:
            if said != (503, "in-doubt"):
                yield f"call {forward.call}: {said}, and what {forward.home} did with it is not known"
        elif said != (503, "store-unavailable") or f"Region {forward.home}".encode() not in answer.body:
            yield f"call {forward.call}: {said}, and nothing of it left for {forward.home}"
