"""Many operations by one command: the file of `resolve --from FILE`, and dead letters that match a filter.

*A file of resolutions.* One operation per line: `OPERATION_ID never-happened`, with ` drop` behind it if a kept request
must not be delivered again, or `OPERATION_ID completed FILE`. `OPERATION_ID@TOKEN` restricts it to one attempt. Empty
lines and lines that begin with `#` are skipped. A file with a mistake is refused as a whole, before anything is done.

*Dead letters* are listed first, up to a limit, and then requeued or withdrawn at a rate. Each is done in order, as a
single one would be: fenced, audited, and not twice by the same person for the same reason. So both may be given again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from gateway.admin.operations import PAGE_SIZE_MAX, Operations
from gateway.admin.provided_response import ResponseRefused, read_response
from gateway.admin.resolution import Changed, Happened, NothingHappened, Refusal, Refused, Ruling, is_said_by, moved
from gateway.admin.view import moment
from gateway.core.operation import Audit, Record, Snapshot, State
from gateway.store.base import Indefinite, NotApplied, StoreError, Unreadable
from gateway.store.operations import Query

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


# Matches beyond the limit are counted up to this.
_COUNT_MAX: Final = 100_000
# How many a preview shows, and how many of those that were skipped a result names.
_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Verb:
    """What is decided about each of many dead letters."""

    name: str
    did: str
    done: str
    decide: Callable[[Operations, UUID, Audit], Awaitable[Changed | Refused]]


REQUEUE: Final = Verb("requeue", "requeued", "requeued", Operations.requeue)
WITHDRAW: Final = Verb("withdraw", "withdrew", "withdrawn", Operations.withdraw)


def dead_letters(routes: frozenset[str] | None, reason: str | None, age_us: int, limit: int) -> Query:
    """At most `limit` dead letters: of these routes (None: all), for this reason (None: any), dead for `age_us`."""
    return Query(frozenset((State.DEAD_LETTER,)), routes, age_us, reason=reason, limit=limit)


@dataclass(slots=True)
class Bulk:
    """One decision about many. The counts hold at any time; one that is under way, or ended unknown, counts as left.

    `first` has the beginning of those that match.
    """

    verb: Verb
    rate: int
    operation_ids: list[UUID] = field(default_factory=list)
    first: list[Record] = field(default_factory=list)
    now_us: int = 0
    beyond: int = 0
    done: int = 0
    skipped: int = 0
    why_skipped: list[str] = field(default_factory=list)

    @property
    def matching(self) -> int:
        return len(self.operation_ids) + self.beyond

    @property
    def left(self) -> int:
        """Matches that were not tried, those beyond the limit included."""
        return self.matching - self.done - self.skipped

    def __str__(self) -> str:
        return f"{self.done} {self.verb.done}, {self.skipped} skipped, {self.left} left"

    @property
    def text(self) -> str:
        return f"{self}."

    @property
    def notes(self) -> list[str]:
        return [*self.why_skipped, *(["Those that are left need another step."] if self.left else [])]

    @property
    def document(self) -> dict[str, Any]:
        return {"detail": self.text, **self.counts}

    @property
    def counts(self) -> dict[str, int]:
        return {self.verb.done: self.done, "skipped": self.skipped, "left": self.left}

    async def run(
        self,
        operations: Operations,
        audit: Audit,
        *,
        seconds_max: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> AsyncIterator[tuple[UUID, Changed | Refused]]:
        """Decide about them in order, and yield what became of each; none begins later than `seconds_max` from now.

        Raises as `Operations.requeue`, except for a record that is unreadable: that is skipped.
        """
        started = due = clock()
        for operation_id in self.operation_ids:
            if due > clock():
                await sleep(due - clock())
            now = clock()
            if seconds_max is not None and now - started >= seconds_max:
                return
            # Counted from the later one, so that a slow store is not followed by a burst.
            due = max(due, now) + 1 / self.rate
            outcome = await self._decided(operations, operation_id, audit)
            if isinstance(outcome, Changed) and not outcome.is_repeat:
                self.done += 1
            else:
                self.skipped += 1
                if len(self.why_skipped) < _SHOWN_MAX:
                    self.why_skipped.append(f"Skipped `{operation_id}`: {outcome.text}")
            yield operation_id, outcome

    async def _decided(self, operations: Operations, operation_id: UUID, audit: Audit) -> Changed | Refused:
        try:
            return await self.verb.decide(operations, operation_id, audit)
        except Unreadable as error:
            return Refused(Refusal.STATE, f"The record cannot be read: {error}", Snapshot(None, 0))


async def listed(operations: Operations, wanted: Query, rate: int, verb: Verb = REQUEUE) -> Bulk:
    """The decision about the dead letters that match now, about `rate` a second. Raises `NotApplied`."""
    found = Bulk(verb, rate)
    async for page in operations.pages(replace(wanted, limit=PAGE_SIZE_MAX)):
        for snapshot in page:
            record = snapshot.record
            if record is None or record.delivery is None or not operations.policies.is_own(record):
                continue
            # The query's age is since the acceptance.
            if record.delivery.since_us > snapshot.now_us - wanted.age_us:
                continue
            if len(found.first) < _SHOWN_MAX:
                found.first.append(record)
                found.now_us = snapshot.now_us
            if len(found.operation_ids) < wanted.limit:
                found.operation_ids.append(record.identity.operation_id)
            else:
                found.beyond += 1
        if found.beyond >= _COUNT_MAX:
            break
    return found
