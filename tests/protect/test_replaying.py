"""What repeats of a record get: the same bytes, for as long as the record is the same."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from gateway.core.message import StoredResponse
from gateway.core.operation import Event, Identity, Record, State
from gateway.core.verdict import Verdict
from gateway.http.exchange import framed
from gateway.protect.compose import replay_of

RECORD = Record(
    Identity(UUID(int=1), "route", "route", b"scope", b"key"), State.COMPLETED, 7, UUID(int=2), Event.COMPLETE, "a",
    None, None, 1, 0, 0, replay_until_us=10**12, response=StoredResponse(201, b"Created", ((b"X-One", b"1"),), b"body"),
)  # fmt: skip


def written(record: Record, *, shows_status: bool = True) -> bytes:
    """The head of a replay."""
    reply = replay_of(record, ())
    return framed(reply, method=b"POST", minor=1, keep_alive=True, shows_status=shows_status, date=b"Date: now").head


def test_every_repeat_gets_the_same() -> None:
    """Also where a route shows no verdict in between."""
    first = written(RECORD)
    assert b"Idempotency-Status" not in written(RECORD, shows_status=False)
    assert written(RECORD) == first


def test_a_record_that_has_changed_is_not_replayed_as_it_was() -> None:
    """A longer window, another response and one that was proven are another record each."""
    before = written(RECORD)
    assert b"\r\nIdempotency-Expires: Mon, 12 Jan 1970 13:46:40 GMT\r\n" in before
    assert written(replace(RECORD, replay_until_us=2 * 10**12)) != before
    assert b"200 OK" in written(replace(RECORD, response=StoredResponse(200, b"OK", (), b"")))
    assert replay_of(replace(RECORD, last_event=Event.PROVE), ()).verdict is Verdict.RECOVERED
    assert written(RECORD) == before


def test_each_request_is_asked_for_the_codings_that_it_accepts() -> None:
    """The reply to one that takes the coding is not the one to the next."""
    coded = replace(RECORD, response=StoredResponse(200, b"OK", ((b"Content-Encoding", b"gzip"),), b"coded"))
    assert replay_of(coded, ((b"Accept-Encoding", b"gzip"),)).decode_for is None
    assert replay_of(coded, ((b"Accept-Encoding", b"identity"),)).decode_for == (b"identity",)
