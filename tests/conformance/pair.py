"""One operation told the same on a store and on the model, and where the two disagree."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.store.base import Store
from tests.conformance.hand import Hand, Script, Speech, audit_differences, differences
from tests.support.memory_store import ManualClock, Memory, MemoryStore


@dataclass
class Pair:
    """One operation on the store and on the model. They share their script, the model's clock is its own."""

    model: MemoryStore
    mine: Hand
    theirs: Hand

    @classmethod
    def new(cls, clock: ManualClock) -> Pair:
        script = Script()
        model = MemoryStore(Memory(clock))
        return cls(model, Hand(script), Hand(script))

    async def say(self, store: Store, speech: Speech) -> list[str]:
        """Say it to both; the differences of their answers."""
        command, wanted_command = speech(self.theirs), speech(self.mine)
        result, wanted = await store.apply(command), self.model.apply_now(wanted_command)
        self.theirs.see(command, result)
        self.mine.see(wanted_command, wanted)
        if type(result) is not type(wanted):
            return [f"{type(result).__name__} instead of {type(wanted).__name__}"]
        return []

    async def look(self, store: Store) -> None:
        self.theirs.look(await store.read(self.theirs.operation_id))
        self.mine.look(self.model.read_now(self.mine.operation_id))

    async def audit_differences(self, store: Store) -> list[str]:
        theirs, mine = await store.audits(self.theirs.operation_id), self.model.audits_now(self.mine.operation_id)
        return audit_differences(theirs, self.theirs.tokens, mine, self.mine.tokens)

    def differences(self, *, exact: bool) -> list[str]:
        return differences(self.theirs.snapshot, self.theirs.tokens, self.mine.snapshot, self.mine.tokens, exact=exact)
