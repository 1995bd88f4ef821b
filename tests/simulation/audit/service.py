"""Invariants of what clients see over time: order, isolation, fidelity, liveness, and what is left at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.simulation.audit.case import AWAY, GRANTS, RECORDED, Case, settled, state_of
from tests.simulation.history import CLIENT_ADDRESS, DELIVER_SECONDS, Call, Change, Sent, View

_ACKNOWLEDGED = frozenset(("stored", "response-not-stored"))
_NOT_YET = frozenset(("in-flight", "in-doubt", "response-not-stored"))
# Words under which nobody gets an answer but the call that it was said to; None is no verdict at all.
_OF_THIS_CALL = frozenset(("stored", "unkeyed", "unprotected", None))
_OWN_FIELDS = frozenset(
    ("idempotency-status", "idempotent-replayed", "idempotency-expires", "idempotency-outcome", "content-length")
)

# What the gateway adds to a response after which the same request may be repeated, unless the service says it itself.
_ADVICE = frozenset(("retry-after", "x-should-retry", "stripe-should-retry"))

_SENT_FIELDS = ("x-call", "x-forwarded-for")
_UNRECORDED = frozenset(("set-cookie", "date", "preference-applied"))


def invariant_07_real_time_order(case: Case) -> Iterator[str]:
    """Once an answer is stored and known, whoever asks afterwards gets it until it expires."""
    for calls in case.calls.values():
        acknowledged = _first_told(calls, _ACKNOWLEDGED)
        if case.lost & case.operations.get(calls[0].subject, set()):
            continue
        for nonce, since in _first_told(calls, RECORDED | _ACKNOWLEDGED).items():
            # More than one: the key was forgotten, and a service that deduplicates said the same again.
            if len(completions := case.completed_as(nonce)) != 1:
                continue
            (completion,) = completions
            stale_until = case.stale_until(completion)
            recorded_at = _recorded(case, completion.operation_id)
            requests = {sent.request for sent in case.by_nonce[nonce] if sent.method != "GET"}
            for call in calls:
                left, answer, is_same = call.left_gateway, call.answer, call.request in requests
                if answer is None or left is None or left >= completion.sure_until:
                    continue
                # What a gateway says that heard nothing of what its home has is for `43`.
                if call.begun <= since or call.begun < stale_until or call.number in case.unheard:
                    continue
                # What a journal holds is that gateway's alone until the store has it; nor does who delivers it know,
                # before the store has acknowledged it.
                is_unknown = answer.verdict in _NOT_YET and call.begun <= completion.at
                if is_same and (is_unknown or (answer.verdict == "accepted" and call.begun <= recorded_at)):
                    continue
                is_known = call.begun > acknowledged.get(nonce, math.inf)
                if not _fits(call, nonce, is_same, has_body=completion.record.has_body, is_acknowledged=is_known):
                    yield f"call {call.number}: {answer.verdict} after {nonce} was stored"


def _recorded(case: Case, operation_id: str) -> float:
    """When the first one to record how an operation ended knew that it is recorded."""
    known = [
        call.acknowledged
        for call in case.history.store_calls
        if (call.verb, call.operation_id) == ("complete", operation_id) and call.acknowledged is not None
    ]
    return min(known, default=math.inf)


def _first_told(calls: list[Call], words: frozenset[str]) -> dict[str, float]:
    """When the first client had each recorded answer under one of these words."""
    known: dict[str, float] = {}
    for call in calls:
        answer = call.answer
        if answer is not None and answer.nonce is not None and answer.is_whole and answer.verdict in words:
            known[answer.nonce] = min(known.get(answer.nonce, answer.at), answer.at)
    return known


def _fits(call: Call, nonce: str, is_same: bool, *, has_body: bool, is_acknowledged: bool) -> bool:
    """`is_acknowledged`: the holder itself knew. Until it does, its own clients may hear that it is not known yet."""
    answer = call.answer
    if answer is None or answer.verdict in AWAY or answer.verdict == "unprotected":
        return True
    # The store did not say whether it accepted: that may have been refused because of what it has, or may arrive yet.
    if call.is_async and (answer.verdict, answer.status, answer.nonce) == ("in-doubt", 503, None):
        return True
    if not is_acknowledged and (answer.verdict == "in-flight" or (answer.verdict, answer.status) == ("in-doubt", 503)):
        return True
    if not is_same:
        return answer.verdict == "key-reused"
    if not has_body:
        return answer.verdict == "response-not-stored" and answer.nonce is None
    return answer.verdict in ("replayed", "recovered") and answer.nonce == nonce


def invariant_21_scopes_never_cross(case: Case) -> Iterator[str]:
    """The answer that a caller gets was made for its own scope."""
    for call, asked in case.given():
        if asked and all(sent.scope != call.scope for sent in asked):
            yield f"call {call.number}: scope {call.scope} got an answer made for {asked[0].scope}"


def invariant_22_an_operation_is_its_route_scope_and_key(case: Case) -> Iterator[str]:
    """One operation id for each, and one of each for an operation id."""
    owners: dict[str, tuple[str, str, str]] = {}
    for subject, operation_ids in case.operations.items():
        if len(operation_ids) > 1:
            yield f"{subject} went by {sorted(operation_ids)}"
        for operation_id in operation_ids:
            other = owners.setdefault(operation_id, subject)
            if other != subject:
                yield f"{operation_id} is {other} and {subject}"
    for call in case.history.calls:
        for sent in case.by_call.get(call.number, ()):
            if sent.is_protected and (sent.route, sent.scope) != (call.route, call.scope):
                yield f"call {call.number}: sent as {sent.route} of {sent.scope}"


def invariant_23_an_answer_belongs_to_its_request(case: Case) -> Iterator[str]:
    """What is given at first hand was said to this call; all else to another of the same operation."""
    for call, asked in case.given():
        asking = {sent.call for sent in asked}
        if call.number in asking or not asking:
            continue
        if call.answer.verdict in _OF_THIS_CALL:
            yield f"call {call.number}: {call.answer.verdict} with an answer that calls {sorted(asking, key=str)} got"
        elif not any(number is not None and case.history.calls[number].subject == call.subject for number in asking):
            yield f"call {call.number}: got what was said to calls {sorted(asking, key=str)}, of other operations"


def invariant_24_fidelity(case: Case) -> Iterator[str]:
    """The upstream sees what was sent, the first caller what was answered, but for what is declared."""
    for call in case.history.calls:
        for sent in case.by_call.get(call.number, ()):
            seen = {name: [value for field, value in sent.headers if field.lower() == name] for name in _SENT_FIELDS}
            if (sent.method, sent.target, sent.body) != ("POST", call.target, call.body):
                yield f"call {call.number}: the upstream saw another request"
            if seen["x-call"] != [str(call.number), "again"]:
                yield f"call {call.number}: the upstream saw other fields"
            if seen["x-forwarded-for"] != [CLIENT_ADDRESS]:
                yield f"call {call.number}: the upstream saw another client"
    for call, answer in case.answers(frozenset(("stored", "released", "unkeyed"))):
        given = [sent for sent in case.by_nonce.get(answer.nonce or "", ()) if sent.call == call.number]
        if not given:
            continue
        # Who asked to wait for the delivery of a kept request gets what the record has.
        ignored = _OWN_FIELDS | (_UNRECORDED if case.was_kept(given[0].operation_id) else set())
        if answer.verdict == "released":
            ignored |= _ADVICE - {name.lower() for name, _ in given[0].answer_headers}
        got = [field for field in answer.headers if field[0].lower() not in ignored]
        if got != [field for field in given[0].answer_headers if field[0].lower() not in ignored]:
            yield f"call {call.number}: the fields are not those of the upstream"


def invariant_27_unprotected_is_sent_once(case: Case) -> Iterator[str]:
    """Unprotected traffic is not sent again, and without a key nothing is recorded."""
    for number, requests in case.by_call.items():
        unprotected = [sent for sent in requests if not sent.is_protected]
        if len(unprotected) > 1:
            yield f"call {number}: passed through {len(unprotected)} times"
    for call in case.history.calls:
        if not call.key and any(sent.is_protected for sent in case.by_call.get(call.number, ())):
            yield f"call {call.number}: has no key, and was recorded"


def invariant_30_everything_converges(case: Case) -> Iterator[str]:
    """In the end nothing is claimed, and every call is over."""
    for operation_id, view in case.history.final.items():
        # What the store forgot may have been its delivery: it waits for an operator.
        if view.state == "accepted" and (case.first_losses or _is_stopped(case, view)):
            continue
        if view.state not in ("completed", "released", "tombstone", "in_doubt", "dead_letter"):
            yield f"{operation_id}: {view.state} in the end"
    for call in case.history.calls:
        if call.ended is None:
            yield f"call {call.number}: never ended"


def _is_stopped(case: Case, view: View) -> bool:
    """Whether another operation of its lane waits for somebody's decision, or for a clock, and the lane with it; or did
    until a moment ago."""
    if view.lane is None:
        return False
    now_us = case.history.store_us(case.history.ended)
    doubts_ended = [
        change.at
        for change in case.history.changes
        if change.before is not None and (change.before.lane, change.before.state) == (view.lane, "in_doubt")
    ]
    return max(doubts_ended, default=-math.inf) > case.history.ended - DELIVER_SECONDS or any(
        other.state in ("claimed", "in_doubt")
        or (other.state == "dead_letter" and other.stops_lane)
        or (other.state == "accepted" and other.next_attempt_us > now_us)
        for other in case.history.final.values()
        if other.lane == view.lane
    )


def invariant_31_no_key_is_wedged(case: Case) -> Iterator[str]:
    """After all faults whoever asks gets to know: an answer, or that it is in doubt."""
    for call in case.history.calls:
        if not call.is_final_check:
            continue
        verdict = None if call.answer is None else call.answer.verdict
        if verdict == "store-amnesia" and any(fault.kind == "store_failover" for fault in case.history.faults):
            continue
        if verdict is None or verdict in AWAY or verdict in ("in-flight", "unprotected"):
            yield f"call {call.number}: {verdict} after all was well again"


def invariant_32_waiters_are_bounded_and_never_forward(case: Case) -> Iterator[str]:
    """Who waited is answered in time and sends nothing; one request for a call at most."""
    terms = case.history.terms
    is_calm = not case.history.faults
    for call in case.history.calls:
        requests = [sent for sent in case.by_call.get(call.number, ()) if sent.is_protected]
        is_kept = any(case.was_kept(sent.operation_id) for sent in requests)
        if len(requests) > 1 and not is_kept:
            yield f"call {call.number}: sent {len(requests)} times"
        answer = call.answer
        is_waiter = answer is not None and (answer.verdict, answer.status) == ("in-flight", 409)
        if requests and is_waiter:
            yield f"call {call.number}: waited, and sent"
        if call.reached_gateway is None or call.left_gateway is None or not (is_calm or call.is_final_check):
            continue
        if call.left_gateway - call.reached_gateway > terms.answered_within(call.route) + 1.0:
            yield f"call {call.number}: answered after {call.left_gateway - call.reached_gateway:.1f} s"


# What a gateway may say of a protected request while nothing is wrong. `key-reused` and what is like it is the caller's
# doing, and has its own checks.
_HEALTHY = RECORDED - {"journaled", "recovered"} | {
    "released", "accepted", "in-flight", "key-reused", "likely-duplicate", "key-expired", "response-not-stored",
}  # fmt: skip


def invariant_33_without_faults_nothing_is_wrong(case: Case) -> Iterator[str]:
    """No fault: nothing in doubt, no takeover, no lapse, no 5xx of our own, every call answered."""
    if case.history.faults:
        return
    for change in case.history.changes:
        if change.event in ("abandon", "takeover", "prove", "disprove") or state_of(change.after) == "in_doubt":
            yield f"{change.operation_id}: {change.event} to {state_of(change.after)} without a fault"
        elif state_of(settled(change.before, change.at_us)) == "in_doubt":
            yield f"{change.operation_id}: its lease was over before its {change.event}, without a fault"
    for gateway, kind, detail in case.history.facts:
        if kind in ("refused", "LeaseLost", "LoopStalled"):
            yield f"{gateway} told of {kind} {detail} without a fault"
    for call in case.history.calls:
        answer = call.answer
        if answer is None or not answer.is_whole:
            if call.gave_up:
                continue
            yield f"call {call.number}: no answer without a fault"
        elif answer.verdict not in (_HEALTHY if call.key else ("unkeyed",)):
            yield f"call {call.number}: {answer.status} {answer.verdict} without a fault"
        elif answer.status >= 500 and answer.nonce is None and not _saw_a_release(case, call):
            yield f"call {call.number}: {answer.status} {answer.verdict} of our own without a fault"


def _saw_a_release(case: Case, call: Call) -> bool:
    """Whether the request for which the call waited was refused by the upstream meanwhile, without effect."""
    return any(
        change.event in ("release", "forget") and call.begun <= change.at <= (call.left_gateway or 0.0)
        for operation_id in case.operations.get(call.subject, ())
        for change in case.changes[operation_id]
    )


def invariant_34_a_drain_leaves_nothing_open(case: Case) -> Iterator[str]:
    """After SIGTERM no operation is left claimed, but where the store would not hear of it."""
    for life in case.history.lives:
        if life.ending != "drained" or life.ended is None or life.unsaid:
            continue
        for operation_id in case.changes:
            record = case.record_at(operation_id, life.ended)
            if record is None or record.state != "claimed" or record.holder != life.holder:
                continue
            # What a standby brought back may have been ended by its holder before.
            if [change for change in case.changes[operation_id] if change.at <= life.ended][-1].event != "lost":
                yield f"{operation_id}: left claimed by {life.holder}"


_OPEN = frozenset(("claimed", "in_doubt"))
_ENDING = frozenset(
    ("complete", "release", "forget", "postpone", "bury", "prove", "disprove", "reinstate", "withdraw", "lost")
)


def invariant_35_a_clock_that_jumps_runs_nothing(case: Case) -> Iterator[str]:
    """What was open when the store's clock was set is only ended by who may, and sent again only by a takeover."""
    resent = {sent.operation_id for sent in case.history.sent if sent.route in case.history.terms.resent}
    for jump in case.history.jumps:
        for operation_id, changes in case.changes.items():
            before = [change for change in changes if change.at <= jump.at]
            held = before[-1].after if before else None
            if held is not None and held.state in _OPEN:
                fault = _run_again(changes[len(before) :], is_resent=operation_id in resent)
                if fault:
                    yield f"{operation_id}: {fault} after the clock was set at {jump.at:.3f}"
    for sent, claim in case.requests():
        if claim is not None and case.history.was_set(claim.at, sent.sent):
            yield from _not_its_own(case, sent, claim, is_resent=sent.operation_id in resent)


def _run_again(later: list[Change], *, is_resent: bool) -> str | None:
    """What happened to an open operation that no clock may do."""
    for change in later:
        if change.event in _ENDING:
            return None
        if change.after is None or change.event in ("claim", "purge", "erase"):
            return f"{change.event} by {change.gateway}"
        if change.event == "takeover" and not is_resent:
            return f"taken over by {change.gateway}"
    return None


def _not_its_own(case: Case, sent: Sent, claim: Change, *, is_resent: bool) -> Iterator[str]:
    """A claim that the clock ended, unknown to its holder: the record still waits for him, or was taken over."""
    if sent.operation_id in case.lost:
        return
    changes = case.changes[sent.operation_id]
    since = [change for change in changes if change.number > claim.number and change.at <= sent.sent]
    ended = [change.event for change in since if change.event in _ENDING or change.event == "claim"]
    if ended and not (is_resent and any(change.event == "takeover" for change in since)):
        yield f"{sent.operation_id}: token {sent.token} was sent after {ended[0]}, and the clock was set meanwhile"


def invariant_36_nothing_is_left(case: Case) -> Iterator[str]:
    """A drained gateway holds nothing, and nothing failed by an error of the program."""
    for life in case.history.lives:
        if life.leftovers:
            yield f"{life.holder} left {', '.join(life.leftovers)}"
    yield from case.history.errors


def invariant_37_the_books_balance(case: Case) -> Iterator[str]:
    """What a gateway told of claims and endings is what the store has."""
    changes = case.history.changes
    granted = {str(each.after.token) for each in changes if each.after is not None and each.event in GRANTS}
    said = {f"{each.token} {each.event}" for each in changes if each.token is not None}
    told: set[str] = set()
    for gateway, kind, detail in case.history.facts:
        is_again = detail in told and not case.lost
        if kind == "claimed" and (is_again or detail not in granted):
            yield f"{gateway} told of a claim {detail} that was not, or twice"
        if kind == "claimed":
            told.add(detail)
        if kind == "settled" and detail not in said and not detail.endswith("abandon"):
            yield f"{gateway} told of {detail}, which the store does not have"
