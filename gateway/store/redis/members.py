"""Which gateways serve what, and which of them may grant: `compare_configuration`, and `Fleet`.

Two values hold all of it, each replaced as a whole unless it changed meanwhile: what the services remember of their
operations, and the gateways.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from uuid import UUID, uuid4

from gateway.store.base import NotApplied
from gateway.store.level import PROGRAM_LEVEL, OlderGateway, check_finished
from gateway.store.memory.promotion import Joined, Member
from gateway.store.operations import Agreement, Epoch, Living, Serving
from gateway.store.recipes import FORGOTTEN_US, RUNNING_US, Name, Remembered, compare, names_without_route
from gateway.store.redis import layout
from gateway.store.redis.change import Change
from gateway.store.redis.client import Client
from gateway.store.redis.entry import packed, unpacked
from gateway.store.redis.inquiry import count_living

# A link of their own: beats must not wait behind long reads, or behind changes.
_BEATS: Final = "beats"

Gateways = dict[str, dict[str, Any]]
"""By id: what it serves and when it was seen; while it is a member, its beat and what `Fleet` says of it."""


def _read_configuration(value: bytes | None) -> list[Remembered]:
    if value is None:
        return []
    columns = unpacked(value)
    return [Remembered(*columns[at : at + 5]) for at in range(0, len(columns), 5)]


def _configuration(known: Mapping[Name, Remembered]) -> bytes:
    rows = known.values()
    return packed(
        tuple(column for row in rows for column in (row.service, row.operation, row.recipe, row.routes, row.is_current))
    )


def _read_gateways(value: bytes | None) -> Gateways:
    found: Gateways = {} if value is None else json.loads(unpacked(value)[0])
    return found


def _gateways(gateways: Gateways) -> bytes:
    return packed((json.dumps(gateways),))


async def agree(client: Client, serving: Serving, *, is_trial: bool) -> Agreement:
    """See `ManagedStore.compare_configuration`."""
    counted, agreed = dict[Name, Living](), Agreement()

    async def attempt() -> Change | None:
        nonlocal counted, agreed
        (remembered, listed), now_us = await client.read(
            [("GET", layout.CONFIGURATION), ("GET", layout.GATEWAYS)], "changes"
        )
        known, gateways = _read_configuration(remembered), _read_gateways(listed)
        own = serving.gateway_id.hex
        running = {
            (each["service"], operation)
            for gateway_id, each in gateways.items()
            if gateway_id != own and 0 <= now_us - each["seen_us"] <= RUNNING_US
            for operation in each["operations"]
        }
        comparison = compare(known, running, serving)
        if comparison.names != counted.keys():
            counted = await count_living(client, comparison.names)
        agreed = comparison.agreement(counted)
        if agreed.conflicts:
            return None
        client.primary.require_promise()
        if is_trial:
            return None
        change = Change()
        change.require(layout.CONFIGURATION, remembered)
        change.require(layout.GATEWAYS, listed)
        change.free()
        if comparison.written:
            rows = {row.name: row for row in (*known, *comparison.written)}
            change.then("SET", layout.CONFIGURATION, _configuration(rows))
        entry = {**gateways.get(own, {}), "service": serving.service, "operations": sorted(serving.recipes)}
        gateways[own] = {**entry, "seen_us": now_us, "host": serving.host, "level": PROGRAM_LEVEL}
        change.then("SET", layout.GATEWAYS, _gateways(_without_forgotten(gateways, now_us)))
        return change

    await client.change(attempt)
    return agreed


def _without_forgotten(gateways: Gateways, now_us: int) -> Gateways:
    return {each: entry for each, entry in gateways.items() if entry["seen_us"] > now_us - FORGOTTEN_US}


async def take_turns(client: Client, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
    """See `ManagedStore.take_turns`. Who has no turn writes nothing."""
    taken = frozenset[str]()

    async def attempt() -> Change | None:
        nonlocal taken
        (held,), now_us = await client.read([("GET", layout.TURNS)], "changes")
        turns = _read_turns(held)
        taken = frozenset(
            name
            for name in names
            if (turn := turns.get(name)) is None or turn[0] == holder.hex or not now_us < turn[1] <= now_us + lease_us
        )
        return (
            _turns_change(client, held, turns | dict.fromkeys(taken, (holder.hex, now_us + lease_us)))
            if taken
            else None
        )

    await client.change(attempt, keeps=False)
    return taken


async def leave_turns(client: Client, holder: UUID) -> None:
    """See `ManagedStore.leave_turns`."""

    async def attempt() -> Change | None:
        (held,), _ = await client.read([("GET", layout.TURNS)], "changes")
        turns = _read_turns(held)
        others = {name: turn for name, turn in turns.items() if turn[0] != holder.hex}
        return None if len(others) == len(turns) else _turns_change(client, held, others)

    await client.change(attempt, keeps=False)


def _read_turns(value: bytes | None) -> dict[str, tuple[str, int]]:
    """By name: whose it is, and until when."""
    return {} if value is None else {name: (turn[0], turn[1]) for name, turn in json.loads(unpacked(value)[0]).items()}


def _turns_change(client: Client, held: bytes | None, turns: dict[str, tuple[str, int]]) -> Change:
    # Upkeep makes room where the memory is full: a deletion first needs none.
    change = Change()
    change.require(layout.TURNS, held)
    change.then("DEL", layout.TURNS)
    change.then("SET", layout.TURNS, packed((json.dumps(turns),)))
    return change


async def raise_level(client: Client) -> bool:
    """Raise the level to this program's, and return whether it was lower. Raises `StartRefused`."""
    was_lower = False

    async def attempt() -> Change | None:
        nonlocal was_lower
        (listed, level), now_us = await client.read(
            [("GET", layout.GATEWAYS), ("HGET", layout.MEMORY, "level")], "changes"
        )
        running = {
            each: entry for each, entry in _read_gateways(listed).items() if now_us - entry["seen_us"] < RUNNING_US
        }
        older = [(each, entry) for each, entry in running.items() if entry["level"] < PROGRAM_LEVEL]
        check_finished([OlderGateway(UUID(each), entry["host"], entry["level"]) for each, entry in older])
        was_lower = int(level) < PROGRAM_LEVEL
        if not was_lower:
            return None
        change = Change()
        change.require(layout.GATEWAYS, listed)
        change.then("HSET", layout.MEMORY, "level", PROGRAM_LEVEL)
        return change

    await client.change(attempt)
    return was_lower


async def names_left(client: Client, service: str, operations: Collection[str]) -> frozenset[Name]:
    """The remembered operations of this service, except those in `operations`."""
    (remembered,), _ = await client.read([("GET", layout.CONFIGURATION)])
    return names_without_route(_read_configuration(remembered), service, operations)


async def note_running(client: Client, gateway_id: UUID, *, is_running: bool) -> None:
    """See `ManagedStore.note_running`. If it is lost, the next one is not."""

    def noted(gateways: Gateways, now_us: int) -> Gateways | None:
        if is_running and gateway_id.hex in gateways:
            gateways[gateway_id.hex]["seen_us"] = now_us
        elif not is_running:
            gateways.pop(gateway_id.hex, None)
        return _without_forgotten(gateways, now_us)

    await _change_gateways(client, noted, "changes", keeps=False)


async def _change_gateways(
    client: Client, changed: Callable[[Gateways, int], Gateways | None], link: str = _BEATS, *, keeps: bool = True
) -> None:
    """Replace the gateways; None leaves them as they are, in a memory that is still the same one."""
    key = layout.GATEWAYS

    async def attempt() -> Change | None:
        (listed,), now_us = await client.read([("GET", key)], link)
        gateways = changed(_read_gateways(listed), now_us)
        change = Change()
        if gateways is None:
            return change
        change.require(key, listed)
        change.then("SET", key, _gateways(gateways))
        return change

    await client.change(attempt, link, keeps=keeps)


# -- fleet -------------------------------------------------------------------------------------------------------------


async def join(client: Client, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
    """See `Fleet`, also for the next four. The entry is on every replica that may be promoted before this returns."""
    joined: Joined | None = None

    def listed(gateways: Gateways, now_us: int) -> Gateways | None:
        nonlocal joined
        joined = None
        entry = gateways.get(gateway_id.hex)
        if entry is None:
            return None
        for other in gateways.values():
            if other is not entry and other.get("notes") in {each.hex for each in ended}:
                other.pop("beat", None)
        before = entry.get("beat")
        joined = Joined((before or 0) + 1, was_listed=before is not None, is_synchronous=True, may_fail_over=True)
        entry.update(beat=joined.beat, seen_us=now_us, notes=notes.hex, host=host, boot=boot, vouched_for="")
        return gateways

    await _change_gateways(client, listed)
    if joined is None:
        raise NotApplied("the store does not know this gateway any more")
    return joined


async def beat(client: Client, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
    members: list[Member] = []

    def raised(gateways: Gateways, now_us: int) -> Gateways | None:
        nonlocal members
        members = _members(gateways)
        entry = gateways.get(gateway_id.hex, {})
        if "beat" not in entry:
            members = []
            return None
        for each, last in silent:
            if each != gateway_id and gateways.get(each.hex, {}).get("beat") == last:
                del gateways[each.hex]["beat"]
        entry.update(beat=entry["beat"] + 1, seen_us=now_us)
        return gateways

    await _change_gateways(client, raised)
    return True, members


def _members(gateways: Gateways) -> list[Member]:
    return [
        Member(UUID(each), entry["host"], entry["beat"], entry["seen_us"], entry["vouched_for"])
        for each, entry in sorted(gateways.items())
        if "beat" in entry
    ]


async def members(client: Client) -> list[Member]:
    (listed,), _ = await client.read([("GET", layout.GATEWAYS)], _BEATS)
    return _members(_read_gateways(listed))


async def vouch(client: Client, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
    notes = {each.hex for each in ended}

    def vouched(gateways: Gateways, _now_us: int) -> Gateways | None:
        for each, entry in gateways.items():
            is_own = each == gateway_id.hex or (entry.get("notes") in notes and entry.get("boot") == boot)
            if "beat" in entry and is_own:
                entry["vouched_for"] = identity
        return gateways

    await _change_gateways(client, vouched)


async def accept_promotion(client: Client, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
    """The store keeps its former identity, memo and run until this."""
    is_done = False
    identity = renewed(epoch.identity)

    async def attempt() -> Change | None:
        nonlocal is_done
        is_done = False
        (held, listed), _ = await client.read(
            [("HMGET", layout.MEMORY, "identity", "memo"), ("GET", layout.GATEWAYS)], _BEATS
        )
        votes = [each.vouched_for == epoch.identity for each in _members(_read_gateways(listed))]
        if held != [epoch.parent.encode(), epoch.memo or None] or not (is_trusted or all(votes)):
            return None
        is_done = True
        change = Change()
        change.require(layout.GATEWAYS, listed)
        run = (client.primary.server.run_id, client.primary.place)
        change.then("HSET", layout.MEMORY, "identity", identity, "memo", memo, "run", run[0], "place", run[1])
        return change

    await client.change(attempt, _BEATS)
    if is_done:
        client.identity = identity
    return is_done


# -- identities --------------------------------------------------------------------------------------------------------


def new_identity() -> str:
    """Of a new memory: what it descends from, itself, and how often it was promoted."""
    return f"{uuid4().hex}/{uuid4().hex}/{1:08x}"


def promoted(identity: str) -> str:
    """The identity of a memory on another server, which nobody has accepted yet."""
    before, _, number = identity.rpartition("/")
    return f"{before}/{int(number, 16) + 1:08x}"


def renewed(identity: str) -> str:
    """The identity that an accepted memory gets: a twin, promoted apart, lacks it."""
    descent, _, number = identity.split("/")
    return f"{descent}/{uuid4().hex}/{number}"
