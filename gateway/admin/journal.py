"""What operators see of the journals of this host, and do with one outcome in them.

The journals hold outcomes that wait for the durable store, and those that it refused. An answer can be taken out, and a
refused outcome that was dealt with acknowledged. Times are those of this host's clock, which nothing is decided by.

Nothing that was answered is lost by this. What is acknowledged is first written down beside the journals, answer, who
and why together, and synced; only then is it deleted. Cut off in between it is done twice, and is there twice. A
refused outcome that still tells how its operation ended is not acknowledged: the record has to know it before. What
waits never is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import orjson

from gateway.admin.answer import AnswerRefused, read_answer, written
from gateway.admin.view import ago, moment, printable
from gateway.core.message import StoredResponse
from gateway.core.operation import MICROSECONDS, Audit, Complete, Record, State
from gateway.store.base import wall_clock_us
from gateway.store.directories import sync_directory
from gateway.store.journal import JournalDesk, JournalView, KeptEntry, KeptOutcome

WAITING: Final = "waiting"
REFUSED: Final = "refused"

_WHY_WAITING: Final = "the durable store has not taken it yet"
TO_WAIT: Final = (
    "a gateway that runs with this state_dir records it as soon as the durable store takes it; start one if none is "
    "running"
)
_TO_RESOLVE: Final = (
    "it is kept, and not tried again. See what the record says: inspect OPERATION_ID. If it is in doubt, a refused "
    "answer is how it ended: write it to a file with --export, and give that to resolve. A release or forget says that "
    "its own attempt had no effect, and nothing of one under a higher token. Then --acknowledge it"
)


class Look(Protocol):
    """Reads the journals of this host. Blocks, raises nothing."""

    def __call__(self, *, operation_id: UUID | None = None, is_refused: bool | None = None, limit: int) -> JournalView:
        """See `store.journal.view.look`."""


def no_journal(*, operation_id: UUID | None = None, is_refused: bool | None = None, limit: int) -> JournalView:
    """Where there is none to look into."""
    return JournalView(0)


def state_of(entry: KeptEntry) -> str:
    """`waiting` or `refused`."""
    return WAITING if entry.refused_us is None else REFUSED


def kept(entry: KeptEntry, now_us: int) -> dict[str, Any]:
    """An outcome as JSON values."""
    about: dict[str, Any] = {
        "operation_id": str(entry.operation_id),
        "state": state_of(entry),
        "since": moment(since_us(entry)),
        "age_seconds": max(0, now_us - since_us(entry)) // MICROSECONDS,
        "event": entry.event,
        "token": entry.token,
        "route": entry.route,
        "journaled_at": moment(entry.journaled_us),
        "status": entry.status,
        "body_bytes": entry.body_bytes,
        "why": why_of(entry),
    }
    return {name: value for name, value in about.items() if value is not None}


def listed(view: JournalView) -> dict[str, Any]:
    """All of a view as JSON values."""
    return {
        "journal": [kept(entry, view.now_us) for entry in view.entries],
        "strangers": [{"file": name, "belongs_to": owner} for name, owner in view.strangers],
        "faults": list(view.faults),
        "has_more": view.has_more,
        "now": moment(view.now_us),
    }


def sentence(entry: KeptEntry, now_us: int) -> str:
    """An outcome in a line of prose."""
    answer = "" if entry.status is None else f" {entry.status}"
    body = "" if entry.body_bytes is None else f", body of {entry.body_bytes} bytes"
    at_us = since_us(entry)
    when = f"{state_of(entry)} since {moment(at_us)} ({ago(at_us, now_us)})"
    return f"{entry.event}{answer} under token {entry.token}{body}, {when}: {why_of(entry)}"


def advice_of(record: Record | None, view: JournalView) -> str | None:
    """What to do about an operation whose ending lies in the journal; None where that says nothing of it."""
    if record is None or record.state not in (State.CLAIMED, State.IN_DOUBT):
        return None
    for entry in view.entries:
        if entry.refused_us is None and entry.token == record.token:
            return f"Wait: the journal of this host has how it ended; {TO_WAIT}."
    return None


def notes(view: JournalView) -> Iterator[str]:
    """What there is to know about a view, beside its outcomes."""
    states = {state_of(entry) for entry in view.entries}
    if WAITING in states:
        yield f"{WAITING}: {TO_WAIT}"
    if REFUSED in states:
        yield f"{REFUSED}: {_TO_RESOLVE}"
    for name, owner in view.strangers:
        yield f"{name} belongs to {printable(owner)}: a gateway with those settings records what it holds"
    if view.has_more:
        yield "there is more: give a larger --limit"


def since_us(entry: KeptEntry) -> int:
    """Since when it has been in its state."""
    return entry.journaled_us if entry.refused_us is None else entry.refused_us


def why_of(entry: KeptEntry) -> str:
    """Why it is still in the journal."""
    return _WHY_WAITING if entry.refused_us is None else entry.refused_why or ""


_ARCHIVE: Final = "acknowledged"
"""The directory beside the journals where acknowledged outcomes are kept until somebody deletes them."""


class OutcomeRefused(Exception):
    """Nothing was done. The text says why and what to do."""


# -- taking out -------------------------------------------------------------------------------------------------------


async def export(desk: JournalDesk, operation_id: UUID, token: int | None, file: Path) -> str:
    """Write the kept answer to a new file, as `resolve --completed` reads it; returns what to say.

    Raises `OutcomeRefused`, `StoreError`.
    """
    found = await asyncio.to_thread(desk.outcomes, operation_id)
    outcomes = [each for each in found if isinstance(each.command, Complete)]
    if found and not outcomes:
        raise OutcomeRefused(f"the journal has no answer of operation {operation_id}: {_ends(found)}")
    chosen = _one_attempt(outcomes, operation_id, token)
    answers = {_readable(each) for each in chosen}
    if len(answers) > 1:
        raise OutcomeRefused("the journals of this host have different answers under this token; stop and compare them")
    await asyncio.to_thread(_write_new, file, answers.pop())
    entry = chosen[0].entry
    text = (
        f"The answer {entry.status} under token {entry.token}, with its body of {entry.body_bytes} bytes, is in {file}."
    )
    if entry.refused_us is None:
        return f"{text} It is waiting: {TO_WAIT}."
    return f"{text} If the record is in doubt: resolve {operation_id} --completed {file}"


def _readable(outcome: KeptOutcome) -> bytes:
    command = outcome.command
    if not isinstance(command, Complete) or command.response.body is None:
        raise OutcomeRefused(
            "the body of this answer was not kept, because it was streamed or too long; recorded without it, it would "
            "be replayed as empty. Ask the service for it"
        )
    response, data = command.response, written(command.response)
    try:
        head, body = read_answer(data)
    except AnswerRefused as error:
        raise OutcomeRefused(f"this answer cannot be given to resolve: {error}") from None
    if StoredResponse(head.status, head.reason, head.headers, body) != response:
        raise OutcomeRefused("this answer would not come back from a file as it is; resolve it over the admin API")
    return data


# -- acknowledging ----------------------------------------------------------------------------------------------------


async def acknowledge(
    desk: JournalDesk,
    operation_id: UUID,
    token: int | None,
    audit: Audit,
    read: Callable[[UUID], Awaitable[Record | None]],
) -> str:
    """Take what was refused out of the count, and keep it elsewhere; returns what to say. `read` reads the record.

    Raises `OutcomeRefused`, `StoreError`. May be repeated.
    """
    found = await asyncio.to_thread(desk.outcomes, operation_id)
    refused = [each for each in found if each.entry.refused_us is not None]
    if found and not refused:
        raise OutcomeRefused(f"no outcome of operation {operation_id} was refused. What is there is waiting: {TO_WAIT}")
    chosen = _one_attempt(refused, operation_id, token)
    if any(each.command is None for each in chosen):
        raise OutcomeRefused("another version of this program wrote this outcome, and can read it: use that one")
    record = await read(operation_id)
    _check_known(record, chosen)
    lines = []
    for outcome in chosen:
        try:
            place = await asyncio.to_thread(_keep, desk.directory / _ARCHIVE, outcome, audit, record)
        except OSError as error:
            raise OutcomeRefused(f"it cannot be kept in {desk.directory / _ARCHIVE}: {error.strerror}") from error
        is_ours = await asyncio.to_thread(desk.drop, outcome.entry_id)
        already = "" if is_ours else " already"
        lines.append(
            f"Acknowledged: {outcome.entry.event} under token {outcome.entry.token} is out of the journal{already} "
            f"and kept in {place}. A running gateway stops counting it within a few seconds."
        )
    return "\n".join(lines)


def _check_known(record: Record | None, chosen: Sequence[KeptOutcome]) -> None:
    if record is None or record.state not in (State.CLAIMED, State.IN_DOUBT):
        return
    operation_id = record.identity.operation_id
    # A higher token is from before the store lost its memory, of an attempt that the record has forgotten.
    if any(each.entry.token >= record.token for each in chosen):
        raise OutcomeRefused(
            f"the record is {record.state}, and this outcome says how that attempt or a later one ended. "
            f"Resolve it first (journal {operation_id} --export FILE; resolve {operation_id} --completed FILE), then "
            "acknowledge"
        )


def _keep(directory: Path, outcome: KeptOutcome, audit: Audit, record: Record | None) -> Path:
    """Write an outcome down for good; returns where. Raises `OSError`."""
    directory.mkdir(mode=0o700, exist_ok=True)
    _give_to_owner(directory, directory.parent)
    sync_directory(directory.parent)
    now_us = wall_clock_us()
    entry = outcome.entry
    note: dict[str, Any] = {
        "acknowledged_at": moment(now_us),
        "by": audit.who,
        "why": audit.why,
        "record": "absent" if record is None else str(record.state),
        "record_token": None if record is None else record.token,
        "outcome": kept(entry, now_us),
    }
    place = directory / f"{entry.operation_id}-{entry.token}-{uuid4().hex[:8]}.json"
    if isinstance(outcome.command, Complete):
        response = outcome.command.response
        if response.body is None:
            note["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in response.headers]
        else:
            answer = place.with_suffix(".http")
            _write_whole(answer, written(response))
            _give_to_owner(answer, directory.parent)
            note["answer"] = answer.name
    _write_whole(place, orjson.dumps(note, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    _give_to_owner(place, directory.parent)
    return place


def _give_to_owner(path: Path, journals: Path) -> None:
    """What root makes beside the journals is the gateway's, whose user acknowledges here too, and deletes."""
    if os.geteuid() == 0:
        owner = journals.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


# -- both -------------------------------------------------------------------------------------------------------------


def _one_attempt(outcomes: Sequence[KeptOutcome], operation_id: UUID, token: int | None) -> list[KeptOutcome]:
    """Those of one attempt; several when several files have it."""
    if token is not None:
        outcomes = [each for each in outcomes if each.entry.token == token]
    if not outcomes:
        under = "" if token is None else f" under token {token}"
        raise OutcomeRefused(
            f"the journals of this host have no such outcome of operation {operation_id}{under}: it was recorded or "
            "acknowledged meanwhile, or is on another host; list what there is with: journal"
        )
    tokens = sorted({each.entry.token for each in outcomes})
    if len(tokens) > 1:
        named = ", ".join(map(str, tokens))
        raise OutcomeRefused(
            f"there are several attempts of operation {operation_id}: choose one with --token: {named}"
        )
    return list(outcomes)


def _ends(outcomes: Sequence[KeptOutcome]) -> str:
    return ", ".join(f"{each.entry.event} under token {each.entry.token}" for each in outcomes)


def _write_new(path: Path, data: bytes) -> None:
    try:
        _write_whole(path, data)
    except FileExistsError:
        raise OutcomeRefused(f"{path} exists already, and is not overwritten") from None
    except OSError as error:
        raise OutcomeRefused(f"{path} cannot be written: {error.strerror}") from error


def _write_whole(path: Path, data: bytes) -> None:
    """Make a file (0600) that is whole and on the disk, or not there. Raises `OSError`; overwrites nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
