"""How many accepted requests wait, where the store's count is older than what was accepted here."""

from __future__ import annotations

from gateway.protect.accepting import Pending
from tests.support.memory_store import MemoryStore


def test_what_the_store_has_counted_is_known_by_the_age_of_its_count() -> None:
    """Of what was accepted here, a count has what was noted before it began. One that is older than all notes, because
    another one overtook it, does not bring back all that was ever accepted."""
    pending, count = Pending(MemoryStore(), "shop", clock=lambda: 0.0), object()

    def included(counted: float, now: float, added: int) -> int:
        return pending._added_before(counted, (now, {count: added}))[count]  # type: ignore[dict-item, index]

    assert included(1.0, 1.0, 500) == 500
    assert included(1.0, 2.0, 600) == 500
    assert included(2.0, 3.0, 700) == 600
    assert included(4.0, 4.0, 800) == 800
    assert included(0.0, 5.0, 900) == 800
