"""A list of resolutions: the file of `resolve --from FILE`, and the result of each line.

One operation per line: `OPERATION_ID never-happened`, with ` drop` behind it if a kept request must not be delivered
again, or `OPERATION_ID completed FILE`. `OPERATION_ID@TOKEN` restricts it to one attempt. Empty lines and lines that
begin with `#` are skipped. A file with a mistake is refused as a whole, before anything is done. Lines are applied in
order, and the same file may be given again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from gateway.admin.operations import Operations
from gateway.admin.provided_response import ResponseRefused, read_response
from gateway.admin.resolution import Changed, Happened, NothingHappened, Refused, Ruling, is_said_by, moved
from gateway.admin.view import moment
from gateway.core.operation import Audit, State
from gateway.store.base import Indefinite, NotApplied, StoreError

LIST_BYTES_MAX: Final = 4 * 1024 * 1024
_LINES_MAX: Final = 10_000
_MISTAKES_MAX: Final = 20
# Of all responses together: they are in memory until the last line is done.
_RESPONSES_BYTES_MAX: Final = 256 * 1024 * 1024
_FORM: Final = "expected OPERATION_ID never-happened [drop], or OPERATION_ID completed FILE"


class ListWrong(ValueError):
    """The list cannot be read. The text names each line with a mistake, up to a bound."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the list. `token` as in `Operations.resolve`."""

    number: int
    operation_id: UUID
    ruling: Ruling
    token: int | None = None


class End(StrEnum):
    """The result of a line."""

    RESOLVED = "resolved"
    POSSIBLE = "would be resolved"
    ALREADY = "resolved already"
    REFUSED = "refused"
    UNKNOWN = "not known"


def read_list(text: bytes, read_file: Callable[[str], bytes]) -> list[Line]:
    """The lines of a list, with the responses that they name. Raises `ListWrong`; a `ValueError` of `read_file` is a
    mistake of its line."""
    lines: list[Line] = []
    mistakes: list[str] = []
    responses_bytes = 0
    for number, raw in enumerate(text.splitlines(), 1):
        text_line = raw.decode("utf-8", "surrogateescape").strip()
        if not text_line or text_line.startswith("#"):
            continue
        if len(lines) >= _LINES_MAX:
            raise ListWrong(f"there are more than {_LINES_MAX} operations; split the file")
        try:
            line, size = _read_line(number, text_line, read_file)
        except ValueError as error:
            mistakes.append(f"line {number}: {error}")
            if len(mistakes) >= _MISTAKES_MAX:
                break
            continue
        lines.append(line)
        responses_bytes += size
        if responses_bytes > _RESPONSES_BYTES_MAX:
            raise ListWrong(f"the responses have more than {_RESPONSES_BYTES_MAX >> 20} MiB together; split the file")
    counts = Counter(line.operation_id for line in lines)
    mistakes += [
        f"line {line.number}: {line.operation_id} is listed {counts[line.operation_id]} times"
        for line in lines
        if counts[line.operation_id] > 1
    ]
    if mistakes:
        raise ListWrong("\n".join(mistakes[:_MISTAKES_MAX]))
    if not lines:
        raise ListWrong(f"it names no operation; {_FORM}")
    return lines


def _read_line(number: int, text: str, read_file: Callable[[str], bytes]) -> tuple[Line, int]:
    """The line, and the bytes of its response. Raises `ValueError`."""
    which, _, rest = text.partition(" ")
    verb, _, file = rest.strip().partition(" ")
    operation_id, token = _which(which)
    match verb, file.strip():
        case "never-happened", "" | "drop" as drop:
            return Line(number, operation_id, NothingHappened(drops=bool(drop)), token), 0
        case "completed", file if file:
            data = read_file(file)
            try:
                return Line(number, operation_id, Happened(*read_response(data)), token), len(data)
            except ResponseRefused as error:
                raise ValueError(f"{file}: {error}") from None
        case _:
            raise ValueError(_FORM)


def _which(text: str) -> tuple[UUID, int | None]:
    name, at, token = text.partition("@")
    try:
        operation_id = UUID(name)
    except ValueError:
        raise ValueError(_FORM) from None
    if not at:
        return operation_id, None
    if not (token.isascii() and token.isdecimal() and 1 <= len(token) <= 18 and int(token) > 0):
        raise ValueError("expected a token behind @: a whole number above 0")
    return operation_id, int(token)


async def resolve_all(
    operations: Operations, lines: Sequence[Line], audit: Audit, *, is_forced: bool, is_dry_run: bool
) -> AsyncIterator[tuple[Line, End, str]]:
    """Apply each line, in order, and yield its result, with a text. Ends after a line whose effect is not known."""
    for line in lines:
        try:
            outcome = await _done_before(operations, line, audit) or await operations.resolve(
                line.operation_id, line.ruling, audit, is_forced=is_forced, token=line.token, is_dry_run=is_dry_run
            )
        except (NotApplied, Indefinite) as error:
            yield line, End.UNKNOWN, str(error)
            return
        except StoreError as error:
            yield line, End.REFUSED, str(error)
            continue
        match outcome:
            case Refused(_, text):
                yield line, End.REFUSED, text
            case Changed(text, is_repeat=True):
                yield line, End.ALREADY, text
            case Changed(text):
                yield line, End.POSSIBLE if is_dry_run else End.RESOLVED, text


async def _done_before(operations: Operations, line: Line, audit: Audit) -> Changed | Refused | None:
    """What became of a line that was applied before; None if it was not. A list may be given again long afterwards.

    "Nothing happened" frees the key, so the operation may have run since then: the line counts as done. If it is in
    doubt again, the list was not about this attempt, and resolves it only by naming its token.
    """
    if not isinstance(line.ruling, NothingHappened):
        return None
    audits = await operations.audits(line.operation_id)
    earlier = next((entry for entry in reversed(audits) if is_said_by(entry, audit)), None)
    if earlier is None:
        return None
    snapshot = await operations.read(line.operation_id)
    if snapshot.state is not State.IN_DOUBT or line.token == earlier.token:
        return Changed(f"Resolved already, {moment(earlier.at_us)}.", snapshot, is_repeat=True)
    return moved(earlier.token, snapshot) if line.token is None else None
