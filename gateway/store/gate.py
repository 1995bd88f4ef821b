"""The way of a command to a durable store and back: one coroutine, whatever stands in front of the store.

What stands there keeps values true that this way compares: until when this gateway may grant, and what it has copies
of (`Copies`). It is called only where a value asks for it. The way itself seals what is confidential for the store, and
opens it in the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import Any, Final, cast
from uuid import UUID

from gateway.core.confidential import NO_SEALING, Sealing
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Accept,
    Claim,
    Command,
    Complete,
    Dispatch,
    Fenced,
    Prove,
    Renew,
    Result,
    Snapshot,
    State,
    Takeover,
)
from gateway.observe.facts import Events, StoreCalled
from gateway.store.base import Store, boot_seconds
from gateway.store.operations import Cold
from gateway.store.sealed import SealedCold

DURABLE: Final = "durable"

# A constant, because a union inside `isinstance` is built on every call.
_NEW: Final = (Claim, Accept)
# After these there is no response to replay.
_ENDING: Final = frozenset(EVENT_OF) - {Claim, Accept, Dispatch, Takeover, Renew, Complete, Prove}
_ALWAYS: Final = float("inf")

# A call that says nothing new of the clock is passed over for no longer than this.
_OBSERVED_SECONDS: Final = 1.0
# A smaller step of the store's clock goes unnoticed; callers that wait for a steady clock wait longer than this.
_UNSEEN_SECONDS: Final = 1.0
# Seconds per second: more than clocks drift apart, or are slewed.
_DRIFT: Final = 0.001


class Steadiness:
    """Since when the durable store's clock has had no step, as seen from one process.

    The store reads its clock between the start and the end of a call, so each call gives a lower and an upper bound of
    that clock's lead over the boot-time clock, whose seconds these are. Bounds that lie beyond the earlier ones, plus
    the possible drift, are a step. The time before the first call counts as one. A call says nothing new that ends
    before `again_seconds`, and whose bounds are outside of those that are known.
    """

    __slots__ = ("_observed_seconds", "_since_seconds", "again_seconds", "least_seconds", "most_seconds", "steps")

    def __init__(self) -> None:
        self.least_seconds, self.most_seconds = float("-inf"), float("inf")
        """The lead is between these."""
        self.again_seconds = float("-inf")
        """A call that ends after this is observed, even if it says nothing new: the clocks drift."""
        self._since_seconds = float("inf")
        self._observed_seconds = 0.0
        self.steps = 0
        """How many were noticed, the first call included."""

    def observe(self, store_now_us: int, started_seconds: float, ended_seconds: float) -> None:
        """The store's clock showed `store_now_us` at some moment of the call between these two times."""
        lead_seconds = store_now_us / MICROSECONDS
        least_seconds, most_seconds = lead_seconds - ended_seconds, lead_seconds - started_seconds
        drift_seconds = _DRIFT * max(0.0, ended_seconds - self._observed_seconds)
        low_seconds, high_seconds = self.least_seconds - drift_seconds, self.most_seconds + drift_seconds
        self._observed_seconds, self.again_seconds = ended_seconds, ended_seconds + _OBSERVED_SECONDS
        if (
            not self.steps
            or least_seconds > high_seconds + _UNSEEN_SECONDS
            or most_seconds < low_seconds - _UNSEEN_SECONDS
        ):
            self.steps += 1
            self._since_seconds = ended_seconds
            self.least_seconds, self.most_seconds = least_seconds, most_seconds
        else:
            self.least_seconds, self.most_seconds = max(low_seconds, least_seconds), min(high_seconds, most_seconds)

    def steady_seconds(self, now_seconds: float) -> float:
        """For how long no step was noticed; 0 before the first call."""
        return max(0.0, now_seconds - self._since_seconds)


class Copies:
    """What is in front of a store: copies of what it acknowledged, and whether it is up. Here there are none."""

    cached: Container[int] = ()
    """By the integer of the operation id. What is in it may be over."""
    durable_up = True

    def __init__(self) -> None:
        self.steadiness: Final = Steadiness()
        self.keep: Callable[[Snapshot, float], None] = lambda _snapshot, _started_seconds: None
        """Keeps the record of a call that began at this time, if it is completed."""

    def recall(self, _operation_id: UUID) -> Snapshot | None:
        """The completed record that a claim's `Fenced` result would carry, if there is a copy."""
        return None

    def observe(self, store_now_us: int, started_seconds: float, ended_seconds: float) -> None:
        """The store answered a write of this time with this time of its own."""
        self.steadiness.observe(store_now_us, started_seconds, ended_seconds)

    async def end(self, command: Command, result: Result, started_seconds: float) -> None:
        """The store has executed, or refused, a command after which there is no response to replay."""

    async def fail(self, command: Command, error: BaseException) -> None:
        """The command failed, and may have taken effect."""


class SealedStore:
    """Satisfies the `Store` protocol; owns the store behind it. By itself it lets everything through.

    Without keys it only recognises what is sealed: another gateway beside this one may have keys already.
    """

    def __init__(self, store: Store, sealing: Sealing = NO_SEALING, events: Events | None = None) -> None:
        self.behind: Final = store
        self.sealing = sealing
        self.cold = cast(Cold, SealedCold(store.cold, sealing))
        self.watch = store.watch
        self._events = Events() if events is None else events
        self._copies = Copies()
        self._clock: Callable[[], float] = boot_seconds
        # Until when this gateway may grant, and believes what the store acknowledges, on the boot-time clock; and which
        # trust that is: there is a new one where another memory was found, which a command that was under way notices.
        self._trusted_until_seconds = _ALWAYS
        self._trust = 0
        # The highest token that was seen; and since when something that was acknowledged is not shared.
        self._token = _ALWAYS
        self._unshared_since: float | None = 0.0

    async def start(self) -> None:
        await self.behind.start()

    async def close(self) -> None:
        await self.behind.close()

    async def read(self, operation_id: UUID) -> Snapshot:
        return self.sealing.opened_snapshot(await self.behind.read(operation_id))

    def copy_to(self, copies: Copies, clock: Callable[[], float]) -> None:
        """From now on these are in front. `clock` is the boot-time clock."""
        self._copies, self._clock = copies, clock

    async def apply(self, command: Command) -> Result:
        """See `Store`."""
        copies, trust, sealing, sealed = self._copies, self._trust, self.sealing, command
        if (
            isinstance(command, _NEW)
            and command.identity.operation_id.int in copies.cached
            and (copy := copies.recall(command.identity.operation_id)) is not None
        ):
            return Fenced(copy)
        started_seconds = self._clock()
        is_trusted = started_seconds <= self._trusted_until_seconds
        if not is_trusted and (known := await self._known(command, started_seconds)) is not None:
            return known
        # What the record is made of, if it is made of what this process has in clear.
        made_of = command.granted if isinstance(command, Complete) else command
        try:
            if sealing.ring is not None or getattr(made_of, "sealed", None) is not None:
                sealed = sealing.sealed(command)
            result = await self.behind.apply(sealed)
            record = result.snapshot.record
            is_own = record is None or (sealed is command and record.identity is getattr(made_of, "identity", None))
            if not is_own:
                result = sealing.opened_result(result, command, sealed)
            if self._unshared_since is None:
                self._begin_unshared()
            ended_seconds = self._clock()
            if ended_seconds > self._trusted_until_seconds or trust != self._trust:
                self._doubt(command, trust)
        except BaseException as failure:
            self._report_call(EVENT_OF[type(command)], started_seconds, failure)
            await copies.fail(command, failure)
            raise
        self._events.publish(StoreCalled(DURABLE, EVENT_OF[type(command)], ended_seconds - started_seconds, None))
        if record is not None and record.token > self._token:
            self._token = record.token
        lead_seconds, known_lead = result.snapshot.now_us / MICROSECONDS, copies.steadiness
        if (
            lead_seconds - ended_seconds > known_lead.least_seconds
            or lead_seconds - started_seconds < known_lead.most_seconds
            or ended_seconds > known_lead.again_seconds
            or not copies.durable_up
        ):
            copies.observe(result.snapshot.now_us, started_seconds, ended_seconds)
        if type(command) in _ENDING:
            await copies.end(command, result, started_seconds)
        elif record is not None and record.state is State.COMPLETED:
            copies.keep(result.snapshot, started_seconds)
        return result

    async def _known(self, command: Command, started_seconds: float) -> Result | None:
        """The result of a command without trust, if that is known without the call. Raises where it must not pass."""
        try:
            result = await self._admit(command)
        except BaseException as error:
            await self._copies.fail(command, error)
            raise
        if result is not None:
            self._copies.observe(result.snapshot.now_us, started_seconds, self._clock())
            self._copies.keep(result.snapshot, started_seconds)
        return result

    async def _admit(self, _command: Command) -> Result | None:
        """As `_known`."""
        return None

    def _doubt(self, command: Command, trust: int) -> None:
        """This trust ended during the call. Raises `Indefinite` where its result is not believed."""

    def _begin_unshared(self) -> None:
        """Something was acknowledged that is not shared."""

    def _report_call(self, verb: str, started_seconds: float, failure: BaseException | None = None) -> None:
        """Publish a call and its outcome."""


Caller = Callable[..., Awaitable[Any]]
"""Calls a verb of the store behind with these arguments, and sees how it ends."""


class _Passing:
    def __init__(self, cold: Cold, call: Caller, changed: dict[str, Callable[..., Any]]) -> None:
        self._cold = cold
        self._call = call
        self.announce_work = cold.announce_work
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._cold, name)

        async def passed(*args: Any, **kwargs: Any) -> Any:
            return await self._call(verb, *args, **kwargs)

        passed.__name__ = name
        # Found without this method from now on.
        setattr(self, name, passed)
        return passed


def passing(cold: Cold, call: Caller, **changed: Callable[..., Any]) -> Cold:
    """The verbs of `cold`, each called by `call`, but for those that are `changed`."""
    return cast(Cold, _Passing(cold, call, changed))
