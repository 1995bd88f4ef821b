"""A history made ready for judging: sorted by operation, with the auditor's own reading of the contract's time rows."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from tests.simulation.history import Answer, Call, Change, History, Sent, View

T = TypeVar("T")
Subject = tuple[str, str, str]

# Words under which an answer of the upstream's own goes out, and those of them that come from the record.
RECORDED = frozenset(("stored", "journaled", "replayed", "recovered"))
REPEATED = frozenset(("replayed", "recovered"))
# 503 of these words says nothing of the operation.
AWAY = frozenset(("store-unavailable", "store-amnesia", "overloaded"))
HOLDER_EVENTS = frozenset(("renew", "complete", "release", "forget", "abandon", "postpone", "bury"))
GRANTS = frozenset(("claim", "dispatch", "takeover"))
# The first command of a key; a record comes into being by it.
BEGINNINGS = frozenset(("claim", "accept"))
# What is granted because the store says that nothing of the operation ran.
_BELIEVING = BEGINNINGS | {"dispatch"}


def settled(view: View | None, now_us: int) -> View | None:
    """A record as it is at a moment: leases lapse, answers expire, keys are forgotten."""
    if view is None:
        return None
    if view.state == "claimed" and view.lease_until_us <= now_us:
        return replace(view, state="in_doubt")
    if view.state == "accepted" and view.deliver_until_us <= now_us:
        return replace(view, state="dead_letter")
    if view.state == "completed" and view.replay_until_us <= now_us:
        view = replace(view, state="tombstone", nonce=None, response_digest=None, has_body=False)
    if view.state in ("released", "tombstone") and view.remember_until_us <= now_us:
        return None
    return view


def lease_end(change: Change, view: View) -> float:
    """The moment of the run at which a lease ends that a change wrote, unless the store's clock is set meanwhile."""
    return change.at + (view.lease_until_us - change.at_us) / 1e6


def state_of(view: View | None) -> str:
    return "absent" if view is None else view.state


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer that got into the record: by which change, as what, and until when it is given again.

    Before `sure_until` everybody gets it: nobody purged it, and its window was not over on the store's clock. From
    `surely_gone` on nobody does: no copy can be left, wherever the store's clock stood when one was made.
    """

    change: Change
    record: View
    window: int
    sure_until: float
    surely_gone: float

    @property
    def operation_id(self) -> str:
        return self.change.operation_id

    @property
    def nonce(self) -> str | None:
        return self.record.nonce

    @property
    def at(self) -> float:
        return self.change.at


class Case:
    """See the module. All lists are in the order in which things happened."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.changes: dict[str, list[Change]] = defaultdict(list)
        for change in sorted(history.changes, key=lambda change: change.number):
            self.changes[change.operation_id].append(change)
        self.lost = {change.operation_id for change in history.changes if change.event == "lost"}
        """Operations of which the store forgot something; what they were cannot be held against it afterwards."""
        losses = [change for change in history.changes if change.event == "lost"]
        self.first_losses = {change.region: change for change in reversed(losses)}
        """Of each region's store that forgot something."""
        self.protected: dict[str, list[Sent]] = defaultdict(list)
        self.by_nonce: dict[str, list[Sent]] = defaultdict(list)
        self.by_call: dict[int, list[Sent]] = defaultdict(list)
        for sent in history.sent:
            if sent.is_protected:
                self.protected[sent.operation_id].append(sent)
            if sent.nonce:
                self.by_nonce[sent.nonce].append(sent)
            if sent.call is not None and sent.method != "GET":
                self.by_call[sent.call].append(sent)
        self.unheard = {forward.call for forward in history.forwards if forward.answered is None}
        """Calls that were for another region, which gave no answer."""
        self.calls: dict[Subject, list[Call]] = defaultdict(list)
        for call in history.calls:
            if call.key:
                self.calls[call.subject].append(call)
        self.operations = self._operations()
        self._births = {
            operation_id: [
                change.after.token
                for change in changes
                if change.event in BEGINNINGS and change.after and settled(change.before, change.at_us) is None
            ]
            for operation_id, changes in self.changes.items()
        }
        self._by_answer: dict[str | None, list[Completion]] = defaultdict(list)
        self._believed = {change.operation_id for change in history.changes if self.is_believer(change)}
        self.completions = list(self._completions())

    def answers(self, words: frozenset[str]) -> Iterator[tuple[Call, Answer]]:
        """Every whole answer under one of these words."""
        for call in self.history.calls:
            answer = call.answer
            if answer is not None and answer.is_whole and answer.verdict in words:
                yield call, answer

    def given(self) -> Iterator[tuple[Call, list[Sent]]]:
        """Every call that got an answer of the upstream, with the requests that it was an answer to, but for probes."""
        for call in self.history.calls:
            if call.answer is not None and call.answer.nonce is not None:
                yield call, [sent for sent in self.by_nonce.get(call.answer.nonce, ()) if sent.method != "GET"]

    def was_kept(self, operation_id: str) -> bool:
        """Whether its request was ever accepted."""
        return any(change.event == "accept" for change in self.changes.get(operation_id, ()))

    def accepted_as(self, call: Call) -> str | None:
        """The operation that a whole 202 names."""
        answer = call.answer
        if answer is None or not answer.is_whole or (answer.status, answer.verdict) != (202, "accepted"):
            return None
        return str(json.loads(answer.body)["id"])

    def completed_as(self, nonce: str | None) -> list[Completion]:
        """The completions that this answer of the upstream made."""
        return self._by_answer.get(nonce, [])

    def window(self, operation_id: str, token: int) -> int:
        """Which life of the key a claim belongs to; another begins when the record comes into being anew."""
        return bisect_right(self._births.get(operation_id, []), token)

    def window_of(self, call: Call, answer: Answer) -> tuple[str, int] | None:
        """The operation and the window of the request that the upstream answered so.

        Where the upstream deduplicates, and the key was forgotten meanwhile, one answer belongs to several windows:
        then it is the one that this call asked in.
        """
        if answer.nonce is None:
            return None
        given = [sent for sent in self.by_nonce.get(answer.nonce, ()) if sent.is_protected]
        own = [sent for sent in given if sent.call == call.number]
        known = [each for each in self.completed_as(answer.nonce) if each.at <= answer.at]
        if not own and known:
            return known[-1].operation_id, known[-1].window
        for sent in own[-1:] or given[:1]:
            return sent.operation_id, self.window(sent.operation_id, sent.token)
        return None

    def requests(self) -> Iterator[tuple[Sent, Change | None]]:
        """Every protected request, with the grant under which it was sent."""
        return ((sent, self.claim(sent)) for requests in self.protected.values() for sent in requests)

    def claim(self, sent: Sent) -> Change | None:
        """The grant under which a request was sent: a store that lost its memory may give a token once more."""
        return self._last_before(sent, lambda change: change.event in GRANTS and _token(change) == sent.token)

    def beginning(self, sent: Sent) -> Change | None:
        """The claim or acceptance of the caller's request that a request was sent for."""
        return self._last_before(sent, lambda change: change.event in BEGINNINGS)

    def _last_before(self, sent: Sent, is_it: Callable[[Change], bool]) -> Change | None:
        changes = self.changes.get(sent.operation_id, ())
        return next((change for change in reversed(changes) if change.at <= sent.sent and is_it(change)), None)

    def successive(self, known: Iterable[list[Sent]]) -> Iterator[tuple[Sent, Sent, set[str] | None]]:
        """Requests for one operation that follow one another by their tokens, and the events between their grants; None
        where one of them has no grant."""
        for requests in known:
            for first, second in pairwise(sorted(requests, key=lambda sent: sent.token)):
                claims = self.claim(first), self.claim(second)
                yield first, second, None if None in claims else self.events_between(*claims)

    def events_between(self, first: Change, last: Change) -> set[str]:
        """What happened to an operation after one change, up to and with another."""
        changes = self.changes.get(first.operation_id, ())
        return {change.event for change in changes if first.number < change.number <= last.number}

    def window_of_sent(self, sent: Sent) -> int:
        return self.window(sent.operation_id, sent.token)

    def record_at(self, operation_id: str, moment: float) -> View | None:
        """The record at a moment of the run, as whoever asked the store then would have got it."""
        view = None
        for change in self.changes.get(operation_id, ()):
            if change.at > moment:
                break
            view = change.after
        return settled(view, self.history.store_us(moment))

    def _operations(self) -> dict[Subject, set[str]]:
        """Which operation ids each subject went by, as far as the upstream or an answer named them."""
        found: dict[Subject, set[str]] = defaultdict(set)
        for operation_id, requests in self.protected.items():
            for sent in requests:
                if sent.route != "pay":  # this service gets the operation's id in place of the key
                    found[sent.subject].add(operation_id)
        for call in self.history.calls:
            named = _named(call.answer)
            if named is not None:
                found[call.subject].add(named)
        return found

    def _completions(self) -> Iterator[Completion]:
        for operation_id, changes in self.changes.items():
            for change in changes:
                after = change.after
                if change.event in ("complete", "prove") and after is not None:
                    window = self.window(operation_id, after.token)
                    completion = Completion(change, after, window, *self._ends(change, after.replay_until_us))
                    self._by_answer[after.nonce].append(completion)
                    yield completion

    def _ends(self, completed: Change, replay_until_us: int) -> tuple[float, float]:
        """`sure_until` and `surely_gone` of a completion."""
        sure, gone = math.inf, 0.0
        for begun, ended, offset_us in self.history.clock_since(completed.at):
            over = (replay_until_us - self.history.epoch_us - offset_us) / 1e6
            if over < ended:
                sure = min(sure, max(begun, over))
            if begun < over:
                # A copy is made for as long as the window lasts now, and keeps to that.
                gone = max(gone, over)
        later = (each for each in self.changes[completed.operation_id] if each.number > completed.number)
        purged = next((change for change in later if change.event == "purge"), None)
        if purged is None:
            return sure, gone
        if completed.operation_id in self.lost:
            # The purge itself may have been forgotten.
            return min(sure, purged.at), gone
        told = [drop.at for drop in self.history.drops if drop.operation_id == completed.operation_id]
        heard = min((at for at in told if at >= purged.at), default=math.inf)
        return min(sure, purged.at), min(gone, heard + self.history.terms.cache_max_age_seconds)

    def stale_until(self, completion: Completion) -> float:
        """Until when a copy from an earlier life of the key may be given in place of this completion."""
        earlier = [
            each.surely_gone
            for each in self.completions
            if each.operation_id == completion.operation_id
            and each.at < completion.at
            and each.window < completion.window
        ]
        return max(earlier, default=0.0)

    # -- which hosts could tell that the store had lost its memory, and which had to believe what they met -------------

    def known(self, by_operation: Mapping[str, T]) -> Iterator[tuple[str, T]]:
        """The items but those of operations that were granted after a loss by somebody who could not tell of it."""
        return ((each, item) for each, item in by_operation.items() if each not in self._believed)

    def is_believer(self, claim: Change) -> bool:
        """Whether this is a grant after a loss, by a host that met the store, and heard of it, no earlier than that."""
        loss = self.first_losses.get(claim.region)
        if claim.event not in _BELIEVING or loss is None or claim.number < loss.number:
            return False
        asked = next((call.begun for call in self.history.store_calls if call.change == claim.number), claim.at)
        since = self._known_since(claim.gateway, asked)
        return since is None or since >= loss.at

    def _known_since(self, gateway: str, at: float) -> float | None:
        """Since when a host knows of the memory that it goes by: it met it, or was told when it met the store first.

        A host that has neither a note of its own nor what others noted in the fast tier believes what it meets.
        """
        history = self.history
        wipes = [fault.at for fault in history.faults if fault.kind == "note_lost" and fault.gateway == gateway]
        wiped = max((wipe for wipe in wipes if wipe <= at), default=0.0)
        looks = [
            call.acknowledged
            for call in history.store_calls
            if (call.verb, call.gateway) == ("check_memory", gateway)
            and call.acknowledged is not None
            and wiped <= call.begun
            and call.acknowledged <= at
        ]
        if not looks:
            return None
        met = min(looks)
        told = [read.noted for read in history.note_reads if read.gateway == gateway and wiped <= read.at <= met]
        return met if not told or told[-1] is None else min(met, told[-1])


def is_shortening(change: Change) -> bool:
    """Whether a sweep left a claim what it was, and changed when its lease ends."""
    return change.event == "sweep" and change.after is not None and change.after.state == "claimed"


def _token(change: Change) -> int | None:
    return None if change.after is None else change.after.token


def _named(answer: Answer | None) -> str | None:
    """The operation id in one of the gateway's own answers."""
    if answer is None or b'"operation_id"' not in answer.body:
        return None
    try:
        named = json.loads(answer.body).get("operation_id")
    except ValueError:
        return None
    return named if isinstance(named, str) else None
