"""One probe after the other: what may be asked about, what an answer changes, and what a failure leaves as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.operation import CUT, Snapshot, State, microseconds
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events
from gateway.protect import probing
from gateway.protect.probing import Prober
from gateway.store.base import StoreError
from tests.support.coordination import LEASE_SECONDS, Office, coordination, no_journals
from tests.support.faulty_store import Fault, lost, refused
from tests.support.memory_store import MemoryStore
from tests.support.upstream import Answer, Ending

SETTLE_SECONDS = 3600.0
PROBE: dict[str, Any] = {
    "path": "/status?operation={operation_id}",
    "done": [{"status": [200]}],
    "never_happened": [{"status": [404]}],
    "settle": "1h",
}
DONE, NEVER = (Answer(status, body=b"so", effect=False) for status in (200, 404))


@dataclass
class Case:
    """An operation in doubt, and a prober beside the gateway that has it."""

    office: Office
    prober: Prober

    @property
    def probes(self) -> int:
        return sum(each.method == "GET" for each in self.office.upstream.requests)

    @property
    def snapshot(self) -> Snapshot:
        return MemoryStore(self.office.memory).read_now(self.office.record.identity.operation_id)

    async def probe(self) -> Snapshot | None:
        return await self.prober.probe_once(self.office.route, self.snapshot, is_urgent=True)

    async def resolve(self, wait_seconds: float) -> Snapshot | None:
        return await self.prober.resolve(self.office.route, self.office.record.identity.operation_id, wait_seconds)

    def forget_probe(self, **request_changes: str) -> None:
        """As if the route had no probe when the operation was claimed, and this had been kept of its request."""
        record = self.office.record
        assert record.request is not None
        request = replace(record.request, **request_changes)
        changed = replace(record, probe=None, request=request)
        self.office.memory.records[record.identity.operation_id] = changed


@asynccontextmanager
async def in_doubt(
    directory: Path, answer: Answer, *, stored_bytes_max: int = 1000, **probe: Any
) -> AsyncIterator[Case]:
    """The upstream answers probes with `answer`; `probe` changes how the route asks."""
    route = {"recovery": {"probe": PROBE | probe}, "response": {"max_stored_bytes": stored_bytes_max}}
    async with coordination(directory, route=route) as office:
        office.upstream.on("/charges", Answer(bytes_max=0, ending=Ending.CLOSE))
        assert (await office.reply()).status == 502
        office.upstream.on(None, answer)
        office.store.said.clear()
        prober = Prober(
            office.store,
            Events(),
            service="shop",
            may_recover=lambda _: True,
            is_known=no_journals,
            who="a probe",
            steady_seconds=lambda: 10**9,
        )
        try:
            yield Case(office, prober)
        finally:
            await prober.close()


@pytest.mark.parametrize(
    ("path", "request_changes"),
    [
        ("/status?key={key}", {}),
        ("/status?operation={operation_id}", {"host": ""}),
        ("/status?operation={operation_id}", {"host": f"shop{CUT}"}),
        ("/status?operation={operation_id}", {"path": f"/charges{CUT}"}),
    ],
    ids=["key-is-a-digest", "no-host", "host-was-cut", "path-was-cut"],
)
async def test_a_probe_that_cannot_be_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, request_changes: dict[str, str]
) -> None:
    """Where too little is kept nobody is asked by a guess: that is said once, and the operation is held."""
    async with in_doubt(tmp_path, NEVER, path=path) as case:
        case.forget_probe(**request_changes)
        case.office.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
        for _ in range(2):
            assert await case.probe() is None
        assert case.office.state is State.IN_DOUBT
        assert case.probes == 0
        (line,) = [each.getMessage() for each in caplog.records if "cannot be probed" in each.getMessage()]
        assert str(case.office.record.identity.operation_id) in line
        reply = await case.office.reply()
        assert (reply.status, reply.verdict) == (409, Verdict.IN_DOUBT)
        assert b"Ask the operator" in reply.body  # type: ignore[operator]
        assert case.probes == 0


@pytest.mark.parametrize(
    ("followed", "state"),
    [
        (Answer(200, body=b"the charge", effect=False), State.COMPLETED),
        (Answer(300, effect=False), State.IN_DOUBT),
        (Answer(404, effect=False), State.IN_DOUBT),
        (Answer(bytes_max=0, ending=Ending.CLOSE, effect=False), State.IN_DOUBT),
    ],
    ids=["there", "elsewhere", "gone", "lost"],
)
async def test_the_answer_that_is_named(tmp_path: Path, followed: Answer, state: State) -> None:
    """It is recorded where it can be had, and nothing in its place where it cannot."""
    named = replace(DONE, headers=(("Location", "/charges/1"),))
    async with in_doubt(tmp_path, named, follow="location") as case:
        case.office.upstream.on("/charges/1", followed)
        await case.probe()
        assert case.office.state is state
        response = case.office.record.response
        assert response is None or response.body == b"the charge"


@pytest.mark.parametrize("fault", [lost(), refused()], ids=["effect", "no-effect"])
async def test_a_finding_is_written_until_it_is_known_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """A few times; who learns nothing by then hears that of the store."""
    monkeypatch.setattr(probing, "_WRITE_PAUSE_SECONDS", 0.0)
    async with in_doubt(tmp_path, DONE) as case:
        case.office.store.on("prove", fault, fault, fault)
        found = await case.probe()
        assert found is not None
        assert found.state is State.COMPLETED
    async with in_doubt(tmp_path / "again", DONE) as case:
        case.office.store.break_("prove", fault=fault)
        with pytest.raises(StoreError):
            await case.probe()


@pytest.mark.parametrize(("stored_bytes_max", "kept"), [(2, b"so"), (1, None)], ids=["just-fits", "too-long"])
async def test_how_much_of_a_found_answer_is_kept(tmp_path: Path, stored_bytes_max: int, kept: bytes | None) -> None:
    """As much, and for as long, as of one that came in time."""
    answer = replace(DONE, headers=(("Idempotency-Retention", "10"),))
    async with in_doubt(tmp_path, answer, stored_bytes_max=stored_bytes_max) as case:
        await case.probe()
        record, now_us = case.office.record, case.snapshot.now_us
        assert record.response is not None
        assert record.response.body == kept
        assert record.replay_until_us - now_us == microseconds(10)


async def test_a_store_that_is_away_ends_the_wait(tmp_path: Path) -> None:
    """Nothing can be found then, and nobody is asked; nor for those who come after the end."""
    async with in_doubt(tmp_path, DONE) as case:
        case.office.store.break_("read", fault=refused())
        assert await case.resolve(30.0) is None
        case.office.store.mend()
        await case.prober.close()
        assert await case.resolve(30.0) is None
        assert case.probes == 0
