"""A record, and what it knows of a kept request."""

from __future__ import annotations

from uuid import UUID

from gateway.core.operation import Delivery, Event, Identity, Record, State, microseconds

RECORD = Record(
    identity=Identity(UUID(int=1), "route", "route", b"scope", b"key"), state=State.CLAIMED, token=7,
    attempt_id=UUID(int=2), last_event=Event.CLAIM, holder="a", carried_us=None, fingerprint=None, attempts=1,
    first_claimed_us=0, claimed_us=0,
)  # fmt: skip
KEPT = Delivery("shop", UUID(int=2), 0, 0, 0, deliver_until_us=microseconds(86_400), request_bytes=100)
