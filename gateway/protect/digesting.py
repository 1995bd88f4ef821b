"""What is read out of a whole body, without holding up the event loop: its digests, and a key that is in it.

A short body is read where it stands; a long one, or one in a file, in a thread. The result depends on the bytes alone,
never on where they were kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
from collections.abc import Callable
from typing import BinaryIO, Final, TypeVar

from gateway.core.identity.canonical import Body
from gateway.core.identity.fingerprint import Digests, Fingerprinter
from gateway.core.identity.key import Key, KeyFault, KeySpec, Unquote, find_key
from gateway.core.message import Headers, RequestHead

INLINE_BYTES_MAX: Final = 16 << 10

Result = TypeVar("Result")


async def digest_body(
    fingerprinter: Fingerprinter, head: RequestHead, body: bytes | BinaryIO, body_sha256: bytes | None = None
) -> Digests:
    """As `Fingerprinter.digests`, for a body in memory or one that is all of a file, flushed and unchanged meanwhile.

    Cancelled, it leaves a thread that ends by itself and holds the file's content, not the file: the caller may close
    it.
    """
    return await _with_body(body, lambda content: fingerprinter.digests(head, content, body_sha256))


async def find_key_in(
    spec: KeySpec, headers: Headers, body: bytes | BinaryIO, unquote: Unquote
) -> Key | KeyFault | None:
    """As `core.key.find_key`, for a key that is taken from the body."""
    return await _with_body(body, lambda content: find_key(spec, headers, content, unquote))


async def _with_body(body: bytes | BinaryIO, use: Callable[[Body], Result]) -> Result:
    if isinstance(body, bytes):
        return use(body) if len(body) <= INLINE_BYTES_MAX else await asyncio.to_thread(use, body)
    if os.fstat(body.fileno()).st_size == 0:
        return use(b"")
    # Mapped before the thread starts: the mapping is its own, whatever becomes of the file object.
    mapped = mmap.mmap(body.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return await asyncio.to_thread(_use_and_close, mapped, use)
    except asyncio.CancelledError:
        # The thread may not have started, and then never will. One that reads closes it when it is done.
        with contextlib.suppress(BufferError):
            mapped.close()
        raise


def _use_and_close(mapped: mmap.mmap, use: Callable[[Body], Result]) -> Result:
    with mapped:
        return use(mapped)
