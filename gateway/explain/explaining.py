"""Explains a request: the dry run, its steps, and what becomes of the request in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from gateway.admin.commands import Job
from gateway.admin.operations import Operations
from gateway.app.operating import operate
from gateway.config import Config, Document
from gateway.config.leaf import duration_text
from gateway.config.route import Route as RouteConfig
from gateway.core.identity.peer import Hop
from gateway.core.message import ResponseHead
from gateway.core.operation import Event, OutcomeCommand, Snapshot
from gateway.core.outcome import conclude_answered
from gateway.core.recovery import Probe
from gateway.core.replay import stored_response
from gateway.core.verdict import Claimable, Doubt, Refuse, Verdict
from gateway.explain.dry_run import Found, dry_run
from gateway.explain.steps import Places, Setting, Step, steps_of
from gateway.protect.accepting import refuse_too_long
from gateway.protect.compose import reply_by_judgement
from gateway.protect.inbox import repeated
from gateway.protect.journaling import UNENDED, anticipated
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from gateway.store.base import NotApplied
from gateway.store.journal import HostJournals, KeptOutcome


@dataclass(frozen=True, slots=True)
class Known:
    """The record of an operation as the journals of this host make it. `is_lost`: the store may have forgotten it.
    `is_journaled`: the store does not have its outcome yet."""

    snapshot: Snapshot
    is_lost: bool
    is_journaled: bool


Look = Callable[[UUID], Awaitable[Known]]
"""Finds what this host knows of an operation."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request gets, and why. `verdict` and `status` are None where somebody else decides: the service, or one
    that is asked about the caller."""

    route: str | None
    verdict: str | None
    status: int | None
    operation_id: str | None
    steps: tuple[Step, ...]

    def document(self) -> dict[str, Any]:
        """The same as one JSON object."""
        return asdict(self)

    def lines(self, file: str) -> list[str]:
        """The same as text, with the name of the configuration file."""
        lines = []
        for step in self.steps:
            lines.append(f"{step.name:<12} {step.decision}")
            lines += [f"{'':<14} {fact}" for fact in step.facts]
            lines += [f"{'':<14} by {_place(setting, file)}" for setting in step.settings]
        return lines


def _place(setting: Setting, file: str) -> str:
    return f"{setting.path} (default)" if setting.line is None else f"{file}:{setting.line} {setting.path}"


@dataclass(frozen=True, slots=True)
class _End:
    """What becomes of a request in the end."""

    verdict: Verdict | None
    status: int | None
    decision: str
    facts: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()


async def explain(
    config: Config,
    document: Document,
    wire: bytes,
    hop: Hop,
    *,
    response: int | None = None,
    look: Look | None = None,
    show: bool = False,
) -> Explanation:
    """Explain the request of these bytes. `response`: what the service would respond, as a status. `look` reads the
    record, to compare it.

    Raises `Incomplete`, `StartError`, and as `look`.
    """
    found = await dry_run(config, wire, hop)
    try:
        places = Places(config, document)
        steps = list(steps_of(found, places, show=show))
        end = _end_without_record(found, places, response)
        keyed = found.keyed
        if keyed is not None and look is not None:
            step, by_record = _compared(keyed, await look(keyed.identity.operation_id))
            steps.append(step)
            end = by_record or end
        if found.is_observed and found.route is not None:
            end = _observed(end, places.of_route(found.route.name, "mode"), places.of("mode"), response)
    finally:
        if found.keyed is not None:
            found.keyed.taken.close()
    facts = end.facts
    if end.verdict is not None and found.route is not None and found.route.settings.status_header:
        facts += (f"Idempotency-Status: {end.verdict}",)
    steps.append(Step("verdict", end.decision, facts, end.settings))
    return Explanation(
        None if found.route is None else found.route.name,
        None if end.verdict is None else end.verdict.value,
        end.status,
        None if keyed is None else str(keyed.identity.operation_id),
        tuple(steps),
    )


def _end_without_record(found: Found, places: Places, response: int | None) -> _End:
    """The end of a request under a key that was never used."""
    if found.status is not None:
        name = "" if found.verdict is None else f" {found.verdict}"
        return _End(found.verdict, found.status, f"refused with {found.status}{name}; nothing is forwarded")
    if found.unasked is not None:
        return _End(None, None, f"depends on a response that was not asked for: {found.unasked}")
    if found.is_own:
        return _End(None, None, "the gateway responds itself, with what became of an accepted request")
    if found.keyed is None:
        name = "no route matches" if found.verdict is None else str(found.verdict)
        return _End(found.verdict, response, f"{name}: forwarded untouched, not protected")
    keyed = found.keyed
    name, policy = keyed.route.name, keyed.route.accept
    if policy is not None and keyed.is_async:
        settings = (places.of_route(name, "inbox" if keyed.route.inbox else "accept"),)
        refusal = refuse_too_long(keyed, policy)
        if refusal is not None:
            limit = f"the limit for what is delivered later is {policy.request_bytes_max} bytes"
            decision = f"refused with {refusal.status} {refusal.verdict}: {limit}"
            return _End(refusal.verdict, refusal.status, decision, settings=settings)
        status = 202 if keyed.route.inbox is None else keyed.route.inbox.acknowledgement
        decision = f"{status} {Verdict.ACCEPTED}: stored, and delivered later"
        return _End(Verdict.ACCEPTED, status, decision, settings=settings)
    if response is None:
        facts = ("--response STATUS says what a status of the service would mean",)
        return _End(None, None, "claimed and forwarded once; the response of the service decides", facts)
    return _end_by_response(keyed, places, response)


def _observed(end: _End, own: Setting, of_all: Setting, response: int | None) -> _End:
    """The end of a request that is only observed, from the one that it would have."""
    decision = "only observed: forwarded as if no route matched"
    settings = (own if own.line is not None else of_all, *end.settings)
    return _End(None, response, decision, (f"enforcing: {end.decision}", *end.facts), settings)


def _end_by_response(keyed: Request, places: Places, status: int) -> _End:
    """The end of a first request whose service responds with this status, and no more than that is known."""
    route, head = keyed.route, ResponseHead(status, b"", ())
    body = b"" if route.keep.keeps_body({}, 0) else None
    stored = stored_response(keyed.head.method, head, body, route.keep, keyed.version)
    outcome = conclude_answered(
        status,
        {},
        route.policy,
        carries_doubt=False,
        is_first_attempt=True,
        is_stored=stored.body is not None,
    )
    written = next(each for each in places.config.routes if each.name == route.name)
    facts, keys = [], [_outcome_key(written, status)]
    match outcome.event:
        case Event.COMPLETE:
            decision = "final: the operation is completed"
            replay, remember = (duration_text(getattr(written.retention, name)) for name in ("replay", "remember"))
            what = "its response is replayed" if outcome.verdict is Verdict.STORED else "its response is not stored"
            facts.append(f"{what}; {replay} for the response, {remember} for the key")
            keys += [("retention", "replay"), ("retention", "remember")]
        case Event.RELEASE:
            decision = "retryable: it had no effect, and a repeat executes it"
        case Event.FORGET:
            decision = "retryable: the caller was refused at the door, and the key is forgotten"
        case _:
            decision = "it may have had its effect, and no repeat executes it"
            kind = "probe" if isinstance(route.recovery, Probe) else str(written.recovery)
            facts.append(f"recovery: {kind}")
            keys.append(("recovery",))
    if written.outcome.when:
        facts.append("a rule of outcome.when may say otherwise, by the body of the response")
    settings = tuple(places.of_route(route.name, *key) for key in keys)
    return _End(outcome.verdict, status, f"{status} {outcome.verdict}: {decision}", tuple(facts), settings)


def _outcome_key(written: RouteConfig, status: int) -> tuple[str, ...]:
    """What of `outcome` says what this status means."""
    policy = written.status_policy
    meaning = policy.codes.get(status) or policy.classes.get(status // 100)
    return ("outcome", "preset" if meaning is None else meaning.value)


async def read_record(operations: Operations, journals: HostJournals, operation_id: UUID) -> Known:
    """See `Look`. Raises `StoreError`, also where a journal has an outcome that cannot be read here."""
    snapshot = await operations.read(operation_id)
    is_lost = (await operations.memory()).refuses(snapshot.record)
    if snapshot.state not in UNENDED:
        return Known(snapshot, is_lost, is_journaled=False)
    kept = await asyncio.to_thread(journals.outcomes, operation_id)
    # Read again: an outcome may have left the journal for the store meanwhile.
    snapshot = await operations.read(operation_id)
    commands = [_readable(each) for each in kept]
    after = None if snapshot.record is None else anticipated(snapshot.record, commands, snapshot.now_us)
    return Known(after or snapshot, is_lost, is_journaled=after is not None)


def _readable(outcome: KeptOutcome) -> OutcomeCommand:
    if outcome.command is None:
        raise NotApplied("a journal of this host has an outcome that cannot be read here: inspect OPERATION_ID")
    return outcome.command


def look_at(config: Config) -> Look:
    """A `Look` at the store of a configuration, and the journals of this host. It raises `CommandError`."""

    async def look(operation_id: UUID) -> Known:
        found: list[Known] = []

        async def run(operations: Operations, journals: HostJournals) -> None:
            found.append(await read_record(operations, journals, operation_id))

        await operate(config, Job(run))
        return found[0]

    return look


def _compared(keyed: Request, known: Known) -> tuple[Step, _End | None]:
    snapshot = known.snapshot
    record = snapshot.record
    if known.is_lost:
        step = Step("record", "the store may have forgotten this key")
        return step, _End(Verdict.STORE_AMNESIA, 503, f"refused with 503 {Verdict.STORE_AMNESIA}; nothing is forwarded")
    if record is None:
        return Step("record", "there is none: the key is new"), None
    judgement = keyed.judge(snapshot)
    facts = [f"state: {record.state}", f"attempts: {record.attempts}"]
    if known.is_journaled:
        facts.append("its outcome is in a journal of this host, and the store does not have it yet")
    if why := keyed.why_incomparable(record):
        comparison = f"nobody can tell whether of the same request: {why}"
    elif isinstance(judgement, Refuse) and judgement.verdict is Verdict.KEY_REUSED:
        differs = keyed.differences(record)
        facts.append(f"differs in: {', '.join(differs) or 'not known'}")
        comparison = "of another request"
    else:
        comparison = "of the same request"
    step = Step("record", comparison, tuple(facts))
    if keyed.route.inbox is not None:
        reply = repeated(judgement, keyed, keyed.route.inbox).reply
        return step, _by_reply(reply)
    if isinstance(judgement, Claimable):
        return step, None
    reply = reply_by_judgement(judgement, snapshot, keyed)
    if reply.to_fetch is not None:
        return step, _End(Verdict.FETCHED, None, f"{Verdict.FETCHED}: the service is asked for it again")
    end = _by_reply(reply)
    if isinstance(judgement, Doubt) and isinstance(keyed.route.recovery, Probe):
        end = _End(end.verdict, end.status, f"{end.decision}, unless a probe ends the doubt")
    return step, end


def _by_reply(reply: Reply) -> _End:
    return _End(reply.verdict, reply.status, f"{reply.status} {reply.verdict}; nothing is executed")
