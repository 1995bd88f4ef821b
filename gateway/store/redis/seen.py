"""What gateways saw of their durable store, shared in Redis: for a host that has no note of its own.

It judges nothing (`epoch` does) and holds no connection between two questions, which are seconds apart and on nobody's
way. Its invariant: of one memory the note's token never goes back, as long as Redis keeps it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from gateway.store.base import NotApplied, boot_seconds
from gateway.store.epoch import FORMER_MAX, Seen
from gateway.store.redis.connection import Words, make_link, refusal
from gateway.store.redis.store import ERA_KEY, KEY_PREFIX

# A gateway that starts waits for this, and so does nobody else.
SEEN_SECONDS: Final = 1.0

# A higher one was given by no store, and would leave the store no numbers to go on with.
TOKEN_MAX: Final = 2**62
_TOKEN_DIGITS: Final = 20
_IDENTITY_CHARACTERS_MAX: Final = 256
_NOTE_BYTES_MAX: Final = 2 * FORMER_MAX * _IDENTITY_CHARACTERS_MAX

_SCRIPT: Final = (Path(__file__).parent / "lua" / "seen.lua").read_bytes()


class RedisSeen:
    """Satisfies `SharedNote`. `name` says which service's outcomes are in which durable store."""

    def __init__(self, url: str, name: str) -> None:
        """Raises ValueError when the URL is none of Redis's."""
        self._key = f"{KEY_PREFIX}seen:{name}"
        self._link = make_link(url, ERA_KEY, boot_seconds)
        self._lock = asyncio.Lock()

    async def read(self) -> Seen | None:
        reply = await self._ask(("GETRANGE", self._key, 0, _NOTE_BYTES_MAX))
        error = refusal(reply)
        if error == "WRONGTYPE":
            return None
        if error:
            raise NotApplied(f"Redis refused: {error}")
        return _seen(reply)

    async def write(self, seen: Seen, instead_of: str) -> None:
        """A note that could not be read back is not kept, so that what is there goes on to count."""
        note = _note(seen)
        if _seen(note) is None:
            raise NotApplied("what was seen of the durable store cannot be noted in Redis")
        if error := refusal(await self._ask(("EVAL", _SCRIPT, 1, self._key, note, instead_of))):
            raise NotApplied(f"Redis refused: {error}")

    async def _ask(self, command: Words) -> Any:
        async with self._lock:
            try:
                await self._link.connect()
                (reply,) = await self._link.exchange([command], SEEN_SECONDS)
            finally:
                await self._link.close()
        return reply


def _note(seen: Seen) -> bytes:
    noted = {"identity": seen.identity, "token": f"{seen.token:0{_TOKEN_DIGITS}}", "former": list(seen.former)}
    return json.dumps(noted, separators=(",", ":")).encode()


def _seen(note: bytes) -> Seen | None:
    """What a note says; None if it is not a note."""
    try:
        noted = json.loads(note)
        identity, token, former = noted["identity"], int(noted["token"]), tuple(noted["former"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    if not (len(note) <= _NOTE_BYTES_MAX and 0 <= token <= TOKEN_MAX and len(former) <= FORMER_MAX):
        return None
    if not all(isinstance(each, str) and 0 < len(each) <= _IDENTITY_CHARACTERS_MAX for each in (identity, *former)):
        return None
    # Whoever wrote it had read what was there before.
    return Seen(identity, token, former, is_compared=True)
