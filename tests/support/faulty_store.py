"""A store whose answers can be lost, refused or held back, at the call that a test names.

The effects are those of the store behind it; only what the caller gets to see is changed. Faults are given out per
verb, one for each call in order; calls beyond them are answered as ever.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar
from uuid import UUID

from gateway.core.operation import EVENT_OF, Command, Result, Snapshot
from gateway.store.base import Indefinite, NotApplied, Store, Unreadable
from gateway.store.sealed import passing

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Gate:
    """Where a call stands until it is let through."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    passed: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_through(self) -> None:
        self.reached.set()
        await self.opened.wait()
        self.passed.set()


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call.

    `before` and `after` are gates on either side of the effect. `error` is raised instead of the answer, with the
    effect done where `has_effect`.
    """

    error: Exception | None = None
    has_effect: bool = True
    before: Gate | None = None
    after: Gate | None = None


def lost() -> Fault:
    """It took effect, and the answer did not arrive."""
    return Fault(Indefinite("the answer was lost"))


def dropped() -> Fault:
    """It took no effect, and nobody can tell."""
    return Fault(Indefinite("the answer was lost"), has_effect=False)


def refused() -> Fault:
    """The store could not be asked."""
    return Fault(NotApplied("the store is away"), has_effect=False)


def withheld() -> Fault:
    """The store has a record that it cannot show."""
    return Fault(Unreadable("a newer program wrote the record"), has_effect=False)


class FaultyStore:
    """Satisfies the `Store` protocol; the store behind it stays its owner's.

    `said` lists the verbs in the order in which they were called.
    """

    def __init__(self, store: Store) -> None:
        self.behind = store
        self.cold = passing(store.cold, self._forward)
        self.start, self.close, self.watch = store.start, store.close, store.watch
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._broken: dict[str, Fault] = {}
        self.said: list[str] = []

    def on(self, verb: str, *faults: Fault) -> None:
        """What happens to the next calls of this verb (an event's name, or `read`)."""
        self._faults[verb].extend(faults)

    def stop_before(self, verb: str) -> Gate:
        """Hold the next call of this verb back before its effect."""
        gate = Gate()
        self.on(verb, Fault(before=gate))
        return gate

    def stop_after(self, verb: str) -> Gate:
        """Hold the answer to the next call of this verb back."""
        gate = Gate()
        self.on(verb, Fault(after=gate))
        return gate

    def break_(self, *verbs: str, fault: Fault) -> None:
        """Every call of these verbs fails so, until `mend`."""
        self._broken.update(dict.fromkeys(verbs, fault))

    def mend(self) -> None:
        self._broken.clear()

    async def apply(self, command: Command) -> Result:
        return await self._ask(EVENT_OF[type(command)], self.behind.apply, command)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._ask("read", self.behind.read, operation_id)

    async def _forward(self, verb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(verb.__name__, verb, *args, **kwargs)

    async def _ask(self, verb: str, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        self.said.append(str(verb))
        faults = self._faults[str(verb)]
        fault = faults.popleft() if faults else self._broken.get(str(verb), Fault())
        if fault.before is not None:
            await fault.before.pass_through()
        if not fault.has_effect:
            raise _own(fault.error or Indefinite("the answer was lost"))
        result = await call(*args, **kwargs)
        if fault.after is not None:
            await fault.after.pass_through()
        if fault.error is not None:
            raise _own(fault.error)
        return result


def _own(error: Exception) -> Exception:
    """Each caller raises an exception of its own, or their tracebacks would grow into one another."""
    return type(error)(*error.args)
