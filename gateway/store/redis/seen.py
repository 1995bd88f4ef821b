"""What gateways saw of their durable store, shared in Redis for a host that has no note of its own.

It draws no conclusions (`epoch` does). It keeps no connection between calls, which are seconds apart and which no
request waits for. Its invariant: the note's token for one memory never decreases, as long as Redis keeps the note.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from gateway.store.base import NotApplied
from gateway.store.epoch import FORMER_MAX, Seen
from gateway.store.redis.connection import RedisCommand, parse, refusal, script
from gateway.store.redis.keys import KEY_PREFIX, slot_of
from gateway.store.redis.masters import masters_of

# Only the start of a gateway waits for this.
SEEN_SECONDS: Final = 1.0

# No store draws a higher token, and taking one over would leave the store no numbers.
TOKEN_MAX: Final = 2**62
_TOKEN_DIGITS: Final = 20
_IDENTITY_CHARACTERS_MAX: Final = 256
_NOTE_BYTES_MAX: Final = 2 * FORMER_MAX * _IDENTITY_CHARACTERS_MAX

_SCRIPT: Final = script("seen.lua")


class RedisSeen:
    """Satisfies `SharedNote`. `name` identifies the service and its durable store."""

    def __init__(self, url: str, name: str) -> None:
        """Raises ValueError when the URL is none of Redis's."""
        self._key = f"{KEY_PREFIX}seen:{name}"
        self._access = parse(url)
        self._lock = asyncio.Lock()

    async def read(self) -> Seen | None:
        reply = await self._execute(("GETRANGE", self._key, 0, _NOTE_BYTES_MAX))
        error = refusal(reply)
        if error == "WRONGTYPE":
            return None
        if error:
            raise NotApplied(f"Redis refused: {error}")
        return _seen(reply)

    async def write(self, seen: Seen, instead_of: str) -> None:
        """See `SharedNote`. A note that could not be read back is rejected, so that the current one stays in force."""
        note = _note(seen)
        if _seen(note) is None:
            raise NotApplied("the note of what was seen of the durable store does not fit Redis")
        if error := refusal(await self._execute(("EVALSHA", _SCRIPT, 1, self._key, note, instead_of))):
            raise NotApplied(f"Redis refused: {error}")

    async def _execute(self, command: RedisCommand) -> Any:
        async with self._lock:
            masters, slot = masters_of(self._access), slot_of(self._key)
            try:
                found = await masters.find(())
            finally:
                await masters.close()
            address = next((each for each, slots in found.items() if any(slot in part for part in slots)), None)
            if address is None:
                raise NotApplied("no master has the slot of the note of what was seen")
            link = self._access.link(address)
            try:
                await link.connect()
                (reply,) = await link.run([command], SEEN_SECONDS)
            finally:
                await link.close()
            return await self._access.follow_ask(command, reply, SEEN_SECONDS)


def _note(seen: Seen) -> bytes:
    noted = {"identity": seen.identity, "token": f"{seen.token:0{_TOKEN_DIGITS}}", "former": list(seen.former)}
    return json.dumps(noted, separators=(",", ":")).encode()


def _seen(note: bytes) -> Seen | None:
    """Decode a note; None if it is not one."""
    try:
        noted = json.loads(note)
        identity, token, former = noted["identity"], int(noted["token"]), tuple(noted["former"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    if not (len(note) <= _NOTE_BYTES_MAX and 0 <= token <= TOKEN_MAX and len(former) <= FORMER_MAX):
        return None
    if not all(isinstance(each, str) and 0 < len(each) <= _IDENTITY_CHARACTERS_MAX for each in (identity, *former)):
        return None
    # Its writer had read the note before it.
    return Seen(identity, token, former, is_compared=True)
