"""How a layer in front of a store passes on the verbs that no request waits for (`operations.Cold`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from gateway.store.operations import Cold

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
