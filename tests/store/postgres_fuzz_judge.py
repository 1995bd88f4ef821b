"""Judges a history of concurrent verbs: is there an order in which the model does and answers the same?

The server has logged the versions of each record in their order. Each of them must be what `lifecycle.step` makes of
the one before by one command that was applied, or what the clock makes of it, and each command makes one at most. Every
other result must be what the model answers on a version that may have been the current one while the command was under
way. A version is current from its command's begin at the earliest until the next one's end at the latest.

Of a lane it judges each transaction: after it, the first of the line is not behind and every other one is, and what it
accepted has higher numbers than whatever was accepted before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise, product
from typing import Any, Final
from uuid import UUID

from gateway.core.delivery import rank
from gateway.core.lifecycle import settle, step, tombstone_response
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    EVENT_OF,
    NO_ATTEMPT,
    Abandon,
    Accept,
    Applied,
    ClaimingCommand,
    Command,
    Complete,
    Event,
    Fenced,
    HolderCommand,
    Lapsed,
    Prove,
    Record,
    ResolvingCommand,
    Result,
    Snapshot,
    State,
    audit_of,
)
from gateway.store.base import Unstorable
from gateway.store.operations import RecoveryLease, Swept
from tests.conformance.hand import as_kept_in

_FAULTS_MAX: Final = 20
_WAITING: Final = (State.ACCEPTED, State.DEAD_LETTER)
_BY_ATTEMPT: Final = (Event.CLAIM, Event.ACCEPT, Event.DISPATCH, Event.TAKEOVER)
_BY_RESOLUTION: Final = (Event.PROVE, Event.DISPROVE, Event.REINSTATE, Event.REQUEUE, Event.WITHDRAW)


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """A command, or a read (None), of an operation: when it was under way, and what came of it."""

    operation_id: UUID
    command: Command | None
    begun: float
    ended: float
    result: Result | Snapshot | Exception


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a record as it was logged; None where it was deleted."""

    number: int
    at_us: int
    record: Record | None
    waits: str | None = None
    has_request: bool = False
    made_by: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether what is beside the record goes with it."""
        record = self.record
        waits = record.state if record is not None and record.state in _WAITING else None
        is_kept = record is not None and record.delivery is not None
        return (self.waits, self.has_request) == (waits, is_kept)


# What was before the first one.
_NOTHING: Final = Version(0, 0, None)


@dataclass(frozen=True, slots=True)
class Given:
    """A recovery lease: when it was asked for and got, for how long, and when it began to be given back."""

    lease: RecoveryLease
    begun: float
    ended: float
    lease_us: int
    back: float | None = None


@dataclass
class History:
    """What happened: as the actors saw it, and as the server logged it and has it at the end."""

    said: list[Said] = field(default_factory=list)
    applied: set[type[Command]] = field(default_factory=set)
    given: list[Given] = field(default_factory=list)
    # How many times as long as at first what is accepted may wait for its delivery.
    pace: float = 1.0
    swept: Swept = field(default_factory=Swept)
    versions: dict[UUID, list[Version]] = field(default_factory=dict)
    answered: frozenset[int] = frozenset()
    audited: Counter[tuple[UUID, str, int, str]] = field(default_factory=Counter)

    def summary(self) -> str:
        changes = sum(map(len, self.versions.values()))
        return f"{len(self.said)} commands and reads, {len(self.given)} recovery leases, {changes} changes"

    def note(self, said: Said) -> None:
        self.said.append(said)
        if said.command is not None and isinstance(said.result, Applied):
            self.applied.add(type(said.command))

    @property
    def has_effects(self) -> bool:
        return self.applied == EVENT_OF.keys()


def judge(history: History) -> list[str]:
    by_operation: defaultdict[UUID, list[Said]] = defaultdict(list)
    for said in history.said:
        by_operation[said.operation_id].append(said)
    faults, timed, audited = [], Counter[Event](), Counter[tuple[UUID, str, int, str]]()
    made = Counter(made_by for all_of in history.versions.values() for made_by in {each.made_by for each in all_of})
    crowded = frozenset(made_by for made_by, number in made.items() if number > 1)
    for operation_id, all_said in by_operation.items():
        trial = _Trial(history.versions.get(operation_id, []), all_said, crowded)
        faults += [f"{operation_id}: {fault}" for fault in trial.faults(history)]
        timed += trial.timed
        audited += trial.audited
    swept = history.swept
    told = (swept.lapsed, swept.retired, swept.collected, swept.expired)
    wanted = dict(zip((Event.LAPSE, Event.RETIRE, Event.COLLECT, Event.EXPIRE), told, strict=True))
    if timed != Counter(wanted):
        faults.append(f"the sweeps told of {wanted}, and wrote {dict(timed)}")
    if audited != history.audited:
        faults.append(
            f"audits that are missing: {audited - history.audited}, that are too many: {history.audited - audited}"
        )
    faults += _token_faults(history)
    faults += _lane_faults(history)
    return faults[:_FAULTS_MAX]


def _token_faults(history: History) -> Iterator[str]:
    owners: dict[int, tuple[UUID, UUID]] = {}
    for operation_id, versions in history.versions.items():
        last = 0
        for record in (version.record for version in versions if version.record is not None):
            if record.attempt_id == NO_ATTEMPT:
                continue
            owner = (operation_id, record.attempt_id)
            if record.token < last or owners.setdefault(record.token, owner) != owner:
                yield f"{operation_id}: token {record.token} of {owner} comes after {last}, or was somebody else's"
            last = record.token


def _lane_faults(history: History) -> Iterator[str]:
    moves: defaultdict[bytes, list[tuple[Version, UUID]]] = defaultdict(list)
    for operation_id, versions in history.versions.items():
        for before, version in pairwise([_NOTHING, *versions]):
            for lane in {_lane_of(before.record), _lane_of(version.record)}:
                if lane is not None:
                    moves[lane].append((version, operation_id))
    for lane, of_lane in moves.items():
        # The lock of a lane puts its transactions in the order of the numbers of their versions.
        of_lane.sort(key=lambda move: move[0].number)
        records: dict[UUID, Record] = {}
        highest = 0
        for made_by, made in groupby(of_lane, key=lambda move: move[0].made_by):
            before = {_number(record) for record in records.values()}
            for version, operation_id in made:
                records.pop(operation_id, None)
                if version.record is not None and _lane_of(version.record) == lane:
                    records[operation_id] = version.record
            numbers = {_number(record) for record in records.values()} - before
            if numbers and min(numbers) <= highest:
                yield f"transaction {made_by} accepted {numbers} in a lane after {highest}"
            highest = max(highest, *numbers, 0)
            yield from (f"transaction {made_by} left {fault}" for fault in _line_faults(list(records.values())))


def _line_faults(records: list[Record]) -> Iterator[str]:
    line = sorted((place, _number(record), record) for record in records if (place := rank(record)) is not None)
    if sum(place == 0 for place, _, _ in line) > 1:
        yield "two of a lane under way"
    for place, (_, _, record) in enumerate(line):
        if record.delivery.is_behind is not (place > 0):
            yield f"{record.identity.operation_id}, {_short(record)}, at place {place} of its line"


def _lane_of(record: Record | None) -> bytes | None:
    return None if record is None or record.delivery is None else record.delivery.lane


def _number(record: Record | None) -> int:
    return 0 if record is None or record.delivery is None else record.delivery.lane_number


class _Trial:
    """One operation's."""

    def __init__(self, versions: list[Version], all_said: list[Said], crowded: frozenset[int]) -> None:
        """`crowded` are the transactions of several operations: in one of a lane, the turn may go on more than once,
        and the last one is logged."""
        self._crowded = crowded
        self._versions = [_NOTHING, *versions]
        self._said = all_said
        self._makers: list[Said | None] = [None]
        self._answers: list[StoredResponse | None] = [None]
        self.timed: Counter[Event] = Counter()
        self.audited: Counter[tuple[UUID, str, int, str]] = Counter()

    def faults(self, history: History) -> Iterator[str]:
        yield from self._unexplained()
        begun = [float("-inf") if maker is None else maker.begun for maker in self._makers]
        # Nobody is told of what a sweep writes, and it changes nothing that anybody sees.
        ended = [float("inf") if maker is None else maker.ended for maker in (*self._makers[1:], None)]
        self._earliest = list(accumulate(begun, max))
        self._latest = list(accumulate(reversed(ended), min))[::-1]
        makers = {maker for maker in self._makers if maker is not None}
        for said in self._said:
            if said not in makers and not self._is_possible(said):
                yield f"no order gives {_told(said)}; it may have met {[_short(v.record) for v in self._met(said)]}"
        for maker in makers:
            if maker.command is not None and EVENT_OF[type(maker.command)] is Event.PURGE:
                assert isinstance(maker.result, Applied)
                record = maker.result.snapshot.record
                if record is not None and record.token in history.answered:
                    yield f"the answer under token {record.token} was purged and is there"
        yield from self._lease_faults(
            [given for given in history.given if given.lease.operation_id == self._said[0].operation_id]
        )

    def _unexplained(self) -> Iterator[str]:
        """Versions that neither a command nor the clock made. Finds out who made the others."""
        applied: defaultdict[Any, list[Said]] = defaultdict(list)
        for said in self._said:
            if isinstance(said.result, Applied) and said.command is not None:
                applied[_mark(said.command)].append(said)
        for same in applied.values():
            same.sort(key=lambda said: _snapshot(said).now_us)
        for before, version in pairwise(self._versions):
            if not version.is_whole:
                yield f"{_short(version.record)} waits as {version.waits}, request: {version.has_request}"
            is_crowded = version.made_by in self._crowded
            maker = self._maker(before.record, version.record, applied, is_crowded=is_crowded)
            self._makers.append(maker)
            response = self._answers[-1]
            if maker is not None:
                if isinstance(maker.command, Complete | Prove):
                    response = maker.command.response
                self._note_audit(maker, before.record)
            elif (event := _event_of_clock(before.record, version)) is not None:
                self.timed[event] += 1
            elif before.record is not None and _with_turn_of(before.record, version.record) == version.record:
                # Another one of the lane changed, and it took or gave the turn; or the tombstone moved.
                pass
            else:
                yield f"nobody made {_short(version.record)} of {_short(before.record)} (version {version.number})"
            self._answers.append(response)

    def _maker(
        self, before: Record | None, after: Record | None, applied: dict[Any, list[Said]], *, is_crowded: bool
    ) -> Said | None:
        candidates = applied.get(_mark_of(after), [])
        for said, is_given in product(candidates, (False, True)[: 1 + is_crowded]):
            assert said.command is not None
            snapshot = _snapshot(said)
            settled = settle(_with_its_turn(before) if is_given else before, snapshot.now_us)
            result, made = step(settled, said.command, snapshot.now_us, lambda: 0 if after is None else after.token)
            is_change = made is not settled and isinstance(result, Applied)
            told = _plain(snapshot.record)
            if is_change and _with_turn_of(_plain(made), after) == after == (
                _with_turn_of(told, after) if is_crowded else told
            ):
                candidates.remove(said)
                return said
        return None

    def _note_audit(self, maker: Said, before: Record | None) -> None:
        audit = audit_of(maker.command)
        if audit is not None and before is not None:
            self.audited[maker.operation_id, EVENT_OF[type(maker.command)].value, before.token, audit.who] += 1

    def _places_met(self, said: Said) -> range:
        """The versions that may have been current while it was under way."""
        return range(bisect_left(self._latest, said.begun), bisect_right(self._earliest, said.ended))

    def _met(self, said: Said) -> list[Version]:
        return [self._versions[place] for place in self._places_met(said)]

    def _is_possible(self, said: Said) -> bool:
        if isinstance(said.result, Exception):
            is_refused = isinstance(said.result, Unstorable)
            return is_refused and isinstance(said.command, Abandon) and "\0" in said.command.doubt
        return any(self._is_told(said, place) for place in self._places_met(said))

    def _is_told(self, said: Said, place: int) -> bool:
        """Whether this is what the model says on this version, and leaves it as it is."""
        record, snapshot = self._versions[place].record, _snapshot(said)
        settled = settle(record, snapshot.now_us)
        if said.command is None:
            if settled is not None and settled.state is State.COMPLETED:
                settled = replace(settled, response=self._answers[place])
            return settled == snapshot.record
        result, made = step(settled, said.command, snapshot.now_us, lambda: 0)
        return made is settled and type(result) is type(said.result) and _plain(settled) == _plain(snapshot.record)

    def _lease_faults(self, given: list[Given]) -> Iterator[str]:
        by_doubt: defaultdict[int, list[Given]] = defaultdict(list)
        for each in given:
            by_doubt[each.lease.token].append(each)
            asked = Said(each.lease.operation_id, None, each.begun, each.ended, Snapshot(None, 0))
            records = [version.record for version in self._met(asked) if version.record is not None]
            doubted = {record.token for record in records if record.state in (State.CLAIMED, State.IN_DOUBT)}
            if each.lease.token not in doubted:
                yield f"{each} was given under no doubt"
        for same in by_doubt.values():
            same.sort(key=lambda each: each.lease.tries)
            for one, other in pairwise(same):
                is_back = one.back is not None and one.back <= other.ended
                is_over = other.ended - one.begun >= one.lease_us / 1_000_000
                if one.lease.tries == other.lease.tries or not (is_back or is_over):
                    yield f"{one} and {other} were held at once"


def _snapshot(said: Said) -> Snapshot:
    if isinstance(said.result, Snapshot):
        return said.result
    assert isinstance(said.result, Applied | Lapsed | Fenced)
    return said.result.snapshot


def _plain(record: Record | None) -> Record | None:
    return None if record is None else replace(record, response=tombstone_response(record.response))


def _with_turn_of(record: Record | None, other: Record | None) -> Record | None:
    """The record with the other one's turn in the lane, which is judged for the lane as a whole; as narrow as the other
    one."""
    record = as_kept_in(other, record)
    if record is None or record.delivery is None or other is None or other.delivery is None:
        return record
    return replace(record, delivery=replace(record.delivery, is_behind=other.delivery.is_behind))


def _with_its_turn(record: Record | None) -> Record | None:
    if record is None or record.delivery is None:
        return record
    return replace(record, delivery=replace(record.delivery, is_behind=False))


def _mark(command: Command) -> Any:
    event = EVENT_OF[type(command)]
    if isinstance(command, ClaimingCommand | Accept):
        return event, command.attempt_id
    if isinstance(command, HolderCommand):
        return event, command.token, command.attempt_id
    if isinstance(command, ResolvingCommand):
        return event, command.resolution_id
    return event


def _mark_of(after: Record | None) -> Any:
    """That of the command that may have made it."""
    if after is None:
        return Event.ERASE
    event = after.last_event
    if event in _BY_ATTEMPT:
        return event, after.attempt_id
    if event in _BY_RESOLUTION:
        return event, after.resolution_id
    return event if event is Event.PURGE else (event, after.token, after.attempt_id)


def _event_of_clock(before: Record | None, version: Version) -> Event | None:
    """The time row that made the version, by when it was written."""
    if before is None:
        return None
    times = [before.lease_until_us, before.replay_until_us, before.remember_until_us]
    if before.delivery is not None:
        times.append(before.delivery.deliver_until_us)
    settled = [settle(before, time) for time in times if time <= version.at_us]
    if not any(each != before and _with_turn_of(each, version.record) == version.record for each in settled):
        return None
    if version.record is None:
        return Event.COLLECT
    events = {State.IN_DOUBT: Event.LAPSE, State.DEAD_LETTER: Event.EXPIRE}
    return events.get(version.record.state, Event.RETIRE)


def _told(said: Said) -> str:
    result = said.result
    if not isinstance(result, Exception):
        result = f"{type(result).__name__} {_short(_snapshot(said).record)}"
    return f"{said.command} -> {result!r}"


def _short(record: Record | None) -> str:
    if record is None:
        return "absent"
    return f"{record.state} (token {record.token}, {record.last_event}, attempt {record.attempts})"
