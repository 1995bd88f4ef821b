"""Which memory this is, which gateways serve what, and which of them may grant: `compare_configuration`, and `Fleet`.

Three values hold what gateways agree on, each replaced as a whole unless it changed meanwhile: what the services
remember of their operations, the gateways, and whose turn it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final
from uuid import UUID, uuid4

from gateway.store.agreement import (
    FORGOTTEN_US,
    PROGRAM_LEVEL,
    RUNNING_US,
    Name,
    OlderGateway,
    Remembered,
    check_finished,
    check_level,
    compare,
    names_without_route,
)
from gateway.store.base import NotApplied
from gateway.store.memory.promotion import Joined, Member
from gateway.store.operations import Agreement, Epoch, Living, Serving
from gateway.store.redis import layout
from gateway.store.redis.connection import RedisCommand
from gateway.store.redis.inquiry import Inquiry
from gateway.store.redis.layout import Change, packed, unpacked
from gateway.store.redis.primary import ANOTHER_MEMORY, Primary

# A link of their own: beats must not wait behind long reads, or behind changes.
_BEATS: Final = "beats"
# The only member of the tokens.
LAST: Final = "last"

Document = dict[str, Any]
"""The gateways by id: what each serves and when it was seen; while it is a member, its beat and what `Fleet` says of
it. Or the turns by name: whose each is, and until when."""


class Members(Inquiry):
    """See `ManagedStore` and `Fleet`."""

    # -- memory --------------------------------------------------------------------------------------------------------

    async def check_memory(self, links: Collection[UUID] = (), link: str = "reads") -> Epoch:
        wanted = list(links)
        fields = ("identity", "run", "place", "generation", "memo", "level")
        scores: list[RedisCommand] = [("ZSCORE", layout.WITNESSES, each.bytes) for each in wanted]
        (held, token, *numbers), now_us = await self._read(
            [("HMGET", layout.MEMORY, *fields), ("ZSCORE", layout.TOKENS, LAST), *scores], link
        )
        identity, run, place, generation = (each.decode() if each else "" for each in held[:4])
        if identity != self._identity:
            raise self.primary.lose(ANOTHER_MEMORY)
        parent = ""
        if run != self.primary.server.run_id and not _is_same_server(place, self.primary):
            identity, parent = promoted(identity), identity
        witnesses = {each: int(number) for each, number in zip(wanted, numbers, strict=True) if number is not None}
        return Epoch(identity, int(token or 0), now_us, held[4] or b"", generation, witnesses, parent, int(held[5]))

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        """It also accepts the server as it is."""

        async def begin(change: Change) -> str:
            epoch = await self.check_memory((), "changes")
            (held,), _ = await self._read([("HGET", layout.MEMORY, "floor")], "changes")
            change.floor = int(held or 0)
            self._accept(change, epoch.identity, memo)
            change.then("HSET", layout.MEMORY, "floor", max(change.floor, beyond_token))
            change.then("ZADD", layout.TOKENS, "GT", beyond_token, LAST)
            return epoch.identity

        self._identity = await self._change(begin)

    def _accept(self, change: Change, identity: str, memo: bytes) -> None:
        """The memory has this identity and memo, and is where it is now."""
        run = ("run", self.primary.server.run_id, "place", self.primary.place)
        change.then("HSET", layout.MEMORY, "identity", identity, "memo", memo, *run)

    async def identity_kept(self) -> str:
        """Of the memory that is there; empty without one."""
        (held,), _ = await self._read([("HGET", layout.MEMORY, "identity")], "changes")
        return held.decode() if held else ""

    async def _meet(self) -> None:
        """Find the memory, or begin one; note a restart in place. Raises `StartRefused`, `NotApplied`, `Indefinite`."""
        primary = self.primary

        async def meet(change: Change) -> None:
            fields = ("identity", "run", "place", "level")
            (held,), _ = await self._read([("HMGET", layout.MEMORY, *fields)], "changes")
            self._identity, run, place, level = (each.decode() if each else "" for each in held)
            if not self._identity:
                new = {"identity": _new_identity(), "run": primary.server.run_id, "place": primary.place}
                for field, value in (new | {"level": PROGRAM_LEVEL}).items():
                    change.then("HSETNX", layout.MEMORY, field, value)
                return
            check_level(int(level))
            if run != primary.server.run_id and _is_same_server(place, primary):
                change.then("HSET", layout.MEMORY, "run", primary.server.run_id)

        # A restart that is noted, and then lost, is noted again.
        await self._change(meet, keeps=not await self.identity_kept())
        if not self._identity:
            await self._change(meet)

    # -- agreement -----------------------------------------------------------------------------------------------------

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        counted = dict[Name, Living]()

        async def agree(change: Change) -> Agreement:
            nonlocal counted
            (remembered, listed), now_us = await self._lock(change, layout.CONFIGURATION, layout.GATEWAYS)
            known, gateways, own = _remembered(remembered), _document(listed), serving.gateway_id.hex
            running = {
                (each["service"], operation)
                for gateway_id, each in gateways.items()
                if gateway_id != own and 0 <= now_us - each["seen_us"] <= RUNNING_US
                for operation in each["operations"]
            }
            comparison = compare(known, running, serving)
            if comparison.names != counted.keys():
                counted = await self._count_living(comparison.names)
            agreed = comparison.agreement(counted)
            if agreed.conflicts:
                return agreed
            self.primary.require_promise()
            if is_trial:
                return agreed
            if comparison.written:
                rows = {row.name: row for row in (*known, *comparison.written)}
                change.then("SET", layout.CONFIGURATION, _configuration(rows.values()))
            entry = {**gateways.get(own, {}), "service": serving.service, "operations": sorted(serving.recipes)}
            gateways[own] = {**entry, "seen_us": now_us, "host": serving.host, "level": PROGRAM_LEVEL}
            change.then("SET", layout.GATEWAYS, _value(_without_forgotten(gateways, now_us)))
            return agreed

        return await self._change(agree, frees=True)

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        (remembered,), _ = await self._read([("GET", layout.CONFIGURATION)])
        counted = await self._count_living(names_without_route(_remembered(remembered), service, operations))
        return {operation: living.keys for (_, operation), living in counted.items() if living.keys}

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        """Who has no turn writes nothing."""
        taken = frozenset[str]()

        def with_taken(turns: Document, now_us: int) -> Document | None:
            nonlocal taken
            others = {
                name
                for name, (of_holder, until_us) in turns.items()
                if of_holder != holder.hex and now_us < until_us <= now_us + lease_us
            }
            taken = frozenset(names) - others
            return turns | dict.fromkeys(taken, (holder.hex, now_us + lease_us)) if taken else None

        await self._edit(layout.TURNS, with_taken, "changes", keeps=False)
        return taken

    async def leave_turns(self, holder: UUID) -> None:
        def without_own(turns: Document, _now_us: int) -> Document | None:
            others = {name: turn for name, turn in turns.items() if turn[0] != holder.hex}
            return None if len(others) == len(turns) else others

        await self._edit(layout.TURNS, without_own, "changes", keeps=False)

    async def raise_level(self) -> bool:
        """Raise the level to this program's; returns whether it was lower. Raises `StartRefused` while gateways of an
        older program run."""

        async def raised(change: Change) -> bool:
            (listed,), now_us = await self._lock(change, layout.GATEWAYS)
            (level,), _ = await self._read([("HGET", layout.MEMORY, "level")], "changes")
            check_finished(
                [
                    OlderGateway(UUID(each), entry["host"], entry["level"])
                    for each, entry in _document(listed).items()
                    if now_us - entry["seen_us"] < RUNNING_US and entry["level"] < PROGRAM_LEVEL
                ]
            )
            if int(level) >= PROGRAM_LEVEL:
                return False
            change.then("HSET", layout.MEMORY, "level", PROGRAM_LEVEL)
            return True

        return await self._change(raised)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        """If it is lost, the next one is not."""

        def noted(gateways: Document, now_us: int) -> Document:
            if is_running and gateway_id.hex in gateways:
                gateways[gateway_id.hex]["seen_us"] = now_us
            elif not is_running:
                gateways.pop(gateway_id.hex, None)
            return _without_forgotten(gateways, now_us)

        await self._edit(layout.GATEWAYS, noted, "changes", keeps=False)

    async def _edit(
        self, key: str, edited: Callable[[Document, int], Document | None], link: str = _BEATS, *, keeps: bool = True
    ) -> None:
        """Replace a document; None leaves it as it is, in a memory that is still the same one."""

        async def edit(change: Change) -> None:
            (held,), now_us = await self._lock(change, key, link=link)
            document = edited(_document(held), now_us)
            change.is_due = True
            if document is not None:
                change.then("SET", key, _value(document))

        await self._change(edit, link, keeps=keeps)

    # -- fleet --------------------------------------------------------------------------------------------------------

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        """The entry is on every replica that may be promoted before this returns."""
        joined: Joined | None = None

        def listed(gateways: Document, now_us: int) -> Document | None:
            nonlocal joined
            joined, entry = None, gateways.get(gateway_id.hex)
            if entry is None:
                return None
            for other in gateways.values():
                if other is not entry and other.get("notes") in {each.hex for each in ended}:
                    other.pop("beat", None)
            before = entry.get("beat")
            joined = Joined((before or 0) + 1, was_listed=before is not None, is_synchronous=True, may_fail_over=True)
            entry.update(beat=joined.beat, seen_us=now_us, notes=notes.hex, host=host, boot=boot, vouched_for="")
            return gateways

        await self._edit(layout.GATEWAYS, listed)
        if joined is None:
            raise NotApplied("the store does not know this gateway any more")
        return joined

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        members: list[Member] = []

        def raised(gateways: Document, now_us: int) -> Document | None:
            nonlocal members
            entry = gateways.get(gateway_id.hex, {})
            members = _members(gateways) if "beat" in entry else []
            if not members:
                return None
            for each, last in silent:
                if each != gateway_id and gateways.get(each.hex, {}).get("beat") == last:
                    del gateways[each.hex]["beat"]
            entry.update(beat=entry["beat"] + 1, seen_us=now_us)
            return gateways

        await self._edit(layout.GATEWAYS, raised)
        return True, members

    async def members(self) -> list[Member]:
        (listed,), _ = await self._read([("GET", layout.GATEWAYS)], _BEATS)
        return _members(_document(listed))

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        notes = {each.hex for each in ended}

        def vouched(gateways: Document, _now_us: int) -> Document:
            for each, entry in gateways.items():
                is_own = each == gateway_id.hex or (entry.get("notes") in notes and entry.get("boot") == boot)
                if "beat" in entry and is_own:
                    entry["vouched_for"] = identity
            return gateways

        await self._edit(layout.GATEWAYS, vouched)

    async def accept_promotion(self, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        """The store keeps its former identity, memo and run until this."""
        identity = _renewed(epoch.identity)

        async def accept(change: Change) -> bool:
            (listed,), _ = await self._lock(change, layout.GATEWAYS, link=_BEATS)
            (held,), _ = await self._read([("HMGET", layout.MEMORY, "identity", "memo")], _BEATS)
            votes = [each.vouched_for == epoch.identity for each in _members(_document(listed))]
            if held != [epoch.parent.encode(), epoch.memo or None] or not (is_trusted or all(votes)):
                return False
            self._accept(change, identity, memo)
            return True

        if not await self._change(accept, _BEATS):
            return False
        self._identity = identity
        return True


def _is_same_server(place: str, primary: Primary) -> bool:
    """Whether a server process at this place is the one that was there before, restarted."""
    return place == primary.place and not primary.server.has_history


def _remembered(value: bytes | None) -> list[Remembered]:
    columns = () if value is None else unpacked(value)
    return [Remembered(*columns[at : at + 5]) for at in range(0, len(columns), 5)]


def _configuration(rows: Iterable[Remembered]) -> bytes:
    return packed(
        tuple(column for row in rows for column in (row.service, row.operation, row.recipe, row.routes, row.is_current))
    )


def _document(value: bytes | None) -> Document:
    found: Document = {} if value is None else json.loads(unpacked(value)[0])
    return found


def _value(document: Document) -> bytes:
    return packed((json.dumps(document),))


def _without_forgotten(gateways: Document, now_us: int) -> Document:
    return {each: entry for each, entry in gateways.items() if entry["seen_us"] > now_us - FORGOTTEN_US}


def _members(gateways: Document) -> list[Member]:
    return [
        Member(UUID(each), entry["host"], entry["beat"], entry["seen_us"], entry["vouched_for"])
        for each, entry in sorted(gateways.items())
        if "beat" in entry
    ]


# An identity says what the memory descends from, which one it is, and how often it was promoted.


def _new_identity() -> str:
    return f"{uuid4().hex}/{uuid4().hex}/{1:08x}"


def promoted(identity: str) -> str:
    """That of a memory on another server, which nobody has accepted yet."""
    before, _, number = identity.rpartition("/")
    return f"{before}/{int(number, 16) + 1:08x}"


def _renewed(identity: str) -> str:
    """The identity that an accepted memory gets: a twin, promoted apart, lacks it."""
    descent, _, number = identity.split("/")
    return f"{descent}/{uuid4().hex}/{number}"
