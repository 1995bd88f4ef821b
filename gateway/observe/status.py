"""The status port: liveness, readiness and metrics, for probes and scrapers. It allows GET and HEAD, and few scrapes at
once.

The gateway is ready while it serves, with or without its stores: unprotected traffic must not fail with a store, and
protected requests get a reply that says what to do. To route by the state of the store, use `/readyz?require=store`.
At its start it is not ready while it waits to be known to the standbys of its store: that ends by itself, and until
then it refuses every new key.

Several workers have one status port, their supervisor's. They are ready while one of them serves, because it accepts
the connections of those that do not; they are live while none of them is silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import orjson
from aiohttp import web

from gateway.observe.facts import Fact, GrantsChanged, MemoryChanged, TierChanged
from gateway.observe.metrics import Exposition

# -- side_port ---------------------------------------------------------------------------------------------------------
# A port beside the traffic, for operators and their programs: bounded, and silent about the software behind it.
#
# Owns the listener and its limits: few connections, short lines, few headers, no decompression of bodies. The
# application is the caller's.

_LOG = logging.getLogger("gateway")

# More than any operator needs. Each takes a descriptor from the traffic.
_CONNECTIONS_MAX: Final = 256
_HEADERS_MAX: Final = 64
_IDLE_SECONDS: Final = 75.0

Refuse = Callable[[int, Mapping[str, str]], web.Response]
"""Makes the response to a request that aiohttp refuses, from the status and the headers that belong to it."""


class _TerseResponse(web.Response):
    """A response without the `Server` header, which aiohttp adds last."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


def terse(status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response that is not cached, and whose content type is not guessed."""
    fixed = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return _TerseResponse(status=status, body=body, headers={**fixed, **(headers or {})})


class SidePort:
    """Serves `app` from `start` to `stop`. `name` is for the log; each response gets the `headers` that it lacks."""

    def __init__(
        self,
        name: str,
        app: web.Application,
        refuse: Refuse,
        *,
        line_bytes_max: int,
        stop_seconds: float,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._name, self._headers, self._refuse, self._line_bytes_max = name, headers, refuse, line_bytes_max
        self._runner = web.AppRunner(app, shutdown_timeout=stop_seconds)
        self.listener: _Listener | None = None
        self._before: SidePort | None = None

    async def start(self, host: str, port: int, before: SidePort | None = None) -> int:
        """Listen, and return the port, which the system chooses for 0. Where the one `before` listens there, this is to
        `take_over`. Raises OSError."""
        await self._runner.setup()
        if before is not None and before.listener is not None and before.listener.address == (host, port):
            self._before = before
            return before.listener.port
        listener = self.listener = _Listener(self, (host, port))
        loop = asyncio.get_running_loop()
        try:
            listener.server = await loop.create_server(listener.connected, host, port)
        except BaseException:
            await self.stop()
            raise
        listener.port = listener.server.sockets[0].getsockname()[1]
        return listener.port

    def take_over(self) -> None:
        """Take the connections to come in the place of the one before."""
        if self._before is not None and (listener := self._before.listener) is not None:
            self.listener, self._before.listener = listener, None
            listener.owner = self
        self._before = None

    async def stop(self) -> None:
        """Close the listener; requests under way get a bounded time. Harmless when it does not listen."""
        listener, self.listener = self.listener, None
        if listener is not None and listener.server is not None:
            listener.server.close()
        await self._runner.cleanup()

    def connected(self) -> web.RequestHandler:
        """The protocol of a new connection. Closes the oldest one where there are too many."""
        server = self._runner.server
        if server is None:
            raise RuntimeError("the port does not listen")
        # Not the new one: it may be a probe, and the others may be an attempt to lock it out.
        connections = [each for each in server.connections if each.transport is not None]
        if len(connections) >= _CONNECTIONS_MAX:
            connections[0].force_close()
        return _Connection(
            server,
            self._name,
            self._refuse,
            self._headers,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            max_line_size=self._line_bytes_max,
            max_field_size=self._line_bytes_max,
            max_headers=_HEADERS_MAX,
            lingering_time=0.0,
            # A small body could decompress into a large one.
            auto_decompress=False,
        )


@dataclass(eq=False, slots=True)
class _Listener:
    """Gives each connection to its owner at that moment."""

    owner: SidePort
    address: tuple[str, int]
    port: int = 0
    server: asyncio.Server | None = None

    def connected(self) -> web.RequestHandler:
        return self.owner.connected()


class _Connection(web.RequestHandler):
    """Gives aiohttp's refusals the form of the port's other responses, and logs them at debug level only."""

    __slots__ = ("_fixed_headers", "_name", "_refuse")

    def __init__(
        self, server: web.Server, name: str, refuse: Refuse, headers: Mapping[str, str], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._fixed_headers, self._name, self._refuse = headers, name, refuse

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        level = logging.ERROR if status >= 500 else logging.DEBUG
        _LOG.log(level, "the %s port responded %d", self._name, status, exc_info=exc if status >= 500 else None)
        response = self._refuse(status, {})
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):
            resp = self._refuse(resp.status, {"Allow": resp.headers["Allow"]} if "Allow" in resp.headers else {})
        for name, value in self._fixed_headers.items():
            resp.headers.setdefault(name, value)
        return await super().finish_response(request, resp, start_time)


# -- status ------------------------------------------------------------------------------------------------------------

LIVE_PATH: Final = "/livez"
READY_PATH: Final = "/readyz"
METRICS_PATH: Final = "/metrics"

_SCRAPES_MAX: Final = 4


@dataclass(slots=True)
class Health:
    """What readiness depends on. `fast_up` is None without a fast tier; events set the stores' parts. `is_joining`: it
    has yet to be known to the standbys of the durable store, and was not ready before; `why_no_grants` is why it grants
    no key now. `why` has the cause for each tier that is down, if it is known. `workers` has the state of each worker
    by its number; empty where there is one process. `configuration` says since when the file is refused; empty if it is
    not."""

    serving: bool = False
    draining: bool = False
    is_joining: bool = False
    durable_up: bool = False
    why_no_grants: str = ""
    fast_up: bool | None = None
    is_amnesic: bool = False
    is_live: bool = True
    why: dict[str, str] = field(default_factory=dict)
    workers: dict[int, str] = field(default_factory=dict)
    configuration: str = ""

    def wants(self, kind: type[Fact]) -> bool:
        return kind in (GrantsChanged, MemoryChanged, TierChanged)

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, MemoryChanged):
            self.is_amnesic = fact.is_lost
        elif isinstance(fact, GrantsChanged):
            self.why_no_grants = fact.why
            self._join(fact.is_brief)
        elif isinstance(fact, TierChanged):
            if fact.tier == "durable":
                self.durable_up = fact.up
            else:
                self.fast_up = fact.up
            self.why.pop(fact.tier, None)
            if not fact.up and fact.detail:
                self.why[fact.tier] = fact.detail

    def _join(self, is_joining: bool) -> None:
        """Who was ready stays so: other traffic must not fail when the store comes back."""
        self.is_joining = is_joining and (self.is_joining or not self.serving)

    def take_over(self, healths: Sequence[Health], *, are_all: bool = True) -> None:
        """Merge the health of the workers that serve: a store is up if it is up for all of them. Unless they `are_all`,
        others may be joining."""
        self.durable_up = bool(healths) and all(health.durable_up for health in healths)
        if self.fast_up is not None:
            self.fast_up = bool(healths) and all(bool(health.fast_up) for health in healths)
        self.why_no_grants = next((health.why_no_grants for health in healths if health.why_no_grants), "")
        self._join(not are_all or any(health.is_joining for health in healths))
        self.is_amnesic = any(health.is_amnesic for health in healths)
        self.why = {tier: why for health in healths for tier, why in health.why.items()}

    def is_ready(self, *, requires_store: bool) -> bool:
        is_ready = self.serving and not self.is_joining and not self.draining
        return is_ready and (self._durable_serves or not requires_store)

    @property
    def _durable_serves(self) -> bool:
        return self.durable_up and not self.why_no_grants

    @property
    def stores_up(self) -> dict[str, bool]:
        """Whether each of the stores serves: for who sends new keys, one that grants none is as good as down."""
        return {"durable": self._durable_serves} | ({} if self.fast_up is None else {"fast": self.fast_up})

    def parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = {
            "listener": _up(self.serving),
            "durable": _up(self._durable_serves),
            "fast": "absent" if self.fast_up is None else _up(self.fast_up),
            "draining": self.draining,
            "memory": "lost" if self.is_amnesic else "whole",
        }
        no_grants = {"durable": self.why_no_grants} if self.why_no_grants else {}
        if why := no_grants | self.why:
            parts["why"] = dict(sorted(why.items()))
        if self.configuration:
            parts["configuration"] = self.configuration
        if self.workers:
            parts["workers"] = {str(number): state for number, state in sorted(self.workers.items())}
        return parts


def _up(is_up: bool) -> str:
    return "up" if is_up else "down"


class StatusServer:
    """What its `port` serves. `render` writes the metrics in the format that an `Accept` header asks for. `update`
    brings `health` up to date, in a bounded time; without it, `health` always is."""

    def __init__(
        self,
        health: Health,
        render: Callable[[str], Awaitable[Exposition]],
        update: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._health, self._render, self._update = health, render, update
        self._scrapes = 0
        app = web.Application()
        app.add_routes(
            [web.get(LIVE_PATH, self._live), web.get(READY_PATH, self._ready), web.get(METRICS_PATH, self._metrics)]
        )
        self.port = SidePort("status", app, _refuse, line_bytes_max=2048, stop_seconds=2.0)

    async def _live(self, request: web.Request) -> web.Response:
        return _text(200, "live\n") if self._health.is_live else _text(503, "A worker does not respond.\n")

    async def _ready(self, request: web.Request) -> web.Response:
        required = set(request.query.getall("require", ()))
        if required - {"store"}:
            return _text(400, "Only `store` can be required.\n")
        if self._update is not None:
            await self._update()
        is_ready = self._health.is_ready(requires_store=bool(required))
        body = {"status": "ready" if is_ready else "not ready", "parts": self._health.parts()}
        return terse(200 if is_ready else 503, orjson.dumps(body) + b"\n", "application/json")

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._scrapes >= _SCRAPES_MAX:
            return _text(503, "Too many scrapes at once.\n")
        self._scrapes += 1
        try:
            body, content_type = await self._render(request.headers.get("Accept", ""))
        finally:
            self._scrapes -= 1
        return terse(200, body, content_type)


_REFUSALS: Final = {404: "There is nothing here.\n", 405: "This port is read-only.\n"}


def _refuse(status: int, headers: Mapping[str, str]) -> web.Response:
    return _text(status, _REFUSALS.get(status, "This request cannot be served.\n"), headers)


def _text(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return terse(status, text.encode(), "text/plain; charset=utf-8", headers)
