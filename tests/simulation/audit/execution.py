"""Invariants of execution: how often, after what, and what is said of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations, pairwise

from tests.simulation.audit.case import AWAY, BEGINNINGS, GRANTS, RECORDED, REPEATED, Case
from tests.simulation.history import Answer, Change, Sent, digest_of

_AUTHORISING = frozenset(("release", "forget", "disprove", "takeover", "postpone", "reinstate", "requeue", "withdraw"))
# What says of an operation that it has no effect, or is not known any more.
_FREEING = frozenset(("release", "forget", "disprove", "withdraw", "erase"))
# What a holder says of an attempt that had no effect.
_HARMLESS = frozenset(("release", "forget", "postpone", "bury"))
_NOTHING_SENT = AWAY | {"upstream-unreachable", "key-missing", "key-invalid", "scope-missing", "body-too-large"}
# What a repeat leaves out or adds, as declared. The upstream's own names; the gateway's are not compared either.
_EXCLUDED = frozenset((
    "date", "age", "set-cookie", "www-authenticate", "content-length", "idempotency-status", "idempotent-replayed",
    "idempotency-expires", "preference-applied",
))  # fmt: skip


def invariant_01_at_most_one(case: Case) -> Iterator[str]:
    """Another request only after a transition that authorises it; one effect per window."""
    known = dict(case.known(case.protected))
    for first, second, events in case.successive(known.values()):
        if first.token == second.token:
            yield f"{first.operation_id}: token {first.token} was sent twice"
        is_new = case.window_of_sent(first) != case.window_of_sent(second)
        if first.token != second.token and events is not None and not is_new and not events & _AUTHORISING:
            yield f"{first.operation_id}: {second.token} was sent after {first.token}, and nothing authorised it"
    for operation_id, requests in known.items():
        effects = Counter(case.window_of_sent(sent) for sent in requests if sent.effect is not None)
        for window, count in effects.items():
            if count > 1:
                yield f"{operation_id}: {count} effects in window {window}"
    for change in case.history.changes:
        if change.event in _HARMLESS and change.before is not None and change.before.carries_doubt:
            yield f"{change.operation_id}: {change.event} of a claim that carries doubt"
    yield from _one_for_each_content(case)


def _one_for_each_content(case: Case) -> Iterator[str]:
    """Where repeats are refused: what a caller sends under another key has no further effect, unless the first one was
    known to have had none when it came."""
    effects: dict[tuple[str, str, tuple[str, bytes]], list[tuple[Sent, Change]]] = defaultdict(list)
    for _, requests in case.known(case.protected):
        for sent in requests:
            begun = case.beginning(sent)
            if sent.effect is not None and sent.route in case.history.terms.refusing_repeats and begun is not None:
                effects[sent.route, sent.scope, sent.request].append((sent, begun))
    for alike in effects.values():
        in_order = sorted(alike, key=lambda one: one[1].number)
        for (first, begun), (second, again) in combinations(in_order, 2):
            changes = case.changes[first.operation_id]
            ended = {change.event for change in changes if begun.number < change.number < again.number}
            if first.operation_id != second.operation_id and not ended & _FREEING:
                yield f"{second.operation_id}: an effect that {first.operation_id} had before, of the same request"


def invariant_02_intent_before_bytes(case: Case) -> Iterator[str]:
    """The claim was acknowledged to the sender before it sent."""
    acknowledged: dict[tuple[str, str | None], list[tuple[float, float]]] = defaultdict(list)
    for call in case.history.store_calls:
        if call.verb in GRANTS and call.result == "Applied" and None not in (call.executed, call.acknowledged):
            acknowledged[call.gateway, call.operation_id].append((call.executed, call.acknowledged))
    for sent, claim in case.requests():
        heard = acknowledged[sent.gateway, sent.operation_id]
        if claim is None:
            yield f"{sent.operation_id}: token {sent.token} was sent, and never granted"
        elif not any(executed >= claim.at and arrived <= sent.sent for executed, arrived in heard):
            yield f"{sent.operation_id}: token {sent.token} was sent before its claim was acknowledged"


def invariant_03_no_phantom(case: Case) -> Iterator[str]:
    """Every upstream answer that is given is one that the upstream gave to this operation, byte for byte."""
    for call in case.history.calls:
        answer = call.answer
        if answer is None or not call.key:
            continue
        if answer.verdict in RECORDED and answer.nonce is None:
            yield f"call {call.number}: {answer.verdict} without an answer of the upstream"
        if answer.nonce is None:
            continue
        given = [(sent.status, sent.answer_body) for sent in case.by_nonce.get(answer.nonce, ())]
        if not given:
            yield f"call {call.number}: answer {answer.nonce} was never given"
        elif answer.is_whole and (answer.status, answer.body) not in given:
            yield f"call {call.number}: answer {answer.nonce} is not as the upstream gave it"


def invariant_04_agreement(case: Case) -> Iterator[str]:
    """All answers out of one window's record are equal, but for the declared exclusions."""
    first: dict[tuple[str, int], tuple[int, object]] = {}
    until: dict[tuple[str, int], str] = {}
    for call, answer in case.answers(RECORDED):
        window = case.window_of(call, answer)
        if window is None or window[0] in case.lost:
            continue
        essence = _essence(answer)
        number, known = first.setdefault(window, (call.number, essence))
        if known != essence:
            yield f"{window[0]}: calls {number} and {call.number} were answered differently"
        # What is in the journal only is kept until a moment that is not known yet.
        expires = answer.header("idempotency-expires")
        if expires is not None and until.setdefault(window, expires) != expires:
            yield f"{window[0]}: call {call.number} was told another expiry"
    for call, answer in case.answers(REPEATED | {"stored"}):
        digest = digest_of(answer.status, answer.body)
        # After an erasure an effect may be recorded once more, as a probe found it.
        made = [each for each in case.completed_as(answer.nonce) if each.record.has_body]
        recorded = [each.record.response_digest for each in made if each.operation_id not in case.lost]
        if recorded and digest not in recorded:
            yield f"call {call.number}: {answer.verdict}, and the record has other bytes"


def _essence(answer: Answer) -> object:
    fields = tuple(field for field in answer.headers if field[0].lower() not in _EXCLUDED)
    return answer.status, answer.body, fields


def invariant_05_definite_means_definite(case: Case) -> Iterator[str]:
    """Released or forgotten: no effect. "Not sent": no request."""
    effects = {
        (sent.operation_id, sent.token): sent
        for _, requests in case.known(case.protected)
        for sent in requests
        if sent.effect is not None
    }
    for change in case.history.changes:
        if change.event in _HARMLESS and change.before is not None:
            sent = effects.get((change.operation_id, change.before.token))
            if sent is not None:
                yield f"{change.operation_id}: {change.event} of token {sent.token}, which had an effect"
    for call, answer in case.answers(_NOTHING_SENT):
        if case.by_call.get(call.number):
            yield f"call {call.number}: {answer.verdict}, but a request of it was sent"


def invariant_06_the_indefinite_is_admitted(case: Case) -> Iterator[str]:
    """Where there is or may be an effect, the record is neither gone nor free before that became known."""
    for sent, claim in case.requests():
        if sent.effect is None or claim is None:
            continue
        for change in case.changes[sent.operation_id]:
            if change.number <= claim.number:
                continue
            if change.event in ("complete", "prove", "lost"):
                break
            is_gone = change.after is None or (change.event in BEGINNINGS and change.before is None)
            if is_gone or change.event in ("disprove", "reinstate"):
                yield f"{sent.operation_id}: token {sent.token} had an effect, then {change.event} to {change.after}"
                break


def invariant_08_one_stored_answer(case: Case) -> Iterator[str]:
    """One client at most is told `stored` in a window."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for call, answer in case.answers(frozenset(("stored",))):
        window = case.window_of(call, answer)
        if window is not None and window[0] not in case.lost:
            found[window].append(call.number)
    for (operation_id, number), calls in found.items():
        if len(calls) > 1:
            yield f"{operation_id}: calls {calls} were all answered stored in window {number}"


def invariant_09_the_fingerprint_is_fixed(case: Case) -> Iterator[str]:
    """In one window one request is executed, and only its repeats get its answer."""
    for first, second, events in case.successive(case.protected.values()):
        is_same = first.request == second.request or case.window_of_sent(first) != case.window_of_sent(second)
        if not is_same and events is not None and not {"forget", "lost"} & events:
            yield f"{first.operation_id}: tokens {first.token} and {second.token} sent different requests"
    for call, asked in case.given():
        if any(change.event == "erase" for sent in asked for change in case.changes.get(sent.operation_id, ())):
            # Under an erased key the service may find the effect from before the erasure: the operation is the same.
            continue
        if asked and all(sent.request != call.request for sent in asked):
            yield f"call {call.number}: got the answer to another request"


def invariant_10_same_request_same_fingerprint(case: Case) -> Iterator[str]:
    """However it is cut, ordered or spelt, a request is the same one; another has another fingerprint."""
    for operation_id, requests in case.protected.items():
        claims = [(sent, case.claim(sent)) for sent in requests if sent.method != "GET"]
        prints = [(sent, claim.fingerprint) for sent, claim in claims if claim is not None and claim.fingerprint]
        for (first, one), (second, other) in pairwise(prints):
            if (first.request == second.request) != (one == other):
                yield f"{operation_id}: tokens {first.token} and {second.token} have fingerprints that do not fit"
    for calls in case.calls.values():
        for call in calls:
            if call.answer is None or call.answer.verdict != "key-reused" or call.ended is None:
                continue
            if not any(other.request != call.request and other.begun <= call.ended for other in calls):
                yield f"call {call.number}: key-reused, and there was no other request"


def invariant_25_nothing_truncated_is_kept(case: Case) -> Iterator[str]:
    """A truncated answer is in no record by itself, and its client's connection does not end cleanly."""
    cut = {
        nonce
        for nonce, given in case.by_nonce.items()
        if all(sent.cut is not None and not sent.is_kept_whole for sent in given)
    }
    for completion in case.completions:
        if completion.change.event == "complete" and completion.nonce in cut and completion.record.has_body:
            yield f"{completion.operation_id}: the truncated answer {completion.nonce} was recorded"
    for call in case.history.calls:
        answer = call.answer
        if answer is None or not answer.is_whole or answer.nonce not in cut or answer.verdict in REPEATED:
            continue
        yield f"call {call.number}: the truncated answer {answer.nonce} came as a whole one"


def invariant_26_too_large_is_remembered_without_body(case: Case) -> Iterator[str]:
    """What is longer than the route keeps has no body in the record."""
    for completion in case.completions:
        lengths = [len(sent.answer_body) for sent in case.by_nonce.get(completion.nonce or "", ())]
        if completion.record.has_body and lengths and min(lengths) > case.history.terms.stored_bytes_max:
            yield f"{completion.operation_id}: the long answer {completion.nonce} was recorded with its body"
