"""A durable store on Redis alone.

It differs from the contract of `base` in this: a key's record is all that it has. Lanes, events and contents are over
several records, and so are not here (`Unsupported`); tokens increase per operation.

Theory of operation
-------------------
*Executing the table.* The records of a batch of commands are read in one exchange, with the server's time;
`lifecycle.step` decides; and each change is one call of a script, which knows nothing of the table and writes only if
the record is as it was read. What lost against another writer is read again.

*Acknowledged* is a batch when the disks and the replicas have it (`primary`), with one wait for all of it. A result
that the wait did not confirm is `Indefinite`. What a read returns may not be on the replicas yet: it may be lost with
the change itself, whose author then was not told either.

*Tokens* are times: the greatest of the server's clock, the operation's last token + 1 and the floor + 1. A record that
goes leaves its token in the floor.

*Memory.* The identity is in Redis itself, and so vanishes with a flush. Each script names it, and the witness of its
link; so a server that was flushed, or that took up older data, writes nothing. A server process that was not there
before is the same memory if it was restarted in its place. Another one may lack what was acknowledged: that is a
promotion (`gateway.store.memory.promotion`), and is judged like one of Postgres.

*News* is published behind each batch, and so of what was acknowledged, or is in doubt. Where it is lost, waiters poll.

*Room.* Everything is in the server's memory, for as long as keys are remembered. Nothing but the table removes a
record: no key has a TTL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Sequence
from itertools import chain
from typing import Any, Final, NoReturn, Self, TypeVar
from uuid import UUID, uuid4

from gateway.core.lifecycle import step
from gateway.core.operation import (
    Accept,
    Applied,
    Command,
    Erase,
    Purge,
    Result,
    Snapshot,
    State,
    audit_of,
    content_of,
    operation_id_of,
)
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.agreement import (
    FORGOTTEN_US,
    PROGRAM_LEVEL,
    RUNNING_US,
    Name,
    Remembered,
    check_finished,
    check_level,
    compare,
    names_without_route,
)
from gateway.store.base import WORK, Indefinite, NotApplied, StoreError, end_tasks
from gateway.store.batching import Batcher
from gateway.store.memory.epoch import Witness, WitnessFiles, missing
from gateway.store.memory.promotion import Joined, Member
from gateway.store.operations import Agreement, Epoch, Living, Serving
from gateway.store.redis import records
from gateway.store.redis.connection import CHANGES_CHANNEL, PURGES_CHANNEL, Link, News, RedisCommand, parse
from gateway.store.redis.primary import ANOTHER_MEMORY, Primary
from gateway.store.redis.records import Change, Kept, Records, packed, unpacked

T = TypeVar("T")

# All of a batch, with the bodies, is in one exchange.
_BATCH_SIZE_MAX: Final = 64
# A link of their own: beats must not wait behind long reads, or behind changes.
_BEATS: Final = "beats"
# The only member of the tokens.
_LAST: Final = "last"

Document = dict[str, Any]
"""The gateways by id: what each serves and when it was seen; while it is a member, its beat and what `Fleet` says of
it. Or the turns by name: whose each is, and until when. Each is replaced as a whole, unless it changed meanwhile."""


class Unsupported(NotApplied):
    """Redis alone does not keep this: the configuration that needs it is refused."""


def _unsupported(what: str) -> NoReturn:
    raise Unsupported(f"Redis alone keeps no {what}: use PostgreSQL or SQLite")


def _refusing(what: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A verb that is about this."""

    async def refused(*_: Any, **__: Any) -> NoReturn:
        _unsupported(what)

    return refused


def _empty(kind: Callable[[], Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A verb that finds nothing."""

    async def found(store: Records, *_: Any) -> Any:
        store.primary.require_open()
        return kind()

    return found


class RedisStore(Records):
    """The `ManagedStore`, `Fleet`, `SealedRows` and `ObservationStore`."""

    # What is over several records.
    find_due = count_pending = backlog = pause = resume = _refusing("lists of requests to be delivered")
    lease_events = report_events = find_events = _refusing("events for sinks")
    redeliver_event = suspend_sink = resume_sink = _refusing("events for sinks")
    observed_before = observed_contents = save_observations = _refusing("observations")
    pause_audits = count_observed = _empty(list)
    sinks = _empty(dict)

    def __init__(
        self,
        url: str,
        *,
        replicas: int | None = None,
        clock_us: Callable[[], int] | None = None,
        witness_files: WitnessFiles | None = None,
        outbox: Outbox = NO_EVENTS,
    ) -> None:
        """`replicas` is how many may be promoted. `clock_us` takes the place of the server's clock. `witness_files` are
        open from before `start` until after `close`. `outbox` must be one without sinks. Raises ValueError when the URL
        is none of Redis's."""
        primary = Primary(parse(url), replicas, records.lesson())
        super().__init__(primary, clock_us)
        # The place in the files is that of the only link that writes.
        self._witness = None if witness_files is None else Witness(witness_files, 0)
        self._outbox = outbox
        self._news = News(primary.news_link, _channel_of)
        self.watch, self.on_purge = self._news.watch, self._news.on_purge
        self._commands: Batcher[Command, Result] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._compared: Link | None = None

    @property
    def may_fail_over(self) -> bool:
        """Whether a replica may be promoted that has all that was acknowledged."""
        return self.primary.replicas > 0

    @property
    def cold(self) -> Self:
        return self

    async def start(self) -> None:
        if self._commands is not None:
            return
        if self._outbox.subscriptions:
            _unsupported("events for sinks")
        if self._witness is not None:
            self._witness.renew()
        # The witness's number that was used last; and the link over which the notes were compared.
        self._number, self._compared = 0, None
        self._withheld.clear()
        await self.primary.start()
        try:
            await self._meet()
        except BaseException:
            self.primary.close()
            raise
        self._commands = Batcher(self._apply, key=operation_id_of, size_max=_BATCH_SIZE_MAX)
        self._looking = asyncio.create_task(self.primary.look())
        self._news.start()

    async def has_begun(self) -> bool:
        """Whether there is a memory, which otherwise the first start begins. Raises as `start`."""
        await self.primary.start()
        try:
            return await self._held("identity") != [b""]
        finally:
            self.primary.close()

    async def close(self) -> None:
        commands, self._commands = self._commands, None
        await end_tasks((self._looking,))
        if commands is not None:
            await commands.close()
        await self._news.close()
        self.primary.close()

    async def apply(self, command: Command) -> Result:
        if content_of(command) is not None:
            _unsupported("contents of requests (repeats: refuse)")
        if isinstance(command, Accept) and command.lane is not None:
            _unsupported("lanes")
        if self._commands is None:
            raise NotApplied("the store is not open")
        return await self._commands.submit(command)

    async def read(self, operation_id: UUID) -> Snapshot:
        (kept,) = await self._kept((operation_id,), "reads")
        if kept.error is not None:
            raise kept.error
        return Snapshot(kept.settled, kept.now_us)

    def announce_work(self) -> None:
        self._news.wake(WORK)

    # -- commands -----------------------------------------------------------------------------------------------------

    async def _apply(self, commands: list[Command]) -> Sequence[Result | Exception]:
        results: list[Result | Exception] = [records.contended()] * len(commands)
        left: Sequence[int] = range(len(commands))
        for tries in range(records.TRIES_MAX):
            try:
                left = await self._apply_some(commands, left, results)
            except StoreError as error:
                if not tries:
                    raise
                # Others of the batch took effect before.
                for place in left:
                    results[place] = type(error)(*error.args)
                break
            if not left:
                break
        return results

    async def _apply_some(
        self, commands: Sequence[Command], wanted: Sequence[int], results: list[Result | Exception]
    ) -> list[int]:
        """Execute these of the commands once; returns those that lost against others. Raises where none of them took
        effect."""
        # Before anything is read: what is compared must not be newer than what is written.
        await self._compare()
        kept = await self._kept([operation_id_of(commands[each]) for each in wanted])
        # After the records: an audit of the same operation that was written before them is seen.
        is_audited = any(audit_of(commands[each]) is not None for each in wanted)
        audited = await self._last_audit() if is_audited else 0
        calls: dict[int, RedisCommand] = {}
        news: list[RedisCommand] = []
        first = max(self._number + 1, kept[0].now_us)
        witness = self._witness
        raised = (b"", 0) if witness is None else (witness.link.bytes, witness.number)
        for place, each in zip(wanted, kept, strict=True):
            if each.error is not None:
                results[place] = each.error
                continue
            change = each.require(Change())
            results[place] = result = self._step(change, commands[place], each, audited)
            if change.is_due:
                calls[place] = change.call(self._identity, *raised, first + len(calls))
                news += _news(commands[place], result.snapshot.state)
        self._number = first + len(calls)
        try:
            done = await self.primary.write(list(calls.values()), news=news)
        except Indefinite as error:
            done = [Indefinite(*error.args) for _ in calls]
        highest = max((at for at, outcome in enumerate(done, first) if outcome is True), default=0)
        if witness is not None and highest:
            # Before anybody hears of it.
            witness.acknowledge(highest, kept[0].now_us)
        for place, outcome in zip(calls, done, strict=True):
            if outcome is True:
                self._news.wake(operation_id_of(commands[place]))
            else:
                results[place] = outcome or records.contended()
        return [place for place, outcome in zip(calls, done, strict=True) if outcome is False]

    def _step(self, change: Change, command: Command, kept: Kept, audited: int) -> Result:
        """Execute the command on the record that was read: its result once the change is made. `audited` is the number
        of the last audit."""
        now_us, floor = kept.now_us, kept.floor
        settled = kept.settled

        def draw() -> int:
            change.floor = floor
            before = 0 if kept.record is None else kept.record.token
            token = self._draw(max(now_us, before + 1, floor + 1))
            change.then("ZADD", records.TOKENS, "GT", token, _LAST)
            return token

        result, record = step(settled, command, now_us, draw)
        # Also where it was applied before: what was acknowledged then may have been lost.
        change.is_due = isinstance(result, Applied)
        if change.is_due and record is not kept.record:
            kept.replace(change, record, command.kept if isinstance(command, Accept) else None)
            if isinstance(command, Purge | Erase):
                change.then("HSET", records.MEMORY, "generation", uuid4().hex)
        # A repeated command leaves the settled record as it is, and so writes no second audit.
        audit = audit_of(command)
        if change.is_due and record is not settled and settled is not None and audit is not None:
            records.write_audit(change, command, audit, settled.token, self._draw(max(now_us, audited + 1)), now_us)
        return result

    # -- memory --------------------------------------------------------------------------------------------------------

    async def check_memory(self, links: Collection[UUID] = (), link: str = "reads") -> Epoch:
        wanted = list(links)
        fields = ("identity", "run", "place", "generation", "memo", "level")
        scores: list[RedisCommand] = [("ZSCORE", records.WITNESSES, each.bytes) for each in wanted]
        (held, token, *numbers), now_us = await self._read(
            [("HMGET", records.MEMORY, *fields), ("ZSCORE", records.TOKENS, _LAST), *scores], link
        )
        identity, run, place, generation = (each.decode() if each else "" for each in held[:4])
        if identity != self._identity:
            raise self.primary.lose(ANOTHER_MEMORY)
        parent = ""
        if run != self.primary.run_id and not _is_same_server(place, self.primary):
            identity, parent = promoted(identity), identity
        witnesses = {each: int(number) for each, number in zip(wanted, numbers, strict=True) if number is not None}
        return Epoch(identity, int(token or 0), now_us, held[4] or b"", generation, witnesses, parent, int(held[5]))

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        """It also accepts the server as it is."""

        async def begin(change: Change) -> str:
            epoch = await self.check_memory((), "changes")
            (floor,) = await self._held("floor")
            change.floor = int(floor or 0)
            self._accept(change, epoch.identity, memo)
            change.then("HSET", records.MEMORY, "floor", max(change.floor, beyond_token))
            change.then("ZADD", records.TOKENS, "GT", beyond_token, _LAST)
            return epoch.identity

        self._identity = await self._change(begin)

    def _accept(self, change: Change, identity: str, memo: bytes) -> None:
        """The memory has this identity and memo, and is where it is now."""
        run = ("run", self.primary.run_id, "place", self.primary.place)
        change.then("HSET", records.MEMORY, "identity", identity, "memo", memo, *run)

    async def _held(self, *fields: str, link: str = "changes") -> list[bytes]:
        """These fields of the memory that is there, empty where it has none."""
        (held,), _ = await self._read([("HMGET", records.MEMORY, *fields)], link)
        return [each or b"" for each in held]

    async def _meet(self) -> None:
        """Find the memory, or begin one; note a restart in place. Raises `StartRefused`, `NotApplied`, `Indefinite`."""
        primary = self.primary

        async def meet(change: Change) -> None:
            held = await self._held("identity", "run", "place", "level")
            self._identity, run, place, level = (each.decode() for each in held)
            if not self._identity:
                new = {"identity": _new_identity(), "run": primary.run_id, "place": primary.place}
                for field, value in (new | {"level": PROGRAM_LEVEL}).items():
                    change.then("HSETNX", records.MEMORY, field, value)
                return
            check_level(int(level))
            if run != primary.run_id and _is_same_server(place, primary):
                change.then("HSET", records.MEMORY, "run", primary.run_id)

        # A restart that is noted, and then lost, is noted again.
        await self._change(meet, keeps=await self._held("identity") == [b""])
        if not self._identity:
            await self._change(meet)

    async def _compare(self) -> None:
        """Compare what is noted with what Redis has, on each new link. Raises `EpochChanged`."""
        link = await self.primary.link("changes")
        if self._witness is None or self._compared is link:
            return
        beyond = self._witness.files.beyond
        reading = await asyncio.to_thread(self._witness.files.read)
        epoch = await self.check_memory([note.link for note in reading.notes], "changes")
        if epoch.parent:
            raise self.primary.lose("another Redis was promoted")
        if (why := missing(reading.notes, epoch, beyond)) is not None:
            raise self.primary.lose(why)
        self._witness.stand_for(epoch, reading)
        self._compared = link

    # -- agreement -----------------------------------------------------------------------------------------------------

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        counted = dict[Name, Living]()

        async def agree(change: Change) -> Agreement:
            nonlocal counted
            (remembered, listed), now_us = await self._lock(change, records.CONFIGURATION, records.GATEWAYS)
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
                rows = {row.name: row for row in (*known, *comparison.written)}.values()
                columns = ((row.service, row.operation, row.recipe, row.routes, row.is_current) for row in rows)
                change.then("SET", records.CONFIGURATION, packed(tuple(chain.from_iterable(columns))))
            entry = gateways.setdefault(own, {})
            entry.update(service=serving.service, operations=sorted(serving.recipes), seen_us=now_us)
            entry.update(host=serving.host, level=PROGRAM_LEVEL)
            _forget(gateways, now_us)
            change.then("SET", records.GATEWAYS, _value(gateways))
            return agreed

        return await self._change(agree, frees=True)

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        (remembered,), _ = await self._read([("GET", records.CONFIGURATION)])
        counted = await self._count_living(names_without_route(_remembered(remembered), service, operations))
        return {operation: living.keys for (_, operation), living in counted.items() if living.keys}

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        """Who has no turn writes nothing."""

        def take(turns: Document, now_us: int) -> frozenset[str]:
            others = {
                name
                for name, (of_holder, until_us) in turns.items()
                if of_holder != holder.hex and now_us < until_us <= now_us + lease_us
            }
            taken = frozenset(names) - others
            turns.update(dict.fromkeys(taken, (holder.hex, now_us + lease_us)))
            return taken

        return await self._edit(records.TURNS, take, keeps=False)

    async def leave_turns(self, holder: UUID) -> None:
        def leave(turns: Document, _now_us: int) -> None:
            for name in [name for name, (of_holder, _) in turns.items() if of_holder == holder.hex]:
                del turns[name]

        await self._edit(records.TURNS, leave, keeps=False)

    async def raise_level(self) -> bool:
        """Raise the level to this program's; returns whether it was lower. Raises `StartRefused` while gateways of an
        older program run."""

        async def raised(change: Change) -> bool:
            (listed,), now_us = await self._lock(change, records.GATEWAYS)
            (level,) = await self._held("level")
            check_finished(
                [
                    (UUID(each), entry["host"], entry["level"])
                    for each, entry in _document(listed).items()
                    if now_us - entry["seen_us"] < RUNNING_US and entry["level"] < PROGRAM_LEVEL
                ]
            )
            if int(level) >= PROGRAM_LEVEL:
                return False
            change.then("HSET", records.MEMORY, "level", PROGRAM_LEVEL)
            return True

        return await self._change(raised)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        """If it is lost, the next one is not."""

        def note(gateways: Document, now_us: int) -> None:
            if not is_running:
                gateways.pop(gateway_id.hex, None)
            elif gateway_id.hex in gateways:
                gateways[gateway_id.hex]["seen_us"] = now_us
            _forget(gateways, now_us)

        await self._edit(records.GATEWAYS, note, keeps=False)

    async def _edit(self, key: str, edit: Callable[[Document, int], T], *, keeps: bool = True) -> T:
        """Edit a document, in a memory that is still the same one also where nothing changes. Returns what the last
        `edit` does."""
        link = _BEATS if keeps else "changes"

        async def edited(change: Change) -> T:
            (held,), now_us = await self._lock(change, key, link=link)
            document = _document(held)
            result = edit(document, now_us)
            change.is_due = True
            if document != _document(held):
                change.then("SET", key, _value(document))
            return result

        return await self._change(edited, link, keeps=keeps)

    # -- fleet --------------------------------------------------------------------------------------------------------

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        """The entry is on every replica that may be promoted before this returns."""
        gone = {each.hex for each in ended}

        def listed(gateways: Document, now_us: int) -> Joined | None:
            if (entry := gateways.get(gateway_id.hex)) is None:
                return None
            for other in gateways.values():
                if other is not entry and other.get("notes") in gone:
                    other.pop("beat", None)
            before = entry.get("beat")
            joined = Joined((before or 0) + 1, was_listed=before is not None, is_synchronous=True, may_fail_over=True)
            entry.update(beat=joined.beat, seen_us=now_us, notes=notes.hex, host=host, boot=boot, vouched_for="")
            return joined

        joined = await self._edit(records.GATEWAYS, listed)
        if joined is None:
            raise NotApplied("the store does not know this gateway any more")
        return joined

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        def raised(gateways: Document, now_us: int) -> list[Member]:
            entry = gateways.get(gateway_id.hex, {})
            if "beat" not in entry:
                return []
            members = _members(gateways)
            for each, last in silent:
                if each != gateway_id and gateways.get(each.hex, {}).get("beat") == last:
                    del gateways[each.hex]["beat"]
            entry.update(beat=entry["beat"] + 1, seen_us=now_us)
            return members

        return True, await self._edit(records.GATEWAYS, raised)

    async def members(self) -> list[Member]:
        (listed,), _ = await self._read([("GET", records.GATEWAYS)], _BEATS)
        return _members(_document(listed))

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        notes = {each.hex for each in ended}

        def vouched(gateways: Document, _now_us: int) -> None:
            for each, entry in gateways.items():
                is_own = each == gateway_id.hex or (entry.get("notes") in notes and entry.get("boot") == boot)
                if "beat" in entry and is_own:
                    entry["vouched_for"] = identity

        await self._edit(records.GATEWAYS, vouched)

    async def accept_promotion(self, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        """The store keeps its former identity, memo and run until this."""
        identity = _renewed(epoch.identity)

        async def accept(change: Change) -> bool:
            (listed,), _ = await self._lock(change, records.GATEWAYS, link=_BEATS)
            held = await self._held("identity", "memo", link=_BEATS)
            votes = [each.vouched_for == epoch.identity for each in _members(_document(listed))]
            if held != [epoch.parent.encode(), epoch.memo] or not (is_trusted or all(votes)):
                return False
            self._accept(change, identity, memo)
            return True

        if not await self._change(accept, _BEATS):
            return False
        self._identity = identity
        return True


def _is_same_server(place: str, primary: Primary) -> bool:
    """Whether a server process at this place is the one that was there before, restarted."""
    return place == primary.place and not primary.has_history


def _remembered(value: bytes | None) -> list[Remembered]:
    columns = () if value is None else unpacked(value)
    return [Remembered(*columns[at : at + 5]) for at in range(0, len(columns), 5)]


def _document(value: bytes | None) -> Document:
    found: Document = {} if value is None else json.loads(unpacked(value)[0])
    return found


def _value(document: Document) -> bytes:
    return packed((json.dumps(document),))


def _forget(gateways: Document, now_us: int) -> None:
    for each in [each for each, entry in gateways.items() if entry["seen_us"] <= now_us - FORGOTTEN_US]:
        del gateways[each]


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


def _channel_of(operation_id: UUID) -> str:
    return f"{CHANGES_CHANNEL}{operation_id.hex}"


def _news(command: Command, state: State) -> list[RedisCommand]:
    """What other gateways are told of a command, after which the operation is in this state. Nobody waits for a claim,
    or for its renewal."""
    operation_id = operation_id_of(command)
    if isinstance(command, Purge | Erase):
        return [("PUBLISH", PURGES_CHANNEL, operation_id.hex)]
    return [] if state is State.CLAIMED else [("PUBLISH", _channel_of(operation_id), b"")]
