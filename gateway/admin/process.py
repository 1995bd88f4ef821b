"""What the console gets of the gateway that serves it, beside the operations in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.admin.fault import Fault
from gateway.store.journal import HostJournals


class Reloaded(Protocol):
    """The report of a reload: `applied`, `unchanged` or `refused`."""

    @property
    def result(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def is_file_wrong(self) -> bool: ...
    @property
    def document(self) -> dict[str, Any]: ...


Reload = Callable[[], Awaitable[Reloaded]]
"""Read the file again, and wait for what comes of it. Never raises."""


async def reloaded(reload: Reload | None, refused: str = "") -> Reloaded:
    """The report of a reload. Raises `Fault` where it is refused, with the text `refused` before its own."""
    if reload is None:
        raise Fault(409, "no-file", "This gateway was not started from a file.")
    report = await reload()
    if report.result == "refused":
        members = {name: value for name, value in report.document.items() if name != "detail"}
        status = 422 if report.is_file_wrong else 409
        raise Fault(status, "reload-refused", f"{refused}{report.detail}", **members)
    return report


Explain = Callable[[bytes, str, int | None, bool], Awaitable[Mapping[str, Any]]]
"""Says what the gateway would do with a request: see `explain.serving`."""


@dataclass(frozen=True, slots=True)
class Process:
    """`health` is what it knows of its stores, `configuration` is the one in force as text without secrets, `digest`
    names it. `requests` counts requests since its start, by route and verdict. `journals` is for the journals of this
    host. `reload` is None where it was not started from a file.
    """

    health: Callable[[], Mapping[str, Any]]
    configuration: Callable[[], str]
    digest: Callable[[], str]
    requests: Callable[[], Mapping[str, Mapping[str, int]]]
    journals: HostJournals
    explain: Explain
    reload: Reload | None = None
