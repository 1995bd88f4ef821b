"""The service behind the storm: mostly well, now and then slow, failing before it did anything, or cut after it did."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final
from urllib.parse import parse_qs, urlsplit

from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

# Longer than the shortest lease there is.
SLOWEST_SECONDS: Final = 5.0


class Deed(Enum):
    """What a request came to."""

    DONE = "it had its effect"
    REPEATED = "it had had its effect before, and was recognised"
    REFUSED = "it had none, and the whole answer said so"
    LOST = "it had none, and nobody was told"
    ASKED = "it was a question"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request with what it came to. `call` is the number of the client's call, 0 of a probe."""

    path: str
    call: int
    operation: str
    token: str
    deed: Deed


class StormUpstream(RecordingUpstream):
    """Set `is_calm` for a service that just works. `held` is how many requests it is holding back."""

    def __init__(self, source: random.Random, *, slowest_seconds: float = SLOWEST_SECONDS) -> None:
        super().__init__()
        self._slowest_seconds = slowest_seconds
        self.is_calm = False
        self.deeds: dict[int, Arrival] = {}
        self.held = 0
        self._gate: asyncio.Event | None = None
        self._source = source
        self._done: set[str] = set()
        for path in ("/charges", "/orders", "/transfers"):
            self.on(path, self._answer_to)

    @contextmanager
    def holding_back(self) -> Iterator[None]:
        """What comes now is done, and answered at the end."""
        self.held, self._gate = 0, asyncio.Event()
        try:
            yield
        finally:
            self._gate.set()
            self.held, self._gate = 0, None

    def _answer_to(self, received: Received) -> Answer:
        parts = urlsplit(received.target.decode())
        if received.method == "GET":
            (operation,) = parse_qs(parts.query)["operation"]
            self.deeds[received.number] = Arrival(parts.path, 0, operation, "", Deed.ASKED)
            return self._told(operation)
        operation = _text(received, "Idempotency-Operation")
        deed, answer = self._deal(parts.path, operation, received.body)
        if deed is Deed.DONE:
            self._done.add(operation)
        token = _text(received, "Idempotency-Fencing-Token")
        self.deeds[received.number] = Arrival(parts.path, int(_text(received, "X-Call")), operation, token, deed)
        return answer

    def _deal(self, path: str, operation: str, body: bytes) -> tuple[Deed, Answer]:
        """What it comes to, and what is said of it."""
        deed = Deed.REPEATED if path == "/orders" and operation in self._done else Deed.DONE
        good = Answer(201, "Created", body=body, effect=deed is Deed.DONE)
        if self._gate is not None:
            self.held += 1
            return deed, replace(good, hold=self._gate)
        luck = 0.0 if self.is_calm else self._source.random()
        if luck < 0.70:
            return deed, good
        hold = _in(self._source.uniform(0.0, 0.5) if luck < 0.90 else self._slowest_seconds)
        if luck < 0.80:
            return deed, replace(good, hold=hold)
        cut = self._source.randrange(0, 60)
        ending = self._source.choice((Ending.CLOSE, Ending.RESET))
        if luck < 0.84:
            return deed, replace(good, bytes_max=cut, ending=ending)
        nothing = deed if deed is Deed.REPEATED else Deed.LOST
        if luck < 0.86:
            return nothing, Answer(201, body=body, effect=False, bytes_max=cut, ending=ending)
        if luck < 0.93:
            refused = deed if deed is Deed.REPEATED else Deed.REFUSED
            return refused, Answer(503, "Service Unavailable", body=b"later", effect=False)
        return deed, replace(good, hold=hold)

    def _told(self, operation: str) -> Answer:
        headers = (("Content-Type", "application/json"),)
        if operation in self._done:
            return Answer(200, headers=headers, body=json.dumps({"done": operation}).encode(), effect=False)
        return Answer(404, "Not Found", headers=headers, body=b"{}", effect=False)


def _text(received: Received, name: str) -> str:
    (value,) = received.values(name)
    return value.decode()


def _in(seconds: float) -> asyncio.Event:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, event.set)
    return event
