"""The floor: what the steps that no such proxy can do without cost, over the libraries that the gateway uses.

`python -m tests.benchmarks.floor PORT UPSTREAM_PORT sqlite:FILE|POSTGRES_URL [REDIS_HOST REDIS_PORT]`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections import OrderedDict
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

import uvloop
from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from httptools import HttpResponseParser

from tests.benchmarks.floor_store import LEASE_SECONDS, Copies, Operation, PostgresStore, SqliteStore
from tests.benchmarks.subject import PROTECTED

_MARGIN_SECONDS: Final = 5.0
_COPIES_MAX: Final = 50_000
_TARGET: Final = re.compile(rb"/[!-~\x80-\xff]*")
_KEY: Final = re.compile(rb'"?([\x21\x23-\x7e]{1,255})"?')
_ONCE: Final = frozenset((b"host", b"content-length", b"content-type", b"idempotency-key", b"x-tenant"))
_DROPPED: Final = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade content-length expect date"
    b" proxy-authorization proxy-authenticate forwarded x-forwarded-for x-forwarded-proto x-forwarded-host"
    b" idempotency-operation idempotency-fencing-token idempotency-attempt idempotency-status".split()
)

_lower = lru_cache(512)(bytes.lower)


@lru_cache(512)
def _is_forwarded(name: bytes) -> bool:
    return name.lower() not in _DROPPED


@lru_cache(1)
def _date_line(second: int) -> bytes:
    return time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT\r\n", time.gmtime(second)).encode()


class _Copy(NamedTuple):
    """A recorded response. `head` lacks its last fields and its end."""

    fingerprint: bytes
    head: bytes
    body: bytes


class _Upstream(asyncio.Protocol):
    """A connection to the service, for one request at a time."""

    def __init__(self, idle: list[_Upstream]) -> None:
        self._idle = idle
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = HttpResponseParser(self)

    async def exchange(self, request: bytes) -> None:
        """Send it; then `status`, `head` and `body` are those of the response."""
        self._reason = self.body = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._waiter

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if _is_forwarded(name):
            self._fields.append((name, value.rstrip(b" \t")))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self._waiter is not None:
            self.status = self._parser.get_status_code()
            fields = b"".join([b"%b: %b\r\n" % field for field in self._fields])
            self.head = b"HTTP/1.1 %d %b\r\n%b" % (self.status, self._reason, fields)
            self._waiter.set_result(None)
            self._waiter = None
            if self._parser.should_keep_alive():
                self._idle.append(self)
                return
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        # What comes unasked, or is no response, raises. Then uvloop ends the connection.
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self._waiter is not None:
            self._waiter.set_exception(ConnectionError("no whole response"))


class Floor:
    """What all connections share."""

    def __init__(self, upstream_port: int, store: SqliteStore | PostgresStore, shared: Copies | None) -> None:
        self._upstream_port = upstream_port
        self._store = store
        self._shared = shared
        self._idle: list[_Upstream] = []
        self._copies: OrderedDict[bytes, _Copy] = OrderedDict()
        self._in_flight: dict[bytes, asyncio.Future[None]] = {}

    async def respond(self, client: asyncio.Transport, message: RawRequestMessage, payload: StreamReader) -> bytes:
        """The reply to one request; a refusal ends the connection."""
        fields: dict[bytes, bytes] = {}
        for name, value in message.raw_headers:
            lower = _lower(name)
            if lower not in fields:
                fields[lower] = value
            elif lower in _ONCE:
                return _refused(b"400 Bad Request")
            else:
                fields[lower] += b", " + value
        target = message.path.encode("utf-8", "surrogateescape")
        has_two_lengths = b"transfer-encoding" in fields and b"content-length" in fields
        if not _TARGET.fullmatch(target) or b"host" not in fields or has_two_lengths or message.upgrade:
            return _refused(b"400 Bad Request")
        body = payload.read_nowait() if payload.is_eof() else await payload.read()
        peer = client.get_extra_info("peername")[0].encode()
        lines = [b"%b %b HTTP/1.1\r\nX-Forwarded-For: %b\r\n" % (message.method.encode(), target, peer)]
        lines += [b"%b: %b\r\n" % field for field in _without_named(message, fields) if _is_forwarded(field[0])]
        head = b"%bX-Forwarded-Host: %b\r\nVia: 1.1 floor\r\n" % (b"".join(lines), fields[b"host"])
        if target != PROTECTED or message.method != "POST":
            upstream = await self._sent(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
            return _reply(upstream.head, upstream.body, b"")

        key, scope = _KEY.fullmatch(fields.get(b"idempotency-key", b"")), fields.get(b"x-tenant")
        if key is None or not scope:
            return _refused(b"400 Bad Request")
        key_digest, scope_digest = sha256(b"key\0" + key[1]).digest(), sha256(b"scope\0" + scope).digest()
        operation_id = sha256(b"POST /charges\0" + scope_digest + key_digest).digest()[:16]
        fingerprint = sha256(b"%b\0%b" % (fields.get(b"content-type", b""), body)).digest()
        copy, verdict = await self._copy_of(operation_id), b"replayed"
        if copy is None:
            operation = Operation(operation_id, scope_digest, key_digest, fingerprint, os.urandom(16))
            copy, verdict = await self._executed(operation, head, body), b"stored"
        if copy is None:
            return _refused(b"503 Service Unavailable")
        if copy.fingerprint != fingerprint:
            return _refused(b"422 Unprocessable Content")
        return _reply(copy.head, copy.body, b"Idempotency-Status: %b\r\n" % verdict)

    async def _copy_of(self, operation_id: bytes) -> _Copy | None:
        """Of this process, of the request that is under way, or of Redis."""
        while (running := self._in_flight.get(operation_id)) is not None:
            await asyncio.shield(running)
        copy = self._copies.get(operation_id)
        if copy is not None:
            self._copies.move_to_end(operation_id)
        elif self._shared is not None and (found := await self._shared.find(operation_id)) is not None:
            end = 40 + int(found[32:40])
            copy = self._remembered(operation_id, _Copy(found[:32], found[40:end], found[end:]))
        return copy

    def _remembered(self, operation_id: bytes, copy: _Copy) -> _Copy:
        self._copies[operation_id] = copy
        if len(self._copies) > _COPIES_MAX:
            self._copies.popitem(last=False)
        return copy

    async def _executed(self, operation: Operation, head: bytes, body: bytes) -> _Copy | None:
        """Claim, send, record; None where there is no response that may be given."""
        done = self._in_flight[operation.id] = asyncio.get_running_loop().create_future()
        try:
            lease_until = time.monotonic() + LEASE_SECONDS - _MARGIN_SECONDS
            if not await self._store.write(operation) or time.monotonic() > lease_until:
                return None
            upstream = await self._sent(
                b"%bIdempotency-Operation: %b\r\nIdempotency-Fencing-Token: %d\r\nContent-Length: %d\r\n\r\n%b"
                % (head, operation.id.hex().encode(), operation.token, len(body), body)
            )
            operation.status, operation.head, operation.body = upstream.status, upstream.head, upstream.body
            if not await self._store.write(operation):
                return None
            if self._shared is not None:
                # The caller's response is written in this turn of the loop, and the copy at its end.
                size = b"%08d" % len(operation.head)
                self._shared.keep(operation.id, operation.fingerprint + size + operation.head + operation.body)
            return self._remembered(operation.id, _Copy(operation.fingerprint, operation.head, operation.body))
        finally:
            del self._in_flight[operation.id]
            done.set_result(None)

    async def _sent(self, request: bytes) -> _Upstream:
        if self._idle:
            upstream = self._idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, upstream = await loop.create_connection(lambda: _Upstream(self._idle), "127.0.0.1", self._upstream_port)
        await upstream.exchange(request)
        return upstream


def _without_named(message: RawRequestMessage, fields: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Without those that `Connection` names, which seldom names any."""
    if b"connection" not in fields:
        return message.raw_headers
    named = {option.strip() for option in fields[b"connection"].lower().split(b",")}
    return tuple(field for field in message.raw_headers if field[0].lower() not in named)


def _reply(head: bytes, body: bytes, verdict: bytes) -> bytes:
    return b"%b%b%bContent-Length: %d\r\n\r\n%b" % (head, _date_line(int(time.time())), verdict, len(body), body)


def _refused(status: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status


class _Connection(web.RequestHandler):
    """aiohttp's, with a loop over its requests that makes no task, writer or URL for each of them."""

    __slots__ = ("_floor",)

    def __init__(self, server: web.Server, floor: Floor) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=0.0,
            access_log=cast(Any, None),
            auto_decompress=False,
        )
        self._floor = floor

    async def start(self) -> None:
        while True:
            if not self._messages:
                self._waiter = self._loop.create_future()
                await self._waiter
            message, payload = self._messages.popleft()
            if self._parser is not None:
                self._parser.message_consumed()
            client = self.transport
            if client is None or not isinstance(message, RawRequestMessage):
                return self.force_close()
            reply = await self._floor.respond(client, message, payload)
            if client.is_closing():
                return None
            client.write(reply)
            if b"\r\nConnection: close\r\n" in reply[:64]:
                return client.close()


async def main(port: str, upstream_port: str, durable: str, *redis: str) -> None:
    """Serve until killed, or until the store fails."""
    kind, _, path = durable.partition(":")
    store = SqliteStore(path) if kind == "sqlite" else PostgresStore(durable)
    floor = Floor(int(upstream_port), store, await Copies.connected(redis[0], int(redis[1])) if redis else None)
    server = web.Server(cast(Any, None))
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: _Connection(server, floor), "127.0.0.1", int(port), backlog=4096)
    await store.work()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
