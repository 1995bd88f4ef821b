"""Explains a request: the dry run, its steps with the lines of the configuration, and what becomes of it in the end.

Decides nothing: it says what `dry_run` found. Names and digests are shown, values of the request only where that is
wanted, secrets never. The console of a gateway that serves explains by the configuration in force. The lines are then
those of the text that it shows of it, because the file may have been changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, assert_never
from uuid import UUID

from gateway import CommandWrong
from gateway.admin.commands import Job
from gateway.admin.operations import Operations
from gateway.admin.resolution import Malformed
from gateway.app.life import StartError
from gateway.config import Config, Document, Placeholders
from gateway.config.document import path_text, read_document
from gateway.config.effective import effective
from gateway.config.leaf import duration_text
from gateway.core.identity import key as scopes
from gateway.core.identity.body import format_pointer
from gateway.core.identity.caller import Hop
from gateway.core.identity.fingerprint import BodyForm
from gateway.core.identity.key import HeaderKey, Key, KeyFault, home_of
from gateway.core.message import IndexedHeaders, RequestHead, ResponseHead, header_values
from gateway.core.operation import Event, Snapshot
from gateway.core.outcome import conclude_answered, stored_response
from gateway.core.recovery import Probe
from gateway.core.routing import Miss
from gateway.core.verdict import Claimable, Doubt, Refuse, Verdict
from gateway.explain.dry_run import Found, dry_run, from_text, hop_of
from gateway.protect.accepting import refuse_too_long
from gateway.protect.compose import reply_by_judgement
from gateway.protect.inbox import reply_to_repeat
from gateway.protect.journaling import UNENDED, anticipated
from gateway.protect.request import Request, scope_name
from gateway.protect.route import Route
from gateway.store.base import NotApplied
from gateway.store.journal import HostJournals

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


class _Way:
    """The way of a request, as `steps`: up to the one that decided. With `show`, they have values of the request."""

    def __init__(self, found: Found, config: Config, document: Document, *, show: bool) -> None:
        self._found = found
        self._config = config
        self._document = document
        self._show = show
        self._indexes = {route.name: index for index, route in enumerate(config.routes)}
        self.steps: list[Step] = []

    def of(self, *keys: str | int) -> Setting:
        return Setting(path_text(keys), self._document.line(keys))

    def own(self, *keys: str | int, route: Route | None = None) -> Setting:
        """A setting of the route, or of another one."""
        if (route := route or self._found.route) is None:
            raise AssertionError("no route matches")
        return self.of("routes", self._indexes[route.name], *keys)

    def written(self, *keys: tuple[str, ...]) -> list[Setting]:
        """Those of these settings of the route that are written, or the first one."""
        settings = [self.own(*each) for each in keys]
        return [each for each in settings if each.line is not None] or settings[:1]

    def add(self, name: str, decision: str, facts: Iterable[str] = (), settings: Iterable[Setting] = ()) -> None:
        self.steps.append(Step(name, decision, tuple(facts), tuple(settings)))

    def go(self) -> None:
        found, route = self._found, self._found.route
        is_invalid = found.verdict is _V.REQUEST_INVALID
        is_refused = found.head is None or (route is None and found.status is not None) or is_invalid
        self.add("http", f"refused: {found.detail}" if is_refused else "there is one way to read it")
        if found.head is None:
            return
        self._route(found.head)
        if route is None or is_invalid:
            return
        if route.authorize is not None:
            self.add("authorize", f"would ask {found.unasked or route.authorize.url}", (), [self.own("authorize")])
            if found.unasked is not None:
                return
        self._key(route)
        if found.verdict in _OF_KEY or found.verdict is _V.UNKEYED:
            return
        self._scope(route)
        if found.verdict in _OF_SCOPE or found.unasked is not None:
            return
        if found.keyed is None:
            decision = f"refused: {found.detail}" if found.verdict is _V.BODY_TOO_LARGE else "received"
            self.add("body", decision, (), [self.own("body", "max_bytes")])
        else:
            self._body(found.keyed, route)
            self._fingerprint(found.keyed)
            self._identity(found.keyed.identity.operation_id, route)
        if found.verdict is _V.ORDER_MISSING:
            self.add("order", f"refused: {found.detail}", (), [self.own("order")])

    def _route(self, head: RequestHead) -> None:
        found = self._found
        if found.is_own:
            return self.add("route", "for the gateway's own resource", (), [self.of("operations", "path")])
        missed = [self._missed(head, route, miss) for route, miss in found.misses if miss is not None]
        if found.route is None:
            return self.add("route", "none matches", missed)
        settings = self.written(("match", "path"), ("match", "methods"), ("match", "host"))
        return self.add("route", found.route.name, missed, settings)

    def _missed(self, head: RequestHead, route: Route, miss: Miss) -> str:
        match = route.settings.match
        line = self.own("match", route=route).line
        match miss:
            case Miss.METHOD:
                why = f"the method {head.method.decode('latin-1')} is not {' or '.join(match.methods)}"
            case Miss.HOST:
                why = f"the host is not {match.host}"
            case Miss.PATH:
                why = f"the path is not {match.path.text}"
            case _:
                assert_never(miss)
        return f"not {route.name} (line {line}): {why}"

    def _key(self, route: Route) -> None:
        found, keyed = self._found, self._found.keyed
        digest = [] if keyed is None else [f"digest: {keyed.identity.key_digest.hex()[:12]}"]
        is_refused, refused = found.verdict in _OF_KEY, f"refused: {found.detail}"
        if route.inbox is not None:
            signed = "signed by its sender, who names the event" if digest else "not a message that has to be signed"
            facts = [] if is_refused else digest
            return self.add("key", refused if is_refused else signed, facts, [self.own("inbox", "preset")])
        settings, facts = self.written(("key",)), []
        if isinstance(route.key, HeaderKey):
            settings.append(self.own("key", "format"))
            facts.append(f"format: {route.key.format}")
        if found.verdict in (_V.KEY_MISSING, _V.UNKEYED):
            settings.append(self.own("key", "required"))
        key: Key | KeyFault | None = None
        if found.request is not None and (keyed is not None or not route.key.needs_body):
            content = keyed.taken.content if keyed is not None else None
            by_name = found.request.head.headers.by_name
            key = route.key.find_key(by_name, content if isinstance(content, bytes) else None)
        if is_refused:
            decision = refused
        elif found.verdict is _V.UNKEYED:
            decision = f"{route.key.places} is missing: the request is not protected"
        elif isinstance(key, KeyFault):
            decision = f"malformed: {key.detail}"
        elif key is None:
            decision = f"would be taken from {route.key.places}"
        else:
            decision = f"taken from {route.key.places}"
            facts += digest + ([f"key: {key.text}"] if self._show else [])
        return self.add("key", decision, facts, settings)

    def _scope(self, route: Route) -> None:
        found, request, scope = self._found, self._found.request, route.scope
        peer = "" if request is None or request.hop.address is None else request.hop.address.decode()
        facts = [_part(part, peer) for part in (scope.parts if isinstance(scope, scopes.ComposedScope) else (scope,))]
        is_shared = isinstance(scope, scopes.SharedScope)
        decision = "all callers share their keys" if is_shared else "the caller is identified"
        if found.verdict in _OF_SCOPE:
            decision = f"refused: {found.detail}"
        elif found.unasked is not None:
            decision = f"would ask {found.unasked}"
        else:
            if found.keyed is not None:
                facts.append(f"digest: {scope_name(found.keyed.identity.scope_digest)}")
            if self._show and request is not None:
                values = ((name, header_values(request.head.headers, name)) for name in sorted(scope.headers))
                facts += [f"{name.decode()}: {value.decode('latin-1')}" for name, each in values for value in each]
        self.add("scope", decision, facts, [self.own("scope")])

    def _body(self, keyed: Request, route: Route) -> None:
        spec, content = route.fingerprinter.spec, keyed.taken.content
        sent = header_values(keyed.head.headers, b"content-type")
        types = [value.decode("latin-1").partition(";")[0] for value in sent]
        form: str = BodyForm.RAW
        if keyed.digests is not None:
            form = keyed.digests.values[-1].partition(b" ")[0].decode()
        how = "not compared" if form == BodyForm.NONE else f"compared as {form}"
        if form == BodyForm.RAW:
            how += ", byte for byte"
        facts = [f"media type: {', '.join(types) or 'none'}", f"limit: {route.settings.body.max_bytes} bytes"]
        if form == BodyForm.JSON:
            facts += [f"ignored: {format_pointer(each)}" for each in spec.ignore]
            facts += [f"compared alone: {format_pointer(each)}" for each in spec.only]
            facts += [f"default: {format_pointer(each)}" for each, _ in spec.defaults]
        if self._show and isinstance(content, bytes) and content:
            facts.append(f"content: {content[:_SHOWN_BYTES_MAX].decode('utf-8', 'backslashreplace')}")
        compared = self.written(*[("fingerprint", name) for name in ("body", "ignore", "only", "defaults")])
        self.add("body", f"{keyed.taken.length} bytes, {how}", facts, [self.own("body", "max_bytes"), *compared])

    def _fingerprint(self, keyed: Request) -> None:
        current, *others = keyed.fingerprints
        facts = [f"recipe: {current.recipe.hex()[:12]}", f"key: {current.key_id or 'none'}"]
        # Without a key, it could be used to guess the body.
        if current.key_id or self._show:
            facts.append(f"digest: {current.digest.hex()[:12]}")
        if others:
            facts.append(f"compared under {len(others)} other keys, too")
        names = () if keyed.digests is None else keyed.digests.names
        settings = self.written(("fingerprint",))
        settings += [self.of("secrets", "fingerprint_key")] if current.key_id else []
        self.add("fingerprint", f"of {', '.join(names)}", facts, settings)

    def _identity(self, operation_id: UUID, route: Route) -> None:
        config = self._config
        settings = [self.of("service"), self.own("operation")]
        settings += [self.of("secrets", "identity_key")] if config.secrets.identity_key else []
        fact = f"service {config.service}, operation {route.operation}, caller and key"
        self.add("identity", f"operation {operation_id}", [fact], settings)
        if (regions := config.regions) is not None:
            home = home_of(operation_id, [each.name for each in regions.homes])
            decision = f"here, in region {home}" if home == regions.here else f"sent to region {home}"
            self.add("home", decision, (), [self.of("regions", "homes")])


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
            for path, line in ((each.path, each.line) for each in step.settings):
                lines.append(f"{'':<14} by {f'{path} (default)' if line is None else f'{file}:{line} {path}'}")
        return lines


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
    record, to compare it. Raises `CommandWrong`, `StartError`, and as `look`."""
    found = await dry_run(config, wire, hop)
    try:
        way = _Way(found, config, document, show=show)
        way.go()
        end = _end_without_record(found, way, response)
        keyed = found.keyed
        if keyed is not None and look is not None:
            end = _compared(keyed, way, await look(keyed.identity.operation_id)) or end
        if found.is_observed:
            decision = "only observed: forwarded as if no route matched"
            own, enforcing = way.own("mode"), f"enforcing: {end.decision}"
            settings = (own if own.line is not None else way.of("mode"), *end.settings)
            end = _End(None, response, decision, (enforcing, *end.facts), settings)
    finally:
        if found.keyed is not None:
            found.keyed.taken.close()
    facts = end.facts
    if end.verdict is not None and found.route is not None and found.route.settings.status_header:
        facts += (f"Idempotency-Status: {end.verdict}",)
    way.add("verdict", end.decision, facts, end.settings)
    return Explanation(
        None if found.route is None else found.route.name,
        None if end.verdict is None else end.verdict.value,
        end.status,
        None if keyed is None else str(keyed.identity.operation_id),
        tuple(way.steps),
    )


def _end_without_record(found: Found, way: _Way, response: int | None) -> _End:
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
    keyed, policy = found.keyed, found.keyed.route.accept
    if policy is not None and keyed.is_async:
        settings = (way.own("inbox" if keyed.route.inbox else "accept"),)
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
    return _end_by_response(keyed, way, response)


def _end_by_response(keyed: Request, way: _Way, status: int) -> _End:
    """The end of a first request whose service responds with this status, and no more than that is known."""
    route, head = keyed.route, ResponseHead(status, b"", IndexedHeaders())
    body = b"" if route.keep.keeps_body({}, 0) else None
    stored = stored_response(keyed.head.method, head, body, route.keep, keyed.version)
    outcome = conclude_answered(
        status, {}, route.policy, carries_doubt=False, is_first_attempt=True, is_stored=stored.body is not None
    )
    written = route.settings
    # What of `outcome` says what this status means.
    listed = written.status_policy.codes.get(status) or written.status_policy.classes.get(status // 100)
    facts: list[str] = []
    keys: list[tuple[str, ...]] = [("outcome", "preset" if listed is None else listed.value)]
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
    settings = tuple(way.own(*key) for key in keys)
    return _End(outcome.verdict, status, f"{status} {outcome.verdict}: {decision}", tuple(facts), settings)


async def read_record(operations: Operations, journals: HostJournals, operation_id: UUID) -> Known:
    """See `Look`. Raises `StoreError`, also where a journal has an outcome that cannot be read here."""
    snapshot = await operations.read(operation_id)
    is_lost = (await operations.memory()).refuses(snapshot.record)
    if snapshot.state not in UNENDED:
        return Known(snapshot, is_lost, is_journaled=False)
    kept = await asyncio.to_thread(journals.outcomes, operation_id)
    # Read again: an outcome may have left the journal for the store meanwhile.
    snapshot = await operations.read(operation_id)
    commands = [each.command for each in kept if each.command is not None]
    if len(commands) < len(kept):
        raise NotApplied("a journal of this host has an outcome that cannot be read here: inspect OPERATION_ID")
    after = None if snapshot.record is None else anticipated(snapshot.record, commands, snapshot.now_us)
    return Known(after or snapshot, is_lost, is_journaled=after is not None)


def look_by(operate: Callable[[Job], Awaitable[int]]) -> Look:
    """A `Look` at the store that operators' commands have, and the journals of this host. It raises `CommandError`."""

    async def look(operation_id: UUID) -> Known:
        found: list[Known] = []

        async def run(operations: Operations, journals: HostJournals) -> None:
            found.append(await read_record(operations, journals, operation_id))

        await operate(Job(run))
        return found[0]

    return look


def _compared(keyed: Request, way: _Way, known: Known) -> _End | None:
    """Add the step of the record; the end by it, None where it decides nothing."""
    snapshot = known.snapshot
    record = snapshot.record
    if known.is_lost:
        way.add("record", "the store may have forgotten this key")
        return _End(Verdict.STORE_AMNESIA, 503, f"refused with 503 {Verdict.STORE_AMNESIA}; nothing is forwarded")
    if record is None:
        way.add("record", "there is none: the key is new")
        return None
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
    way.add("record", comparison, facts)
    unless = ""
    if keyed.route.inbox is not None:
        reply = reply_to_repeat(judgement, keyed, keyed.route.inbox)
    elif isinstance(judgement, Claimable):
        return None
    else:
        reply = reply_by_judgement(judgement, snapshot, keyed)
        if reply.to_fetch is not None:
            return _End(Verdict.FETCHED, None, f"{Verdict.FETCHED}: the service is asked for it again")
        if isinstance(judgement, Doubt) and isinstance(keyed.route.recovery, Probe):
            unless = ", unless a probe ends the doubt"
    return _End(reply.verdict, reply.status, f"{reply.status} {reply.verdict}; nothing is executed{unless}")


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
        except (CommandWrong, StartError) as error:
            raise Malformed(str(error)) from None
