"""What the connections of one store have in common: which memory they lead to, and the last token that was drawn."""

from __future__ import annotations

from threading import Lock

from gateway.store.base import EpochChanged
from gateway.store.postgres.engine import Engine


class Memory:
    """See the module. Threads share it."""

    def __init__(self) -> None:
        self._identity = ""
        self._last_token = 0
        self._drawing = Lock()

    def check(self, engine: Engine, identity: str, *, is_start: bool) -> None:
        """Raise `EpochChanged` for another memory than the one that was found at the start."""
        if is_start:
            self._identity = identity
        elif identity != self._identity:
            raise EpochChanged(f"the address leads to another {engine} than before")

    def draw(self, least: int) -> int:
        """A token that is no lower than this and higher than all others drawn by this process."""
        with self._drawing:
            self._last_token = max(least, self._last_token + 1)
            return self._last_token
