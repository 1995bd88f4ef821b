"""The contract of a sink: it publishes events and returns the result of each.

A publication whose acknowledgement is missing may have arrived. So every sink may get an event several times, always
under the same id and with the same bytes, and consumers recognise it by the id.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, Protocol

from gateway.core.immutable import immutable
from gateway.core.outbox import PublishedEvent
from gateway.observe.facts import PublicationResult as Result

# -- sink --------------------------------------------------------------------------------------------------------------

REASON_CHARACTERS_MAX: Final = 300


@immutable
class Publication:
    """What became of publishing an event. `why` is for operators; it may hold a part of a response, and then `cause` is
    for the log, without that. `retry_after_us` is what a consumer asked for where it failed; `secret_ids` signed what
    was delivered."""

    result: Result
    why: str = ""
    cause: str = ""
    retry_after_us: int | None = None
    secret_ids: tuple[str, ...] = ()

    @property
    def is_failed(self) -> bool:
        """Whether it is to be published again, and nothing else is known."""
        return self.result in (Result.FAILED, Result.UNKNOWN)


Outgoing = tuple[PublishedEvent, int]
"""An event, and how many times an operator had it delivered again although it had been given up.

A broker that recognises ids it has seen must then not swallow the event.
"""


class SinkUnusable(Exception):
    """A sink cannot be opened on this machine: its library is missing. The text says what to do."""


class Sink(Protocol):
    """A place that events are published to. Lives on one event loop."""

    batch_max: int
    """How many events it takes at a time. They end together, so each of them waits for the slowest."""

    async def open(self) -> None:
        """Prepare, without waiting for the sink's server. Raises `SinkUnusable`."""

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        """Publish each event once, within the sink's own deadline. Returns the results in their order. Raises only what
        is a bug."""

    async def close(self) -> None: ...


class OneByOne:
    """A sink that publishes each event by itself, so that none waits for another one's acknowledgement."""

    batch_max = 1

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        return [await self.publish_one(*each) for each in batch]

    async def publish_one(self, event: PublishedEvent, redeliveries: int) -> Publication:
        """As `Sink.publish`."""
        raise NotImplementedError


def reason(text: str) -> str:
    """A text from outside as a reason: in printable ASCII, and not long."""
    printable = "".join(each if " " <= each <= "~" else "?" for each in text[:REASON_CHARACTERS_MAX])
    return printable.strip() or "no reason given"


# -- stdout ------------------------------------------------------------------------------------------------------------
# Events as lines on standard output, for trying. At most once: nobody acknowledges a line.


class StdoutSink:
    """Writes each event as one line of JSON."""

    batch_max = 100

    async def open(self) -> None:
        pass

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        sys.stdout.buffer.write(b"".join([event.cloudevent() + b"\n" for event, _ in batch]))
        sys.stdout.buffer.flush()
        return [Publication(Result.DELIVERED)] * len(batch)

    async def close(self) -> None:
        pass
