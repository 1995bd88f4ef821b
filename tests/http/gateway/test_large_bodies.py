"""Bodies of tens of megabytes through a whole gateway: taken in, compared and sent on as any other."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from tests.support import http
from tests.support.house import house, status_of

MIB = 1 << 20
BODY = bytes(range(256)) * (64 * MIB // 256)
DEADLINE_SECONDS = 60.0


@pytest.mark.parametrize("media_type", ["application/octet-stream", "application/json"])
async def test_a_large_body_is_as_safe_as_a_small_one(tmp_path: Path, media_type: str) -> None:
    """Sixty-four MiB arrive unchanged and once; their repeat is replayed, and one other byte in them is noticed."""
    fields = [("Content-Type", media_type), ("X-Tenant", "t1"), ("Idempotency-Key", "k1")]
    store = {"durable": f"sqlite://{tmp_path}/operations.db"}
    async with house(store, tmp_path, route={"body": {"max_bytes": "64MiB"}}) as home:

        async def send(body: bytes) -> tuple[int, str | None]:
            sent = http.request(home.port, "POST", "/charges", fields, body, deadline_seconds=DEADLINE_SECONDS)
            return status_of(await sent)

        assert await send(BODY) == (200, "stored")
        (received,) = home.upstream.requests
        assert sha256(received.body).digest() == sha256(BODY).digest()
        assert await send(BODY) == (200, "replayed")
        assert await send(BODY[:-1] + b"!") == (422, "key-reused")
        assert len(home.upstream.requests) == 1
    assert list((tmp_path / "state" / "spool").iterdir()) == []
