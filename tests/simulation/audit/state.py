"""Invariants of state: the table, leases, fences, retention."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

from tests.simulation.audit.case import (
    BEGINNINGS,
    GRANTS,
    HOLDER_EVENTS,
    REPEATED,
    Case,
    is_shortening,
    lease_end,
    settled,
    state_of,
)
from tests.simulation.history import Change, Fault, Sent, View

# The life of an operation, as the contract has it: by state, the events and the state after.
_TABLE = {
    "absent": {"claim": "claimed", "accept": "accepted"},
    "released": {"claim": "claimed", "accept": "accepted", "complete": "completed", "erase": "absent"},
    "accepted": {"dispatch": "claimed", "complete": "completed", "withdraw": "released"},
    "dead_letter": {"complete": "completed", "requeue": "accepted", "withdraw": "released"},
    "claimed": {
        "renew": "claimed", "complete": "completed", "release": "released", "forget": "released",
        "abandon": "in_doubt", "postpone": "accepted", "bury": "dead_letter",
    },
    "in_doubt": {
        "abandon": "in_doubt", "takeover": "claimed", "complete": "completed", "prove": "completed",
        "release": "released", "forget": "released", "disprove": "released", "postpone": "accepted",
        "reinstate": "accepted", "bury": "dead_letter",
    },
    "completed": {"purge": "tombstone"},
    "tombstone": {"erase": "absent"},
}  # fmt: skip
_ON_WHAT_WAS_READ = BEGINNINGS | {"dispatch", "takeover", "prove", "disprove", "reinstate", "requeue", "withdraw"}
# Which resolution must have been the last word before a late answer, by the state that it left.
_BEFORE_A_LATE_ANSWER = {"released": "disprove", "accepted": "reinstate", "dead_letter": "reinstate"}
# Whether the request must be kept, for the events for which that matters.
_KEPT = {"postpone": True, "bury": True, "reinstate": True, "release": False, "forget": False}


def invariant_11_only_transitions_of_the_table(case: Case) -> Iterator[str]:
    """Each change follows the one before it, and is a row of the table with its fence."""
    for operation_id, changes in case.changes.items():
        last: View | None = None
        for change in changes:
            if change.before != last:
                yield f"{operation_id}: change {change.number} does not follow the one before it"
            last = change.after
            fault = _fault_of(change)
            if fault:
                yield f"{operation_id}: change {change.number}, {change.event}: {fault}"


def _fault_of(change: Change) -> str | None:
    if change.event == "lost":
        return None
    before = settled(change.before, change.at_us)
    if change.event in ("sweep", "settle"):
        return None if state_of(change.after) == state_of(before) else "it is not what time did"
    expected = _TABLE[state_of(before)].get(change.event)
    if expected is None:
        return f"there is no such row from {state_of(before)}"
    if state_of(change.after) != expected:
        return f"from {state_of(before)} to {state_of(change.after)}"
    if before is None:
        return None
    return _fault_of_fence(change, before)


def _fault_of_fence(change: Change, before: View) -> str | None:
    named = change.token, change.attempt
    late = _BEFORE_A_LATE_ANSWER.get(before.state)
    # A wait that begins in the future is of a clock that was set back, and over.
    is_early = before.waits_since_us <= change.at_us < before.next_attempt_us
    is_another = before.fingerprint is not None and change.fingerprint != before.fingerprint
    is_kept = _KEPT.get(change.event, before.is_kept) == before.is_kept
    faults = {
        "it is not the holder's to say": change.event in HOLDER_EVENTS and named != (before.token, before.attempt),
        "another token was read": change.event in _ON_WHAT_WAS_READ and change.read_token != before.token,
        f"whether the request is kept: {before.is_kept}": not is_kept,
        "the next attempt was not due": change.event == "dispatch" and is_early,
        "the fingerprint is another": change.event in BEGINNINGS and is_another,
        f"it was no {late} that came before": change.event == "complete" and late not in (None, before.last_event),
    }
    return next((fault for fault, is_found in faults.items() if is_found), None)


def invariant_12_a_lapsed_claim_sends_nothing(case: Case) -> Iterator[str]:
    """No byte leaves once as much time has passed as the store gave, whatever was done to its clock since."""
    for sent, _ in case.requests():
        # What a sweep makes of a lease it gives to nobody.
        given = [
            lease_end(change, change.after)
            for change in case.changes.get(sent.operation_id, ())
            if change.event != "sweep" and change.at <= sent.sent
            if change.after is not None and change.after.token == sent.token
        ]
        if max(given, default=0.0) <= sent.sent:
            yield f"{sent.operation_id}: token {sent.token} was sent after its lease"


def invariant_13_tokens_increase(case: Case) -> Iterator[str]:
    """Each grant and each acceptance has a higher token than any before on the same operation."""
    for operation_id, changes in case.known(case.changes):
        highest = 0
        for change in changes:
            if change.event in GRANTS | BEGINNINGS and change.after is not None:
                if change.after.token <= highest:
                    yield f"{operation_id}: token {change.after.token} was granted after {highest}"
                highest = max(highest, change.after.token)


def invariant_14_a_superseded_holder_changes_nothing(case: Case) -> Iterator[str]:
    """Who is told `stored` has what the record has."""
    recorded = {(completion.operation_id, completion.window): completion for completion in case.completions}
    for call, answer in case.answers(frozenset(("stored",))):
        window = case.window_of(call, answer)
        if window is not None and window[0] in case.lost:
            continue
        completion = None if window is None else recorded.get(window)
        if completion is None or completion.nonce != answer.nonce or not completion.record.has_body:
            yield f"call {call.number}: stored, but the record has another answer or none"
    for change in case.history.changes:
        before = change.before
        if change.operation_id in case.lost:
            continue
        if change.event in HOLDER_EVENTS and before is not None and change.token != before.token:
            yield f"{change.operation_id}: {change.event} by token {change.token} on token {before.token}"


def invariant_15_no_doubt_while_the_owner_lives(case: Case) -> Iterator[str]:
    """A lease ends only where something kept its owner from renewing it."""
    for operation_id, changes in case.changes.items():
        for written, change in pairwise(changes):
            before = change.before
            # What a standby brings back may have been ended by its owner before.
            if before is None or before.state != "claimed" or written.event == "lost":
                continue
            if state_of(settled(before, change.at_us)) == "in_doubt":
                yield from _unexplained(case, operation_id, written, before, change.at)
        last = changes[-1].after
        final = case.history.final.get(operation_id)
        if last is not None and last.state == "claimed" and final is not None and final.state == "in_doubt":
            yield from _unexplained(case, operation_id, changes[-1], last, case.history.ended)


def _unexplained(case: Case, operation_id: str, written: Change, lapsed: View, seen: float) -> Iterator[str]:
    if case.history.was_set(written.at, seen):
        return
    owner = lapsed.holder.partition(".")[0]
    until = lease_end(written, lapsed)
    since = until - case.history.terms.lease_seconds - case.history.terms.store_timeout_seconds
    if not any(_concerns(fault, owner, since, until) for fault in case.history.faults):
        yield f"{operation_id}: the lease of {lapsed.holder} ended at {until:.3f} although nothing was wrong"


def _concerns(fault: Fault, owner: str, since: float, until: float) -> bool:
    return fault.gateway in (None, owner) and fault.at <= until and fault.until >= since


def invariant_16_a_completed_record_never_changes(case: Case) -> Iterator[str]:
    """Only its end comes: a tombstone, then nothing."""
    for change in case.history.changes:
        before = settled(change.before, change.at_us)
        if before is None or before.state != "completed" or change.event == "lost":
            continue
        if change.event != "purge" or state_of(change.after) != "tombstone":
            yield f"{change.operation_id}: change {change.number}, {change.event}, of a completed record"


def invariant_17_in_doubt_is_inert(case: Case) -> Iterator[str]:
    """A request leaves only while the record is claimed under its own token."""
    for sent, claim in case.requests():
        if sent.operation_id in case.lost or (claim is not None and case.history.was_set(claim.at, sent.sent)):
            # Who claimed does not hear of a clock that was set; what he may still do is for `35`.
            continue
        record = case.record_at(sent.operation_id, sent.sent)
        if record is None or record.state != "claimed" or record.token != sent.token:
            yield f"{sent.operation_id}: token {sent.token} was sent while the record was {state_of(record)}"


def invariant_18_nothing_open_is_swept(case: Case) -> Iterator[str]:
    """A sweep takes away what is over, never what is claimed or in doubt."""
    for change in case.history.changes:
        if change.event == "sweep" and change.before is not None and change.after is None:
            if state_of(change.before) in ("accepted", "claimed", "in_doubt", "dead_letter"):
                yield f"{change.operation_id}: swept while {change.before.state}"
            elif settled(change.before, change.at_us) is not None:
                yield f"{change.operation_id}: swept before its time"


def invariant_19_a_sweep_never_races_a_claim(case: Case) -> Iterator[str]:
    """Between a claim and its bytes nothing takes the record away."""
    for sent, claim in case.requests():
        for change in case.changes[sent.operation_id] if claim is not None else ():
            is_between = change.number > claim.number and change.at <= sent.sent
            is_lapse = state_of(change.after) == "in_doubt" and case.history.was_set(claim.at, change.at)
            is_end = change.event in ("sweep", "erase") and not is_shortening(change)
            if is_between and is_end and not is_lapse:
                yield f"{sent.operation_id}: {change.event} between the claim of token {sent.token} and its bytes"


def invariant_20_nothing_expired_reappears(case: Case) -> Iterator[str]:
    """Whoever asks after an answer's window ended does not get it."""
    for call, answer in case.answers(REPEATED | {"stored"}):
        made = case.completed_as(answer.nonce)
        if made and call.begun >= max(completion.surely_gone for completion in made):
            yield f"call {call.number}: got {answer.nonce}, which had expired or was purged"


def invariant_29_a_lost_memory_is_not_taken_for_absence(case: Case) -> Iterator[str]:
    """After the store forgot something, nothing is granted on what it may have forgotten."""
    losses: dict[str, Change] = {}
    for change in case.history.changes:
        if change.event == "lost":
            losses[change.operation_id] = change
            continue
        first = case.first_losses.get(change.region)
        if first is None or change.number < first.number or change.event not in BEGINNINGS:
            continue
        if not case.is_believer(change):
            before, lost = settled(change.before, change.at_us), losses.get(change.operation_id)
            if before is None:
                yield f"{change.operation_id}: claimed as absent at {change.at:.3f}, after a loss at {first.at:.3f}"
            elif lost is not None and change.before == lost.after:
                yield f"{change.operation_id}: claimed on {before.state}, which was older than what was lost"


def invariant_28_what_was_acknowledged_is_kept(case: Case) -> Iterator[str]:
    """At the end the record of every stored answer is there, unless its window is over."""
    for call, answer in case.answers(frozenset(("stored",))):
        window = case.window_of(call, answer)
        if window is None or window[0] in case.lost:
            continue
        for completion in case.completed_as(answer.nonce):
            if completion.sure_until <= case.history.ended + 1.0:
                continue
            final = case.history.final.get(completion.operation_id)
            if final is None or final.state != "completed" or final.nonce != answer.nonce:
                yield f"call {call.number}: stored as {answer.nonce}, and the record is {state_of(final)}"
            elif final.response_digest != completion.record.response_digest:
                yield f"call {call.number}: stored as {answer.nonce}, and the record has other bytes by now"


def invariant_38_what_was_accepted_is_not_lost(case: Case) -> Iterator[str]:
    """After a 202 the record keeps its request until its result is known, or until somebody's word."""
    for call in case.history.calls:
        operation_id = case.accepted_as(call)
        if operation_id is None or operation_id in case.lost or call.answer is None:
            continue
        kept = [change for change in case.changes.get(operation_id, ()) if change.event == "accept"]
        if not kept or kept[0].at > call.answer.at:
            yield f"call {call.number}: accepted, and nothing was kept"
    for operation_id, changes in case.changes.items():
        for change in changes:
            was_kept = change.before is not None and change.before.is_kept
            is_kept = change.after is not None and change.after.is_kept
            if was_kept and not is_kept and change.event not in _FINAL_COMMANDS:
                yield f"{operation_id}: {change.event} drops the request that is kept"


_FINAL_COMMANDS = frozenset(("complete", "prove", "disprove", "withdraw", "lost"))


def invariant_39_what_is_to_be_delivered_had_no_effect(case: Case) -> Iterator[str]:
    """What is accepted or a dead letter had no effect, and has none later by an attempt of before."""
    for operation_id, changes in case.known(case.changes):
        if operation_id in case.lost:
            continue
        effects = [sent for sent in case.protected.get(operation_id, ()) if sent.effect is not None]
        for change in changes:
            after = change.after
            if after is None or after.state not in ("accepted", "dead_letter"):
                continue
            window = case.window(operation_id, after.token)
            for sent in effects:
                if sent.token <= after.token and case.window(operation_id, sent.token) == window:
                    yield f"{operation_id}: {change.event} to {after.state}, and token {sent.token} had an effect"


def invariant_40_a_lane_keeps_its_order(case: Case) -> Iterator[str]:
    """Of one account's operations one is under way at a time, and their effects are in the order of acceptance.

    Doubt is never passed, and a dead letter only where the route says so.
    """
    lanes: dict[str, dict[str, View]] = defaultdict(dict)
    accepted: dict[str, int] = {}
    passed: dict[tuple[str, int | None], set[str]] = {}
    for change in case.history.changes:
        operation_id, after = change.operation_id, change.after
        lane = next((view.lane for view in (after, change.before) if view is not None and view.lane), None)
        if change.event in GRANTS and lane is not None and after is not None:
            passed[operation_id, after.token] = set()
            for other, view in lanes[lane].items():
                state = state_of(settled(view, change.at_us))
                is_before = accepted[other] < accepted[operation_id]
                if other == operation_id or case.lost & {other, operation_id}:
                    continue
                if state == "dead_letter" and not view.stops_lane:
                    passed[operation_id, after.token].add(other)
                elif state in ("claimed", "in_doubt") or (is_before and state in ("accepted", "dead_letter")):
                    yield f"{operation_id}: {change.event} of token {after.token}, and {other} before it is {state}"
        if change.event == "accept":
            accepted[operation_id] = change.number
        if lane is not None:
            lanes[lane].pop(operation_id, None)
            if after is not None and after.lane is not None:
                lanes[lane][operation_id] = after
    yield from _effects_out_of_order(case, passed)


def _effects_out_of_order(case: Case, passed: dict[tuple[str, int | None], set[str]]) -> Iterator[str]:
    """What the service saw, by the accounts that it was told."""
    accounts: dict[tuple[str, str, str], list[tuple[float, int, Sent]]] = defaultdict(list)
    for operation_id, requests in case.known(case.protected):
        for sent in requests:
            begun = case.beginning(sent)
            if operation_id not in case.lost and sent.route in case.history.terms.ordered and sent.effect and begun:
                account = json.loads(sent.body)["account"]
                accounts[sent.route, sent.scope, account].append((sent.effect, begun.number, sent))
    for effects in accounts.values():
        for (_, number, earlier), (_, later_number, later) in combinations(sorted(effects, key=lambda one: one[0]), 2):
            if later_number < number and later.operation_id not in passed.get(
                (earlier.operation_id, earlier.token), ()
            ):
                yield f"{later.operation_id}: accepted before {earlier.operation_id}, and took effect after it"


def invariant_41_a_completion_has_one_event(case: Case) -> Iterator[str]:
    """Each sink has one event of every completion and none of anything else; an ordered one has those of a lane, or
    else of an operation, in the order of the completions."""
    completed: list[tuple[str, int, str]] = []
    for change in case.history.changes:
        after, operation_id = change.after, change.operation_id
        if change.event in ("complete", "prove") and after is not None and operation_id not in case.lost:
            lane = next((view.lane for view in (after, change.before) if view is not None and view.lane), None)
            completed.append((operation_id, after.token, lane or operation_id.replace("-", "")))
    for sink, is_ordered in case.history.terms.sinks.items():
        events = [row for row in case.history.events if row.sink == sink and row.operation_id not in case.lost]
        written = Counter((row.operation_id, row.token) for row in events)
        wanted = Counter((operation_id, token) for operation_id, token, _ in completed)
        for operation_id, token in (written - wanted) + (wanted - written):
            found, due = written[operation_id, token], wanted[operation_id, token]
            yield f"{operation_id}: {sink} has {found} events of token {token}, which was completed {due} times"
        if is_ordered:
            lines, expected = defaultdict(list), defaultdict(list)
            for row in events:
                lines[row.line].append((row.operation_id, row.token))
            for operation_id, token, line in completed:
                expected[line].append((operation_id, token))
            for line, order in expected.items():
                if lines[line] != order and written == wanted:
                    yield f"{sink} has the events of {line} as {lines[line]}, and they happened as {order}"
