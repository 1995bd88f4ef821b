"""Judges a storm by what its clients got and what its upstream did, and by nothing that the gateway says of itself.

Each check names the line of the invariants that it holds. A history passes when `judge` finds nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tests.integration.storm_clients import RECORDED, Call
from tests.integration.storm_upstream import Arrival, Deed
from tests.support.upstream import Answered

_UNSENT: Final = frozenset(("store-unavailable", "overloaded", "key-reused", "upstream-unreachable"))
_BUSY: Final = frozenset((None, "store-unavailable", "overloaded", "key-reused"))
_UNWRITTEN: Final = frozenset(("in-flight", "in-doubt"))
_WRITTEN: Final = frozenset(("stored", "recovered"))


def judge(
    calls: Sequence[Call],
    deeds: Mapping[int, Arrival],
    answers: Sequence[Answered],
    was_superseded: Callable[[Call], bool] = lambda _: False,
) -> list[str]:
    """Everything that must not have been. `was_superseded`: a journaled answer may differ from the record."""
    by_key: defaultdict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.path, call.key].append(call)
    key_of_call = {call.number: (call.path, call.key) for call in calls}
    arrivals: defaultdict[tuple[str, str], list[Arrival]] = defaultdict(list)
    for _, arrival in sorted(deeds.items()):
        if arrival.deed is not Deed.ASKED:
            arrivals[key_of_call[arrival.call]].append(arrival)
    found: list[str] = []
    for key, some in by_key.items():
        sent = arrivals[key]
        faults = [*_execution(sent), *_agreement(some, was_superseded), *_order(some, sent), *_bodies(some)]
        found += [f"{' '.join(key)}: {fault}" for fault in faults]
    return [*found, *_tokens(deeds), *_phantoms(calls, deeds, answers), *_definite(calls, deeds)]


def _execution(arrivals: Sequence[Arrival]) -> Iterator[str]:
    """1: at most one effect, and no request after one that may have had it, but as the route's recovery allows."""
    effects = sum(arrival.deed is Deed.DONE for arrival in arrivals)
    if effects > 1:
        yield f"{effects} effects"
    # Known to have had none: refused, or, where the upstream can be asked, said to have never happened.
    harmless = {"/charges": {Deed.REFUSED}, "/transfers": {Deed.REFUSED, Deed.LOST}}
    for arrival in arrivals[:-1]:
        allowed = harmless.get(arrival.path)
        if allowed is not None and arrival.deed not in allowed:
            yield f"sent again after a request of which {arrival.deed.value}"


def _agreement(calls: Sequence[Call], was_superseded: Callable[[Call], bool]) -> Iterator[str]:
    """4: whoever gets the recorded answer gets the same."""
    different: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for call in calls:
        if call.verdict in RECORDED and not (call.verdict == "journaled" and was_superseded(call)):
            told = f"{call.verdict} to call {call.number} from {call.begin:.1f} to {call.end:.1f}"
            different[call.status, call.nonce, call.answer].append(told)
    if len(different) > 1:
        yield f"{len(different)} different answers: {dict(different)}"


def _order(calls: Sequence[Call], arrivals: Sequence[Arrival]) -> Iterator[str]:
    """7: once it was answered, it stays answered.

    What a gateway replays from its journal is not written yet: of one that sent the request, only `stored` and
    `recovered` say that it is. It may have journaled what nobody was there to hear.
    """
    senders = {call.gateway for call in calls if call.number in {arrival.call for arrival in arrivals}}
    written = [
        call.end
        for call in calls
        if call.verdict in _WRITTEN or (call.verdict == "replayed" and call.gateway not in senders)
    ]
    answered = min(written, default=None)
    journaled = min((call.end for call in calls if call.verdict == "journaled"), default=None)
    history = [f"{call.verdict} of {call.gateway} from {call.begin:.1f} to {call.end:.1f}" for call in calls]
    for call in calls:
        if answered is not None and call.begin > answered and call.verdict not in RECORDED | _BUSY:
            yield f"call {call.number} got {call.verdict} after it was answered: {history}"
        elif journaled is not None and call.begin > journaled and call.verdict not in RECORDED | _BUSY | _UNWRITTEN:
            yield f"call {call.number} got {call.verdict} after it was journaled: {history}"


def _bodies(calls: Sequence[Call]) -> Iterator[str]:
    """9: nobody gets the answer to another request, and whoever repeats the one that was executed is not refused."""
    executed = {call.body for call in calls if call.verdict in RECORDED}
    if len({call.body for call in calls}) == 1:
        executed = {call.body for call in calls}
    for call in calls:
        if call.verdict == "key-reused" and call.body in executed:
            yield f"call {call.number} was refused as another request, and is the same"
    for call in calls:
        if call.verdict in RECORDED and call.status == 201 and call.answer != call.body:
            yield f"call {call.number} got the answer to another body"


def _tokens(deeds: Mapping[int, Arrival]) -> Iterator[str]:
    """13: no two requests under one token."""
    tokens: defaultdict[str, list[int]] = defaultdict(list)
    for _, arrival in sorted(deeds.items()):
        if arrival.deed is not Deed.ASKED:
            tokens[arrival.operation].append(int(arrival.token))
    for operation, some in tokens.items():
        if max(Counter(some).values()) > 1:
            yield f"operation {operation}: sent twice under one token: {some}"


def _phantoms(calls: Sequence[Call], deeds: Mapping[int, Arrival], answers: Sequence[Answered]) -> Iterator[str]:
    """3: every answer is one that the upstream gave, to this operation."""
    given = {answer.nonce: answer for answer in answers}
    key_of_call = {call.number: (call.path, call.key) for call in calls}
    key_of_operation = {
        arrival.operation: key_of_call[arrival.call] for arrival in deeds.values() if arrival.deed is not Deed.ASKED
    }
    for call in calls:
        if call.verdict not in RECORDED:
            continue
        answer = given.get(call.nonce or "")
        if answer is None or (answer.status, answer.body) != (call.status, call.answer):
            yield f"call {call.number}: an answer that nobody gave"
        elif key_of_operation[deeds[answer.number].operation] != (call.path, call.key):
            yield f"call {call.number}: the answer of another operation"


def _definite(calls: Sequence[Call], deeds: Mapping[int, Arrival]) -> Iterator[str]:
    """5: what was said not to be sent was not, and what was said to have had no effect had none."""
    deed_of = {arrival.call: arrival.deed for arrival in deeds.values() if arrival.deed is not Deed.ASKED}
    for call in calls:
        deed = deed_of.get(call.number)
        if call.verdict in _UNSENT and deed is not None:
            yield f"call {call.number}: {call.verdict}, and it was sent"
        if call.verdict == "released" and deed is Deed.DONE:
            yield f"call {call.number}: released, and it had an effect"
