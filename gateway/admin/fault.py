"""Why something is not done, and what is known of its effect: the exceptions of actions and of the admin port. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.store.base import Amnesic, NotApplied, StartRefused, StoreError, Unreadable, Unstorable


class Declined(Exception):
    """Nothing was done. The text says why, and what to do."""


class Malformed(Declined, ValueError):
    """The request is not valid. The text never quotes what was sent."""


class OutcomeRefused(Declined):
    """An outcome in a journal is not exported, or not acknowledged."""


class NotDead(Declined): ...


class NoSuch(Declined):
    """Nothing has this name: `code` says what. The text says which there are."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Fault(Exception):
    """The request ends here. `detail` says why, what was changed, and what to do; `members` belong to the problem."""

    def __init__(
        self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.headers, self.members = headers or {}, members


def unavailable(detail: str, **members: Any) -> Fault:
    """The store did not do it, or nobody knows."""
    return Fault(503, "store-unavailable", detail, **members)


def fault_of(error: Declined | StoreError, *, is_read: bool) -> Fault:
    match error:
        case NoSuch():
            return Fault(404, error.code, f"Nothing was changed: {error}.")
        case NotDead():
            return Fault(409, "not-dead", str(error))
        case Declined():
            return Fault(400, "malformed", str(error))
        case Unstorable():
            return Fault(422, "rejected", f"The store cannot keep this; nothing was changed: {error}")
        case NotApplied():
            what = "nothing could be read" if is_read else "nothing was changed"
            return unavailable(f"The store cannot be reached; {what}: {error}")
        case Amnesic():
            return Fault(503, "store-amnesia", f"Nothing was changed: {error}. See /memory.")
        case Unreadable():
            return unavailable(f"The record cannot be shown; nothing was changed: {error}")
        case StartRefused():
            return unavailable(f"Nothing was changed: {error}.")
        case _:
            return unavailable(f"It is not known whether this was done: {error}")
