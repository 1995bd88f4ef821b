"""The console: pages for people under `/ui/` of the admin port, over the same operations as its API.

Pages are forms and links that work without the script. What cannot be asked is never shown as empty: the store's error
becomes the page, or, on the overview, its own sentence.

A change is one POST, and may be sent again: the same one is recognised. Its page says what it means and asks for the
reason. A form carries the token of the record that was shown, so that who was faster wins, and the other learns it
(409).
"""

from __future__ import annotations

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from itertools import groupby
from time import time_ns
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

import jinja2
from aiohttp import web
from aiohttp.typedefs import Handler
from markupsafe import Markup, escape

from gateway import __version__
from gateway.admin import access, actions, listing, view
from gateway.admin import resolution as rulings
from gateway.admin.access import PERSON, Endpoint, Form, form_of, text_in
from gateway.admin.actions import ACTIONS, CHANGES, Asked, Change, ManyAsked, Place, Result, operation_id_of, parsed
from gateway.admin.journal import acknowledge, exported, kept, read_response, written
from gateway.admin.operations import Operations, audit_by, bounded
from gateway.admin.pictures import counted_part, counted_since_us, last_in_doubt, marks_in, pictures, strip
from gateway.admin.reports import ago, events_text, moment, span
from gateway.admin.resolution import Changed, Malformed, Refused
from gateway.admin.view import Inspected, described, doubt_text, since_us, times_of
from gateway.core.delivery import REASONS
from gateway.core.message import Headers, StoredResponse
from gateway.core.operation import MICROSECONDS, Audit, Prove, Record, Snapshot, State
from gateway.core.outcome import meaning_of
from gateway.observe.status import terse
from gateway.options import EVERY_STATE, STATES
from gateway.store.base import StoreError, wall_clock_us
from gateway.store.operations import Query, Tally
from gateway.upkeep.activity import WINDOWS, Activity, Window

WHY_CHARACTERS_MIN: Final = 3
WHY_CHARACTERS_MAX: Final = 500
_TYPED_CHARACTERS: Final = 8
# Of a body, in the steps of a resolution.
_SHOWN_BYTES: Final = 4096
_TYPED_AGAIN_MAX: Final = 40
# So few that the pictures below them are seen, too.
_WORK_LIST_MAX: Final = 3
_PAGE_SIZE: Final = 50
_SORTED_MAX: Final = 500
# A page waits so long for the count of what is in doubt; one of before is shown for so long.
_COUNT_SECONDS: Final = 0.1
_COUNTED_SECONDS: Final = 30.0
# Pictures are drawn so often for each of their spans.
_DRAWN_OF_SPAN: Final = 6
_JOURNAL_MAX: Final = 200
# How many dead letters are decided about in one step, and how many a second unless that is written.
_STEP_MAX: Final = 500
_STEP_RATE: Final = 10
_HEADERS_MAX: Final = 200
_SIGN_IN_BYTES_MAX: Final = 64 * 1024
# A page of this console, whoever made the link.
_PAGE: Final = re.compile(r"/ui/[!-\[\]-~]{0,2000}")
_FILTER: Final = ("route", "reason", "older_than")
# The fields of the form that stay as they were written.
_EXPLAINED: Final = ("method", "url", "headers", "body", "peer", "response", "with_record")

_Values = Callable[[web.Request], Awaitable[dict[str, Any]]]
"""What a template names."""
Explain = Callable[[bytes, str, int | None, bool], Awaitable[Mapping[str, Any]]]
"""Says what the gateway would do with a request: see `explain`."""


class Loaded(NamedTuple):
    """What was asked of the store; `why` it could not be, instead of a value."""

    value: Any
    why: str = ""


async def load(call: Awaitable[object]) -> Loaded:
    try:
        return Loaded(await call)
    except StoreError as error:
        return Loaded(None, str(error) or type(error).__name__)


@dataclass(frozen=True, slots=True)
class Process:
    """`health` is what it knows of its stores, `configuration` is the one in force as text without secrets, `digest`
    names it. `requests` counts requests since its start, by route and verdict. `reload` is None where it was not
    started from a file."""

    health: Callable[[], Mapping[str, Any]]
    configuration: Callable[[], str]
    digest: Callable[[], str]
    requests: Callable[[], Mapping[str, Mapping[str, int]]]
    explain: Explain
    reload: actions.Reload | None = None


class Console:
    """On this admin port, about these operations, of this process."""

    def __init__(self, operations: Operations, authentication: access.Authentication, process: Process) -> None:
        self._operations = operations
        self._authentication = authentication
        self._process = process
        self._static = _static_files()
        urls = {url.rpartition(".")[2]: url for url in self._static}
        policies = operations.policies
        self._always = {"service": policies.service, "policies": policies, "process": process, "static": urls}
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader(__package__),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= _FILTERS
        # By window, and until when they are shown.
        self._pictures: dict[str, tuple[float, dict[str, Any]]] = {}
        self._counting: asyncio.Task[Loaded] | None = None
        # The last count that succeeded, and when (µs).
        self._counted: tuple[Loaded, int] = Loaded(None), 0

    def endpoints(self) -> list[Endpoint]:
        """Its paths. The page of a change has the path of the change, and needs the same role."""
        shown: dict[str, tuple[str, _Values]] = {
            "/ui/": ("overview", self._overview),
            "/ui/find": ("find", _nothing),
            "/ui/explain": ("explain", self._explain_form),
            "/ui/operations": ("operations", lambda request: self._listed(request, {})),
            "/ui/dead-letters": ("dead_letters", lambda request: self._listed(request, {"state": ["dead_letter"]})),
            "/ui/sinks": ("sinks", self._looked_at("/sinks")),
            "/ui/sinks/{name}": ("events", self._events),
            "/ui/pauses": ("pauses", self._looked_at("/paused")),
            "/ui/journal": ("journal", self._looked_at("/journal", limit=[str(_JOURNAL_MAX)])),
            "/ui/memory": ("memory", self._memory),
            "/ui/audit": ("audit", self._audit),
            "/ui/routes": ("routes", self._routes),
            "/ui/observe": ("observe", self._looked_at("/observed")),
            "/ui/configuration": ("configuration", _nothing),
        }
        own = (
            Change(
                access.RELOAD,
                "/configuration/reload",
                Asked,
                self._reload,
                "Reload the configuration",
                "The file is read again, and put in force whole or not at all. Requests under way keep what they began "
                "with.",
                "Reload it",
            ),
            Change(
                access.ACKNOWLEDGE,
                "/journal/{id}/{token}/acknowledge",
                Asked,
                self._acknowledge,
                "Acknowledge the refused outcome",
                "It is taken out of the journal and kept in a file beside it, with its response. Do this when it was "
                "dealt with.",
                "Acknowledge it",
            ),
        )
        read, enter, resolve = access.READ, access.ENTER, ACTIONS["RESOLVE"]
        return [
            Endpoint("GET", "/", read, self._root),
            Endpoint("GET", "/ui", read, self._root),
            Endpoint("GET", access.SIGN_IN_PATH, enter, self._sign_in_page),
            Endpoint("POST", access.SIGN_IN_PATH, enter, self._sign_in),
            Endpoint("POST", "/ui/sign-out", read, self._sign_out),
            *(Endpoint("GET", url, enter, self._file) for url in self._static),
            *(Endpoint("GET", path, read, self._showing(*each)) for path, each in shown.items()),
            Endpoint("GET", "/ui/operations/{id}", read, self._operation),
            Endpoint("GET", "/ui/operations/{id}/response", access.READ_RESPONSE, self._response),
            Endpoint("GET", "/ui/journal/{id}/{token}/response", access.READ_RESPONSE, self._journaled_response),
            Endpoint("POST", "/ui/find", read, self._find),
            Endpoint("POST", "/ui/explain", read, self._explain),
            Endpoint("GET", "/ui/operations/{id}/resolve", resolve, self._resolving),
            Endpoint("POST", "/ui/operations/{id}/resolve", resolve, self._resolve),
            *(endpoint for change in (*own, *CHANGES) if change.title for endpoint in self._confirmed(change)),
        ]

    def _looked_at(self, path: str, **given: list[str]) -> _Values:
        """What the API responds to this question, for a page about it."""
        look = next(each for each in actions.LOOKS if each.path == path)
        asked = None if look.query is None else parsed(look.query, given)
        return lambda request: look.find(self._operations, request.match_info, asked)

    def _showing(self, template: str, values: _Values) -> Handler:
        async def show(request: web.Request) -> web.Response:
            return self._page(request, template, **await values(request))

        return show

    def _page(self, request: web.Request, template: str, status: int = 200, **values: Any) -> web.Response:
        """A page of a template. `values` are escaped where they stand."""
        session = request.get(access.SESSION)
        form_token: Callable[[str], str] = (lambda path: "") if session is None else session.form_token
        always = {
            **self._always,
            "reasons": REASONS,
            "mistake": None,
            "version": __version__,
            "navigation": NAVIGATION,
            "entry": _entry_of(request.path),
            "path": request.path,
            "person": request.get(PERSON),
            "form_token": form_token,
            "Action": ACTIONS,
            "asked_at": moment(time_ns() // 1000),
        }
        text = self._templates.get_template(f"{template}.html").render({**always, **values})
        return terse(status, text.encode(), "text/html; charset=utf-8")

    async def _file(self, request: web.Request) -> web.Response:
        content, media_type = self._static[request.path]
        forever = {"Cache-Control": "public, max-age=31536000, immutable"}
        return terse(200, content, media_type, forever)

    # -- signing in and out, and what fails -------------------------------------------------------------------------

    def fault(self, request: web.Request, fault: rulings.Fault) -> web.Response:
        """The page for a request that is not carried out."""
        if fault.code == "signed-out" and request.method == "GET":
            asked = "" if request.path_qs == "/ui/" else "?" + urlencode({"next": request.path_qs})
            return see_other(access.SIGN_IN_PATH + asked)
        if request.path == access.SIGN_IN_PATH and fault.status == 429:
            return self._asking(request, None, fault.status, f"{fault.detail} {fault.headers['Retry-After']} seconds.")
        detail = "There is nothing here." if fault.code == "no-such-path" else fault.detail
        response = self._page(request, "fault", fault.status, fault=fault, detail=detail)
        response.headers.update(fault.headers)
        return response

    async def _root(self, request: web.Request) -> web.Response:
        if not access.is_page(request):
            raise rulings.Fault(404, "no-such-path", "There is nothing here; see /operations.")
        return see_other("/ui/")

    async def _sign_in_page(self, request: web.Request) -> web.Response:
        self._authentication.check_host(request)
        return self._asking(request, await self._authentication.vouched(request))

    def _asking(
        self,
        request: web.Request,
        vouched: access.Person | access.Disbelieved | None,
        status: int = 200,
        mistake: str | None = None,
        asked: str | None = None,
    ) -> web.Response:
        """`asked` is the page that was asked for; None takes that of the query."""
        target = _page_of(request.query.get("next", "") if asked is None else asked)
        values = {"host": request.headers.get("Host", ""), "next": target, "is_out": "out" in request.query}
        named = vouched if isinstance(vouched, access.Person) else None
        why = vouched.why if isinstance(vouched, access.Disbelieved) else ""
        return self._page(request, "sign_in", status, mistake=mistake, named=named, why=why, **values)

    async def _sign_in(self, request: web.Request) -> web.Response:
        # Before the body is read: only our own pages may send one.
        self._authentication.check_host(request)
        origin = self._authentication.own_origin(request)
        if request.content_length is None or request.content_length > _SIGN_IN_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(_SIGN_IN_BYTES_MAX, request.content_length or 0)
        form = await form_of(request)
        token = None if "vouched" in form else text_in(form, "token")
        session = await self._authentication.sign_in(request, origin, token)
        if session is None:
            mistake = "Nobody is named whom this console knows." if token is None else "This token is not known here."
            vouched = await self._authentication.vouched(request)
            return self._asking(request, vouched, 401, mistake, text_in(form, "next"))
        response = see_other(_page_of(text_in(form, "next")))
        response.set_cookie(
            access.COOKIE,
            session.cookie,
            max_age=access.SESSION_SECONDS,
            path="/",
            httponly=True,
            samesite="Strict",
            # Where the browser came by TLS.
            secure=session.origin.startswith("https:"),
        )
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        response = see_other(f"{access.SIGN_IN_PATH}?out")
        response.del_cookie(access.COOKIE, path="/")
        return response

    # -- the overview -------------------------------------------------------------------------------------------------

    async def _overview(self, request: web.Request) -> dict[str, Any]:
        operations = self._operations
        given = {name: request.query.getall(name) for name in request.query}
        window = WINDOWS[parsed(actions.ActivityQuery, given).window]
        # Of more than are put in order any will do.
        before = self._counted[0].value
        read_max = _WORK_LIST_MAX if before and sum(before.in_doubt.values()) > _SORTED_MAX else _SORTED_MAX
        asked = {
            "work": self._oldest(Query(frozenset((State.IN_DOUBT,)), limit=read_max)),
            "backlog": operations.backlog(),
            "sinks": operations.sinks(),
            "memory": operations.memory(),
        }
        # At once: a store that does not respond is waited for once. The count last: the others would wait for it.
        drawn, journal, loaded, (counted, _) = await asyncio.gather(
            self._drawn(window),
            operations.journal(limit=1),
            asyncio.gather(*map(load, asked.values())),
            asyncio.wait((self._count(),), timeout=_COUNT_SECONDS),
        )
        # So many may be in doubt that a page would wait for the count: it goes on for the next.
        tally, counted_us = counted.pop().result() if counted else Loaded(None), 0
        if tally.value is None and not tally.why and not any(each.value is None for each in loaded):
            tally, counted_us = self._counted_before(drawn["activity"])
        if tally.value is None and not tally.why:
            tally = await self._count()
        values = {"journal": journal, "tally": tally, "counted_us": counted_us, **drawn}
        sorted_max = _SORTED_MAX if read_max == _SORTED_MAX else 0
        return {"window": window.name, "sorted_max": sorted_max, **values, **dict(zip(asked, loaded, strict=True))}

    def _count(self) -> asyncio.Task[Loaded]:
        """Counts what is in doubt. One count serves all who wait for one."""

        async def count() -> Loaded:
            found = await load(bounded(self._operations.store.cold.tally()))
            if found.value is not None:
                self._counted = found, wall_clock_us()
            return found

        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(count())
        return self._counting

    def _counted_before(self, activity: Activity) -> tuple[Loaded, int]:
        """What was in doubt for a page before, or as upkeep has counted it over all routes, and when."""
        if 0 <= wall_clock_us() - self._counted[1] < _COUNTED_SECONDS * MICROSECONDS:
            return self._counted
        at_us, open_, oldest_seconds = last_in_doubt(activity)
        return (Loaded(Tally({"": open_}, oldest_seconds)), at_us) if open_ else (Loaded(None), 0)

    async def _drawn(self, window: Window) -> dict[str, Any]:
        """The pictures of a window, drawn anew no more often than their numbers change."""
        loop = asyncio.get_running_loop()
        until, values = self._pictures.get(window.name, (0.0, {}))
        if until < loop.time():
            whole = await self._operations.activity(window)
            activity = counted_part(whole)
            values = {"activity": activity, "since_us": counted_since_us(whole), "marks": marks_in(activity)}
            values["pictures"] = await asyncio.to_thread(pictures, activity)
            self._pictures[window.name] = loop.time() + window.span_us / MICROSECONDS / _DRAWN_OF_SPAN, values
        return values

    async def _oldest(self, query: Query) -> listing.Found:
        records, now_us = await self._operations.page(query)
        return listing.Found(sorted(records, key=since_us)[:_WORK_LIST_MAX], now_us)

    # -- lists, and one operation -------------------------------------------------------------------------------------

    async def _listed(self, request: web.Request, fixed: dict[str, list[str]]) -> dict[str, Any]:
        given = {name: request.query.getall(name) for name in request.query if request.query[name]}
        number, sort = token_of(given.pop("page", ["0"])[0]), given.pop("sort", ["since"])[0]
        wanted = listing.Wanted.of({name: given.pop(name)[0] for name in listing.Wanted.__slots__ if name in given})
        asked = parsed(actions.ListQuery, {"limit": [str(_PAGE_SIZE)], **given, **fixed})
        size, query = asked.limit, asked.query
        found = await listing.gathered(self._operations, query, wanted.fits)
        records, after = found.records, None
        orders = listing.orders(query.states, found.now_us, self._operations.policies)
        column, is_descending = sort.removeprefix("-"), sort.startswith("-")
        if column not in orders:
            raise Malformed(f"sort: one of {', '.join(orders)}; with a minus before it, the last first")
        # The store finds them by id. What is only a part of them is not put in order.
        is_whole = found.after is None and query.after is None
        url = request.rel_url.without_query_params("page", "after")
        if is_whole:
            records.sort(key=since_us)
            records.sort(key=orders[column][1], reverse=is_descending)
            if len(records) > (number + 1) * size:
                after = url.update_query(page=str(number + 1))
            shown = records[number * size :][:size]
        else:
            shown = records[:size]
            last = shown[-1].identity.operation_id if len(records) > size else found.after
            after = None if last is None else url.update_query(after=str(last))
        heads = [
            (
                head,
                url.update_query(sort=f"-{name}" if name == sort else name) if is_whole else None,
                None if name != column else "descending" if is_descending else "ascending",
            )
            for name, (head, _) in orders.items()
        ]
        return {
            "records": shown,
            "heads": heads,
            "count": f"{len(records)}{'' if is_whole else '+'}",
            "is_whole": is_whole,
            "looked": found.looked,
            "now_us": found.now_us,
            "after": after,
            "query": request.query,
            "is_filtered": any(name not in ("state", "sort", "page", "limit") for name in request.query),
            "states": (*STATES, EVERY_STATE),
        }

    async def _operation(self, request: web.Request) -> web.Response:
        inspected = await self._operations.inspect(operation_id_of(request.match_info))
        record, now_us = inspected.snapshot.record, inspected.snapshot.now_us
        values: dict[str, Any] = {"inspected": inspected, "next": view.next_step(inspected, is_page=True)}
        if record is None:
            return self._page(request, "unknown", 404, **values)
        values |= {
            "changes": [each for each in CHANGES if record.state in each.states],
            "journal": [kept(entry, inspected.journal.now_us) for entry in inspected.journal.entries],
            "timeline": inspected.timeline,
            "strip": strip(inspected.timeline, now_us),
            "facts": _facts(inspected, record),
            "due": [(at_us, name.replace("_", " ")) for name, at_us in times_of(record) if at_us > now_us],
        }
        return self._page(request, "operation", **values)

    async def _response(self, request: web.Request) -> web.Response:
        operation_id = operation_id_of(request.match_info)
        record = (await self._operations.read(operation_id)).record
        if record is None or record.response is None or record.response.body is None:
            raise rulings.Fault(404, "no-response", "There is no response with its body.")
        return self._download(request, operation_id, written(record.response), "the response")

    async def _journaled_response(self, request: web.Request) -> web.Response:
        operation_id, token = operation_id_of(request.match_info), token_of(request.match_info["token"])
        _, content = await exported(self._operations.journals, operation_id, token)
        return self._download(request, operation_id, content, f"the journaled response under token {token}")

    def _download(self, request: web.Request, operation_id: UUID, content: bytes, what: str) -> web.Response:
        # To the log and the audit page: nothing of the operation changes.
        self._note(request, f"read {what} of operation {operation_id}")
        name = f'attachment; filename="{operation_id}.http"'
        return terse(200, content, "application/octet-stream", {"Content-Disposition": name})

    def _note(self, request: web.Request, what: str) -> None:
        self._authentication.note(request[PERSON].name, what)

    # -- finding ------------------------------------------------------------------------------------------------------

    async def _find(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        id_, key, caller, route = (text_in(form, name) for name in ("id", "key", "caller", "route"))
        values: dict[str, Any] = {"chosen": route}
        try:
            if id_ := id_.strip():
                # A longer text may have a credential in it.
                values = {"id": id_ if len(id_) <= _TYPED_AGAIN_MAX else ""}
                return see_other(f"/ui/operations/{view.operation_in(id_)}")
            if key := key.strip():
                values = {"caller": caller}
                held = await listing.holders(self._operations, key, caller)
                # It says who used a key, which not even the log of requests has.
                of_any = f"looked for the key with digest {held.digest}… of any caller"
                self._note(request, f"{of_any}: {len(held.holders)} found")
                return self._page(request, "find", held=held, **values)
            headers, body = _headers_in(text_in(form, "headers")), access.file_in(form, "body") or None
            operation_id = self._operations.identify(route, headers, body)
        except Malformed as error:
            return self._page(request, "find", 400, mistake=str(error), **values)
        if (await self._operations.read(operation_id)).record is None:
            return self._page(request, "find", 404, unknown=operation_id, **values)
        return see_other(f"/ui/operations/{operation_id}")

    # -- the rest -----------------------------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> dict[str, Any]:
        name, after = request.match_info["name"], request.query.get("after") or None
        page = await self._operations.events(name, is_dead=True, after=after, limit=_PAGE_SIZE)
        next_after = request.rel_url.with_query(after=page[-1]["id"]) if len(page) == _PAGE_SIZE else None
        return {"name": name, "events": page, "after": next_after}

    async def _memory(self, _: web.Request) -> dict[str, Any]:
        return {"memory": await self._operations.memory()}

    async def _audit(self, request: web.Request) -> dict[str, Any]:
        given = request.query.get("before", "")
        latest = self._operations.store.cold.latest_audits(token_of(given) if given else None, _PAGE_SIZE)
        audits = await bounded(latest)
        before = request.rel_url.with_query(before=str(audits[-1].number)) if len(audits) == _PAGE_SIZE else None
        notes = [(moment(int(note.at * MICROSECONDS)), note) for note in reversed(list(self._authentication.notes))]
        return {"audits": audits, "before": before, "is_first": not given, "notes": notes}

    async def _routes(self, _: web.Request) -> dict[str, Any]:
        return {"routes": [(policy, _meanings(policy)) for policy in self._operations.policies.routes]}

    async def _explain_form(self, request: web.Request) -> dict[str, Any]:
        """With what is stored of the request of an operation, if one is named."""
        form = {"method": "POST", "peer": "127.0.0.1", "with_record": "yes"}
        if "operation" not in request.query:
            return _explained(form)
        operation_id = operation_id_of({"id": request.query["operation"]})
        record = (await self._operations.read(operation_id)).record
        found = None if record is None else view.as_request(record, self._operations.policies)
        if found is None:
            raise Malformed("nothing is stored of the request of this operation")
        stored = {"method": found.method, "url": found.url, "headers": found.header}
        return _explained({**form, **stored}, of=operation_id)

    async def _explain(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        try:
            response = token_of(text) if (text := text_in(form, "response")) else None
            peer, with_record = text_in(form, "peer"), "with_record" in form
            found = await self._process.explain(_request_in(form), peer, response, with_record)
        except Malformed as error:
            return self._page(request, "explain", 400, **_explained(form, mistake=str(error)))
        return self._page(request, "explain", **_explained(form, found=found))

    # -- changes with a reason ----------------------------------------------------------------------------------------

    def _confirmed(self, change: Change[Any]) -> list[Endpoint]:
        """The page that explains a change and asks for its reason, and the change."""
        asking, confirmed = (self._choose, self._many) if change.asked is ManyAsked else (self._meaning, self._change)

        async def ask(request: web.Request) -> web.Response:
            return await asking(request, change)

        async def confirm(request: web.Request) -> web.Response:
            try:
                return await confirmed(request, change, await form_of(request))
            except Malformed as error:
                return await asking(request, change, 400, str(error))

        path = f"/ui{change.page_path or change.path}"
        return [Endpoint("GET", path, change.action, ask), Endpoint("POST", path, change.action, confirm)]

    async def _meaning(
        self, request: web.Request, change: Change[Any], status: int = 200, mistake: str = ""
    ) -> web.Response:
        record = (await self._snapshot(request)).record if "/operations/" in request.path else None
        form = await form_of(request) if status != 200 else {}
        values = {"change": change, "typed": self._typed(request), "mistake": mistake, "why": text_in(form, "why")}
        token = text_in(form, "token") or ("" if record is None else record.token)
        return self._page(request, "confirm", status, **values, record=record, token=token, place=request.match_info)

    async def _change(self, request: web.Request, change: Change[Any], form: Form) -> web.Response:
        audit = _audit(request, form)
        if change.typed and form.get("typed") != self._typed(request):
            raise Malformed(f"to confirm, type {self._typed(request)}")
        # What is asked here was confirmed.
        given = {"token": _token_in(form), "route": request.match_info.get("name"), "yes": change.typed}
        known = {name: value for name, value in given.items() if name in change.asked.model_fields}
        asked = parsed(change.asked, {"why": audit.why, **known})
        about = f"{change.title}, {request.path}: {audit.why}"
        try:
            result = await change.carry_out(self._operations, request.match_info, asked, audit)
        except (rulings.Fault, rulings.NotDead, rulings.OutcomeRefused):
            self._note(request, f"was refused: {about}")
            raise
        self._note(request, f"did: {about}")
        return self._done(request, change.title, result)

    async def _choose(
        self, request: web.Request, change: Change[Any], status: int = 200, mistake: str = ""
    ) -> web.Response:
        """The page on which dead letters are chosen by a filter and counted. The change of those needs the count to be
        typed, and is refused where that is another one by now."""
        form = await form_of(request) if request.method == "POST" else request.query
        chosen, bulk = _filter_in(form), None
        if chosen:
            try:
                query = parsed(actions.DeadLettersQuery, {name: [text] for name, text in chosen.items()}).query
                bulk = await listing.listed(self._operations, query, _STEP_RATE)
            except Malformed as error:
                status, mistake = 400, mistake or str(error)
        elif form:
            status, mistake = 400, mistake or "say which: by route, by reason, or by how long they are dead"
        written = {"why": text_in(form, "why"), "rate": text_in(form, "rate") or str(_STEP_RATE)}
        values = {"change": change, "chosen": chosen, "bulk": bulk, "step_max": _STEP_MAX, **written}
        return self._page(request, "bulk", status, **values, mistake=mistake)

    async def _many(self, request: web.Request, change: Change[Any], form: Form) -> web.Response:
        audit, matching = _audit(request, form), text_in(form, "matching")
        if text_in(form, "typed").strip() != matching:
            raise Malformed("to confirm, type how many match")
        bounds = {"limit": _STEP_MAX, "rate": token_of(text_in(form, "rate")), "matching": token_of(matching)}
        asked = parsed(ManyAsked, {"why": audit.why, **bounds, **_filter_in(form)})
        try:
            result = await change.carry_out(self._operations, request.match_info, asked, audit)
        except rulings.Fault as fault:
            self._note(request, f"was refused: {change.title}: {fault.detail}")
            if fault.code == actions.MATCHES_CHANGED:
                return await self._choose(request, change, 409, "others match by now than were shown. Look again")
            raise
        chosen = ", ".join(f"{name} {text}" for name, text in _filter_in(form).items())
        self._note(request, f"did: {change.title} ({chosen}): {result}: {audit.why}")
        return self._done(request, change.title, result)

    def _typed(self, request: web.Request) -> str:
        """What has to be typed to confirm: the beginning of an operation's id, or the name of the service."""
        return _beginning(request) if "/operations/" in request.path else self._operations.policies.service

    async def _snapshot(self, request: web.Request) -> Snapshot:
        """The operation of the path. Raises `Fault` where it is not remembered."""
        snapshot = await self._operations.read(operation_id_of(request.match_info))
        if snapshot.record is None:
            raise rulings.Fault(404, rulings.Refusal.UNKNOWN, "Nothing is remembered under this id.")
        return snapshot

    async def _acknowledge(self, _: Operations, place: Place, asked: Asked, audit: Audit) -> Result:
        operation_id, token = operation_id_of(place), token_of(place["token"])
        return await acknowledge(self._operations.journals, operation_id, token, audit, self._operations.read)

    async def _reload(self, _: Operations, place: Place, asked: Asked, audit: Audit) -> Result:
        report = await actions.reloaded(self._process.reload, "Refused, and nothing was changed:\n")
        if report.result == "unchanged":
            return "The file says what is in force already."
        return "Applied. Changed:\n" + "\n".join(report.document["changed"])

    def _done(self, request: web.Request, title: str, result: Result) -> web.Response:
        status = result.status if isinstance(result, Refused) else 200
        return self._page(request, "done", status, title=title, result=result, is_refused=status != 200)

    # -- resolving ----------------------------------------------------------------------------------------------------

    async def _resolving(
        self, request: web.Request, status: int = 200, mistake: str = "", form: Form | None = None
    ) -> web.Response:
        """The first of three steps: both choices. `form` has what was written in them before."""
        snapshot, policies = await self._snapshot(request), self._operations.policies
        record = snapshot.record
        if record is None or record.state is not State.IN_DOUBT or not policies.is_own(record):
            text = f"It is {snapshot.state}: there is nothing to resolve."
            return self._done(request, "Resolve", Refused(rulings.Refusal.STATE, text, snapshot))
        treatment, given = policies.treatment_of(record), form or {}
        values = {
            "treatment": treatment,
            "settled_us": record.lease_until_us + treatment.settle_us,
            "why": text_in(given, "why"),
            "way": text_in(given, "way"),
            "pasted": _pasted_in(given),
        }
        return self._page(request, "resolve", status, snapshot=snapshot, mistake=mistake, **values)

    async def _resolve(self, request: web.Request) -> web.Response:
        """The second step, which shows what would be, and the third, which does it."""
        form = await form_of(request)
        if "back" in form:
            return await self._resolving(request, form=form)
        drop, is_forced, is_confirmed = (form.get(name) == "yes" for name in ("drop", "force", "confirmed"))
        operation_id, way = operation_id_of(request.match_info), text_in(form, "way")
        try:
            audit, token, data = _audit(request, form), _token_in(form), _response_in(form)
            if is_forced:
                request[PERSON].require(access.FORCE)
                if form.get("typed") != _beginning(request):
                    raise Malformed(f"to overrule the refusal, type {_beginning(request)}")
            if way == "never_happened":
                ruling: rulings.Ruling = rulings.NothingHappened(drops=drop)
            else:
                ruling = rulings.Happened(*read_response(data))
        except Malformed as error:
            return await self._resolving(request, 400, str(error), form)
        result = await self._operations.resolve(
            operation_id, ruling, audit, is_forced=is_forced, token=token, is_dry_run=not is_confirmed
        )
        values: dict[str, Any]
        record, replayed = result.snapshot.record, None
        may_be_forced = isinstance(result, Refused) and result.can_be_forced
        if isinstance(result, Refused) and not may_be_forced:
            return self._done(request, "Resolve", result)
        if isinstance(result, Changed) and (is_confirmed or result.is_repeat):
            if is_confirmed:
                self._note(request, f"resolved operation {operation_id}: {audit.why}")
            if isinstance(ruling, rulings.Happened) and record is not None and record.response is not None:
                replayed = _replayed(record.response)
            values = {"operation_id": operation_id, "replayed": replayed, "why": audit.why}
            return self._page(request, "resolved", result=result, **values)
        if isinstance(ruling, rulings.Happened) and record is not None:
            command = rulings.resolution(record, ruling, audit, self._operations.policies.treatment_of(record))
            replayed = _replayed(command.response, ruling) if isinstance(command, Prove) else None
        values = {
            "may_be_forced": may_be_forced,
            "way": way,
            "why": text_in(form, "why"),
            "drop": drop,
            "token": token,
            "response": urlsafe_b64encode(data).decode(),
            "beginning": _beginning(request),
            "replayed": replayed,
        }
        return self._page(request, "preview", 409 if may_be_forced else 200, result=result, **values)


async def _nothing(_: web.Request) -> dict[str, Any]:
    return {}


def see_other(target: str) -> web.Response:
    return terse(303, b"", "text/plain", {"Location": target})


def _page_of(text: str) -> str:
    is_page_to_see = _PAGE.fullmatch(text) and not text.startswith(access.SIGN_IN_PATH)
    return text if is_page_to_see else "/ui/"


# -- what forms say ----------------------------------------------------------------------------------------------------


def token_of(text: str) -> int:
    """A fencing token, or another number of the store. Raises `Malformed`."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Malformed("expected a number")
    return int(text)


def _token_in(form: Form) -> int | None:
    """The token of the record that the form was made for. Raises `Malformed`."""
    text = text_in(form, "token")
    return token_of(text) if text else None


def _beginning(request: web.Request) -> str:
    """What has to be typed to confirm a change of an operation."""
    return str(operation_id_of(request.match_info))[:_TYPED_CHARACTERS]


def _filter_in(form: Mapping[str, str | bytes]) -> dict[str, str]:
    return {name: text for name in _FILTER if (text := text_in(form, name).strip())}


def _audit(request: web.Request, form: Form) -> Audit:
    text = text_in(form, "why").strip()
    if not WHY_CHARACTERS_MIN <= len(text) <= WHY_CHARACTERS_MAX:
        raise Malformed(f"say why, in {WHY_CHARACTERS_MIN} to {WHY_CHARACTERS_MAX} characters; it is recorded")
    return audit_by(request[PERSON].acting_for(None), text)


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
    body = access.file_in(form, "file") or text_in(form, "body").encode()
    return b"\r\n".join([*head, b"", b""]) + body


def _explained(form: Form, **values: Any) -> dict[str, Any]:
    return {"form": {name: text_in(form, name) for name in _EXPLAINED}, **values}


def _response_in(form: Form) -> bytes:
    """The response of a form: a file, what was pasted, or what the preview carries on. Raises `Malformed`. Browsers end
    the lines of what was pasted in CRLF, whatever they were; a terminal shows LF."""
    if carried := text_in(form, "carried"):
        try:
            return urlsafe_b64decode(carried.encode())
        except ValueError:
            raise Malformed("the response did not come back whole; begin again") from None
    return access.file_in(form, "file") or text_in(form, "pasted").replace("\r\n", "\n").encode()


def _pasted_in(form: Form) -> str:
    """What was pasted, to be shown again; empty for a file, whose bytes a browser would change."""
    try:
        data = b"" if access.file_in(form, "file") else _response_in(form)
        return "" if b"\r" in data else data.decode()
    except ValueError:
        return ""


# -- what pages show ---------------------------------------------------------------------------------------------------


def _facts(inspected: Inspected, record: Record) -> list[tuple[str, str]]:
    """What the history does not tell; nor the name of the page, which is method and path."""
    happenings, now_us = inspected.timeline.happenings, inspected.snapshot.now_us
    shown = {"operation_id", "state", "now", "age_seconds", "last_event", "request method", "request path"}
    shown |= {name for name, at_us in times_of(record) if at_us > now_us or name.endswith("_at")}
    if any(each.why == record.doubt for each in happenings):
        shown |= {"doubt", "upstream_status"}
    if any(each.who == record.holder for each in happenings):
        shown.add("holder")
    about = described(inspected.snapshot, has_body=True)
    if about.pop("carries_doubt", False):
        about["an earlier attempt"] = "may have had its effect"
    for part in ("request", "delivery", "response"):
        about |= {f"{part} {name}": value for name, value in about.pop(part, {}).items()}
    return [(name.replace("_", " "), _in_words(name, value)) for name, value in about.items() if name not in shown]


def _in_words(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return doubt_text(str(value)) if name in ("doubt", "delivery failure", "delivery reason") else str(value)


def _meanings(policy: rulings.RoutePolicy) -> dict[str, list[str]]:
    """What a status of the service means on this route, as stretches of statuses by their meaning."""
    found: dict[str, list[str]] = {}
    if (status_policy := policy.treatment.status) is not None:

        def meaning(status: int) -> str:
            return meaning_of(status, {}, status_policy, carries_doubt=False).value

        for name, group in groupby(range(200, 600), meaning):
            first, *more = group
            found.setdefault(name, []).append(f"{first}–{more[-1]}" if more else str(first))
    return dict(sorted(found.items()))


def _shown(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _replayed(response: StoredResponse, given: rulings.Happened | None = None) -> dict[str, Any]:
    """What repeats get of a response, and what they do not get of the one that was `given`."""
    names = {name.lower() for name, _ in response.headers}
    dropped = () if given is None else _shown(given.head.headers)
    whole = b"" if given is None else given.body
    body = whole if response.body is None else response.body
    return {
        "status": response.status,
        "kept": _shown(response.headers),
        "dropped": [name for name, _ in dropped if name.lower().encode() not in names],
        "bytes": len(body),
        "beginning": _beginning_of(body),
        "is_cut": len(body) > _SHOWN_BYTES,
        "is_body_kept": response.body is not None,
    }


def _beginning_of(body: bytes) -> str:
    """As much of a body as is shown; empty where it is no text."""
    try:
        return body[:_SHOWN_BYTES].decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may have been cut.
        is_text = len(body) > _SHOWN_BYTES and error.start >= _SHOWN_BYTES - 3
        return body[: error.start].decode("utf-8") if is_text else ""


# -- what all pages have -----------------------------------------------------------------------------------------------
#
# What is named in a template is escaped, and no template contains code. The names of the static files have a digest of
# their content, so browsers may keep them for ever. A page is never kept.

NAVIGATION: Final[Mapping[str, Sequence[str]]] = {
    "Overview": ("",),
    "Operations": ("operations", "find"),
    "Deliveries": ("dead-letters", "pauses"),
    "Sinks": ("sinks",),
    "Routes": ("routes", "observe", "explain"),
    "System": ("configuration", "memory", "journal", "audit"),
}
"""The six entries that every page leads to, and the pages below each; the first one is the entry's own. A new page is
one word here and one endpoint."""

# Pages of an entry that none leads to.
_INSIDE: Final = {"events": "Sinks"}
_NAMES: Final = {"operations": "Work list"}
_CELL: Final = re.compile(r"<(tr|td|th scope=\"row\")(?=[ >])")
_TYPES: Final = {"console.css": "text/css", "console.js": "text/javascript", "console.svg": "image/svg+xml"}
# In the order of the states.
_SHAPES: Final = dict(zip(State, "–○◆▶▲■●□", strict=True))


def _entry_of(path: str) -> str:
    """The entry of the navigation that a page is below."""
    first = [*path.removeprefix("/ui/").split("/"), ""][0]
    return next((entry for entry, pages in NAVIGATION.items() if first in pages), _INSIDE.get(first, ""))


def _static_files() -> dict[str, tuple[bytes, str]]:
    """By their path, each with its media type."""
    found = {}
    for name, media_type in _TYPES.items():
        content = files(__package__).joinpath("static", name).read_bytes()
        stem, _, ending = name.partition(".")
        url = f"/ui/static/{stem}.{sha256(content).hexdigest()[:16]}.{ending}"
        found[url] = content, f"{media_type}; charset=utf-8"
    return found


def _prose(text: str) -> Markup:
    """A sentence, in which what stands in backticks is code."""
    parts = [escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _back(path: str) -> str:
    """The page that leads to a change."""
    parts = path.split("/")
    if parts[2] == "operations":
        return "/".join(parts[:4])
    return {"events": "/ui/sinks"}.get(parts[2], f"/ui/{parts[2]}")


def _labelled(rows: Markup, heads: Sequence[str]) -> Markup:
    """The rows of a table, each cell with the name of its column: on a narrow window a row is a card, whose cells are
    no columns. What is no table to a browser any more stays one to a reader of the screen by its roles."""
    names = iter(heads)

    def label(found: re.Match[str]) -> str:
        nonlocal names
        if found[1] == "tr":
            names = iter(heads)
            return '<tr role="row"'
        role = "cell" if found[1] == "td" else "rowheader"
        return f'<{found[1]} role="{role}" data-label="{escape(next(names, ""))}"'

    return Markup(_CELL.sub(label, rows))  # noqa: S704 -- the rows are markup, in which all values are escaped


_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "moment": moment,
    "ago": ago,
    "span": span,
    "shape": lambda state: _SHAPES[State(state)],
    "prose": _prose,
    "doubt": doubt_text,
    "since": since_us,
    "unreceived": events_text,
    "back": _back,
    "labelled": _labelled,
    "subject": view.subject,
    "caller": view.caller,
    "did": view.did,
    "then": view.then,
    "as_request": view.as_request,
    "repeat": view.repeat,
    "recovery": lambda recovery: type(recovery).__name__.lower(),
    "page_name": lambda page: _NAMES.get(page, page.replace("-", " ").capitalize()),
}
