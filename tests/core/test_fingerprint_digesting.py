"""Digesting beside the event loop gives what digesting in place gives."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

import pytest

from gateway.core.identity.body import Body
from gateway.core.identity.fingerprint import Digests, Fingerprinter, FingerprintSpec
from gateway.core.identity.key import BodyPart, ComposedKey, Key, KeyFault
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.protect.body import INLINE_BYTES_MAX, TakenBody

LONG = b"x" * (INLINE_BYTES_MAX + 1)
PARTS = b'--X\r\nContent-Disposition: form-data; name="f"\r\n\r\n%b\r\n--X--\r\n' % (LONG * 40)
CASES = [
    pytest.param(b"application/json", b"", id="empty"),
    pytest.param(b"application/json", b'{"id":1}', id="json-short"),
    pytest.param(b"application/json", b'{"id":1, "a":"%b"}' % LONG, id="json-long"),
    pytest.param(b"application/json", b'{"id":1, "a":"%b"}' % (LONG * 64), id="json-out-of-bounds"),
    pytest.param(b"application/x-www-form-urlencoded", b"id=1&a=" + LONG, id="form-long"),
    pytest.param(b"multipart/form-data; boundary=X", PARTS, id="multipart-long"),
    pytest.param(b"text/plain", LONG, id="raw-long"),
]


def head(media: bytes) -> RequestHead:
    return RequestHead(b"POST", b"/", IndexedHeaders(((b"Host", b"a"), (b"Content-Type", media))))


@contextmanager
def spooled(body: bytes) -> Iterator[TakenBody]:
    """The body in a file, which stands at its end."""
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.flush()
        yield TakenBody(cast("BinaryIO", file), len(body))


def digesting(media: bytes) -> Callable[[Body], Digests]:
    return lambda content: Fingerprinter(FingerprintSpec()).digests(head(media), content)


@pytest.mark.parametrize(("media", "body"), CASES)
async def test_same_digests_everywhere(media: bytes, body: bytes) -> None:
    """In memory or in a file, short or long, the same bytes have the same digests."""
    expected = digesting(media)(body)
    assert await TakenBody(body, len(body)).read(digesting(media)) == expected
    with spooled(body) as file:
        assert await file.read(digesting(media)) == expected


@pytest.mark.parametrize("filler", [b"", LONG], ids=["short", "long"])
async def test_key_in_body(filler: bytes) -> None:
    """A key is found in a body wherever that is kept."""
    spec = ComposedKey((BodyPart(("id",)),))
    body = b'{"a":"%b","id":"k"}' % filler

    def find(content: Body) -> Key | KeyFault | None:
        return spec.find_key({}, content)

    with spooled(body) as file:
        found = await file.read(find)
    assert found == await TakenBody(body, len(body)).read(find)
    assert found is not None


async def test_cancelled_and_closed() -> None:
    """After a cancellation the caller may close the file at once; the thread ends by itself."""
    with spooled(PARTS) as file:
        reading = asyncio.ensure_future(file.read(digesting(b"multipart/form-data; boundary=X")))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        file.close()
    await asyncio.get_running_loop().shutdown_default_executor()
