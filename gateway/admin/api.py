"""The admin port: operators' actions over HTTP, for those who hold its token, on a listener of its own.

    GET  /operations?state=&route=&older_than=&reason=&after=&limit=    list, page by page
    GET  /operations/{id}                                       all that is known of one, with its audits
    POST /operations/{id}/resolve                               end a doubt
    POST /operations/{id}/requeue, /operations/{id}/withdraw    deliver a dead letter after all; call off a delivery
    POST /requeue                                               deliver many dead letters after all
    GET  /paused                                                which deliveries are paused
    POST /pause, /resume                                        deliver nothing of a route for a while
    GET  /sinks                                                 what waits for which sink
    POST /sinks/{name}/suspend, /sinks/{name}/resume            publish nothing to a sink for a while
    GET  /events?sink=&state=&after=&limit=                     events that a sink has not received, page by page
    POST /events/{id}/redeliver                                 publish a dead event after all
    POST /operations/{id}/purge, /operations/{id}/erase         drop a response; forget a key
    GET  /observed?route=                                       what enforcement would have done
    GET  /memory                                                whether the store lost its memory
    POST /memory/accept-loss                                    trust it again
    GET  /journal?state=&limit=                                 outcomes on this host that wait, or were refused
    POST /config/reload                                         read the file again, and wait for what comes of it

JSON in and out, errors as problem documents (RFC 9457). A GET changes nothing, other origins have no access, and
without the right token a client learns nothing: tokens are compared in constant time, and repeated failures throttled.
What a token may do is in `access.ROLE_OF`, and asked here alone, also for the pages under `/ui/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.access import ROLE_OF, Action, People
from gateway.admin.authentication import REQUESTER, SIGN_IN_PATH, Authentication, Endpoint, is_page
from gateway.admin.delivery import NoSuchRoute, pause_document
from gateway.admin.fault import Fault, fault_of, unavailable
from gateway.admin.inspection import full_json
from gateway.admin.journal import listed as journal_listed
from gateway.admin.memory import MemoryState
from gateway.admin.observed import NoSuchObservedRoute
from gateway.admin.operations import Operations
from gateway.admin.process import Reload
from gateway.admin.request import (
    Asked,
    DecideAsked,
    EraseAsked,
    EventsQuery,
    JournalQuery,
    ListQuery,
    Malformed,
    ObservedQuery,
    PauseAsked,
    RedeliverAsked,
    RequeueAsked,
    ResolveAsked,
    json_object,
    parsed,
)
from gateway.admin.requeueing import Requeueing, listed
from gateway.admin.resolution import Changed, Policies, Refusal, Refused
from gateway.admin.sinks import NoSuchSink, event_document
from gateway.admin.view import described
from gateway.core.operation import Audit, Record, trace_of_attempt
from gateway.observe.facts import AdminActed, AdminResult, Events, SignedIn
from gateway.observe.side_port import SidePort, terse
from gateway.protect.problem import PROBLEM_TYPE, problem_body
from gateway.store.base import Indefinite, NotApplied, StoreError

_LOG = logging.getLogger("gateway")

TYPE_PREFIX: Final = "urn:idempotency-gateway:admin:"
# How to overrule a refusal, by its reason.
_OVERRULE: Final[Mapping[Refusal, str]] = {
    Refusal.EARLY: ' To overrule this, add "force": true.',
    Refusal.RESPONSE: ' To overrule this, add "force": true.',
    Refusal.UNSURE: ' To confirm it, add "yes": true.',
}

_REQUESTS_MAX: Final = 16
# Of those with no token yet, who could keep everybody else out.
_STRANGERS_MAX: Final = 8
# Longer than the patience of one action.
_RESPONSE_SECONDS: Final = 60.0
# Of a bulk requeue; with the patience of its last operation it ends before the response is due.
_BULK_SECONDS: Final = 30.0
# What a body may have besides a response.
_FRAME_BYTES_MAX: Final = 1024 * 1024

# Of all that is refused here.
_PASSING: Final = frozenset((429, 503))

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer` browsers would send `Origin: null` with the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""On each response, whatever it is. A header that a response sets itself stays."""

_RECORD: Final = web.RequestKey("record", Record)

A = TypeVar("A", bound=Asked)


class Pages(Protocol):
    """What people see under `/ui/`."""

    def endpoints(self, app: web.Application) -> list[Endpoint]:
        """Its paths in this application."""

    def fault(self, request: web.Request, fault: Fault) -> web.Response:
        """The page for a request that is not carried out."""


class AdminApi:
    """Listens from `start` to `stop`. `response_bytes_max`: the longest response that a route keeps."""

    def __init__(
        self,
        operations: Operations,
        authentication: Authentication,
        events: Events,
        *,
        response_bytes_max: int,
        reload: Reload | None = None,
        pages: Pages | None = None,
    ) -> None:
        self._operations = operations
        self._authentication = authentication
        self._facts = events
        self._reload = reload
        self._pages = pages
        # By whether they need a token.
        self._under_way = {True: 0, False: 0}
        app = web.Application(
            middlewares=[self._counted, self._rendered, self._bounded, self._admitted],
            client_max_size=response_bytes_max * 4 // 3 + _FRAME_BYTES_MAX,
        )
        endpoints = [*self._endpoints(), *(() if pages is None else pages.endpoints(app))]
        self._actions = {(each.method, each.path): each.action for each in endpoints}
        for each in endpoints:
            app.router.add_route(each.method, each.path, each.handler)
        self._port = SidePort(
            "admin", app, _refuse, line_bytes_max=8 * 1024, stop_seconds=5.0, headers=SECURITY_HEADERS
        )

    def adopt(self, policies: Policies, people: People, hosts: Collection[str]) -> None:
        """Serve the requests to come with these. The limit of a body stays as it was at the start."""
        self._operations.policies = policies
        self._authentication.adopt(people, hosts)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0. Raises OSError."""
        return await self._port.start(host, port)

    async def stop(self) -> None:
        """Close the listener; requests under way get a bounded time."""
        await self._port.stop()

    def _endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/operations", Action.READ, self._list),
            Endpoint("GET", "/operations/{id}", Action.READ, self._inspect),
            Endpoint("POST", "/operations/{id}/resolve", Action.RESOLVE, self._resolve),
            Endpoint("POST", "/operations/{id}/requeue", Action.REQUEUE, self._requeue),
            Endpoint("POST", "/operations/{id}/withdraw", Action.WITHDRAW, self._withdraw),
            Endpoint("POST", "/requeue", Action.REQUEUE, self._requeue_many),
            Endpoint("GET", "/paused", Action.READ, self._paused),
            Endpoint("POST", "/pause", Action.PAUSE, self._pause),
            Endpoint("POST", "/resume", Action.PAUSE, self._resume),
            Endpoint("GET", "/sinks", Action.READ, self._sinks),
            Endpoint("POST", "/sinks/{name}/suspend", Action.SINK, self._suspend_sink),
            Endpoint("POST", "/sinks/{name}/resume", Action.SINK, self._resume_sink),
            Endpoint("GET", "/events", Action.READ, self._events),
            Endpoint("POST", "/events/{id}/redeliver", Action.REDELIVER, self._redeliver),
            Endpoint("POST", "/operations/{id}/purge", Action.PURGE, self._purge),
            Endpoint("POST", "/operations/{id}/erase", Action.ERASE, self._erase),
            Endpoint("GET", "/memory", Action.READ, self._memory),
            Endpoint("POST", "/memory/accept-loss", Action.ACCEPT_LOSS, self._accept_loss),
            Endpoint("GET", "/journal", Action.READ, self._journal),
            Endpoint("GET", "/observed", Action.READ, self._observed),
            Endpoint("POST", "/config/reload", Action.RELOAD, self._reload_config),
        ]

    # -- access -------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _rendered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turns faults into pages or problems."""
        try:
            return await handler(request)
        except Fault as fault:
            found = fault
        except (Malformed, NoSuchRoute, NoSuchSink, StoreError) as error:
            found = fault_of(error, is_read=request.method == "GET")
        except web.HTTPException as error:
            allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            found = _fault_of_status(error.status, allowed)
        if self._pages is not None and is_page(request):
            response = self._pages.fault(request, found)
        else:
            response = problem(found.status, found.code, found.detail, found.headers, **found.members)
        if found.status in (401, 413):
            # What follows on this connection is not read.
            response.force_close()
        return response

    @web.middleware
    async def _bounded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Bounds the number of requests at once, and the time of each."""
        action = self._action_of(request)
        needs_token = action is None or ROLE_OF[action] is not None
        if self._under_way[needs_token] >= (_REQUESTS_MAX if needs_token else _STRANGERS_MAX):
            raise Fault(503, "busy", "Too many requests at once.", {"Retry-After": "1"})
        self._under_way[needs_token] += 1
        try:
            async with asyncio.timeout(_RESPONSE_SECONDS):
                return await handler(request)
        except TimeoutError:
            raise unavailable("It took too long, and may have been done. Repeat the request to find out.") from None
        finally:
            self._under_way[needs_token] -= 1

    @web.middleware
    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Publishes what became of a change that somebody with a token asked for, and of a sign-in."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        response = await handler(request)
        action = self._action_of(request)
        if request.method == "POST" and action is not None and response.status not in (401, 429):
            failed = AdminResult.FAILED if response.status >= 500 else AdminResult.REFUSED
            result = AdminResult.DONE if response.status < 400 else failed
            if ROLE_OF[action] is not None:
                record = request.get(_RECORD)
                self._facts.publish(
                    AdminActed(
                        action.value,
                        result,
                        loop.time() - began,
                        None if record is None else record.identity.operation_id,
                        0 if record is None else record.attempts,
                        None if record is None else trace_of_attempt(record),
                    )
                )
        if request.method == "POST" and request.path == SIGN_IN_PATH:
            self._facts.publish(SignedIn(AdminResult.DONE if response.status < 400 else AdminResult.REFUSED))
        return response

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Asks who it is, and whether the role is enough. Without a token a client does not even learn whether a path
        exists."""
        action = self._action_of(request)
        if action is None or ROLE_OF[action] is not None:
            requester = await self._authentication.requester_of(request)
            request[REQUESTER] = requester
            if action is not None:
                requester.require(action)
        return await handler(request)

    def _action_of(self, request: web.Request) -> Action | None:
        resource = request.match_info.route.resource
        return None if resource is None else self._actions.get((request.method, resource.canonical))

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.Response:
        query = parsed(ListQuery, _query(request)).query
        page = await self._operations.page(query)
        found = [described(snapshot, has_body=False) for snapshot in page]
        after = found[-1]["operation_id"] if len(found) == query.limit else None
        return _json(200, {"operations": found, "next": after})

    async def _inspect(self, request: web.Request) -> web.Response:
        inspected = await self._operations.inspect(_operation_id(request))
        about = full_json(inspected)
        if inspected.snapshot.record is None:
            return problem(404, Refusal.UNKNOWN, about["next"], operation=about)
        return _json(200, about)

    async def _journal(self, request: web.Request) -> web.Response:
        asked = parsed(JournalQuery, _query(request))
        return _json(
            200, journal_listed(await self._operations.journal(is_refused=asked.is_refused, limit=asked.limit))
        )

    async def _observed(self, request: web.Request) -> web.Response:
        asked = parsed(ObservedQuery, _query(request))
        try:
            found = await self._operations.observed(asked.route)
        except NoSuchObservedRoute as error:
            return problem(404, Refusal.UNKNOWN, f"{error}.")
        return _json(200, {"routes": [each.document for each in found]})

    async def _memory(self, request: web.Request) -> web.Response:
        return _memory_of(await self._operations.memory())

    # -- changing -----------------------------------------------------------------------------------------------------

    async def _accept_loss(self, request: web.Request) -> web.Response:
        _, audit = await _asked(Asked, request)
        return _memory_of(await self._operations.accept_loss(audit))

    async def _resolve(self, request: web.Request) -> web.Response:
        operation_id = _operation_id(request)
        asked, audit = await _asked(ResolveAsked, request)
        if asked.force:
            request[REQUESTER].require(Action.FORCE)
        outcome = await self._operations.resolve(
            operation_id, asked.ruling, audit, is_forced=asked.force, token=asked.token
        )
        return _done("resolve", operation_id, audit, _noted(request, outcome))

    async def _requeue(self, request: web.Request) -> web.Response:
        operation_id = _operation_id(request)
        asked, audit = await _asked(DecideAsked, request)
        outcome = await self._operations.requeue(operation_id, audit, token=asked.token)
        return _done("requeue", operation_id, audit, outcome)

    async def _withdraw(self, request: web.Request) -> web.Response:
        operation_id = _operation_id(request)
        asked, audit = await _asked(DecideAsked, request)
        outcome = await self._operations.withdraw(operation_id, audit, token=asked.token)
        return _done("withdraw", operation_id, audit, outcome)

    async def _requeue_many(self, request: web.Request) -> web.Response:
        asked, audit = await _asked(RequeueAsked, request)
        bulk = await listed(self._operations, asked.wanted)
        try:
            async for _ in bulk.run(self._operations, audit, seconds_max=_BULK_SECONDS):
                pass
        except (NotApplied, Indefinite) as error:
            raise unavailable(f"{bulk}. Stopped; repeat the request to go on: {error}", **_counts(bulk)) from error
        finally:
            _LOG.info("the admin API requeued dead letters: %s, by %s: %s", bulk, audit.who, audit.why)
        return _json(200, {"detail": f"{bulk}.", **_counts(bulk)})

    async def _paused(self, request: web.Request) -> web.Response:
        paused = [each.document for each in await self._operations.paused()]
        audits = [pause_document(entry) for entry in await self._operations.pause_audits()]
        return _json(200, {"paused": paused, "audits": audits})

    async def _pause(self, request: web.Request) -> web.Response:
        asked, audit = await _asked(PauseAsked, request)
        return _changed("pause", audit, await self._operations.pause(asked.route, audit))

    async def _resume(self, request: web.Request) -> web.Response:
        asked, audit = await _asked(PauseAsked, request)
        return _changed("resume", audit, await self._operations.resume(asked.route, audit))

    async def _sinks(self, request: web.Request) -> web.Response:
        return _json(200, {"sinks": [each.document for each in await self._operations.sinks()]})

    async def _suspend_sink(self, request: web.Request) -> web.Response:
        _, audit = await _asked(Asked, request)
        text = await self._operations.suspend_sink(request.match_info["name"], audit)
        return _changed("suspend", audit, text)

    async def _resume_sink(self, request: web.Request) -> web.Response:
        _, audit = await _asked(Asked, request)
        return _changed("resume", audit, await self._operations.resume_sink(request.match_info["name"]))

    async def _events(self, request: web.Request) -> web.Response:
        asked = parsed(EventsQuery, _query(request))
        page = await self._operations.events(
            asked.sink, is_dead=asked.state == "dead", after=asked.after, limit=asked.limit
        )
        after = page[-1].event_id if len(page) == asked.limit else None
        return _json(200, {"events": [event_document(event) for event in page], "next": after})

    async def _redeliver(self, request: web.Request) -> web.Response:
        asked, audit = await _asked(RedeliverAsked, request)
        text, number = await self._operations.redeliver(request.match_info["id"], asked.sink)
        return _changed("redeliver", audit, text) if number else problem(409, "not-dead", text)

    async def _reload_config(self, request: web.Request) -> web.Response:
        if self._reload is None:
            return problem(409, "no-file", "This gateway was not started from a file.")
        report = await self._reload()
        if report.result == "refused":
            members = {name: value for name, value in report.document.items() if name != "detail"}
            return problem(422 if report.is_file_wrong else 409, "reload-refused", report.detail, **members)
        return _json(200, report.document)

    async def _purge(self, request: web.Request) -> web.Response:
        operation_id = _operation_id(request)
        _, audit = await _asked(Asked, request)
        outcome = await self._operations.purge(operation_id, audit)
        return _done("purge", operation_id, audit, _noted(request, outcome))

    async def _erase(self, request: web.Request) -> web.Response:
        operation_id = _operation_id(request)
        asked, audit = await _asked(EraseAsked, request)
        outcome = await self._operations.erase(operation_id, audit, is_sure=asked.yes)
        return _done("erase", operation_id, audit, _noted(request, outcome))


# -- requests ---------------------------------------------------------------------------------------------------------


def _operation_id(request: web.Request) -> UUID:
    try:
        return UUID(request.match_info["id"])
    except ValueError:
        raise Malformed("expected the id of an operation") from None


def _noted(request: web.Request, outcome: Changed | Refused) -> Changed | Refused:
    """The outcome, whose record the event about the request is to name."""
    if outcome.snapshot.record is not None:
        request[_RECORD] = outcome.snapshot.record
    return outcome


def _query(request: web.Request) -> dict[str, Any]:
    return {name: request.query.getall(name) for name in request.query}


async def _asked(model: type[A], request: web.Request) -> tuple[A, Audit]:
    """The body of the request as a model, and who acts, by the token, and why.

    Raises `Malformed`, and `web.HTTPException` if the body is not read.
    """
    is_plain = request.headers.get("Content-Encoding", "identity") == "identity"
    if request.content_type != "application/json" or not is_plain:
        raise web.HTTPUnsupportedMediaType
    asked = parsed(model, json_object(await request.read()))
    return asked, asked.audit_as(request[REQUESTER].person)


# -- responses --------------------------------------------------------------------------------------------------------


def _json(status: int, document: Mapping[str, Any]) -> web.Response:
    return terse(status, orjson.dumps(document) + b"\n", "application/json")


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> web.Response:
    """A problem document, as those for callers are (RFC 9457). What may pass by itself may be sent again."""
    retryable = status in _PASSING
    after = {"Retry-After": "5"} if retryable else {}
    title = HTTPStatus(status).phrase
    body = problem_body(TYPE_PREFIX, code, title, status, detail, retryable, members) + b"\n"
    return terse(status, body, PROBLEM_TYPE.decode(), {**after, **(headers or {})})


def _fault_of_status(status: int, headers: Mapping[str, str]) -> Fault:
    """The fault for what aiohttp refuses: a path, a method, a body, or invalid HTTP."""
    match status:
        case 404:
            return Fault(404, "no-such-path", "There is nothing here; see /operations.")
        case 405:
            return Fault(405, "method", f"Only {headers['Allow']} is allowed here.", headers)
        case 413:
            return Fault(413, "too-large", "The body is longer than any that can be recorded.")
        case 415:
            return Fault(415, "unsupported", "Send application/json, without a content coding.")
        case _:
            return Fault(status, "failed" if status >= 500 else "malformed", "This request cannot be served.")


def _refuse(status: int, headers: Mapping[str, str]) -> web.Response:
    """The problem for what never comes to the application."""
    fault = _fault_of_status(status, headers)
    return problem(fault.status, fault.code, fault.detail, fault.headers)


def _memory_of(state: MemoryState) -> web.Response:
    return _json(200, {"is_lost": state.is_lost, "detail": state.text})


def _counts(bulk: Requeueing) -> dict[str, int]:
    return {"requeued": bulk.requeued, "skipped": bulk.skipped, "left": bulk.left}


def _changed(verb: str, audit: Audit, text: str) -> web.Response:
    _LOG.info("the admin API did a %s, by %s: %s: %s", verb, audit.who, audit.why, text)
    return _json(200, {"detail": text})


def _done(verb: str, operation_id: UUID, audit: Audit, outcome: Changed | Refused) -> web.Response:
    operation = {"operation_id": str(operation_id), **described(outcome.snapshot, has_body=True)}
    if isinstance(outcome, Refused):
        status = 404 if outcome.reason is Refusal.UNKNOWN else 409
        return problem(status, outcome.reason, outcome.text + _OVERRULE.get(outcome.reason, ""), operation=operation)
    _LOG.info("the admin API did a %s of operation %s, by %s: %s", verb, operation_id, audit.who, audit.why)
    about = {"detail": outcome.text, "notes": outcome.notes, "purges_pending": outcome.purges_pending}
    return _json(200, {**about, "operation": operation})
