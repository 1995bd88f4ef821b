"""Responses with values that are replaced before they are kept, through a whole gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.house import house, neighbour, status_of
from tests.support.upstream import Answer

Store = dict[str, Any]
BODY = b'{"id": 7,  "card": {"number": "4242424242424242"}}'
KEPT = b'{"id": 7,  "card": {"number": "[redacted]"}}'
REDACT = {"response": {"redact": ["/card/number", "header:X-Token"]}, "in_flight": {"wait": "20s"}}
HEADERS = (("Content-Type", "application/json"), ("X-Token", "s3cret-token"))
ANSWER = Answer(201, headers=HEADERS, body=BODY)


async def test_only_the_first_request_gets_the_values(store: Store, tmp_path: Path) -> None:
    """And those that wait for it in the same process; later ones, on any gateway, get what was kept, and are told."""
    async with (
        house(store, tmp_path, route=REDACT) as home,
        neighbour(store, tmp_path / "n", home.upstream, route=REDACT) as other,
    ):
        first, hold = await home.begin("k1", answer=ANSWER)
        waiting = asyncio.create_task(home.send("k1"))
        await eventually(lambda: home.gateway.coordinator.waiters == 1)
        hold.set()
        for task, verdict in ((first, "stored"), (waiting, "replayed")):
            response = await task
            assert status_of(response) == (201, verdict)
            assert (response.body, response.header("X-Token")) == (BODY, "s3cret-token")
            assert response.header("Idempotency-Redacted") is None
            assert response.header("Idempotency-Expires") is not None
        for place in (home, other):
            again = await place.send("k1")
            assert status_of(again) == (201, "replayed")
            assert (again.body, again.header("X-Token")) == (KEPT, "[redacted]")
            assert again.header("Idempotency-Redacted") == "true"
        assert len(home.upstream.requests) == 1
    await asyncio.to_thread(has_nothing_of, tmp_path, b"42424242", b"s3cret-token")


async def test_what_cannot_be_redacted_is_not_kept(tmp_path: Path) -> None:
    """The caller gets it once; a repeat is refused, and nothing is executed again."""
    async with house({"durable": f"sqlite://{tmp_path}/operations.db"}, tmp_path, route=REDACT) as home:
        home.upstream.on("/charges", Answer(headers=(), body=b"<html>4242424242424242</html>"))
        first = await home.send()
        assert (status_of(first), first.body) == ((200, "response-not-stored"), b"<html>4242424242424242</html>")
        again = await home.send()
        assert status_of(again) == (409, "response-not-stored")
        assert json.loads(again.body)["retryable"] is False
        # Long enough for a thread: the same.
        long = json.dumps({"card": {"number": "42"}, "text": "x" * 100_000}).encode()
        home.upstream.on("/charges", Answer(headers=(), body=long))
        assert (await home.send("k2")).body == long
        assert (await home.send("k2")).body == long.replace(b'"42"', b'"[redacted]"')


def has_nothing_of(directory: Path, *values: bytes) -> None:
    """No file has any of these values."""
    for file in directory.rglob("*"):
        if file.is_file():
            assert not [value for value in values if value in file.read_bytes()], file
