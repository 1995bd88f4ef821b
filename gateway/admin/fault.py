"""Why a request to the admin port is not carried out, and what is known of its effect. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.admin.delivery import NoSuchRoute
from gateway.admin.request import Malformed
from gateway.admin.sinks import NoSuchSink
from gateway.store.base import Amnesic, NotApplied, StartRefused, StoreError, Unreadable, Unstorable


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


def fault_of(error: Malformed | NoSuchRoute | NoSuchSink | StoreError, *, is_read: bool) -> Fault:
    """The fault for an error. `is_read`: the request changes nothing."""
    match error:
        case Malformed():
            return Fault(400, "malformed", str(error))
        case NoSuchRoute():
            return Fault(404, "no-such-route", f"Nothing was changed: {error}.")
        case NoSuchSink():
            return Fault(404, "no-such-sink", f"Nothing was changed: {error}.")
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
