"""The pages that show something. They change nothing, but for a note of who read a response.

What cannot be asked is never shown as empty: the store's error becomes the page, or, on the overview, its own sentence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.access import Action
from gateway.admin.actions import CHANGES, ListQuery, operation_id_of, parsed
from gateway.admin.authentication import PERSON, Endpoint, Note
from gateway.admin.fault import CannotExplain, CannotIdentify, Fault, Malformed, OutcomeRefused
from gateway.admin.form import Form, file_in, form_of, text_in
from gateway.admin.inspection import Inspected, full_json, next_step
from gateway.admin.journal import exported, kept
from gateway.admin.observed import NO_MEMORY
from gateway.admin.operations import Operations
from gateway.admin.pages.site import Site, see_other
from gateway.admin.process import Process
from gateway.admin.provided_response import written
from gateway.admin.resolution import RoutePolicy
from gateway.admin.sinks import event_document
from gateway.admin.view import doubt_text, moment, since_us, span, times_of
from gateway.core.operation import MICROSECONDS, Snapshot, State
from gateway.core.outcome import meaning_of
from gateway.observe.status import terse
from gateway.options import EVERY_STATE, STATES
from gateway.store.base import StoreError
from gateway.store.operations import Query

T = TypeVar("T")

_WORK_LIST_MAX: Final = 20
_PAGE_SIZE: Final = 50
_SORTED_MAX: Final = 500
_JOURNAL_MAX: Final = 200
_HEADERS_MAX: Final = 200
# The fields of the form that stay as they were written.
_EXPLAINED: Final = ("method", "url", "headers", "body", "peer", "response", "with_record")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """What was asked of the store; `why` it could not be, instead of a value."""

    value: T | None
    why: str = ""


async def load(call: Awaitable[T]) -> Loaded[T]:
    """The value, or why there is none. Raises no `StoreError`."""
    try:
        return Loaded(await call)
    except StoreError as error:
        return Loaded(None, str(error) or type(error).__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """`notes` are what people did that changed no operation; `note` adds one."""

    site: Site
    operations: Operations
    process: Process
    notes: Iterable[Note]
    note: Callable[[str, str], None]

    def endpoints(self) -> list[Endpoint]:
        """Its paths."""
        shown: dict[str, tuple[str, Callable[[web.Request], Awaitable[dict[str, Any]]]]] = {
            "/ui/": ("overview", self._overview),
            "/ui/find": ("find", self._find_form),
            "/ui/explain": ("explain", self._explain_form),
            "/ui/operations": ("operations", lambda request: self._listed(request, {})),
            "/ui/dead-letters": ("dead_letters", lambda request: self._listed(request, {"state": ["dead_letter"]})),
            "/ui/sinks": ("sinks", self._sinks),
            "/ui/sinks/{name}": ("events", self._events),
            "/ui/pauses": ("pauses", self._pauses),
            "/ui/journal": ("journal", self._journal),
            "/ui/memory": ("memory", self._memory),
            "/ui/audit": ("audit", self._audit),
            "/ui/routes": ("routes", self._routes),
            "/ui/observe": ("observe", self._observed),
            "/ui/configuration": ("configuration", self._configured),
        }
        return [
            *(Endpoint("GET", path, Action.READ, self._page(*each)) for path, each in shown.items()),
            Endpoint("GET", "/ui/operations/{id}", Action.READ, self._operation),
            Endpoint("GET", "/ui/operations/{id}/response", Action.READ_RESPONSE, self._response),
            Endpoint("GET", "/ui/journal/{id}/{token}/response", Action.READ_RESPONSE, self._journaled_response),
            Endpoint("POST", "/ui/find", Action.READ, self._find),
            Endpoint("POST", "/ui/explain", Action.READ, self._explain),
        ]

    def _page(self, template: str, values: Callable[[web.Request], Awaitable[dict[str, Any]]]) -> Handler:
        async def show(request: web.Request) -> web.Response:
            return self.site.page(request, template, **await values(request))

        return show

    # -- operations ---------------------------------------------------------------------------------------------------

    async def _overview(self, _: web.Request) -> dict[str, Any]:
        operations, process = self.operations, self.process
        health = process.health()
        return {
            "tally": await load(operations.tally()),
            "work": await load(self._oldest(Query(frozenset((State.IN_DOUBT,)), limit=_SORTED_MAX))),
            "backlog": await load(operations.backlog()),
            "sinks": await load(operations.sinks()),
            "memory": await load(operations.memory()),
            "journal": await operations.journal(limit=1),
            "health": health,
            "refused": health.get("configuration", ""),
            "workers": health.get("workers", {}),
            "digest": process.digest(),
            "counts": process.requests(),
        }

    async def _oldest(self, query: Query) -> list[Snapshot]:
        """The oldest of those that are found."""
        found = [snapshot for snapshot in await self.operations.page(query) if snapshot.record is not None]
        found.sort(key=lambda snapshot: 0 if snapshot.record is None else since_us(snapshot.record))
        return found[:_WORK_LIST_MAX]

    async def _listed(self, request: web.Request, fixed: dict[str, list[str]]) -> dict[str, Any]:
        given = {name: request.query.getall(name) for name in request.query if request.query[name]}
        number = token_of(given.pop("page", ["0"])[0])
        size = parsed(ListQuery, {"limit": [str(_PAGE_SIZE)], **given, **fixed}).query.limit
        query = parsed(ListQuery, {**given, **fixed, "limit": [str(_SORTED_MAX)]}).query
        found = await self.operations.page(query)
        records = [snapshot.record for snapshot in found if snapshot.record is not None]
        # The store finds them by id. So many at most are put in order here.
        is_sorted, after = len(found) < query.limit and query.after is None, None
        if is_sorted:
            records.sort(key=since_us)
            if len(records) > (number + 1) * size:
                after = request.rel_url.update_query(page=str(number + 1))
            records = records[number * size :][:size]
        elif len(records) > size:
            records = records[:size]
            after = request.rel_url.update_query(after=str(records[-1].identity.operation_id))
        return {
            "records": records,
            "order": "the oldest first" if is_sorted else "by id, because they are too many to be put in order",
            "now_us": found[0].now_us if found else 0,
            "after": after,
            "query": request.query,
            "states": (*STATES, EVERY_STATE),
            "routes": [route.name for route in self.operations.policies.routes],
        }

    async def _operation(self, request: web.Request) -> web.Response:
        inspected = await self.operations.inspect(operation_id_of(request.match_info))
        record = inspected.snapshot.record
        values: dict[str, Any] = {"id": inspected.operation_id, "next": next_step(inspected, is_page=True)}
        if record is None:
            return self.site.page(request, "unknown", 404, **values)
        return self.site.page(
            request,
            "operation",
            **values,
            record=record,
            now_us=inspected.snapshot.now_us,
            is_own=inspected.treatment is not None,
            changes=[each for each in CHANGES if each.page is not None and record.state in each.page.states],
            timeline=_timeline(inspected),
            facts=_facts(inspected),
            recovery=[] if inspected.doubt is None else inspected.doubt.rows,
            journal=[kept(entry, inspected.journal.now_us) for entry in inspected.journal.entries],
        )

    async def _response(self, request: web.Request) -> web.Response:
        operation_id = operation_id_of(request.match_info)
        record = (await self.operations.read(operation_id)).record
        if record is None or record.response is None or record.response.body is None:
            raise Fault(404, "no-response", "There is no response with its body.")
        return self._download(request, operation_id, written(record.response), "the response")

    async def _journaled_response(self, request: web.Request) -> web.Response:
        operation_id, token = operation_id_of(request.match_info), token_of(request.match_info["token"])
        try:
            _, content = await exported(self.process.journals, operation_id, token)
        except OutcomeRefused as error:
            raise Fault(404, "no-response", f"{error}.") from None
        return self._download(request, operation_id, content, f"the journaled response under token {token}")

    def _download(self, request: web.Request, operation_id: UUID, content: bytes, what: str) -> web.Response:
        # To the log and the audit page: nothing of the operation changes.
        self.note(request[PERSON].name, f"read {what} of operation {operation_id}")
        name = f'attachment; filename="{operation_id}.http"'
        return terse(200, content, "application/octet-stream", {"Content-Disposition": name})

    # -- finding ------------------------------------------------------------------------------------------------------

    async def _find_form(self, _: web.Request) -> dict[str, Any]:
        return self._found()

    def _found(self, **values: Any) -> dict[str, Any]:
        routes = [route.name for route in self.operations.policies.routes]
        return {"routes": routes, "mistake": None, "unknown": None, "chosen": "", "id": "", **values}

    async def _find(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        if given := text_in(form, "id").strip():
            try:
                return see_other(f"/ui/operations/{UUID(given)}")
            except ValueError:
                about = self._found(mistake="this is not the id of an operation", id=given)
                return self.site.page(request, "find", 400, **about)
        route, body = text_in(form, "route"), file_in(form, "body") or None
        try:
            operation_id = self.operations.identify(route, _headers_in(text_in(form, "headers")), body)
        except (CannotIdentify, Malformed) as error:
            return self.site.page(request, "find", 400, **self._found(mistake=str(error), chosen=route))
        if (await self.operations.read(operation_id)).record is None:
            return self.site.page(request, "find", 404, **self._found(unknown=operation_id, chosen=route))
        return see_other(f"/ui/operations/{operation_id}")

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def _sinks(self, _: web.Request) -> dict[str, Any]:
        return {"sinks": await self.operations.sinks()}

    async def _events(self, request: web.Request) -> dict[str, Any]:
        name, after = request.match_info["name"], request.query.get("after") or None
        page = await self.operations.events(name, is_dead=True, after=after, limit=_PAGE_SIZE)
        next_after = request.rel_url.with_query(after=page[-1].event_id) if len(page) == _PAGE_SIZE else None
        return {"name": name, "events": [event_document(event) for event in page], "after": next_after}

    async def _pauses(self, _: web.Request) -> dict[str, Any]:
        return {
            "paused": await self.operations.paused(),
            "audits": list(reversed(await self.operations.pause_audits())),
            "names": sorted({route.operation for route in self.operations.policies.routes}),
        }

    async def _journal(self, _: web.Request) -> dict[str, Any]:
        view = await self.operations.journal(limit=_JOURNAL_MAX)
        return {"view": view, "entries": [kept(entry, view.now_us) for entry in view.entries]}

    async def _memory(self, _: web.Request) -> dict[str, Any]:
        return {"memory": await self.operations.memory()}

    async def _audit(self, request: web.Request) -> dict[str, Any]:
        given = request.query.get("before", "")
        audits = await self.operations.latest_audits(token_of(given) if given else None, _PAGE_SIZE)
        before = request.rel_url.with_query(before=str(audits[-1].number)) if len(audits) == _PAGE_SIZE else None
        notes = [(moment(int(note.at * MICROSECONDS)), note) for note in reversed(list(self.notes))]
        return {"audits": audits, "before": before, "is_first": not given, "notes": notes}

    async def _routes(self, _: web.Request) -> dict[str, Any]:
        return {"routes": [_route(policy) for policy in self.operations.policies.routes]}

    async def _configured(self, _: web.Request) -> dict[str, Any]:
        process = self.process
        return {
            "lines": process.configuration().splitlines(),
            "digest": process.digest(),
            "refused": process.health().get("configuration", ""),
            "can_reload": process.reload is not None,
        }

    async def _observed(self, _: web.Request) -> dict[str, Any]:
        return {"routes": await self.operations.observed(), "note": NO_MEMORY}

    # -- explaining ---------------------------------------------------------------------------------------------------

    async def _explain_form(self, _: web.Request) -> dict[str, Any]:
        return _explained({"method": "POST", "peer": "127.0.0.1", "with_record": "yes"})

    async def _explain(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        try:
            response = token_of(text) if (text := text_in(form, "response")) else None
            peer, with_record = text_in(form, "peer"), "with_record" in form
            found = await self.process.explain(_request_in(form), peer, response, with_record)
        except (CannotExplain, Malformed) as error:
            return self.site.page(request, "explain", 400, **_explained(form, mistake=str(error)))
        return self.site.page(request, "explain", **_explained(form, found=found))


def _explained(form: Form, **values: Any) -> dict[str, Any]:
    return {"form": {name: text_in(form, name) for name in _EXPLAINED}, "mistake": None, "found": None, **values}


def token_of(text: str) -> int:
    """A fencing token, or another number of the store. Raises `Malformed`."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Malformed("expected a number")
    return int(text)


def _headers_in(text: str) -> tuple[tuple[bytes, bytes], ...]:
    """Headers, one a line. Raises `Malformed`, which quotes none."""
    found = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or number > _HEADERS_MAX:
            raise Malformed(f"line {number} is not a header such as Idempotency-Key: 4711")
        found.append((name.strip().encode(), value.strip().encode()))
    return tuple(found)


def _request_in(form: Form) -> bytes:
    """The request of a form, as a file of `explain` has it. Raises `Malformed`."""
    method, url = text_in(form, "method").strip(), text_in(form, "url").strip()
    if not method or not url or len(f"{method} {url}".split()) != 2:
        raise Malformed("write a method, and the whole URL without blanks")
    if "://" not in url:
        raise Malformed("write the whole URL, such as http://api.example.com/v1/payments: its host is compared, too")
    head = [f"{method} {url}".encode(), *(b": ".join(header) for header in _headers_in(text_in(form, "headers")))]
    body = file_in(form, "file") or text_in(form, "body").encode()
    return b"\r\n".join([*head, b"", b""]) + body


def _timeline(inspected: Inspected) -> list[tuple[int, str, str]]:
    """What happened and what is due, in order: the time, what it is, and who and why."""
    record = inspected.snapshot.record
    if record is None:
        return []
    found = [(at_us, name.removesuffix("_at").replace("_", " "), "") for name, at_us in times_of(record)]
    found += [(entry.at_us, entry.event.value, f"{entry.who}: {entry.why}") for entry in inspected.audits]
    probes = None if inspected.doubt is None else inspected.doubt.asked
    if probes is not None and probes.asked_us:
        found.append((probes.asked_us, "probe", probes.finding))
    return sorted(found)


_TOLD_ELSEWHERE: Final = frozenset(("operation_id", "audits", "journal", "recovery", "next", "state", "now", "request"))


def _facts(inspected: Inspected) -> list[tuple[str, str]]:
    """What is known, as labels and texts; times are in the timeline."""
    about = full_json(inspected)
    request = {f"request {name}": value for name, value in about.get("request", {}).items()}
    nested = {
        f"{part} {name}": value for part in ("delivery", "response") for name, value in about.get(part, {}).items()
    }
    flat = {name: value for name, value in about.items() if name not in _TOLD_ELSEWHERE and not isinstance(value, dict)}
    if flat.pop("carries_doubt", False):
        flat["an earlier attempt"] = "may have had its effect"
    return [
        (name.replace("_", " "), _in_words(name, value))
        for name, value in {**flat, **request, **nested}.items()
        if not name.endswith(("_at", "_until", "_since"))
    ]


def _in_words(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return doubt_text(str(value)) if name in ("doubt", "delivery failure", "delivery reason") else str(value)


def _route(policy: RoutePolicy) -> dict[str, Any]:
    treatment = policy.treatment
    meanings = []
    if treatment.status is not None:
        status_policy = treatment.status
        each = [
            (status, meaning_of(status, {}, status_policy, carries_doubt=False).value) for status in range(200, 600)
        ]
        for meaning, group in groupby(each, key=lambda found: found[1]):
            statuses = [status for status, _ in group]
            first, last = statuses[0], statuses[-1]
            meanings.append((str(first) if first == last else f"{first}–{last}", meaning))
    return {
        "name": policy.name,
        "operation": policy.operation,
        "recovery": type(treatment.recovery).__name__.lower(),
        "replay": span(treatment.replay_us),
        "remember": span(treatment.remember_us),
        "settle": span(treatment.settle_us),
        "reads_body": treatment.status is not None and bool(treatment.status.when),
        "meanings": meanings,
    }
