"""One operation told the same on a store and on the model, and where the two disagree.

Both draw different tokens and live at different times: tokens are compared by their order of appearance, times by their
distance from now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gateway.core.operation import Delivery, Record, microseconds, unpacked_history
from gateway.store.base import Store
from tests.conformance.hand import Hand, Script, Speech, as_kept_in
from tests.support.memory_store import ManualClock, Memory, MemoryStore

# What a running clock may add between two statements of one test, on a machine that is busy.
RUNNING_CLOCK_TOLERANCE_US = microseconds(20.0)


@dataclass
class Pair:
    """One operation on the store and on the model. They share their script, the model's clock is its own."""

    model: MemoryStore
    mine: Hand
    theirs: Hand

    @classmethod
    def new(cls, clock: ManualClock) -> Pair:
        script = Script()
        return cls(MemoryStore(Memory(clock)), Hand(script), Hand(script))

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
        """What a store says otherwise of what was done to an operation; when it was done is not compared."""
        found = (
            (self.theirs.tokens, await store.audits(self.theirs.operation_id)),
            (self.mine.tokens, self.model.audits_now(self.mine.operation_id)),
        )
        their, wanted = (
            [(tokens.index(each.token), each.event, each.who, each.why) for each in audits] for tokens, audits in found
        )
        return [] if their == wanted else [f"audits: {their} instead of {wanted}"]

    def differences(self, *, exact: bool) -> list[str]:
        """What the store's record has otherwise than the model's, in words; empty when they are the same record."""
        record, model = self.theirs.record, as_kept_in(self.theirs.record, self.mine.record)
        if record is None or model is None:
            return [] if record is model else [f"record: {record} instead of {model}"]
        told, wanted = _told(record, self.theirs.tokens), _told(model, self.mine.tokens)
        tolerance_us = 0 if exact else RUNNING_CLOCK_TOLERANCE_US
        later_us = self.theirs.snapshot.now_us - self.mine.snapshot.now_us
        return [
            f"{name}: {value!r} instead of {wanted[name]!r}"
            for name, value in told.items()
            if not (isinstance(value, type(wanted[name])) and value == wanted[name])
            # Times that mean nothing are 0 or None on both sides.
            if not (name.endswith("_us") and value and wanted[name])
            or abs(value - wanted[name] - later_us) > tolerance_us
        ]


def _told(record: Record, tokens: list[int]) -> dict[str, Any]:
    """The fields of a record and of its delivery; without one, these are None. How a store keeps a record is its own
    affair."""
    names = [name for name in (*Record.__slots__, *Delivery.__slots__) if name != "sealed"]
    told = {name: getattr(record if hasattr(record, name) else record.delivery, name, None) for name in names}
    history = unpacked_history(record.history)
    entries = [
        replace(each, at_us=0, began_us=int(each.began_us > 0), token=tokens.index(each.token))
        for each in history.entries
    ]
    return told | {
        "delivery": record.delivery is not None,
        "token": tokens.index(record.token),
        "history": (history.dropped, entries),
    }
