"""What gateways saw of their durable store and what it acknowledged to them, shared in Redis for a host that has no
note of its own.

It draws no conclusions (`epoch` does). No request waits for it. Between writes it keeps its connection, and each read
looks for the master anew. Its invariant: as long as Redis keeps the note, its token for one memory never decreases,
nor does its number for one link. A link is dropped once a later one stands for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import MICROSECONDS
from gateway.store.base import NotApplied, StoreError
from gateway.store.memory.epoch import FORMER_MAX, Seen, WitnessNote
from gateway.store.redis.connection import Link, RedisCommand, find_masters, parse, refusal, script, slot_of
from gateway.store.redis.copies import KEY_PREFIX

# Nobody but the start of a gateway waits for this.
SEEN_SECONDS: Final = 1.0

# No store draws a higher token, and taking one over would leave the store no numbers.
TOKEN_MAX: Final = 2**62
LINKS_MAX: Final = 1_024
# A change takes seconds at the most: one that began so much later was made when the other one had been acknowledged.
STOOD_FOR_US: Final = 600 * MICROSECONDS
_NUMBER_MAX: Final = 2**53
_DIGITS: Final = 20
_IDENTITY_CHARACTERS_MAX: Final = 256
_FORMER_BYTES_MAX: Final = 2 * FORMER_MAX * _IDENTITY_CHARACTERS_MAX
_LINK_BYTES_MAX: Final = 160
_NOTE_BYTES_MAX: Final = _FORMER_BYTES_MAX + 2 * LINKS_MAX * _LINK_BYTES_MAX

_SCRIPT: Final = script("seen.lua")


class RedisSeen:
    """Satisfies `SharedNote`. `name` identifies the service and its durable store."""

    def __init__(self, url: str, name: str) -> None:
        """Raises ValueError when the URL is none of Redis's."""
        self._key = f"{KEY_PREFIX}seen:{name}"
        self._access = parse(url)
        self._lock = asyncio.Lock()
        self._link: Link | None = None

    async def read(self) -> Seen | None:
        await self.close()
        try:
            return _seen(await self._call())
        finally:
            await self.close()

    async def write(self, seen: Seen, compared: str) -> None:
        """See `SharedNote`. A note that could not be read back is rejected, so that the current one stays in force."""
        fields = _fields(seen)
        if _seen([each.encode() for each in fields]) is None:
            raise NotApplied("the note of what was seen of the durable store does not fit Redis")
        _, identity, _, token, _, former, *links = fields
        if not await self._call(identity, token, former, compared, STOOD_FOR_US, *links):
            raise NotApplied("the note of what was seen is about another store, which has to be compared first")

    async def _call(self, *arguments: str | int) -> Any:
        reply = await self._execute(("EVALSHA", _SCRIPT, 1, self._key, LINKS_MAX, _NOTE_BYTES_MAX, *arguments))
        if error := refusal(reply):
            raise NotApplied(f"Redis refused: {error}")
        return reply

    async def close(self) -> None:
        """Close the connection; the next call opens another one."""
        async with self._lock:
            if self._link is not None:
                await self._link.close()
                self._link = None

    async def _execute(self, command: RedisCommand) -> Any:
        async with self._lock:
            if self._link is not None:
                # It may have been closed since, or lead to a former master. What is written twice stays as it was.
                with contextlib.suppress(StoreError):
                    (reply,) = await self._link.run([command], SEEN_SECONDS)
                    if not refusal(reply):
                        return reply
                await self._link.close()
            self._link = await self._connect()
            (reply,) = await self._link.run([command], SEEN_SECONDS)
        return await self._access.follow_ask(command, reply, SEEN_SECONDS)

    async def _connect(self) -> Link:
        masters, slot = (await find_masters(self._access)).slots, slot_of(self._key)
        address = next((each for each, slots in masters.items() if any(slot in part for part in slots)), None)
        if address is None:
            raise NotApplied("no master has the slot of the note of what was seen")
        link = self._access.link(address)
        await link.connect()
        return link


def _fields(seen: Seen) -> list[str]:
    """The fields of a note, each with its value after it."""
    fields = ["identity", seen.identity, "token", f"{seen.token:0{_DIGITS}}"]
    fields += ["former", json.dumps(seen.former, separators=(",", ":"))]
    for note in seen.acknowledged:
        numbers = " ".join(f"{number:0{_DIGITS}}" for number in (note.number, note.at_us, note.beyond))
        fields += [note.link.hex, f"{numbers} {note.memory.hex()}"]
    return fields


def _seen(fields: Sequence[bytes]) -> Seen | None:
    """Decode a note; None if it is not one."""
    noted = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        identity, token = noted.pop(b"identity").decode(), int(noted.pop(b"token"))
        former = tuple(json.loads(noted.pop(b"former")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not (0 <= token <= TOKEN_MAX and len(former) <= FORMER_MAX):
        return None
    if not all(isinstance(each, str) and 0 < len(each) <= _IDENTITY_CHARACTERS_MAX for each in (identity, *former)):
        return None
    acknowledged = tuple(note for link, value in noted.items() if (note := _acknowledged(link, value)) is not None)
    # Its writer had read the note before it.
    return Seen(identity, token, former, is_compared=True, acknowledged=acknowledged)


def _acknowledged(link: bytes, value: bytes) -> WitnessNote | None:
    """Decode what was acknowledged over a link; None if it is something else."""
    try:
        number, at_us, beyond, memory = value.decode().split(" ")
        note = WitnessNote(UUID(hex=link.decode()), int(number), int(at_us), int(beyond), bytes.fromhex(memory))
    except (ValueError, AttributeError):
        return None
    is_sound = 0 < note.number <= _NUMBER_MAX and 0 <= note.at_us <= _NUMBER_MAX and 0 <= note.beyond <= 2 * TOKEN_MAX
    return note if is_sound else None
