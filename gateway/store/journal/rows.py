"""How an outcome is written as a row of the journal, and read back.

It owns the order of the columns, which is that of the `.sql` files, and the version of the row's form. What it cannot
read it does not guess: such a row stays as it is, for the program that wrote it.
"""

from __future__ import annotations

import struct
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core.message import StoredResponse
from gateway.core.operation import EVENT_OF, Abandon, Complete, Event, Forget, LastWord, Release
from gateway.store.base import NotApplied
from gateway.store.sqlite.rows import decode_headers, encode_headers

VERSION: Final = 1

Row = tuple[Any, ...]


def encode(route: str, command: LastWord, journaled_us: int) -> Row:
    """The columns in the order of `insert_entry.sql`."""
    replay_us: int | None = None
    remember_us: int | None = None
    doubt: str | None = None
    answer: Row = (None, None, None, None)
    match command:
        case Complete():
            response, replay_us, remember_us = command.response, command.replay_us, command.remember_us
            answer = (response.status, response.reason, encode_headers(response.headers), response.body)
        case Release():
            remember_us = command.remember_us
        case Forget():
            pass
        case Abandon():
            doubt = command.doubt
        case _:
            assert_never(command)
    ids = (command.operation_id.bytes, command.token, command.attempt_id.bytes)
    return (
        *(VERSION, *ids, EVENT_OF[type(command)].value, route, journaled_us),
        *(replay_us, remember_us, doubt, *answer),
    )


def decode(columns: Row) -> tuple[str, LastWord]:
    """Route name and command, of a row as `select_entry.sql` gives it. Raises `NotApplied` when it cannot be read."""
    try:
        return _decode(columns)
    except (struct.error, ValueError, TypeError, AttributeError) as error:
        raise NotApplied(f"an outcome in the journal is damaged: {type(error).__name__}") from error


def _decode(columns: Row) -> tuple[str, LastWord]:
    (
        _, version, operation_id, token, attempt_id, event, route,
        replay_us, remember_us, doubt, status, reason, headers, body,
    ) = columns  # fmt: skip
    ids = (UUID(bytes=operation_id), token, UUID(bytes=attempt_id))
    if version == VERSION:
        match event:
            case Event.COMPLETE:
                response = StoredResponse(status, reason, decode_headers(headers), body)
                return route, Complete(*ids, response, replay_us, remember_us)
            case Event.RELEASE:
                return route, Release(*ids, remember_us)
            case Event.FORGET:
                return route, Forget(*ids)
            case Event.ABANDON:
                return route, Abandon(*ids, doubt)
    raise NotApplied(
        f"the outcome of operation {ids[0]} was journaled by another version of this program "
        f"(version {version}, event {event!r}); this one leaves it alone"
    )
