"""What operators do about a store that lost its memory: look, and accept the loss.

To accept it is to trust the store again: it grants keys that it does not have, also those that were used before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gateway.admin.view import moment, span
from gateway.core.operation import Audit, Record
from gateway.store.memory.epoch import Amnesia, amnesia_of, memo_of
from gateway.store.operations import Agreements


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What the store knows of its memory, as of `now_us` of its clock."""

    amnesia: Amnesia
    now_us: int
    is_unproven: bool = False
    """A standby was promoted, and the gateways have yet to find out whether it lost anything."""

    @property
    def is_lost(self) -> bool:
        """Whether requests with keys that the store does not have are refused."""
        return self.now_us < self.amnesia.until_us

    def refuses(self, record: Record | None) -> bool:
        """Whether the loss makes a first request with the key of this record, None if absent, be refused."""
        return self.amnesia.refuses(record, self.now_us)

    @property
    def text(self) -> str:
        return self.told(is_page=False)

    @property
    def document(self) -> dict[str, Any]:
        return {"is_lost": self.is_lost, "detail": self.text}

    def told(self, *, is_page: bool) -> str:
        """The same, for a reader with a page before them or with a terminal."""
        amnesia = self.amnesia
        if self.is_unproven:
            return (
                "A standby of the store was promoted, and no gateway has accepted that yet. They wait for each other "
                "for store.promotion_wait; their logs name who has not spoken. Then it counts as a lost memory."
            )
        if self.is_lost:
            left = span(amnesia.until_us - self.now_us)
            accept = "accept the loss" if is_page else "memory --accept-loss --why TEXT"
            return (
                f"The store lost its memory: {amnesia.why}. First requests with a key that it does not have are "
                f"refused until {moment(amnesia.until_us)}, for {left} more, because the key may have been used. "
                "If it is the right store, and keys that it lost may run again: "
                f"{accept}."
            )
        if amnesia.by:
            return f"The store lost its memory once ({amnesia.why}); {amnesia.by} accepted the loss."
        if amnesia.why:
            return f"The store lost its memory once ({amnesia.why}); the time for which keys are remembered is over."
        promoted = f" The last promotion was accepted: {amnesia.promotion}." if amnesia.promotion else ""
        return f"Nothing is known to be lost.{promoted}"


async def memory_state(store: Agreements) -> MemoryState:
    """The state of the store's memory. Raises as the store's verbs, and `StartRefused` for a memo from the future."""
    epoch = await store.check_memory()
    return MemoryState(amnesia_of(epoch), epoch.now_us, bool(epoch.parent))


async def accept_loss(store: Agreements, audit: Audit) -> MemoryState:
    """Trust the store again. Repeatable; changes nothing where nothing is refused. Raises as `memory_state`."""
    state = await memory_state(store)
    if not state.is_lost:
        return state
    accepted = replace(state.amnesia, until_us=0, by=f"{audit.who} ({audit.why})")
    await store.begin_epoch(memo_of(accepted), accepted.beyond)
    return await memory_state(store)
