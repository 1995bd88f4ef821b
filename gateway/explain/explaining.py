"""Explains a request: the dry run, its steps with the lines of the configuration, and what becomes of it in the end.

Decides nothing: it says what `dry_run` found. Names and digests are shown, values of the request only where that is
wanted, secrets never. The console of a gateway that serves explains by the configuration in force. The lines are then
those of the text that it shows of it, because the file may have been changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.admin.commands import Job
from gateway.admin.fault import Malformed
from gateway.admin.operations import Operations
from gateway.app.life import StartError
from gateway.config import Config, Document, Placeholders
from gateway.config.document import path_text, read_document
from gateway.config.effective import effective
from gateway.config.leaf import duration_text
from gateway.config.route import Route as RouteConfig
from gateway.core.identity import scope as scopes
from gateway.core.identity.body import format_pointer
from gateway.core.identity.fingerprint import BodyForm
from gateway.core.identity.key import HeaderKey, Key, KeyFault
from gateway.core.identity.operation_id import home_of
from gateway.core.identity.peer import Hop
from gateway.core.message import IndexedHeaders, ResponseHead, header_values
from gateway.core.operation import Event, OutcomeCommand, Snapshot
from gateway.core.outcome import conclude_answered
from gateway.core.recovery import Probe
from gateway.core.replay import stored_response
from gateway.core.routing import Miss
from gateway.core.verdict import Claimable, Doubt, Refuse, Verdict
from gateway.explain.dry_run import Found, Incomplete, dry_run
from gateway.explain.request import RequestWrong, from_text, hop_of
from gateway.protect.accepting import refuse_too_long
from gateway.protect.compose import reply_by_judgement
from gateway.protect.inbox import repeated
from gateway.protect.journaling import UNENDED, anticipated
from gateway.protect.reply import Reply
from gateway.protect.request import Request, scope_name
from gateway.protect.route import Route
from gateway.store.base import NotApplied
from gateway.store.journal import HostJournals, KeptOutcome

_V = Verdict
_OF_KEY: Final = frozenset(
    (_V.KEY_MISSING, _V.KEY_INVALID, _V.SIGNATURE_MISSING, _V.SIGNATURE_INVALID, _V.SIGNATURE_STALE)
) | {_V.EVENT_UNSUPPORTED}
_OF_SCOPE: Final = frozenset((_V.SCOPE_MISSING, _V.SCOPE_UNSUITABLE, _V.IDENTITY_UNAVAILABLE))
_SHOWN_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that decided, and the line where it is written; None for a default."""

    path: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what was decided, what was looked at, and by which settings."""

    name: str
    decision: str
    facts: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()


class Places:
    """Where the settings of a file are written."""

    def __init__(self, config: Config, document: Document) -> None:
        self._document = document
        self._indexes = {route.name: index for index, route in enumerate(config.routes)}
        self.config = config

    def of(self, *keys: str | int) -> Setting:
        return Setting(path_text(keys), self._document.line(keys))

    def of_route(self, name: str, *keys: str | int) -> Setting:
        return self.of("routes", self._indexes[name], *keys)

    def written(self, name: str, *keys: tuple[str | int, ...]) -> tuple[Setting, ...]:
        """Those of these settings of a route that are written, or the first one."""
        settings = tuple(self.of_route(name, *each) for each in keys)
        return tuple(each for each in settings if each.line is not None) or settings[:1]


def steps_of(found: Found, places: Places, *, show: bool) -> Iterator[Step]:
    """The steps up to the one that decided. With `show`, they have values of the request."""
    is_refused = found.status is not None
    if found.head is None or (found.route is None and is_refused) or found.verdict is _V.REQUEST_INVALID:
        yield Step("http", f"refused: {found.detail}")
    else:
        yield Step("http", "there is one way to read it")
    if found.head is None:
        return
    yield _route(found, places)
    route = found.route
    if route is None or found.verdict is _V.REQUEST_INVALID:
        return
    if route.authorize is not None:
        asked = found.unasked or route.authorize.url
        yield Step("authorize", f"would ask {asked}", settings=(places.of_route(route.name, "authorize"),))
        if found.unasked is not None:
            return
    yield _key(found, route, places, show=show)
    if found.verdict in _OF_KEY or found.verdict is _V.UNKEYED:
        return
    yield _scope(found, route, places, show=show)
    if found.verdict in _OF_SCOPE or found.unasked is not None:
        return
    yield _body(found, route, places, show=show)
    if found.keyed is not None:
        yield _fingerprint(found.keyed, places, show=show)
        yield Step(
            "identity",
            f"operation {found.keyed.identity.operation_id}",
            (f"service {places.config.service}, operation {route.operation}, caller and key",),
            (
                places.of("service"),
                places.of_route(route.name, "operation"),
                *([places.of("secrets", "identity_key")] if places.config.secrets.identity_key else []),
            ),
        )
        if (regions := places.config.regions) is not None:
            home = home_of(found.keyed.identity.operation_id, [each.name for each in regions.homes])
            decision = f"here, in region {home}" if home == regions.here else f"sent to region {home}"
            yield Step("home", decision, settings=(places.of("regions", "homes"),))
    if found.verdict is _V.ORDER_MISSING:
        yield Step("order", f"refused: {found.detail}", settings=(places.of_route(route.name, "order"),))


def _route(found: Found, places: Places) -> Step:
    if found.is_own:
        return Step("route", "for the gateway's own resource", settings=(places.of("operations", "path"),))
    missed = [(route, miss) for route, miss in found.misses if miss is not None]
    facts = tuple(_missed(found, route, miss, places) for route, miss in missed)
    if found.route is None:
        return Step("route", "none matches", facts)
    name = found.route.name
    settings = places.written(name, ("match", "path"), ("match", "methods"), ("match", "host"))
    return Step("route", name, facts, settings)


def _missed(found: Found, route: Route, miss: Miss, places: Places) -> str:
    match = next(each for each in places.config.routes if each.name == route.name).match
    line = places.of_route(route.name, "match").line
    head = found.head
    match miss:
        case Miss.METHOD:
            sent = "" if head is None else f"{head.method.decode('latin-1')} is not "
            why = f"the method {sent}{' or '.join(match.methods)}"
        case Miss.HOST:
            why = f"the host is not {match.host}"
        case Miss.PATH:
            why = f"the path is not {match.path.text}"
        case _:
            assert_never(miss)
    return f"not {route.name} (line {line}): {why}"


def _key(found: Found, route: Route, places: Places, *, show: bool) -> Step:
    if route.inbox is not None:
        return _inbox(found, route, places)
    settings = [*places.written(route.name, ("key",))]
    found_key: Key | KeyFault | None = None
    if found.request is not None and (found.keyed is not None or not route.key.needs_body):
        body = found.keyed.taken.content if found.keyed is not None else None
        content = body if isinstance(body, bytes) else None
        found_key = route.key.find_key(found.request.head.headers.by_name, content)
    facts = []
    if isinstance(route.key, HeaderKey):
        settings.append(places.of_route(route.name, "key", "format"))
        facts.append(f"format: {route.key.format}")
    if found.verdict in (_V.KEY_MISSING, _V.UNKEYED):
        settings.append(places.of_route(route.name, "key", "required"))
    match found_key:
        case _ if found.verdict in _OF_KEY:
            decision = f"refused: {found.detail}"
        case _ if found.verdict is _V.UNKEYED:
            decision = f"{route.key.places} is missing: the request is not protected"
        case Key(text=text):
            decision = f"taken from {route.key.places}"
            if found.keyed is not None:
                facts.append(f"digest: {found.keyed.identity.key_digest.hex()[:12]}")
            facts += [f"key: {text}"] if show else []
        case KeyFault(detail):
            decision = f"malformed: {detail}"
        case None:
            decision = f"would be taken from {route.key.places}"
        case _:
            assert_never(found_key)
    return Step("key", decision, tuple(facts), tuple(settings))


def _inbox(found: Found, route: Route, places: Places) -> Step:
    settings = (places.of_route(route.name, "inbox", "preset"),)
    if found.verdict in _OF_KEY:
        return Step("key", f"refused: {found.detail}", settings=settings)
    if found.keyed is None:
        return Step("key", "not a message that has to be signed", settings=settings)
    facts = (f"digest: {found.keyed.identity.key_digest.hex()[:12]}",)
    return Step("key", "signed by its sender, who names the event", facts, settings)


def _scope(found: Found, route: Route, places: Places, *, show: bool) -> Step:
    settings = (places.of_route(route.name, "scope"),)
    request = found.request
    peer = "" if request is None or request.hop.address is None else request.hop.address.decode()
    parts = route.scope.parts if isinstance(route.scope, scopes.ComposedScope) else (route.scope,)
    facts = [_part(part, peer) for part in parts]
    if found.verdict in _OF_SCOPE:
        return Step("scope", f"refused: {found.detail}", tuple(facts), settings)
    if found.unasked is not None:
        return Step("scope", f"would ask {found.unasked}", tuple(facts), settings)
    if found.keyed is not None:
        facts.append(f"digest: {scope_name(found.keyed.identity.scope_digest)}")
    if show and request is not None:
        values = ((name, header_values(request.head.headers, name)) for name in sorted(route.scope.headers))
        facts += [f"{name.decode()}: {value.decode('latin-1')}" for name, each in values for value in each]
    decision = (
        "all callers share their keys" if isinstance(route.scope, scopes.SharedScope) else "the caller is identified"
    )
    return Step("scope", decision, tuple(facts), settings)


def _part(part: scopes.ScopeSpec, peer: str) -> str:
    match part:
        case scopes.HeaderScope(name, trusted):
            hop = "any hop may set it" if trusted is None else f"set by one of {', '.join(map(str, trusted))}"
            return f"header {name.decode()}: {hop}; this request comes from {peer}"
        case scopes.ApiKeyScope(name):
            return f"credential: {name.decode()}"
        case scopes.JwtScope(issuers):
            each = (f"{', '.join(issuer.claims)} of {issuer.issuer}" for issuer in issuers)
            return f"token in Authorization: {' or '.join(each)}"
        case scopes.ForwardAuthScope(service, principal):
            return f"principal: {principal.decode()} of {service.url}"
        case scopes.ClientCertificateScope(kind):
            return f"client certificate: {kind}"
        case scopes.SharedScope():
            return "no part of the request"
        case scopes.ComposedScope():
            return "several parts"
        case _:
            assert_never(part)


def _body(found: Found, route: Route, places: Places, *, show: bool) -> Step:
    limit = places.of_route(route.name, "body", "max_bytes")
    if found.keyed is None:
        is_refused = found.verdict is _V.BODY_TOO_LARGE
        decision = f"refused: {found.detail}" if is_refused else "received"
        return Step("body", decision, settings=(limit,))
    keyed, spec = found.keyed, route.fingerprinter.spec
    types = [value.decode("latin-1").partition(";")[0] for value in header_values(keyed.head.headers, b"content-type")]
    form = _form(keyed)
    how = "not compared" if form == BodyForm.NONE else f"compared as {form}"
    if form == BodyForm.RAW:
        how += ", byte for byte"
    facts = [f"media type: {', '.join(types) or 'none'}", f"limit: {route.settings.body.max_bytes} bytes"]
    if form == BodyForm.JSON:
        facts += [f"ignored: {format_pointer(each)}" for each in spec.ignore]
        facts += [f"compared alone: {format_pointer(each)}" for each in spec.only]
        facts += [f"default: {format_pointer(each)}" for each, _ in spec.defaults]
    content = keyed.taken.content
    if show and isinstance(content, bytes) and content:
        facts.append(f"content: {content[:_SHOWN_BYTES_MAX].decode('utf-8', 'backslashreplace')}")
    keys = [("fingerprint", name) for name in ("body", "ignore", "only", "defaults")]
    settings = (limit, *places.written(route.name, *keys))
    return Step("body", f"{keyed.taken.length} bytes, {how}", tuple(facts), settings)


def _form(keyed: Request) -> str:
    if keyed.digests is None:
        return BodyForm.RAW
    return keyed.digests.values[-1].partition(b" ")[0].decode()


def _fingerprint(keyed: Request, places: Places, *, show: bool) -> Step:
    current, *others = keyed.fingerprints
    key = current.key_id or "none"
    facts = [f"recipe: {current.recipe.hex()[:12]}", f"key: {key}"]
    # Without a key, it could be used to guess the body.
    if current.key_id or show:
        facts.append(f"digest: {current.digest.hex()[:12]}")
    if others:
        facts.append(f"compared under {len(others)} other keys, too")
    names = () if keyed.digests is None else keyed.digests.names
    settings = [*places.written(keyed.route.name, ("fingerprint",))]
    if current.key_id:
        settings.append(places.of("secrets", "fingerprint_key"))
    return Step("fingerprint", f"of {', '.join(names)}", tuple(facts), tuple(settings))


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
        return asdict(self)

    def lines(self, file: str) -> list[str]:
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
    route, head = keyed.route, ResponseHead(status, b"", IndexedHeaders())
    body = b"" if route.keep.keeps_body({}, 0) else None
    stored = stored_response(keyed.head.method, head, body, route.keep, keyed.version)
    outcome = conclude_answered(
        status, {}, route.policy, carries_doubt=False, is_first_attempt=True, is_stored=stored.body is not None
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


def look_by(operate: Callable[[Job], Awaitable[int]]) -> Look:
    """A `Look` at the store that operators' commands have, and the journals of this host. It raises `CommandError`."""

    async def look(operation_id: UUID) -> Known:
        found: list[Known] = []

        async def run(operations: Operations, journals: HostJournals) -> None:
            found.append(await read_record(operations, journals, operation_id))

        await operate(Job(run))
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


class Explainer:
    """Satisfies `admin.pages.console.Explain`, for the configuration in force."""

    def __init__(self, config: Config, operations: Operations, journals: HostJournals) -> None:
        self._config = config
        self._operations = operations
        self._journals = journals
        self._document: Document | None = None

    async def __call__(self, request: bytes, peer: str, response: int | None, with_record: bool) -> Mapping[str, Any]:
        """The explanation as JSON values. Raises `Malformed`, and `StoreError` where the record is not read."""
        if response is not None and not 200 <= response <= 599:
            raise Malformed("a status of a response is from 200 to 599")
        try:
            peer = str(ip_address(peer))
        except ValueError:
            raise Malformed("the address that it comes from is one such as 192.0.2.1") from None
        config = self._config
        if self._document is None:
            # In a thread: of many routes it takes long.
            text = effective(config)
            self._document = await asyncio.to_thread(read_document, text, "configuration", {}, Placeholders())
        document = self._document
        look = partial(read_record, self._operations, self._journals) if with_record else None
        try:
            given = from_text(request, "the request")
            hop = hop_of(given, peer, None)
            return (await explain(config, document, given.wire, hop, response=response, look=look)).document()
        except (RequestWrong, Incomplete, StartError) as error:
            raise Malformed(str(error)) from None
