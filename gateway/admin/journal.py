"""What operators see of the journals of this host, and do with one outcome in them.

The journals hold outcomes that wait for the durable store, and those that it refused. A response can be exported, and a
refused outcome acknowledged once it was dealt with. Times are of this host's clock, and only for display.

No response is lost. An acknowledged outcome is first written to a file beside the journals, with its response, who and
why, and synced; only then is it deleted from the journal. After a crash in between, a repeat writes a second file. A
refused outcome is not acknowledged while the record does not know how its operation ended. A waiting outcome never is.
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

from gateway.admin.fault import OutcomeRefused
from gateway.admin.provided_response import ResponseRefused, read_response, written
from gateway.admin.view import ago, moment, present, printable
from gateway.core.message import StoredResponse
from gateway.core.operation import MICROSECONDS, Audit, Complete, Event, Record, Snapshot, State
from gateway.store.base import wall_clock_us
from gateway.store.files import sync_directory
from gateway.store.journal import HostJournals, JournalView, KeptEntry, KeptOutcome

UNENDED: Final = (State.CLAIMED, State.IN_DOUBT)
"""The states in which an outcome in a journal matters."""

WAITING: Final = "waiting"
REFUSED: Final = "refused"

_WHY_WAITING: Final = "the durable store has not taken it yet"
TO_WAIT: Final = (
    "a gateway that runs with this state_dir records it as soon as the durable store takes it; start one if none is "
    "running"
)
_TO_RESOLVE: Final = (
    "it is kept, and not tried again. See the record: inspect OPERATION_ID. If it is in doubt, a refused response is "
    "how it ended: write it to a file with --export, and give that to resolve. A release or forget means that its own "
    "attempt had no effect, and says nothing about one under a higher token. Then --acknowledge it"
)


class ViewJournals(Protocol):
    """Reads the journals of this host. Blocks, raises nothing."""

    def __call__(
        self, *, operation_id: UUID | None = None, is_refused: bool | None = None, limit: int
    ) -> JournalView: ...


def no_journal(*, operation_id: UUID | None = None, is_refused: bool | None = None, limit: int) -> JournalView:
    return JournalView(0)


def state_of(entry: KeptEntry) -> str:
    return WAITING if entry.refused_us is None else REFUSED


def kept(entry: KeptEntry, now_us: int) -> dict[str, Any]:
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
    return present(about)


def listed(view: JournalView) -> dict[str, Any]:
    return {
        "journal": [kept(entry, view.now_us) for entry in view.entries],
        "strangers": [{"file": name, "belongs_to": owner} for name, owner in view.strangers],
        "faults": list(view.faults),
        "has_more": view.has_more,
        "now": moment(view.now_us),
    }


def sentence(entry: KeptEntry, now_us: int) -> str:
    """An outcome in one line."""
    response = "" if entry.status is None else f" {entry.status}"
    body = "" if entry.body_bytes is None else f", body of {entry.body_bytes} bytes"
    at_us = since_us(entry)
    when = f"{state_of(entry)} since {moment(at_us)} ({ago(at_us, now_us)})"
    return f"{entry.event}{response} under token {entry.token}{body}, {when}: {why_of(entry)}"


def advice_of(record: Record | None, view: JournalView) -> str | None:
    """What to do about an operation whose outcome is in the journal; None where the journal does not matter."""
    if record is None or record.state not in UNENDED:
        return None
    for entry in view.entries:
        if entry.refused_us is None and entry.token == record.token:
            return f"Wait: its outcome is in the journal of this host; {TO_WAIT}."
    return why_it_happened(record.identity.operation_id, view)


def why_it_happened(operation_id: UUID, view: JournalView) -> str | None:
    """Why nobody may say that an operation never happened: the journals of this host have its response, or cannot be
    read. None otherwise. `view` is of this operation."""
    if view.faults:
        return f"The journals of this host may have its response, and cannot be read: {view.faults[0]}."
    for entry in view.entries:
        if entry.event != Event.COMPLETE:
            continue
        what = f"It happened, and the journal of this host has its response: {sentence(entry, view.now_us)}."
        export = f"write it to a file with journal {operation_id} --export FILE, and give that to resolve --completed"
        if entry.refused_us is None:
            return f"{what} Wait: {TO_WAIT}. If the store never takes it, {export}."
        return (
            f"{what} To record it, {export}. If it is of an earlier attempt, of which you know that it had no effect, "
            "take it out first with --acknowledge."
        )
    return None


def notes(view: JournalView) -> Iterator[str]:
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
    return _WHY_WAITING if entry.refused_us is None else entry.refused_why or ""


_ARCHIVE: Final = "acknowledged"
"""The directory beside the journals that keeps acknowledged outcomes until an operator deletes them."""


# -- exporting --------------------------------------------------------------------------------------------------------


async def export(journals: HostJournals, operation_id: UUID, token: int | None, file: Path) -> str:
    """Write the journaled response to a new file, for `resolve --completed`; returns the text to print.

    Raises as `exported`.
    """
    entry, data = await exported(journals, operation_id, token)
    try:
        await asyncio.to_thread(_write_whole, file, data)
    except FileExistsError:
        raise OutcomeRefused(f"{file} exists already, and is not overwritten") from None
    except OSError as error:
        raise OutcomeRefused(f"{file} cannot be written: {error.strerror}") from error
    text = (
        f"The response {entry.status} under token {entry.token}, with a body of {entry.body_bytes} bytes, is in {file}."
    )
    if entry.refused_us is None:
        return f"{text} It is waiting: {TO_WAIT}."
    return f"{text} If the record is in doubt: resolve {operation_id} --completed {file}"


async def exported(journals: HostJournals, operation_id: UUID, token: int | None) -> tuple[KeptEntry, bytes]:
    """The journaled response as `curl -i` prints it, and its entry. Raises `OutcomeRefused`, `StoreError`."""
    found = await asyncio.to_thread(journals.outcomes, operation_id)
    outcomes = [each for each in found if isinstance(each.command, Complete)]
    if found and not outcomes:
        ends = ", ".join(f"{each.entry.event} under token {each.entry.token}" for each in found)
        raise OutcomeRefused(f"the journal has no response of operation {operation_id}: {ends}")
    chosen = _one_attempt(outcomes, operation_id, token)
    responses = {_readable(each) for each in chosen}
    if len(responses) > 1:
        raise OutcomeRefused("the journals of this host have different responses under this token: compare them first")
    return chosen[0].entry, responses.pop()


def _readable(outcome: KeptOutcome) -> bytes:
    command = outcome.command
    if not isinstance(command, Complete) or command.response.body is None:
        raise OutcomeRefused(
            "the body of this response was not kept, because it was streamed or too long; recorded without it, the "
            "response would be replayed as empty. Ask the service for it"
        )
    response, data = command.response, written(command.response)
    try:
        head, body = read_response(data)
    except ResponseRefused as error:
        raise OutcomeRefused(f"this response cannot be given to resolve: {error}") from None
    if StoredResponse(head.status, head.reason, head.headers, body, response.version) != response:
        raise OutcomeRefused("this response cannot be written to a file exactly; resolve it over the admin API")
    return data


# -- acknowledging ----------------------------------------------------------------------------------------------------


async def acknowledge(
    journals: HostJournals,
    operation_id: UUID,
    token: int | None,
    audit: Audit,
    read: Callable[[UUID], Awaitable[Snapshot]],
) -> str:
    """Move a refused outcome out of the journal into a file; returns the text to print. `read` reads the operation.

    Raises `OutcomeRefused`, `StoreError`. May be repeated.
    """
    found = await asyncio.to_thread(journals.outcomes, operation_id)
    refused = [each for each in found if each.entry.refused_us is not None]
    if found and not refused:
        raise OutcomeRefused(f"no outcome of operation {operation_id} was refused. Those that wait: {TO_WAIT}")
    chosen = _one_attempt(refused, operation_id, token)
    if any(each.command is None for each in chosen):
        raise OutcomeRefused(
            "this outcome cannot be read: another version of this program wrote it, or its key is not in "
            "`secrets.encryption`"
        )
    record = (await read(operation_id)).record
    _check_known(record, chosen)
    lines = []
    for outcome in chosen:
        try:
            place = await asyncio.to_thread(_keep, journals.directory / _ARCHIVE, outcome, audit, record)
        except OSError as error:
            raise OutcomeRefused(f"it cannot be kept in {journals.directory / _ARCHIVE}: {error.strerror}") from error
        is_ours = await asyncio.to_thread(journals.drop, outcome.entry_id)
        already = "" if is_ours else " already"
        lines.append(
            f"Acknowledged: {outcome.entry.event} under token {outcome.entry.token} is out of the journal{already} "
            f"and kept in {place}. A running gateway stops counting it within a few seconds."
        )
    return "\n".join(lines)


def _check_known(record: Record | None, chosen: Sequence[KeptOutcome]) -> None:
    if record is None or record.state not in UNENDED:
        return
    operation_id = record.identity.operation_id
    # A higher token is of an attempt from before the store lost its memory.
    if any(each.entry.token >= record.token for each in chosen):
        raise OutcomeRefused(
            f"the record is {record.state}, and this outcome says how that attempt or a later one ended. "
            f"Resolve it first (journal {operation_id} --export FILE; resolve {operation_id} --completed FILE), then "
            "acknowledge"
        )


def _keep(directory: Path, outcome: KeptOutcome, audit: Audit, record: Record | None) -> Path:
    """Write an outcome to files in `directory`; returns the path. Raises `OSError`."""
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
            file = place.with_suffix(".http")
            _write_whole(file, written(response))
            _give_to_owner(file, directory.parent)
            note["response"] = file.name
    _write_whole(place, orjson.dumps(note, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    _give_to_owner(place, directory.parent)
    return place


def _give_to_owner(path: Path, journals: Path) -> None:
    """Give what root makes beside the journals to the gateway's user, who acknowledges and deletes here, too."""
    if os.geteuid() == 0:
        owner = journals.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


# -- both -------------------------------------------------------------------------------------------------------------


def _one_attempt(outcomes: Sequence[KeptOutcome], operation_id: UUID, token: int | None) -> list[KeptOutcome]:
    """The outcomes of one attempt; several when several journal files have it."""
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


def _write_whole(path: Path, data: bytes) -> None:
    """Write and sync a new file (0600), all of it or nothing. Raises `OSError`; overwrites nothing."""
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
