"""The baseline: the proxy that anyone would write, without any idempotency."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import aiohttp
import uvloop
from aiohttp import web
from aiohttp.typedefs import Middleware

_FRAMING = ("content-length", "transfer-encoding", "connection", "host")


async def serve(port: str, upstream_port: str, middlewares: Iterable[Middleware] = ()) -> None:
    upstream = f"http://127.0.0.1:{upstream_port}"
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _FRAMING}
        async with session.request(request.method, upstream + request.path_qs, data=body, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _FRAMING}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    app = web.Application(client_max_size=1 << 30, middlewares=middlewares)
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(port), backlog=4096).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
