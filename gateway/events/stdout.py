"""Events as lines on standard output, for trying. At most once: nobody acknowledges a line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gateway.events.sink import Delivered, Outgoing, Publication


class StdoutSink:
    """Writes each event as one line of JSON."""

    batch_max = 100

    async def open(self) -> None:
        pass

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        sys.stdout.buffer.write(b"".join([event.cloudevent() + b"\n" for event, _ in batch]))
        sys.stdout.buffer.flush()
        return [Delivered()] * len(batch)

    async def close(self) -> None:
        pass
