"""Digesting beside the event loop gives what digesting in place gives."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

import pytest

from gateway.core.identity.fingerprint import Fingerprinter, FingerprintSpec
from gateway.core.identity.key import BodyPart, ComposedKey
from gateway.core.message import RequestHead
from gateway.protect.identification import INLINE_BYTES_MAX, digest_body, find_key_in
from gateway.protect.structured_fields import unquote

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
    return RequestHead(b"POST", b"/", ((b"Host", b"a"), (b"Content-Type", media)))


@contextmanager
def spooled(body: bytes) -> Iterator[BinaryIO]:
    """The body in a file, which stands at its end."""
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.flush()
        yield cast("BinaryIO", file)


@pytest.mark.parametrize(("media", "body"), CASES)
async def test_same_digests_everywhere(media: bytes, body: bytes) -> None:
    """In memory or in a file, short or long, the same bytes have the same digests."""
    fingerprinter = Fingerprinter(FingerprintSpec())
    expected = fingerprinter.digests(head(media), body)
    assert await digest_body(fingerprinter, head(media), body) == expected
    with spooled(body) as file:
        assert await digest_body(fingerprinter, head(media), file) == expected


@pytest.mark.parametrize("filler", [b"", LONG], ids=["short", "long"])
async def test_key_in_body(filler: bytes) -> None:
    """A key is found in a body wherever that is kept."""
    spec = ComposedKey((BodyPart(("id",)),))
    body = b'{"a":"%b","id":"k"}' % filler
    with spooled(body) as file:
        found = await find_key_in(spec, (), file, unquote)
    assert found == await find_key_in(spec, (), body, unquote)
    assert found is not None


async def test_cancelled_and_closed() -> None:
    """After a cancellation the caller may close the file at once; the thread ends by itself."""
    fingerprinter = Fingerprinter(FingerprintSpec())
    with spooled(PARTS) as file:
        digesting = asyncio.ensure_future(digest_body(fingerprinter, head(b"multipart/form-data; boundary=X"), file))
        await asyncio.sleep(0)
        digesting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await digesting
    await asyncio.get_running_loop().shutdown_default_executor()
