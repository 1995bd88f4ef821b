"""What an operation has been through, in the order in which it happened.

Pure: a record and its audits in, values out. What the record tells of its last attempt, what its history has of the
attempts before, and who decided what, are one list here. How it is drawn and worded is for those who show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.admin.view import doubt_text, moment, present, printable, span
from gateway.core.history import FIRST, PROBE, Entry, unpacked
from gateway.core.operation import MICROSECONDS, NO_ATTEMPT, Event, Record, State
from gateway.core.recovery import doubted_status
from gateway.store.operations import AuditEntry

ATTEMPT: Final = "attempt"
_IN_DOUBT: Final = frozenset((Event.ABANDON, Event.LAPSE))
_COMPLETIONS: Final = (Event.COMPLETE, Event.PROVE)
# A purge, an erasure and a probe end no doubt.
_AFTER_DOUBT: Final = frozenset((Event.PURGE, Event.ERASE, PROBE))


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened, at `at_us`: an attempt, a probe, or else an event of the table, under this token.

    An attempt began with the event `how`, and ended at `until_us` with the event `ended`; None and empty while it is
    under way. `who` is its holder, or who decided. `why` and `status` are what came of it.
    """

    event: str
    at_us: int
    token: int
    how: str = ""
    until_us: int | None = None
    ended: str = ""
    who: str = ""
    why: str = ""
    status: int | None = None
    method: str = ""

    @property
    def end(self) -> str:
        """The event that it ended with: of all but an attempt, its own."""
        return self.ended if self.event == ATTEMPT else self.event

    @property
    def document(self) -> dict[str, Any]:
        """As JSON values."""
        lasted_us = None if self.until_us is None else self.until_us - self.at_us
        about: dict[str, Any] = {
            "at": moment(self.at_us),
            "event": self.event,
            "token": self.token,
            "how": self.how or None,
            "method": self.method or None,
            "holder" if self.event == ATTEMPT else "who": self.who or None,
            "ended": self.ended or None,
            "seconds": None if lasted_us is None else lasted_us / MICROSECONDS,
            "status": self.status,
            "why": self.why or None,
        }
        return present(about)

    @property
    def text(self) -> str:
        """In words, without the time."""
        return printable(self._attempted if self.event == ATTEMPT else self._done)

    @property
    def _attempted(self) -> str:
        about = ", ".join(filter(None, (self.method, f"token {self.token}", self.who)))
        sent = f"{_BEGINNINGS.get(self.how, 'sent')}: {about}"
        if self.until_us is None:
            return f"{sent}; under way"
        why = f"status {self.status}" if self.ended == Event.COMPLETE and self.status else _words(self.why)
        end = _ENDS.get(self.ended, self.ended)
        return f"{sent}; {end} after {lasted(self.until_us - self.at_us)}{': ' if why else ''}{why}"

    @property
    def _done(self) -> str:
        said = f"{self.who}: {self.why}" if self.who else _words(self.why)
        status = f", status {self.status}" if self.status and self.event in _COMPLETIONS else ""
        return f"{_NAMES.get(self.event, self.event)}{status}{': ' if said else ''}{said}"


@dataclass(frozen=True, slots=True)
class Told:
    """All that is known of what happened, in order. `dropped` more, between them, are not kept any more."""

    happenings: tuple[Happening, ...] = ()
    dropped: int = 0

    @property
    def dropped_text(self) -> str:
        return f"{self.dropped} more were dropped, after the first {FIRST}" if self.dropped else ""

    @property
    def doubts(self) -> list[tuple[int, int | None]]:
        """When it was in doubt, each time from when until when; None where it still is."""
        found: list[tuple[int, int | None]] = []
        for each in sorted(self.happenings, key=_ended_us):
            is_open = bool(found) and found[-1][1] is None
            if each.end in _IN_DOUBT and not is_open:
                found.append((_ended_us(each), None))
            elif is_open and each.end and each.end not in _IN_DOUBT | _AFTER_DOUBT:
                found[-1] = (found[-1][0], _ended_us(each))
        return found


def told(record: Record | None, audits: Iterable[AuditEntry]) -> Told:
    """What happened to the operation that has this record."""
    decided = [Happening(each.event.value, each.at_us, each.token, who=each.who, why=each.why) for each in audits]
    if record is None:
        return Told(tuple(sorted(decided, key=_began_us)))
    history = unpacked(record.history)
    found = _of_entries(sorted(history.entries, key=lambda each: each.at_us))
    attempts = {each.token for each in found if each.event == ATTEMPT}
    if record.holder and record.token not in attempts:
        found.append(_last_attempt(record))
        attempts.add(record.token)
    if record.completed_us is not None and not any(each.ended == Event.COMPLETE for each in found):
        # By somebody else than the attempt, or late.
        is_proven = any(each.event == Event.PROVE and each.at_us == record.completed_us for each in decided)
        if not is_proven:
            event = Event.PROVE if record.last_event is Event.PROVE else Event.COMPLETE
            found.append(Happening(event.value, record.completed_us, record.token))
        decided = [_with_status(each, record) for each in decided]
        found = [_with_status(each, record) for each in found]
    first_us = min((each.at_us for each in found if each.event == ATTEMPT), default=None)
    if record.attempt_id != NO_ATTEMPT and (first_us is None or record.first_claimed_us < first_us):
        found.append(Happening(Event.ACCEPT.value, record.first_claimed_us, record.token))
    return Told(_with_beginnings(sorted((*found, *decided), key=_began_us)), history.dropped)


def lasted(duration_us: int) -> str:
    """A duration, to the millisecond if it is short."""
    if duration_us < MICROSECONDS:
        return f"{max(0, duration_us) // 1000} ms"
    return f"{duration_us / MICROSECONDS:.1f} s" if duration_us < 60 * MICROSECONDS else span(duration_us)


def _of_entries(entries: Iterable[Entry]) -> list[Happening]:
    """Of each attempt that ended; a second end of it is something that happened later."""
    found: list[Happening] = []
    seen: set[int] = set()
    for each in entries:
        status = doubted_status(each.detail)
        if each.began_us and each.token not in seen:
            seen.add(each.token)
            attempt = Happening(
                ATTEMPT, each.began_us, each.token, "", each.at_us, each.event, each.holder, each.detail
            )
            found.append(replace(attempt, status=status, method=each.method))
        else:
            found.append(Happening(each.event, each.at_us, each.token, why=each.detail, status=status))
    return found


def _last_attempt(record: Record) -> Happening:
    """What the record tells of it: it is under way, or completed the operation."""
    method = "" if record.request is None else record.request.method
    found = Happening(ATTEMPT, record.claimed_us, record.token, who=record.holder, method=method)
    if record.completed_us is None or record.state is State.CLAIMED:
        return found
    status = None if record.response is None else record.response.status
    return replace(found, until_us=record.completed_us, ended=Event.COMPLETE.value, status=status)


def _with_status(happening: Happening, record: Record) -> Happening:
    is_completion = happening.event in _COMPLETIONS and happening.at_us == record.completed_us
    return replace(happening, status=record.response.status) if is_completion and record.response else happening


def _with_beginnings(found: Sequence[Happening]) -> tuple[Happening, ...]:
    """With how each attempt began: what is in doubt is taken over, what was accepted is dispatched."""
    told: list[Happening] = []
    doubts = Told(tuple(found)).doubts
    is_accepted = any(each.event == Event.ACCEPT for each in found)
    for each in found:
        at_us, how = each.at_us, Event.DISPATCH if is_accepted else Event.CLAIM
        # One that ended at once was not in its own doubt.
        if any(since_us < at_us and (until_us is None or at_us < until_us) for since_us, until_us in doubts):
            how = Event.TAKEOVER
        told.append(replace(each, how=how.value) if each.event == ATTEMPT else each)
    return tuple(told)


def _began_us(happening: Happening) -> int:
    return happening.at_us


def _ended_us(happening: Happening) -> int:
    return happening.at_us if happening.until_us is None else happening.until_us


def _words(detail: str) -> str:
    return "; ".join(map(doubt_text, detail.split("; "))) if detail else ""


_BEGINNINGS: Final[Mapping[str, str]] = {Event.TAKEOVER: "sent again in doubt", Event.DISPATCH: "delivered"}
_ENDS: Final[Mapping[str, str]] = {
    Event.COMPLETE: "answered",
    Event.RELEASE: "no effect",
    Event.FORGET: "turned away",
    Event.ABANDON: "in doubt",
    Event.LAPSE: "its lease ended, in doubt",
    Event.POSTPONE: "no effect, to be sent again",
    Event.BURY: "no effect, given up",
}
_NAMES: Final[Mapping[str, str]] = {
    PROBE: "asked the service",
    Event.ACCEPT: "accepted, to be delivered",
    Event.COMPLETE: "answered late",
    Event.RELEASE: "no effect, said late",
    Event.FORGET: "turned away, said late",
    Event.ABANDON: "in doubt, said late",
    Event.POSTPONE: "no effect, said late",
    Event.BURY: "no effect, given up, said late",
    Event.EXPIRE: "not delivered in time",
    Event.PROVE: "found out: it happened",
    Event.DISPROVE: "found out: nothing happened",
    Event.REINSTATE: "found out: nothing happened, to be delivered",
    Event.REQUEUE: "to be delivered after all",
    Event.WITHDRAW: "called off",
    Event.PURGE: "response dropped",
    Event.ERASE: "key forgotten",
}
