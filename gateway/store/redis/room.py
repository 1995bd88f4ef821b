"""Whether a Redis that runs has room for copies, as the log tells it: once that it has none, once that it has again.

Nothing is decided by it. Copies that are refused are counted, and made again from the durable store; but a Redis that
is full stays so until somebody does something about it. At its limit a server takes one copy and refuses the next, so
that it has room again is told only once it has taken everything for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

ROOM_SECONDS: Final = 60.0

_LOG = logging.getLogger("gateway")


class Room:
    """What was told of one server. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told = ""
        self._refused_seconds = 0.0

    def note(self, refused: str) -> None:
        """What a look at the server came to: why it takes no copies, empty if it takes them."""
        now = self._clock()
        if refused:
            self._refused_seconds = now
            if refused != self._told:
                self._told = refused
                _LOG.warning("%s; until then replays come from the durable store", refused)
        elif self._told and now - self._refused_seconds >= ROOM_SECONDS:
            self._told = ""
            _LOG.info("Redis takes copies again")
