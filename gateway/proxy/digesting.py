"""Digests of requests without holding up the event loop.

A short body is digested where it stands; a long one, or one in a file, in a thread. The result is that of
`Fingerprinter.digests` and depends on the bytes alone, never on where they were kept.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from typing import Final, TypeVar

from gateway.core.canonical import Body
from gateway.core.fingerprint import Digests, Fingerprinter
from gateway.core.key import Key, KeyFault, KeySpec, Unquote, find_key
from gateway.core.message import Headers, RequestHead
from gateway.proxy.upstream_result import FileBody

INLINE_BYTES_MAX: Final = 64 << 10

Result = TypeVar("Result")


async def digest_body(
    fingerprinter: Fingerprinter, head: RequestHead, body: bytes | FileBody, body_sha256: bytes | None = None
) -> Digests:
    """The digests of a request whose body is in memory or in a file, which must not be changed meanwhile.

    Cancelled, it leaves a thread that ends by itself and holds the file's content, not the file: the caller may close
    it.
    """
    return await _with_body(body, lambda content: fingerprinter.digests(head, content, body_sha256))


async def find_key_in(
    spec: KeySpec, headers: Headers, body: bytes | FileBody, unquote: Unquote
) -> Key | KeyFault | None:
    """As `core.key.find_key`, for a key that is taken from the body."""
    return await _with_body(body, lambda content: find_key(spec, headers, content, unquote))


async def _with_body(body: bytes | FileBody, use: Callable[[Body], Result]) -> Result:
    if isinstance(body, bytes):
        return use(body) if len(body) <= INLINE_BYTES_MAX else await asyncio.to_thread(use, body)
    if body.length == 0:
        return use(b"")
    # Mapped before the thread starts: the mapping is its own, whatever becomes of the descriptor.
    mapped = mmap.mmap(body.descriptor, body.length, access=mmap.ACCESS_READ)
    return await asyncio.to_thread(_use_and_close, mapped, use)


def _use_and_close(mapped: mmap.mmap, use: Callable[[Body], Result]) -> Result:
    with mapped:
        return use(mapped)
