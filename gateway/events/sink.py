"""The contract of a sink: it publishes an event and returns the result.

A publication whose acknowledgement is missing may have arrived. So every sink may get an event several times, always
under the same id and with the same bytes, and consumers recognise it by the id.
"""

from __future__ import annotations

from typing import Final, Protocol

from gateway.core.immutable import immutable
from gateway.core.outbox import PublishedEvent

REASON_CHARACTERS_MAX: Final = 300


@immutable
class Delivered:
    """The sink acknowledged the event. `secret_ids` signed it."""

    secret_ids: tuple[str, ...] = ()


@immutable
class Failed:
    """The event is to be published again. `is_unknown`: it may have arrived.

    `retry_after_us` is what the consumer asked for. `why` is for operators; it may hold a part of a response.
    """

    why: str
    is_unknown: bool = False
    retry_after_us: int | None = None


@immutable
class Refused:
    """The sink will never take this event; others are not concerned."""

    why: str


@immutable
class Closed:
    """The sink takes no event until an operator has mended something. The event is kept."""

    why: str


Publication = Delivered | Failed | Refused | Closed


class SinkUnusable(Exception):
    """A sink cannot be opened on this machine: its library is missing. The text says what to do."""


class Sink(Protocol):
    """A place that events are published to. Lives on one event loop."""

    async def open(self) -> None:
        """Prepare, without waiting for the sink's server. Raises `SinkUnusable`."""

    async def publish(self, event: PublishedEvent, redeliveries: int) -> Publication:
        """Publish once, within the sink's own deadline. Raises only what is a bug.

        `redeliveries`: how many times an operator had it delivered again although it had been given up. A broker that
        recognises ids it has seen must then not swallow the event.
        """

    async def close(self) -> None: ...


def reason(text: str) -> str:
    """A text from outside as a reason: in printable ASCII, and not long."""
    printable = "".join(each if " " <= each <= "~" else "?" for each in text[:REASON_CHARACTERS_MAX])
    return printable.strip() or "no reason given"
