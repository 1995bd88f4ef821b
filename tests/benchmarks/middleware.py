"""The baseline: the proxy that anyone would write, without any idempotency. With a URL it has a middleware that one
would write: a table of keys in Redis, or in Postgres.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import aiohttp
import asyncpg
import uvloop
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from redis.asyncio import Redis

_FRAMING: Final = ("content-length", "transfer-encoding", "connection", "host")
_DAY_SECONDS: Final = 24 * 3600
Entry = dict[str, Any]


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


class _RedisKeys:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def claim(self, key: str, entry: Entry) -> Entry | None:
        if await self._redis.set(key, json.dumps(entry), nx=True, ex=_DAY_SECONDS):
            return None
        held: Entry = json.loads(await self._redis.get(key) or "{}")
        return held

    async def keep(self, key: str, entry: Entry) -> None:
        await self._redis.set(key, json.dumps(entry), ex=_DAY_SECONDS)


class _PostgresKeys:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def claim(self, key: str, entry: Entry) -> Entry | None:
        inserted = "INSERT INTO keys (key, entry) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING key"
        if await self._pool.fetchval(inserted, key, json.dumps(entry)):
            return None
        held: Entry = json.loads(await self._pool.fetchval("SELECT entry FROM keys WHERE key = $1", key) or "{}")
        return held

    async def keep(self, key: str, entry: Entry) -> None:
        await self._pool.execute("UPDATE keys SET entry = $2 WHERE key = $1", key, json.dumps(entry))


async def main(port: str, upstream_port: str, url: str) -> None:
    keys: _RedisKeys | _PostgresKeys
    if url.startswith("redis:"):
        keys = _RedisKeys(Redis.from_url(url))
    else:
        pool = await asyncpg.create_pool(url)
        await pool.execute("CREATE TABLE keys (key text PRIMARY KEY, entry jsonb, made timestamptz DEFAULT now())")
        keys = _PostgresKeys(pool)

    @web.middleware
    async def idempotent(request: web.Request, handler: Handler) -> web.StreamResponse:
        key = f"{request.headers['X-Tenant']}:{request.path}:{request.headers['Idempotency-Key']}"
        digest = sha256(await request.read()).hexdigest()
        held = await keys.claim(key, {"digest": digest})
        if held is not None and held.get("digest") != digest:
            raise web.HTTPUnprocessableEntity
        if held is not None and "status" not in held:
            raise web.HTTPConflict
        if held is not None:
            headers = {**held["headers"], "Idempotency-Status": "replayed"}
            return web.Response(status=held["status"], text=held["body"], headers=headers)
        response = await handler(request)
        assert isinstance(response, web.Response)
        entry = {"status": response.status, "headers": dict(response.headers), "body": response.text}
        await keys.keep(key, {"digest": digest, **entry})
        response.headers["Idempotency-Status"] = "stored"
        return response

    await serve(port, upstream_port, (idempotent,))


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]) if len(sys.argv) == 3 else main(*sys.argv[1:]))
