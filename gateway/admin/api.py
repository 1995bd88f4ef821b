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
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.admin.delivery import NoSuchRoute, pause_document
from gateway.admin.inspection import full_json
from gateway.admin.journal import listed as journal_listed
from gateway.admin.memory import MemoryState
from gateway.admin.observed import NoSuchObservedRoute
from gateway.admin.operations import Operations
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
from gateway.admin.resolution import Changed, Refusal, Refused
from gateway.admin.sinks import NoSuchSink, event_document
from gateway.admin.view import described
from gateway.observe.facts import AdminActed, AdminResult, Events
from gateway.observe.side_port import SidePort, terse
from gateway.store.base import Amnesic, Indefinite, NotApplied, StartRefused, Unreadable, Unstorable, boot_seconds

_LOG = logging.getLogger("gateway")

TYPE_PREFIX: Final = "urn:idempotency-gateway:admin:"
# How to overrule a refusal, by its reason.
_OVERRULE: Final[Mapping[Refusal, str]] = {
    Refusal.EARLY: ' To overrule this, add "force": true.',
    Refusal.ANSWER: ' To overrule this, add "force": true.',
    Refusal.UNSURE: ' To confirm it, add "yes": true.',
}

_REQUESTS_MAX: Final = 16
# Longer than the patience of one action.
_RESPONSE_SECONDS: Final = 60.0
# Of a bulk requeue; with the patience of its last operation it ends before the response is due.
_BULK_SECONDS: Final = 30.0
# What a body may have besides a response.
_FRAME_BYTES_MAX: Final = 1024 * 1024

FAILURES_MAX: Final = 10
WINDOW_SECONDS: Final = 60.0
_ADDRESSES_MAX: Final = 1_000

A = TypeVar("A", bound=Asked)


class Reloaded(Protocol):
    """The report of a reload: `applied`, `unchanged` or `refused`."""

    @property
    def result(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def is_file_wrong(self) -> bool: ...
    @property
    def document(self) -> dict[str, Any]: ...


class AdminApi:
    """Listens from `start` to `stop`. `response_bytes_max`: the longest response that a route keeps."""

    def __init__(
        self,
        operations: Operations,
        token: str,
        events: Events,
        *,
        response_bytes_max: int,
        reload: Callable[[], Awaitable[Reloaded]] | None = None,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._operations = operations
        self._facts = events
        self._token_digest = sha256(token.encode()).digest()
        self._reload = reload
        self._throttle = Throttle(clock)
        self._under_way = 0
        app = web.Application(
            middlewares=[self._bounded, self._counted, _failures, self._authenticated],
            client_max_size=response_bytes_max * 4 // 3 + _FRAME_BYTES_MAX,
        )
        app.add_routes(
            [
                web.get("/operations", self._list, allow_head=False),
                web.get("/operations/{id}", self._inspect, allow_head=False),
                web.post("/operations/{id}/resolve", self._resolve),
                web.post("/operations/{id}/requeue", self._requeue),
                web.post("/operations/{id}/withdraw", self._withdraw),
                web.post("/requeue", self._requeue_many),
                web.get("/paused", self._paused, allow_head=False),
                web.post("/pause", self._pause),
                web.post("/resume", self._resume),
                web.get("/sinks", self._sinks, allow_head=False),
                web.post("/sinks/{name}/suspend", self._suspend_sink),
                web.post("/sinks/{name}/resume", self._resume_sink),
                web.get("/events", self._events, allow_head=False),
                web.post("/events/{id}/redeliver", self._redeliver),
                web.post("/operations/{id}/purge", self._purge),
                web.post("/operations/{id}/erase", self._erase),
                web.get("/observed", self._observed, allow_head=False),
                web.get("/memory", self._memory, allow_head=False),
                web.post("/memory/accept-loss", self._accept_loss),
                web.get("/journal", self._journal, allow_head=False),
                web.post("/config/reload", self._reload_config),
            ]
        )
        self._port = SidePort("admin", app, _refuse, line_bytes_max=8 * 1024, stop_seconds=5.0)

    def adopt(self, operations: Operations, token: str) -> None:
        """Serve the requests to come with these. The limit of a body stays as it was at the start."""
        self._operations, self._token_digest = operations, sha256(token.encode()).digest()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0. Raises OSError."""
        return await self._port.start(host, port)

    async def stop(self) -> None:
        """Close the listener; requests under way get a bounded time."""
        await self._port.stop()

    # -- access -------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _bounded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Bounds the number of requests at once, and the time of each."""
        if self._under_way >= _REQUESTS_MAX:
            return problem(503, "busy", "Too many requests at once.", {"Retry-After": "1"})
        self._under_way += 1
        try:
            async with asyncio.timeout(_RESPONSE_SECONDS):
                return await handler(request)
        except TimeoutError:
            return _unavailable("It took too long, and may have been done. Repeat the request to find out.")
        finally:
            self._under_way -= 1

    @web.middleware
    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Publishes what became of a change that somebody with the token asked for."""
        response = await handler(request)
        resource = request.match_info.route.resource
        if request.method == "POST" and resource is not None and response.status not in (401, 429):
            parts = [part for part in resource.canonical.split("/") if part and not part.startswith("{")]
            failed = AdminResult.FAILED if response.status >= 500 else AdminResult.REFUSED
            result = AdminResult.DONE if response.status < 400 else failed
            self._facts.publish(AdminActed("_".join(parts).replace("-", "_"), result))
        return response

    @web.middleware
    async def _authenticated(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Requires the token. Without it, a client does not even learn whether a path exists."""
        values = request.headers.getall("Authorization", [])
        if not values:
            # Neither counted nor logged: any web page can make an operator's browser send such requests.
            return _unauthorized('Bearer realm="admin"')
        wait_seconds = self._throttle.wait_seconds(request.remote)
        if wait_seconds:
            after = {"Retry-After": str(math.ceil(wait_seconds))}
            return problem(429, "throttled", "The token was wrong too often; wait.", after)
        scheme, _, given = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        digest = sha256(given.strip(" ").encode("utf-8", "surrogateescape")).digest()
        if compare_digest(digest, self._token_digest) and scheme.lower() == "bearer":
            return await handler(request)
        failures = self._throttle.failed(request.remote)
        more = " too often: it is throttled now" if failures >= FAILURES_MAX else ""
        _LOG.warning("the admin port refused %s, whose token is wrong%s", request.remote, more)
        return _unauthorized('Bearer realm="admin", error="invalid_token"')

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
        asked = await _asked(Asked, request)
        return _memory_of(await self._operations.accept_loss(asked.audit))

    async def _resolve(self, request: web.Request) -> web.Response:
        operation_id, asked = _operation_id(request), await _asked(ResolveAsked, request)
        outcome = await self._operations.resolve(
            operation_id, asked.ruling, asked.audit, is_forced=asked.force, token=asked.token
        )
        return _done("resolve", operation_id, asked, outcome)

    async def _requeue(self, request: web.Request) -> web.Response:
        operation_id, asked = _operation_id(request), await _asked(DecideAsked, request)
        outcome = await self._operations.requeue(operation_id, asked.audit, token=asked.token)
        return _done("requeue", operation_id, asked, outcome)

    async def _withdraw(self, request: web.Request) -> web.Response:
        operation_id, asked = _operation_id(request), await _asked(DecideAsked, request)
        outcome = await self._operations.withdraw(operation_id, asked.audit, token=asked.token)
        return _done("withdraw", operation_id, asked, outcome)

    async def _requeue_many(self, request: web.Request) -> web.Response:
        asked = await _asked(RequeueAsked, request)
        bulk = await listed(self._operations, asked.wanted)
        try:
            async for _ in bulk.run(self._operations, asked.audit, seconds_max=_BULK_SECONDS):
                pass
        except (NotApplied, Indefinite) as error:
            return _unavailable(f"{bulk}. Stopped; repeat the request to go on: {error}", **_counts(bulk))
        finally:
            _LOG.info("the admin API requeued dead letters: %s, by %s: %s", bulk, asked.audit.who, asked.audit.why)
        return _json(200, {"detail": f"{bulk}.", **_counts(bulk)})

    async def _paused(self, request: web.Request) -> web.Response:
        paused = [each.document for each in await self._operations.paused()]
        audits = [pause_document(entry) for entry in await self._operations.pause_audits()]
        return _json(200, {"paused": paused, "audits": audits})

    async def _pause(self, request: web.Request) -> web.Response:
        asked = await _asked(PauseAsked, request)
        return _changed("pause", asked, await self._operations.pause(asked.route, asked.audit))

    async def _resume(self, request: web.Request) -> web.Response:
        asked = await _asked(PauseAsked, request)
        return _changed("resume", asked, await self._operations.resume(asked.route, asked.audit))

    async def _sinks(self, request: web.Request) -> web.Response:
        return _json(200, {"sinks": [each.document for each in await self._operations.sinks()]})

    async def _suspend_sink(self, request: web.Request) -> web.Response:
        asked = await _asked(Asked, request)
        text = await self._operations.suspend_sink(request.match_info["name"], asked.audit)
        return _changed("suspend", asked, text)

    async def _resume_sink(self, request: web.Request) -> web.Response:
        asked = await _asked(Asked, request)
        return _changed("resume", asked, await self._operations.resume_sink(request.match_info["name"]))

    async def _events(self, request: web.Request) -> web.Response:
        asked = parsed(EventsQuery, _query(request))
        page = await self._operations.events(
            asked.sink, is_dead=asked.state == "dead", after=asked.after, limit=asked.limit
        )
        after = page[-1].event_id if len(page) == asked.limit else None
        return _json(200, {"events": [event_document(event) for event in page], "next": after})

    async def _redeliver(self, request: web.Request) -> web.Response:
        asked = await _asked(RedeliverAsked, request)
        text, number = await self._operations.redeliver(request.match_info["id"], asked.sink)
        return _changed("redeliver", asked, text) if number else problem(409, "not-dead", text)

    async def _reload_config(self, request: web.Request) -> web.Response:
        if self._reload is None:
            return problem(409, "no-file", "This gateway was not started from a file.")
        report = await self._reload()
        if report.result == "refused":
            members = {name: value for name, value in report.document.items() if name != "detail"}
            return problem(422 if report.is_file_wrong else 409, "reload-refused", report.detail, **members)
        return _json(200, report.document)

    async def _purge(self, request: web.Request) -> web.Response:
        operation_id, asked = _operation_id(request), await _asked(Asked, request)
        return _done("purge", operation_id, asked, await self._operations.purge(operation_id, asked.audit))

    async def _erase(self, request: web.Request) -> web.Response:
        operation_id, asked = _operation_id(request), await _asked(EraseAsked, request)
        outcome = await self._operations.erase(operation_id, asked.audit, is_sure=asked.yes)
        return _done("erase", operation_id, asked, outcome)


# -- requests ---------------------------------------------------------------------------------------------------------


def _operation_id(request: web.Request) -> UUID:
    try:
        return UUID(request.match_info["id"])
    except ValueError:
        raise Malformed("expected the id of an operation") from None


def _query(request: web.Request) -> dict[str, Any]:
    return {name: request.query.getall(name) for name in request.query}


async def _asked(model: type[A], request: web.Request) -> A:
    """The body of the request as a model. Raises `Malformed`, and `web.HTTPException` if the body is not read."""
    is_plain = request.headers.get("Content-Encoding", "identity") == "identity"
    if request.content_type != "application/json" or not is_plain:
        raise web.HTTPUnsupportedMediaType
    return parsed(model, json_object(await request.read()))


# -- responses --------------------------------------------------------------------------------------------------------


def _json(status: int, document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    media_type = "application/json" if status < 400 else "application/problem+json"
    return terse(status, orjson.dumps(document) + b"\n", media_type, headers)


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> web.Response:
    """A problem document (RFC 9457)."""
    title = HTTPStatus(status).phrase
    about = {"type": TYPE_PREFIX + code, "title": title, "status": status, "detail": detail, "code": code}
    return _json(status, {**about, **members}, headers)


def _refuse(status: int, headers: Mapping[str, str]) -> web.Response:
    """The problem for what aiohttp refuses: a path, a method, a body, or invalid HTTP."""
    match status:
        case 404:
            return problem(404, "no-such-path", "There is nothing here; see /operations.")
        case 405:
            return problem(405, "method", f"Only {headers['Allow']} is allowed here.", headers)
        case 413:
            response = problem(413, "too-large", "The body is longer than any that can be recorded.")
            # The rest of the body is not read.
            response.force_close()
            return response
        case 415:
            return problem(415, "unsupported", "Send application/json, without a content coding.")
        case _:
            return problem(status, "failed" if status >= 500 else "malformed", "This request cannot be served.")


@web.middleware
async def _failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns errors of the request and of the store into problems."""
    try:
        return await handler(request)
    except Malformed as error:
        return problem(400, "malformed", str(error))
    except NoSuchRoute as error:
        return problem(404, "no-such-route", f"Nothing was changed: {error}.")
    except NoSuchSink as error:
        return problem(404, "no-such-sink", f"Nothing was changed: {error}.")
    except Unstorable as error:
        return problem(422, "rejected", f"The store cannot keep this; nothing was changed: {error}")
    except NotApplied as error:
        what = "nothing could be read" if request.method == "GET" else "nothing was changed"
        return _unavailable(f"The store cannot be reached; {what}: {error}")
    except Amnesic as error:
        return problem(503, "store-amnesia", f"Nothing was changed: {error}. See /memory.")
    except Unreadable as error:
        return _unavailable(f"The record cannot be shown; nothing was changed: {error}")
    except Indefinite as error:
        return _unavailable(f"It is not known whether this was done: {error}")
    except StartRefused as error:
        return _unavailable(f"Nothing was changed: {error}.")


def _unavailable(detail: str, **members: Any) -> web.Response:
    return problem(503, "store-unavailable", detail, {"Retry-After": "5"}, **members)


def _unauthorized(challenge: str) -> web.Response:
    response = problem(
        401, "unauthorized", "Send the admin token as Authorization: Bearer TOKEN.", {"WWW-Authenticate": challenge}
    )
    # Further requests on this connection are not read.
    response.force_close()
    return response


def _memory_of(state: MemoryState) -> web.Response:
    return _json(200, {"is_lost": state.is_lost, "detail": state.text})


def _counts(bulk: Requeueing) -> dict[str, int]:
    return {"requeued": bulk.requeued, "skipped": bulk.skipped, "left": bulk.left}


def _changed(verb: str, asked: Asked, text: str) -> web.Response:
    _LOG.info("the admin API did a %s, by %s: %s: %s", verb, asked.audit.who, asked.audit.why, text)
    return _json(200, {"detail": text})


def _done(verb: str, operation_id: UUID, asked: Asked, outcome: Changed | Refused) -> web.Response:
    operation = {"operation_id": str(operation_id), **described(outcome.snapshot, has_body=True)}
    if isinstance(outcome, Refused):
        status = 404 if outcome.reason is Refusal.UNKNOWN else 409
        return problem(status, outcome.reason, outcome.text + _OVERRULE.get(outcome.reason, ""), operation=operation)
    audit = asked.audit
    _LOG.info("the admin API did a %s of operation %s, by %s: %s", verb, operation_id, audit.who, audit.why)
    about = {"detail": outcome.text, "notes": outcome.notes, "purges_pending": outcome.purges_pending}
    return _json(200, {**about, "operation": operation})


# -- the token --------------------------------------------------------------------------------------------------------


class Throttle:
    """Limits how often an address may send a wrong token. `clock` gives seconds that never go back.

    Failures are counted by address, in windows that begin with the first one. An address with too many is refused
    before its token is compared, so that guessing is slow and the log stays short. For IPv6 the /64 network counts,
    because one host has all of it. The table is bounded: the address whose last failure is the oldest is dropped first.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_seconds(self, address: str | None) -> float:
        """How long this address has to wait before its token is compared; 0 when it need not."""
        until, failures = self._windows.get(_place(address), (0.0, 0))
        return max(0.0, until - self._clock()) if failures >= FAILURES_MAX else 0.0

    def failed(self, address: str | None) -> int:
        """Count a failure; returns how many there were in this window."""
        place, now = _place(address), self._clock()
        until, failures = self._windows.pop(place, (0.0, 0))
        if until <= now:
            until, failures = now + WINDOW_SECONDS, 0
        self._windows[place] = (until, failures + 1)
        while len(self._windows) > _ADDRESSES_MAX:
            self._windows.popitem(last=False)
        return failures + 1


def _place(address: str | None) -> str:
    try:
        parsed_address = ip_address((address or "").partition("%")[0])
    except ValueError:
        return ""
    if isinstance(parsed_address, IPv6Address):
        return str(parsed_address.ipv4_mapped or ip_network((parsed_address, 64), strict=False))
    return str(parsed_address)
