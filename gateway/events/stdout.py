"""Events as lines on standard output, for trying. At most once: nobody acknowledges a line."""

from __future__ import annotations

import sys

from gateway.core.outbox import PublishedEvent
from gateway.events.sink import Delivered, Publication


class StdoutSink:
    """Writes each event as one line of JSON."""

    async def open(self) -> None:
        pass

    async def publish(self, event: PublishedEvent, redeliveries: int) -> Publication:
        sys.stdout.buffer.write(event.cloudevent() + b"\n")
        sys.stdout.buffer.flush()
        return Delivered()

    async def close(self) -> None:
        pass
