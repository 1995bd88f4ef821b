"""Judges a finished history by the invariants, one check each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from tests.simulation.audit import execution, regions, service, state
from tests.simulation.audit.case import Case
from tests.simulation.history import History

Check = Callable[[Case], Iterator[str]]

# A broken invariant usually breaks everywhere; a few cases of each tell enough.
_SHOWN_MAX: Final = 5

CHECKS: Final[tuple[Check, ...]] = tuple(
    sorted(
        (
            check
            for module in (execution, regions, service, state)
            for name, check in vars(module).items()
            if name.startswith("invariant_")
        ),
        key=lambda check: check.__name__,
    )
)


def audit(history: History) -> list[str]:
    """What is wrong; each line begins with the name of the invariant."""
    case = Case(history)
    return [
        f"{check.__name__.removeprefix('invariant_')}: {fault}"
        for check in CHECKS
        for fault in islice(check(case), _SHOWN_MAX)
    ]
