"""What operators see of the journals of this host, and do with one outcome in them; and responses as files.

The journals hold outcomes that wait for the durable store, and those that it refused. A response can be exported, and a
refused outcome acknowledged once it was dealt with. Times are of this host's clock, and only for display.

No response is lost. An acknowledged outcome is first written to a file beside the journals, with its response, who and
why, and synced; only then is it deleted from the journal. After a crash in between, a repeat writes a second file. A
refused outcome is not acknowledged while the record does not know how its operation ended. A waiting outcome never is.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import orjson

from gateway.admin.reports import Report, at_ago, moment, present, printable
from gateway.admin.resolution import Malformed, OutcomeRefused
from gateway.core.message import (
    Headers,
    IndexedHeaders,
    ResponseHead,
    StoredResponse,
    asks_upgrade,
    header_values,
    list_members,
)
from gateway.core.operation import MICROSECONDS, Audit, Complete, Event, Record, Snapshot, State
from gateway.protect.reply import decode_unaccepted
from gateway.store.base import wall_clock_us
from gateway.store.files import sync_directory
from gateway.store.journal import HostJournals, JournalView, KeptEntry, KeptOutcome

UNENDED: Final = (State.CLAIMED, State.IN_DOUBT)
"""The states in which an outcome in a journal matters."""

WAITING: Final = "waiting"
REFUSED: Final = "refused"

TO_WAIT: Final = (
    "a gateway that runs with this state_dir records it as soon as the durable store takes it; start one if none is "
    "running"
)
_TO_RESOLVE: Final = (
    "it is kept, and not tried again. See the record: inspect OPERATION_ID. If it is in doubt, a refused response is "
    "how it ended: write it to a file with --export, and give that to resolve. A release or forget means that its own "
    "attempt had no effect, and says nothing about one under a higher token. Then --acknowledge it"
)


def standing(entry: KeptEntry) -> tuple[str, int, str]:
    """Its state, since when (µs), and why it is in the journal."""
    if entry.refused_us is None:
        return WAITING, entry.journaled_us, "the durable store has not taken it yet"
    return REFUSED, entry.refused_us, entry.refused_why or ""


def kept(entry: KeptEntry, now_us: int) -> Report:
    state, since_us, why = standing(entry)
    about = {
        "operation_id": str(entry.operation_id),
        "state": state,
        "since": moment(since_us),
        "age_seconds": max(0, now_us - since_us) // MICROSECONDS,
        "event": entry.event,
        "token": entry.token,
        "route": entry.route,
        "journaled_at": moment(entry.journaled_us),
        "status": entry.status,
        "body_bytes": entry.body_bytes,
        "why": why,
    }
    return present(about)


def listed(view: JournalView) -> Report:
    return {
        "journal": [kept(entry, view.now_us) for entry in view.entries],
        "strangers": [{"file": name, "belongs_to": owner} for name, owner in view.strangers],
        "faults": list(view.faults),
        "has_more": view.has_more,
        "now": moment(view.now_us),
    }


def sentence(entry: KeptEntry, now_us: int) -> str:
    state, since_us, why = standing(entry)
    response = "" if entry.status is None else f" {entry.status}"
    body = "" if entry.body_bytes is None else f", body of {entry.body_bytes} bytes"
    return f"{entry.event}{response} under token {entry.token}{body}, {state} since {at_ago(since_us, now_us)}: {why}"


def advice_of(record: Record | None, view: JournalView) -> str | None:
    """What to do about an operation whose outcome is in the journal; None where the journal does not matter."""
    if record is None or record.state not in UNENDED:
        return None
    if any(entry.refused_us is None and entry.token == record.token for entry in view.entries):
        return f"Wait: its outcome is in the journal of this host; {TO_WAIT}."
    return why_it_happened(record.identity.operation_id, view)


def why_it_happened(operation_id: UUID, view: JournalView) -> str | None:
    """Why nobody may say that an operation never happened: the journals of this host have its response, or cannot be
    read. None otherwise. `view` is of this operation."""
    if view.faults:
        return f"The journals of this host may have its response, and cannot be read: {view.faults[0]}."
    entry = next((entry for entry in view.entries if entry.event == Event.COMPLETE), None)
    if entry is None:
        return None
    what = f"It happened, and the journal of this host has its response: {sentence(entry, view.now_us)}."
    export = f"write it to a file with journal {operation_id} --export FILE, and give that to resolve --completed"
    if entry.refused_us is None:
        return f"{what} Wait: {TO_WAIT}. If the store never takes it, {export}."
    return (
        f"{what} To record it, {export}. If it is of an earlier attempt, of which you know that it had no effect, "
        "take it out first with --acknowledge."
    )


def notes(view: JournalView) -> Iterator[str]:
    states = {standing(entry)[0] for entry in view.entries}
    if WAITING in states:
        yield f"{WAITING}: {TO_WAIT}"
    if REFUSED in states:
        yield f"{REFUSED}: {_TO_RESOLVE}"
    for name, owner in view.strangers:
        yield f"{name} belongs to {printable(owner)}: a gateway with those settings records what it holds"
    if view.has_more:
        yield "there is more: give a larger --limit"


# -- exporting and acknowledging ---------------------------------------------------------------------------------------

_ARCHIVE: Final = "acknowledged"
"""The directory beside the journals that keeps acknowledged outcomes until an operator deletes them."""


async def export(journals: HostJournals, operation_id: UUID, token: int | None, file: Path) -> str:
    """Write the journaled response to a new file, for `resolve --completed`; returns the text to print. Raises as
    `exported`."""
    entry, data = await exported(journals, operation_id, token)
    try:
        await asyncio.to_thread(_write_whole, file, data)
    except FileExistsError:
        raise OutcomeRefused(f"{file} exists already, and is not overwritten") from None
    except OSError as error:
        raise OutcomeRefused(f"{file} cannot be written: {error.strerror}") from error
    response = f"The response {entry.status} under token {entry.token}, with a body of {entry.body_bytes} bytes,"
    if entry.refused_us is None:
        return f"{response} is in {file}. It is waiting: {TO_WAIT}."
    return f"{response} is in {file}. If the record is in doubt: resolve {operation_id} --completed {file}"


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
    except Malformed as error:
        raise OutcomeRefused(f"this response cannot be given to resolve: {error}") from None
    if StoredResponse(head.status, head.reason, head.headers, body, response.version) != response:
        raise OutcomeRefused("this response cannot be written to a file exactly; resolve it over the admin API")
    return data


async def acknowledge(
    journals: HostJournals,
    operation_id: UUID,
    token: int | None,
    audit: Audit,
    read: Callable[[UUID], Awaitable[Snapshot]],
) -> str:
    """Move a refused outcome out of the journal into a file; returns the text to print. `read` reads the operation.
    Raises `OutcomeRefused`, `StoreError`. May be repeated."""
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
    directory, lines = journals.directory / _ARCHIVE, []
    for outcome in chosen:
        try:
            place = await asyncio.to_thread(_keep, directory, outcome, audit, record)
        except OSError as error:
            raise OutcomeRefused(f"it cannot be kept in {directory}: {error.strerror}") from error
        already = "" if await asyncio.to_thread(journals.drop, outcome.entry_id) else " already"
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


def _one_attempt(outcomes: Sequence[KeptOutcome], operation_id: UUID, token: int | None) -> list[KeptOutcome]:
    """The outcomes of one attempt; several when several journal files have it."""
    chosen = [each for each in outcomes if token in (None, each.entry.token)]
    if not chosen:
        under = "" if token is None else f" under token {token}"
        raise OutcomeRefused(
            f"the journals of this host have no such outcome of operation {operation_id}{under}: it was recorded or "
            "acknowledged meanwhile, or is on another host; list what there is with: journal"
        )
    tokens = sorted({each.entry.token for each in chosen})
    if len(tokens) > 1:
        several = f"there are several attempts of operation {operation_id}: choose one with --token"
        raise OutcomeRefused(f"{several}: {', '.join(map(str, tokens))}")
    return chosen


def _keep(directory: Path, outcome: KeptOutcome, audit: Audit, record: Record | None) -> Path:
    """Write an outcome to files in `directory`; returns the path. Raises `OSError`."""
    directory.mkdir(mode=0o700, exist_ok=True)
    _give_to_owner(directory, directory.parent)
    sync_directory(directory.parent)
    now_us, entry = wall_clock_us(), outcome.entry
    note: Report = {
        "acknowledged_at": moment(now_us),
        "by": audit.who,
        "why": audit.why,
        "record": "absent" if record is None else str(record.state),
        "record_token": None if record is None else record.token,
        "outcome": kept(entry, now_us),
    }
    place = directory / f"{entry.operation_id}-{entry.token}-{uuid4().hex[:8]}.json"
    files = {}
    if isinstance(outcome.command, Complete):
        response = outcome.command.response
        if response.body is None:
            note["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in response.headers]
        else:
            files[place.with_suffix(".http")] = written(response)
            note["response"] = place.with_suffix(".http").name
    files[place] = orjson.dumps(note, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    for path, data in files.items():
        _write_whole(path, data)
        _give_to_owner(path, directory.parent)
    return place


def _give_to_owner(path: Path, journals: Path) -> None:
    """Give what root makes beside the journals to the gateway's user, who acknowledges and deletes here, too."""
    if os.geteuid() == 0:
        owner = journals.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


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


# -- responses as files ------------------------------------------------------------------------------------------------
#
# A response that an operator provides, as `curl -i` wrote it or as JSON, will be replayed as if the gateway had
# received it. So one that may be incomplete, may be two responses, or is not in the content coding that it names is
# refused, with a text that says what to do.

HEAD_BYTES_MAX: Final = 256 * 1024
_HEADERS_MAX: Final = 1000
_INTERIM_RESPONSES_MAX: Final = 32

_STATUS_LINE: Final = re.compile(rb"HTTP/[1-3](?:\.[01])? ([1-9][0-9]{2})(?: ([^\x00\r\n]*))?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_SEVERAL: Final = re.compile(rb"HTTP/[1-3](?:\.[01])? [1-9][0-9]{2}[ \r\n]")
_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(?:;[^\r\n]*)?\r\n")
_KNOWN_CODINGS: Final = frozenset((b"gzip", b"x-gzip", b"deflate", b"br", b"zstd"))


def read_response(data: bytes) -> tuple[ResponseHead, bytes]:
    """Status line, headers, an empty line, body: the output of `curl -i`. Skips interim responses before it. Lines end
    in CRLF, or all of them in LF. Raises `Malformed`, which says why and what to do, and quotes no body."""
    for _ in range(_INTERIM_RESPONSES_MAX):
        head, data = _read_head(data)
        if head.status >= 200 or head.status == 101:
            _check_response(head, data)
            return head, data
    raise Malformed(f"more than {_INTERIM_RESPONSES_MAX} interim responses come before the response")


def written(response: StoredResponse) -> bytes:
    """A response that was stored with its body, in the form that `read_response` reads."""
    if response.body is None:
        raise ValueError("a response without its body cannot be written")
    lines = [b"HTTP/1.1 %d %b" % (response.status, response.reason)]
    lines += [b"%b: %b" % header for header in response.headers]
    return b"\r\n".join([*lines, b"", response.body])


def response_of(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> tuple[ResponseHead, bytes]:
    try:
        lines = [f"{name}: {value}".encode("latin-1") for name, value in headers]
    except UnicodeEncodeError:
        raise Malformed("a header has characters outside of Latin-1") from None
    head = ResponseHead(status, b"", IndexedHeaders(_header(line, number) for number, line in enumerate(lines, 1)))
    _check_response(head, body)
    return head, body


def _check_response(head: ResponseHead, body: bytes) -> None:
    """Raises `Malformed` if it is not final, not complete, or not in the content coding that it names."""
    if not 200 <= head.status <= 599:
        raise Malformed(f"{head.status} is not the status of a final response")
    if asks_upgrade(head.headers):
        raise Malformed("the response upgrades the connection to another protocol")
    if len(head.headers) > _HEADERS_MAX:
        raise Malformed(f"it has more than {_HEADERS_MAX} headers")
    if _SEVERAL.match(body):
        raise Malformed("there are several responses; save only the last one (curl without -L and --proxy)")
    if body and head.status in (204, 304):
        raise Malformed(f"a response with status {head.status} has no body, but this one has {len(body)} bytes")
    transfer = header_values(head.headers, b"transfer-encoding")
    if b"chunked" in list_members(transfer) and _CHUNK.match(body) and body.endswith(b"0\r\n\r\n"):
        raise Malformed("the body is still in chunks; save it without curl's --raw")
    lengths = set(list_members(header_values(head.headers, b"content-length")))
    if lengths and lengths != {b"%d" % len(body)} and head.status != 304 and not transfer:
        declared = b", ".join(sorted(lengths))[:40].decode("latin-1")
        raise Malformed(
            f"Content-Length says {declared}, but the body has {len(body)} bytes: it was cut, an editor added a line "
            "ending, or curl decoded it (--compressed); save it again unchanged"
        )
    _check_coding(head.headers, body)


def _check_coding(headers: Headers, body: bytes) -> None:
    codings = set(list_members(header_values(headers, b"content-encoding"))) - {b"identity"}
    if not body or not codings or not codings <= _KNOWN_CODINGS:
        return
    # A body that cannot be decoded comes back unchanged.
    plain = tuple(header for header in headers if header[0].lower() not in (b"cache-control", b"content-range"))
    if decode_unaccepted(plain, body, [b"identity"])[0] == plain:
        named = b", ".join(sorted(codings)).decode("latin-1")
        raise Malformed(
            f"Content-Encoding says {named}, but the body is not complete in that coding, or decodes to more than "
            "16 MiB; save it without curl's --compressed, or leave out the header if the body is not encoded"
        )


def _read_head(data: bytes) -> tuple[ResponseHead, bytes]:
    line_end = b"\r\n" if data[: data.find(b"\n") + 1].endswith(b"\r\n") else b"\n"
    end = data.find(line_end * 2, 0, HEAD_BYTES_MAX)
    if end < 0:
        raise Malformed(
            f"no empty line ends the headers within {HEAD_BYTES_MAX // 1024} KiB; expected a status line, "
            "headers, an empty line and the body, as curl -i prints them"
        )
    first, *lines = data[:end].split(line_end)
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise Malformed("line 1 is not a status line such as HTTP/1.1 201 Created; save the response with curl -i")
    headers = IndexedHeaders(_header(line, number) for number, line in enumerate(lines, 2))
    return ResponseHead(int(status[1]), (status[2] or b"").rstrip(b" "), headers), data[end + 2 * len(line_end) :]


def _header(line: bytes, number: int) -> tuple[bytes, bytes]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise Malformed(f"line {number} is not a header such as Content-Type: application/json")
    return found[1], found[2]
