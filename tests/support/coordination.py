"""A coordinator as the gateway puts it together, on a store that can fail and a clock that only the test moves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from gateway.app.parts import Environment, Parts, upstream_settings
from gateway.app.stores import key_ring
from gateway.config import parse
from gateway.config.route import Retention
from gateway.core.identity.caller import hop_from
from gateway.core.identity.fingerprint import Fingerprinter, FingerprintSpec
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.core.operation import Fingerprint, Identity, Record, RequestInfo, State
from gateway.core.outcome import KeepPolicy
from gateway.core.recovery import Hold, Resend
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events, Fact
from gateway.protect.claiming import Claiming
from gateway.protect.reply import Reply, RequestBody
from gateway.protect.request import Request, Untouched
from gateway.protect.route import Route
from gateway.store.base import Store, boot_seconds
from gateway.store.files import AttemptFiles
from gateway.store.journal.journal import SqliteJournal
from gateway.store.memory.epoch import SeenFile
from gateway.store.operations import ManagedStore
from gateway.upstream import Upstream
from tests.support.eventually import eventually
from tests.support.faulty_store import FaultyStore
from tests.support.house import BODY, JSON, config_text
from tests.support.memory_store import Memory, MemoryStore
from tests.support.upstream import Answer, RecordingUpstream

LEASE_SECONDS = 30.0

F = TypeVar("F", bound=Fact)

_PLAIN = Answer()


def heard(reply: object) -> tuple[int, Verdict | None]:
    assert isinstance(reply, Reply)
    return reply.status, reply.verdict


class Pieces:
    """A request body in these pieces, as fast as its test wants it to be; an event among them is waited for."""

    length: int | None = None

    def __init__(self, *pieces: bytes | asyncio.Event) -> None:
        self._pieces = pieces

    def whole(self) -> bytes | None:
        return None

    async def stream(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, bytes):
                yield piece
            else:
                await piece.wait()

    def crowd_out(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is held."""


class Here(Pieces):
    """A request body that is here whole, as most are."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.length = len(body)

    def whole(self) -> bytes | None:
        body = b"".join(piece for piece in self._pieces if isinstance(piece, bytes))
        self._pieces = ()
        return body


@dataclass
class Office:
    """One coordinator; several on one `memory` are several gateways. `client` is its side of the upstream.

    `store` is the durable one, `tiers` what the coordinator has in front of it.
    """

    memory: Memory
    store: FaultyStore
    upstream: RecordingUpstream
    client: Upstream
    journal: SqliteJournal
    attempt_files: AttemptFiles
    now: list[float]
    parts: Parts
    facts: list[Fact]

    def __post_init__(self) -> None:
        parts = self.parts
        self.coordinator, self.leases, self.claiming = parts.coordinator, parts.leases, parts.claiming
        self.route, self.tiers = parts.routes[0], parts.store

    def incoming(
        self, key: str = "k1", body: bytes | RequestBody = BODY, headers: Iterable[tuple[str, str]] = (),
        tenant: str = "t1",
    ) -> Request:  # fmt: skip
        fields = [("Host", "shop.example"), JSON, ("Idempotency-Key", key), ("X-Tenant", tenant), *headers]
        head = IndexedHeaders(tuple((name.encode(), value.encode()) for name, value in fields))
        taken = Here(body) if isinstance(body, bytes) else body
        return Request(RequestHead(b"POST", b"/charges", head), taken, hop_from("127.0.0.1", is_secure=False))

    def ask(
        self,
        key: str = "k1",
        body: bytes | RequestBody = BODY,
        *,
        headers: Iterable[tuple[str, str]] = (),
        route: Route | None = None,
    ) -> asyncio.Task[Reply | Untouched]:
        incoming = self.incoming(key, body, headers)
        return asyncio.create_task(self.coordinator.respond(incoming, route or self.route))

    async def reply(self, key: str = "k1", body: bytes | RequestBody = BODY, **options: Any) -> Reply:
        answer = await self.ask(key, body, **options)
        assert isinstance(answer, Reply)
        return answer

    async def begin(
        self, key: str = "k1", body: bytes | RequestBody = BODY, *, answer: Answer = _PLAIN, **options: Any
    ) -> tuple[asyncio.Task[Reply | Untouched], asyncio.Event]:
        """A request that the upstream works on until the event is set; then it gives this answer."""
        hold = asyncio.Event()
        self.upstream.on("/charges", replace(answer, hold=hold))
        before = len(self.upstream.requests)
        task = self.ask(key, body, **options)
        await self.upstream.wait_for_requests(before + 1)
        return task, hold

    async def wait_for_waiters(self, count: int = 1) -> None:
        await eventually(lambda: self.coordinator.waiters == count, what=f"{count} wait")

    def pass_time(self, seconds: float) -> None:
        """On the clock of the leases and that of the store; the event loop's own goes on as ever."""
        self.now[0] += seconds
        self.memory.clock.advance(seconds)

    @property
    def record(self) -> Record:
        (operation_id,) = self.memory.records
        record = MemoryStore(self.memory).read_now(operation_id).record
        assert record is not None
        return record

    @property
    def state(self) -> State:
        return self.record.state if self.memory.records else State.ABSENT

    def told(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def open_connections(self) -> int:
        return self.client.stats.opened - self.client.stats.closed


def spooled_files(directory: Path) -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return [target for target in found if target.startswith(str(directory / "state" / "spool"))]


NO_MARKS: Final = AttemptFiles(Path("never opened"))


def claiming_on(store: Store, *, clock: Callable[[], float] = boot_seconds) -> Claiming:
    """The claims of one gateway, where a lapsed one gets no grace."""
    return Claiming(
        store,
        NO_MARKS,
        holder="here",
        lease_seconds=LEASE_SECONDS,
        grace_seconds=0.0,
        reachable_seconds=lambda: math.inf,
        is_known=no_journals,
        clock=clock,
    )


INFO: Final = RequestInfo("POST", "shop.example", "/charges")


def request_for(
    identity: Identity,
    fingerprint: Fingerprint,
    *,
    is_executed_anyway: bool = False,
    takes_over: bool = False,
    patience_seconds: float = math.inf,
) -> Request:
    """A request as far as a claim looks at it."""
    route = SimpleNamespace(
        accepts_recipe_change=False,
        fingerprinter=Fingerprinter(FingerprintSpec()),
        forwards_unprotected=is_executed_anyway,
        inbox=None,
        keep=KeepPolicy(),
        recovery=Resend() if takes_over else Hold(),
        repeats=None,
        retention=Retention.model_validate({"replay": "1h", "remember": "2h"}),
        target=SimpleNamespace(answer_within_seconds=patience_seconds),
    )
    request = Request(RequestHead(b"POST", b"/charges", IndexedHeaders()), Here(BODY), hop_from(None, is_secure=False))
    request.route, request.identity, request.fingerprints = cast(Route, route), identity, [fingerprint]
    return request


async def no_journals(_: UUID) -> bool:
    return False


@asynccontextmanager
async def coordination(
    directory: Path,
    *,
    memory: Memory | None = None,
    behind: RecordingUpstream | None = None,
    in_flight_max: int = 1000,
    store_on: Callable[[Memory], ManagedStore] = MemoryStore,
    **changes: Any,
) -> AsyncIterator[Office]:
    """An office in front of `behind` or an upstream of its own; see `house.config_text` for `changes`. Its route is the
    only one, or the first of `routes`. `store_on` makes the durable store.

    At the end it is drained, and nothing is left.
    """
    async with AsyncExitStack() as stack:
        upstream = behind
        if upstream is None:
            upstream = await stack.enter_async_context(RecordingUpstream())
        # What is in the journal gets no grace, and no answer is remembered here.
        section = {"durable": "sqlite:///nowhere.db", "journal_grace": "0s", "cache_max_age": "0s"}
        limits = {"max_in_flight": in_flight_max}
        config = parse(config_text(upstream.url, section, directory, limits=limits, **changes))
        client = Upstream(upstream_settings(config, config.upstream))
        memory = memory or Memory()
        store = FaultyStore(store_on(memory))
        facts: list[Fact] = []
        now = [1000.0]
        await asyncio.to_thread((config.state_dir / "spool").mkdir, parents=True, exist_ok=True)
        journal = SqliteJournal(directory / "journal", "tests")
        attempt_files = AttemptFiles(directory / "attempts")
        await asyncio.to_thread(attempt_files.open)
        environment = Environment(
            holder="here",
            durable=store,
            fast=None,
            seen_file=SeenFile(config.state_dir / "store-seen.json"),
            shared_note=None,
            attempt_files=attempt_files,
            ring=key_ring(config),
            journal=journal,
            clock=lambda: now[0],
        )
        parts = Parts(config, environment, Events(facts.append), lambda _: client)
        await parts.store.start()
        await journal.start()
        # What was said and stated in a start is no part of any test.
        store.said.clear()
        facts.clear()
        office = Office(memory, store, upstream, client, journal, attempt_files, now, parts, facts)
        try:
            yield office
        finally:
            store.mend()
            parts.delivery.stop()
            await office.coordinator.drain(0)
            await parts.delivery.close()
            await client.close()
            await journal.close()
            attempt_files.close()
            await parts.store.close()
        left = office.coordinator.in_flight, office.coordinator.waiters, len(office.claiming.pursuits)
        assert left == (0, 0, 0)
