"""Looks for a text that was put into requests and responses, wherever a gateway may have left it."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from tests.support.postgres import session


class Sentinel:
    """A text of letters that nothing else contains: in upper or lower case, as hexadecimal digits, or as base64."""

    def __init__(self, text: str) -> None:
        self.text = text
        plain = text.lower().encode()
        spelt = text.encode()
        # In base64 what stands at the edges depends on the neighbours.
        inner = [b64encode(b"x" * shift + spelt)[4 : -4 if shift else None][:-4] for shift in range(3)]
        self._folded = [plain, plain.hex().encode(), spelt.hex().encode()]
        self._exact = [each for each in inner if len(each) >= 8]

    def is_in(self, data: bytes) -> bool:
        folded = data.lower()
        return any(each in folded for each in self._folded) or any(each in data for each in self._exact)

    async def found(self, directory: Path, postgres: str | None = None, redis: str | None = None) -> list[str]:
        places = await asyncio.to_thread(lambda: [str(path) for path, data in _files(directory) if self.is_in(data)])
        if postgres is not None:
            places += [name async for name, data in _rows(postgres) if self.is_in(data)]
        if redis is not None:
            places += [name async for name, data in _entries(redis) if self.is_in(data)]
        return places


def _files(directory: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path, str(path).encode() + path.read_bytes()


async def _rows(url: str) -> Any:
    async with session(url) as connection:
        tables = await connection.fetch(
            "SELECT oid::regclass::text FROM pg_class "
            "WHERE relnamespace = 'idempotency_gateway'::regnamespace AND relkind = 'r'"
        )
        assert tables
        for (table,) in tables:
            for (row,) in await connection.fetch(f"SELECT t::text FROM {table} t"):
                yield table, row.encode()


async def _entries(url: str) -> Any:
    client: Any
    async with Redis.from_url(url) as client:
        async for key in client.scan_iter(count=1000):
            kind = (await client.type(key)).decode()
            value = await {
                "string": client.get,
                "hash": client.hgetall,
                "list": lambda key: client.lrange(key, 0, -1),
                "set": client.smembers,
                "zset": lambda key: client.zrange(key, 0, -1),
                "stream": client.xrange,
            }[kind](key)
            yield key.decode("latin-1"), key + (value if isinstance(value, bytes) else repr(value).encode())
