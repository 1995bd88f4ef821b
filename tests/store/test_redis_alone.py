"""Redis alone as the durable store: what is refused, what survives, and that a loss is noticed."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
import redis

from gateway.admin.reports import accept_loss
from gateway.core.confidential import EncryptionKey, KeyRing, Resealing, Sealing
from gateway.core.operation import Applied, Audit, Command, State
from gateway.observe.facts import Fact, MemoryChanged, PromotionJudged
from gateway.store.agreement import OLDEST_LEVEL, PROGRAM_LEVEL
from gateway.store.base import Amnesic, Indefinite, NotApplied, StartRefused, Store, Unreadable
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.memory.guard import EpochGuard
from gateway.store.operations import Query, Swept
from gateway.store.redis import connection, primary
from gateway.store.redis.durable import RedisStore
from gateway.store.redis.records import MEMORY, REVISION_BYTES, packed, record_key, unpacked
from gateway.store.sealed import Place, SealedStore, rekey
from tests.conformance.hand import OTHER_ANSWER, Hand, Script, do, new_identity, started, state
from tests.store.guards import a_member, witness_files_in
from tests.support.eventually import eventually
from tests.support.redis import GATEWAY_USER, RedisServer
from tests.support.redis_groups import command, follows
from tests.support.relay import Fault, Relay, Rule
from tests.support.serving import serving

PATIENCE_SECONDS: Final = 20.0
ROOT: Final = Path(__file__).parents[2]
_numbers = itertools.count(1)


def alone(url: str, *, replicas: int | None = None, files: WitnessFiles | None = None) -> RedisStore:
    return RedisStore(url, replicas=replicas, witness_files=files)


@asynccontextmanager
async def guarded(
    url: str, directory: Path, *, replicas: int | None = None, facts: list[Fact] | None = None
) -> AsyncIterator[EpochGuard]:
    """A started guard. It is a member if a replica may be promoted."""
    files = witness_files_in(directory)
    store = alone(url, replicas=replicas, files=files)
    async with started(a_member(store, files, directory, facts=facts, is_listed=store.may_fail_over)) as guard:
        yield guard


@pytest.fixture
def servers(server_workspace: Path) -> Iterator[list[RedisServer]]:
    """Servers to be started, which keep what they acknowledge."""
    found = [
        RedisServer(
            server_workspace / f"alone-{next(_numbers)}",
            append_only=True,
            options=(*GATEWAY_USER, "--repl-diskless-sync-delay", "0"),
        )
        for _ in range(3)
    ]
    yield found
    for server in found:
        server.kill()
        shutil.rmtree(server.directory)


@pytest.fixture
def server(servers: list[RedisServer]) -> RedisServer:
    servers[0].start()
    return servers[0]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary, "LOOK_SECONDS", 0.05)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens is heard by the server first, however busy the machine is."""
    monkeypatch.setattr(connection, "_SUBSCRIBE_SECONDS", PATIENCE_SECONDS)


async def follow(master: RedisServer, *replicas: RedisServer) -> None:
    """Start them, and return when they follow it."""
    for replica in replicas:
        replica.start()
        command(replica, "REPLICAOF", "127.0.0.1", master.port)
        await eventually(lambda replica=replica: follows(replica), PATIENCE_SECONDS)


async def _told(store: Store, command_: Command) -> object:
    """What came of it, be it an error."""
    (told,) = await asyncio.gather(store.apply(command_), return_exceptions=True)
    return told


async def _grants(store: Store, command_: Command | None = None) -> bool:
    return isinstance(await _told(store, command_ or Hand().claim()), Applied)


async def _is_refused(guard: EpochGuard, why: str) -> bool:
    told = await _told(guard, Hand().claim())
    return isinstance(told, NotApplied) and re.search(why, str(told)) is not None


async def _is_amnesic(guard: EpochGuard, lost: Hand) -> bool:
    """Whether the key is refused; it must never be granted."""
    told = await _told(guard, lost.claim())
    assert not isinstance(told, Applied)
    return isinstance(told, Amnesic)


# What is done to the server, what makes that good, and why it is refused meanwhile, and at a start.
BROKEN: Final = {
    "no log": ("CONFIG SET appendonly no", "CONFIG SET appendonly yes", "appendonly is not yes"),
    "drops keys": (
        "CONFIG SET maxmemory-policy allkeys-lru", "CONFIG SET maxmemory-policy noeviction",
        "maxmemory-policy is not noeviction",
    ),
    "replicas take writes": (
        "CONFIG SET replica-read-only no", "CONFIG SET replica-read-only yes", "replica-read-only is not yes",
    ),
    "tells nothing": (
        "ACL SETUSER gateway -info", "ACL SETUSER gateway +info", "what it promises is not known|refused INFO",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_a_server_that_promises_less(server: RedisServer, soon: None, name: str, tmp_path: Path) -> None:
    """It is refused at the start, and from the next look on; once it promises enough, it is used again."""
    broken, mended, why = BROKEN[name]
    async with guarded(server.durable_url, tmp_path) as guard:
        await do(guard, hand := Hand(), Hand.claim)
        command(server, *broken.split())
        await eventually(lambda: _is_refused(guard, why), PATIENCE_SECONDS)
        assert await state(guard, hand) is State.CLAIMED
        with pytest.raises((StartRefused, NotApplied), match=why):
            await alone(server.durable_url).start()
        command(server, *mended.split())
        await eventually(lambda: _grants(guard), PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("appendfsync", "everysec", "appendfsync is not always"),
        ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite is not no"),
    ],
)
async def test_a_log_that_is_not_synced_each_time(server: RedisServer, setting: str, value: str, why: str) -> None:
    """It is refused where the server cannot be asked to wait for its disk."""
    command(server, "CONFIG", "SET", setting, value)
    if not _has_waitaof(server):
        with pytest.raises(StartRefused, match=why):
            await alone(server.durable_url).start()
        return
    async with started(alone(server.durable_url)) as store:
        await do(store, Hand(), Hand.claim)


def _has_waitaof(server: RedisServer) -> bool:
    try:
        command(server, "WAITAOF", 0, 0, 1)
    except redis.ResponseError:
        return False
    return True


async def test_a_memory_that_is_full(server: RedisServer) -> None:
    """New keys are refused and known ones are replayed, also by who starts then; what is swept makes room."""
    store = alone(server.durable_url)
    async with started(store):
        done, over = Hand(), Hand()
        await do(store, done, Hand.claim, Hand.complete)
        await do(store, over, Hand.claim, lambda hand: replace(hand.complete(), replay_us=0, remember_us=1))
        await do(store, Hand(), Hand.claim, lambda hand: replace(hand.complete(), replay_us=0))
        command(server, "CONFIG", "SET", "maxmemory", 100_000)
        with pytest.raises(NotApplied, match="its memory is full"):
            await store.apply(Hand().claim())
        assert await state(store, done) is State.COMPLETED
        assert await _seen_at_a_start(server, done) is State.COMPLETED
        async with started(alone(server.durable_url)) as another:
            await another.compare_configuration(serving())
        swept = await store.cold.sweep(10)
        assert (swept.retired, swept.collected) == (1, 1)
        command(server, "CONFIG", "SET", "maxmemory", 0)
        await do(store, Hand(), Hand.claim)


async def _seen_at_a_start(server: RedisServer, hand: Hand, replicas: int | None = None) -> State | str:
    """In which state a store that is started now lists and reads the operation, or why it does not."""
    try:
        async with started(alone(server.durable_url, replicas=replicas)) as store:
            found = [each.record for each in await store.cold.find(Query(frozenset(State)))]
            listed = {record.identity.operation_id for record in found if record is not None}
            return await state(store, hand) if hand.operation_id in listed else "it is not listed"
    except (NotApplied, StartRefused) as error:
        return str(error)


async def test_asking_begins_no_memory(server: RedisServer) -> None:
    """A check and commands for operators write nothing where no gateway was started yet, or where it was flushed."""
    store = alone(server.durable_url)
    assert not await store.has_begun()
    assert command(server, "DBSIZE") == 0
    async with started(store):
        pass
    assert await store.has_begun()
    command(server, "FLUSHALL")
    assert not await store.has_begun()


async def test_a_user_that_may_flush(server: RedisServer) -> None:
    """It is refused, and nothing is flushed to find out. So is one that may too little."""
    command(server, "SET", "kept", "1")
    with pytest.raises(StartRefused, match="FLUSHALL and FLUSHDB"):
        await alone(server.url).start()
    assert command(server, "GET", "kept") == b"1"
    # What it may not ask is not believed, and a command that it lacks is found at the start.
    for rules, why in ((("-config",), "does not tell appendonly"), (("+config", "-zrem"), "NOPERM")):
        command(server, "ACL", "SETUSER", "gateway", *rules)
        with pytest.raises((StartRefused, NotApplied), match=why):
            await alone(server.durable_url).start()


async def test_the_user_of_the_guide(server: RedisServer, patient: None) -> None:
    """It has all that a store needs: requests, sweeps, operators, and the list of gateways."""
    page = (ROOT / "docs" / "configure" / "stores.md").read_text()
    *_, words = re.findall("^ACL SETUSER gateway on >PASSWORD (.+)$", page, re.MULTILINE)
    waits = ["+waitaof"] if _has_waitaof(server) else []
    command(server, "ACL", "SETUSER", "gateway", "reset", "on", "nopass", *words.split(), *waits)
    store = alone(server.durable_url)
    async with started(store):
        await do(store, hand := Hand(), Hand.claim, Hand.abandon, Hand.prove, Hand.purge)
        await do(store, Hand(), lambda hand: replace(hand.claim(), lease_us=0))
        assert (await store.cold.sweep(10)).lapsed == 1
        assert len(await store.cold.find(Query(frozenset(State)))) == 2
        assert (await store.cold.tally()).in_doubt == {"create_payment": 1}
        assert len(await store.cold.latest_audits(None, 10)) == 2
        assert len(await store.cold.audits(hand.operation_id)) == 2
        await do(store, hand, Hand.erase)
        own = serving(recipes={"route": b"recipe"})
        await store.cold.compare_configuration(own)
        await store.join(own.gateway_id, uuid4(), "host", "boot", ())
        assert await store.beat(own.gateway_id, ())
        await store.cold.begin_epoch(b"", 1)
        assert await _is_told(store, server.durable_url)


async def test_a_user_that_may_not_listen(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing but news is missing, and one line of the log says so."""
    command(server, "ACL", "SETUSER", "gateway", "resetchannels")
    store = alone(server.durable_url)
    async with started(store):
        await do(store, Hand(), Hand.claim, Hand.complete)
        async with store.watch(Hand().operation_id) as watch:
            assert not await watch.wait_changed(1.0)

        def told() -> list[str]:
            return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

        (line,) = await eventually(told)
        assert line.startswith("no news between gateways through Redis, so waiters poll: its user may not")


async def _is_told(store: Store, url: str) -> bool:
    """Whether another gateway hears of a change made through this store."""
    hand, other = Hand(), alone(url)
    await do(store, hand, Hand.claim)
    async with started(other), other.watch(hand.operation_id) as watch:
        await do(store, hand, Hand.complete)
        return await watch.wait_changed(PATIENCE_SECONDS)


@pytest.mark.parametrize("what", ["version", "cut", "other"])
async def test_a_record_that_cannot_be_read(server: RedisServer, what: str) -> None:
    """One of a newer program, or a damaged one, is left as it is; what is behind it in a sweep is not held up."""
    store = alone(server.durable_url)
    async with started(store):
        odd, over = Hand(), Hand()
        for hand in (odd, over):
            await do(store, hand, lambda hand: replace(hand.claim(), lease_us=0))
        key = record_key(odd.operation_id)
        value = command(server, "GET", key)
        head, columns = value[: REVISION_BYTES + 1], unpacked(value)
        newer = {
            "version": head + packed((*columns[:2], 2, *columns[3:], "more"))[REVISION_BYTES + 1 :],
            "cut": value[:-3],
            "other": head[:-1] + b"\x09" + value[REVISION_BYTES + 1 :],
        }[what]
        command(server, "SET", key, newer)
        for _ in range(2):
            with pytest.raises(Unreadable):
                await store.read(odd.operation_id)
            with pytest.raises(Unreadable):
                await store.apply(odd.claim())
            await store.cold.sweep(1)
        assert await state(store, over) is State.IN_DOUBT
        assert (await store.cold.find(Query(frozenset((State.IN_DOUBT,)))))[0].record is not None
        assert await store.cold.sweep(1) == Swept()
        assert command(server, "GET", key) == newer


async def test_a_store_of_another_level(server: RedisServer) -> None:
    """It is refused: a newer program has ended the upgrade, or a release was left out."""
    store = alone(server.durable_url)
    await store.start()
    assert (await store.cold.check_memory()).level == PROGRAM_LEVEL
    assert not await store.raise_level()
    await store.close()
    for level, advice in ((PROGRAM_LEVEL + 1, "serves up to"), (OLDEST_LEVEL - 1, "no release can be left out")):
        command(server, "HSET", MEMORY, "level", level)
        with pytest.raises(StartRefused, match=f"the store has level {level}.*{advice}"):
            await store.start()


async def test_what_is_kept_under_an_old_key(server: RedisServer) -> None:
    """Records and audits are encrypted again; what changes in between wins, and the tally knows under which key what
    is."""
    old, new = EncryptionKey("eldest", bytes(32)), EncryptionKey("newest", bytes(range(32)))
    both = Sealing(KeyRing([new, old], os.urandom))
    store = alone(server.durable_url)
    async with started(store):
        before = SealedStore(store, Sealing(KeyRing([old], os.urandom)))
        done, doubted = Hand(Script(new_identity(key="sentinel"))), Hand(Script(new_identity(key="sentinel")))
        await do(before, done, Hand.claim, Hand.abandon, Hand.prove)
        await do(before, doubted, Hand.claim, Hand.abandon)
        assert (await store.cold.tally()).sealed.keys() == {old.id}
        rows = await store.sealed_rows(Place.RECORDS, None, 10)
        changes = [(row, Resealing(both).resealed(row.kept)) for row in rows]  # type: ignore[arg-type]
        await do(SealedStore(store, both), doubted, Hand.complete)
        assert await store.reseal(changes) == 1
        for place in Place:
            assert (await rekey(store, place, both)).left == 0
            # The audit is the last.
            assert (old.id in (await store.cold.tally()).sealed) is (place in (Place.RECORDS, Place.REQUESTS))
        assert (await store.cold.tally()).sealed.keys() == {new.id}
        alone_with_new = SealedStore(store, Sealing(KeyRing([new], os.urandom)))
        record = (await alone_with_new.read(done.operation_id)).record
        assert (record.identity.key, record.response) == ("sentinel", OTHER_ANSWER)
        assert [each.why for each in await alone_with_new.cold.audits(done.operation_id)] == ["was seen"]


async def test_replicas_that_nobody_counted(server: RedisServer, servers: list[RedisServer]) -> None:
    """Somebody has to say how many of them may be promoted. While some of them are missing, known keys are read."""
    master, replica, _ = servers
    await follow(master, replica)
    with pytest.raises(StartRefused, match="replicas that follow it: 1; say"):
        await alone(master.durable_url).start()
    async with started(alone(master.durable_url, replicas=1)) as store:
        await do(store, hand := Hand(), Hand.claim)
    assert await _seen_at_a_start(master, hand, replicas=2) is State.CLAIMED
    async with started(alone(master.durable_url, replicas=2)) as store:
        with pytest.raises(NotApplied, match="caught up: 1, and"):
            await store.cold.compare_configuration(serving(), is_trial=True)
        with pytest.raises(NotApplied, match="caught up: 1, and"):
            await store.apply(Hand().claim())


async def test_an_older_log_is_noticed(server: RedisServer, tmp_path: Path) -> None:
    """A server that was given an earlier state of its data grants no key that may have been used."""
    hand, lost, copy = Hand(), Hand(), tmp_path / "copy"

    def replace_files(old: Path, new: Path) -> None:
        server.kill()
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(old, new)
        server.start()

    async with guarded(server.durable_url, tmp_path / "host") as guard:
        await do(guard, hand, Hand.claim)
        replace_files(server.directory, copy)
        await eventually(lambda: _grants(guard), PATIENCE_SECONDS)
        await do(guard, lost, Hand.claim, Hand.complete)
        replace_files(copy, server.directory)
        await eventually(lambda: _is_amnesic(guard, lost), PATIENCE_SECONDS)
        assert await state(guard, hand) is State.CLAIMED


async def test_a_flush_is_noticed(server: RedisServer, tmp_path: Path) -> None:
    """No key that may have been used is granted, whether the gateway runs meanwhile or starts later."""
    async with guarded(server.durable_url, tmp_path) as guard:
        await do(guard, hand := Hand(), Hand.claim, Hand.complete)
        server.flush()
        await eventually(lambda: _is_amnesic(guard, hand), PATIENCE_SECONDS)
        with pytest.raises(Amnesic):
            await guard.apply(Hand().claim())
    server.flush()
    async with guarded(server.durable_url, tmp_path) as guard:
        with pytest.raises(Amnesic):
            await guard.apply(Hand().claim())


async def test_what_took_effect_before_the_rest_of_its_batch_failed(server: RedisServer) -> None:
    """It is told so: of two claims the one that lost against another gateway is tried again alone, and fails alone,
    while the store cannot read what was changed."""
    async with Relay(server.port) as relay, started(alone(server.durable_url)) as other:
        async with started(alone(f"redis://gateway:any@127.0.0.1:{relay.port}/0")) as store:
            await do(store, Hand(), Hand.claim)
            granted, contended = Hand(), Hand()
            relay.to_client.hold()
            reads = _calls_of(server, "mget")
            claims = [asyncio.create_task(store.apply(hand.claim())) for hand in (granted, contended)]
            await eventually(lambda: _calls_of(server, "mget") > reads, PATIENCE_SECONDS)
            await do(other, Hand(Script(contended.script.identity)), Hand.claim)
            # The changes are sent, and what is read after them is not.
            relay.to_target.rule = Rule(b"MGET", Fault.RESET)
            relay.to_client.release()
            results = await asyncio.gather(*claims, return_exceptions=True)
        assert [await state(other, hand) for hand in (granted, contended)] == [State.CLAIMED] * 2
    assert [type(result) for result in results] == [Applied, NotApplied]


def _calls_of(server: RedisServer, name: str) -> int:
    with server.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])


async def test_a_replica_that_does_not_answer(server: RedisServer, servers: list[RedisServer]) -> None:
    """It is not known whether the command took effect, although another one has it; the same command finds out once the
    replica is back."""
    _, replica, _ = servers
    await follow(*servers)
    store = alone(server.durable_url, replicas=2)
    async with started(store):
        await do(store, Hand(), Hand.claim)
        replica.pause()
        hand = Hand()
        claim = hand.claim()
        with pytest.raises(Indefinite):
            await store.apply(claim)
        replica.resume()
        await eventually(lambda: _grants(store, claim), PATIENCE_SECONDS)


@pytest.mark.parametrize("is_lossy", [True, False], ids=["lossy", "lossless"])
async def test_a_promoted_replica(
    server: RedisServer, servers: list[RedisServer], tmp_path: Path, is_lossy: bool
) -> None:
    """One that has all that was acknowledged is used; one that lacks some of it is a lost memory."""
    master, ahead, behind = servers
    await follow(*servers)
    facts: list[Fact] = []
    async with Relay(master.port) as relay:
        # The operator's word is false: two may be promoted.
        url = f"redis://gateway:any@127.0.0.1:{relay.port}/0"
        async with guarded(url, tmp_path, replicas=1, facts=facts) as guard:
            known, hand = Hand(), Hand()
            await do(guard, known, Hand.claim)
            # Only the other one may have confirmed it.
            await eventually(lambda: command(behind, "EXISTS", record_key(known.operation_id)), PATIENCE_SECONDS)
            command(behind, "REPLICAOF", "127.0.0.1", 1)
            await do(guard, hand, Hand.claim, Hand.complete)
            master.kill()
            new = behind if is_lossy else ahead
            other = ahead if is_lossy else behind
            command(new, "REPLICAOF", "NO", "ONE")
            command(other, "REPLICAOF", "127.0.0.1", new.port)
            relay.target_port = new.port
            await eventually(lambda: _is_amnesic(guard, hand) if is_lossy else _grants(guard), PATIENCE_SECONDS)
            assert is_lossy or await state(guard, hand) is State.COMPLETED
            assert await state(guard, known) is State.CLAIMED
    verdicts = [fact.result for fact in facts if isinstance(fact, PromotionJudged)]
    assert verdicts[-1:] == ["refused" if is_lossy else "accepted"]
    assert any(isinstance(fact, MemoryChanged) for fact in facts) is is_lossy


async def test_a_flush_while_nobody_writes(server: RedisServer, servers: list[RedisServer], tmp_path: Path) -> None:
    """The beats of a member notice it."""
    master, replica, _ = servers
    await follow(master, replica)
    facts: list[Fact] = []
    async with guarded(master.durable_url, tmp_path, replicas=1, facts=facts) as guard:
        await eventually(lambda: _grants(guard), PATIENCE_SECONDS)
        master.flush()
        await eventually(
            lambda: any(isinstance(fact, MemoryChanged) and fact.is_lost for fact in facts), PATIENCE_SECONDS
        )


async def test_a_promotion_that_nobody_can_prove(
    server: RedisServer, servers: list[RedisServer], tmp_path: Path
) -> None:
    """Where no replica may be promoted, one that was is a lost memory, also for a gateway that has never seen the
    store."""
    master, replica, _ = servers
    async with Relay(master.port) as relay:
        url = f"redis://gateway:any@127.0.0.1:{relay.port}/0"
        async with guarded(url, tmp_path / "one") as guard:
            await do(guard, Hand(), Hand.claim)
        await follow(master, replica)
        master.kill()
        command(replica, "REPLICAOF", "NO", "ONE")
        relay.target_port = replica.port
        async with guarded(url, tmp_path / "another") as guard:
            assert await _is_amnesic(guard, Hand())
            await accept_loss(guard.cold, Audit("operator", "all that was lost is known"))
            await do(guard, Hand(), Hand.claim)
