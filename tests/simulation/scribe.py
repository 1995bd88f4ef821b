"""Writes histories by hand: a short one in which everything is right, to be spoiled by the tests of the auditor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulation.history import (
    CLIENT_ADDRESS,
    Answer,
    Call,
    Change,
    EventRow,
    History,
    Life,
    Sent,
    StoreCall,
    Terms,
    View,
    digest_of,
)

OPERATION = "11111111-1111-8111-8111-111111111111"
EPOCH_US = 1_800_000_000_000_000
REPLAY_SECONDS, REMEMBER_SECONDS, LEASE_SECONDS = 100.0, 200.0, 6.0
BODY = b'{"amount":1}'
TERMS = Terms(
    lease_seconds=LEASE_SECONDS,
    cache_max_age_seconds=5.0,
    wait_seconds_max=4.0,
    answer_within_seconds=3.0,
    store_timeout_seconds=1.0,
    sinks={"ledger": False, "feed": True},
)


class Scribe:
    """Adds what happens to one operation. Times are seconds of the run."""

    def __init__(self, history: History, operation_id: str = OPERATION, key: str = "k1") -> None:
        self.history, self.operation_id, self.key = history, operation_id, key
        self.view: View | None = None

    def change(self, at: float, event: str, after: View | None, **said: Any) -> Change:
        """A transition from the record as it stands, which is kept as it then is."""
        number, at_us = len(self.history.changes), self.history.store_us(at)
        change = Change(number, self.operation_id, event, at, at_us, self.view, after, "g0", **said)
        self.history.changes.append(change)
        self.view = after
        return change

    def accept(self, at: float, token: int) -> Change:
        """The request is kept, to be delivered later."""
        until_us = self.history.store_us(at + REMEMBER_SECONDS)
        ends = {"lease_until_us": 0, "replay_until_us": 0, "remember_until_us": 0, "deliver_until_us": until_us}
        after = View("accepted", token, f"a{token}", "accept", "", False, b"f", is_kept=True, **ends)
        return self.change(at, "accept", after, attempt=after.attempt, fingerprint=b"f")

    def claim(self, at: float, token: int, *, event: str = "claim") -> None:
        """A grant, and the store call that told of it."""
        read_token = None if self.view is None else self.view.token
        until_us, is_kept = self.history.store_us(at + LEASE_SECONDS), event == "dispatch"
        after = View(
            "claimed", token, f"a{token}", event, "g0.1", event == "takeover", b"f", until_us, 0, 0, is_kept=is_kept
        )
        if self.view is not None:
            after = replace(after, lane=self.view.lane, stops_lane=self.view.stops_lane)
        change = self.change(at, event, after, attempt=f"a{token}", read_token=read_token, fingerprint=b"f")
        times = at - 0.01, at, at + 0.01
        told = StoreCall("g0", event, self.operation_id, *times, "Applied", "", change.number)
        self.history.store_calls.append(told)

    def say(self, at: float, event: str, state: str, **different: Any) -> Change:
        """What the holder says of its attempt."""
        ends = {"remember_until_us": self.history.store_us(at + REMEMBER_SECONDS)}
        after = replace(self.view, state=state, last_event=event, **(ends | different))
        return self.change(at, event, after, token=self.view.token, attempt=self.view.attempt)

    def complete(self, at: float, nonce: str, *, event: str = "complete") -> Change:
        """The answer gets into the record."""
        after = replace(
            self.view,
            state="completed",
            last_event=event,
            carries_doubt=False,
            replay_until_us=self.history.store_us(at + REPLAY_SECONDS),
            remember_until_us=self.history.store_us(at + REMEMBER_SECONDS),
            nonce=nonce,
            response_digest=digest_of(201, nonce.encode()),
            has_body=True,
        )
        line = self.view.lane or self.operation_id.replace("-", "")
        self.history.events += [
            EventRow(sink, self.operation_id, self.view.token, line if is_ordered else None)
            for sink, is_ordered in self.history.terms.sinks.items()
        ]
        if event == "complete":
            return self.change(at, event, after, token=self.view.token, attempt=self.view.attempt)
        return self.change(at, event, after, read_token=self.view.token)

    def send(self, at: float, token: int, nonce: str, call: int | None = None, *, effect: bool = True) -> Sent:
        """A request leaves, takes effect and is answered."""
        sent = Sent(
            number=len(self.history.sent),
            call=call,
            gateway="g0",
            operation_id=self.operation_id,
            token=token,
            route="charge",
            scope="t1",
            key=self.key,
            method="POST",
            target="/charge",
            body=BODY,
            headers=(("X-Call", str(call)), ("X-Call", "again"), ("X-Forwarded-For", CLIENT_ADDRESS)),
            sent=at,
            received=at + 0.01,
            effect=at + 0.02 if effect else None,
            answered=at + 0.03,
            nonce=nonce,
            status=201,
            answer_headers=(("X-Nonce", nonce),),
            answer_body=nonce.encode(),
            is_closed=True,
        )
        self.history.sent.append(sent)
        return sent

    def call(self, begun: float, verdict: str, nonce: str | None = None, status: int = 201) -> Call:
        """A client asks, and is answered a tenth of a second later."""
        at = begun + 0.1
        headers = () if nonce is None else (("X-Nonce", nonce),)
        call = Call(
            number=len(self.history.calls),
            gateway="g0",
            route="charge",
            scope="t1",
            key=self.key,
            body=BODY,
            target="/charge",
            begun=begun,
            ended=at,
            answer=Answer(status, verdict, headers, b"" if nonce is None else nonce.encode(), is_whole=True, at=at),
            reached_gateway=begun + 0.01,
            left_gateway=at - 0.01,
        )
        self.history.calls.append(call)
        return call


def well() -> tuple[History, Scribe]:
    """A charge that is executed once, answered, and replayed."""
    history = History(0, TERMS, EPOCH_US, ended=60.0)
    scribe = Scribe(history)
    scribe.claim(1.0, 1)
    scribe.call(0.99, "stored", "n1")
    scribe.send(1.02, 1, "n1", 0)
    scribe.complete(1.06, "n1")
    scribe.call(2.0, "replayed", "n1")
    history.final[OPERATION] = scribe.view
    history.lives.append(Life("g0", "g0.1", 0.0, 59.0, "drained"))
    return history, scribe
