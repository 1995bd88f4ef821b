"""The steps of one request under bad luck: lost answers, fences, lost leases, callers that leave at any moment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.core.identity.fingerprint import Fingerprinter, FingerprintSpec
from gateway.core.message import StoredResponse
from gateway.core.operation import Claim, Command, Complete, Disprove, Prove, Record, State
from gateway.core.verdict import Verdict
from gateway.observe.facts import OperationSettled
from gateway.protect import claiming, operation
from gateway.protect.reply import Reply
from gateway.protect.request import Untouched
from gateway.store.base import Amnesic, Unstorable
from tests.support.coordination import LEASE_SECONDS, Office, Pieces, coordination, heard, spooled_files
from tests.support.eventually import eventually
from tests.support.faulty_store import Fault, Gate, dropped, lost, refused
from tests.support.house import BODY
from tests.support.memory_store import MemoryStore
from tests.support.upstream import Answer, Ending

WINDOW_US = 10**12
SPOOLED = b'{"data":"' + b"x" * 300_000 + b'"}'


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements are repeated without pauses."""
    monkeypatch.setattr(claiming, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(operation, "_PAUSE_SECONDS_MIN", 0.001)


STREAMED: Any = {"response": {"max_stored_bytes": 0}}
LOST = Answer(bytes_max=0, ending=Ending.CLOSE)
THEIRS = StoredResponse(202, b"Accepted", (), b"theirs")
TOO_LONG = Fault(Unstorable("too long"), has_effect=False)


async def idle(office: Office) -> None:
    await eventually(lambda: office.coordinator.in_flight == 0, what="no run is left")


async def left_after(steps: int, task: asyncio.Task[Reply | Untouched]) -> None:
    """The caller goes away so many turns of the loop from now; what it got by then it lets go."""
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    (reply,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(reply, Reply) and not isinstance(reply.body, bytes):
        reply.body.abort()


def say(office: Office, command: Command) -> Record:
    """What somebody else says of the operation, unseen by the faults."""
    record = MemoryStore(office.memory).apply_now(command).snapshot.record
    assert record is not None
    return record


@pytest.mark.parametrize("fault", [lost(), dropped()], ids=["effect", "no-effect"])
async def test_a_claim_that_is_never_answered(tmp_path: Path, fault: Fault) -> None:
    """Nothing is executed, and the key is free again as soon as the store answers."""
    async with coordination(tmp_path) as office:
        office.store.break_("claim", fault=fault)
        assert heard(await office.reply()) == (503, Verdict.STORE_UNAVAILABLE)
        office.store.mend()
        await office.claiming.wait_pursuits_ended()
        assert (office.state, office.upstream.requests) == (State.RELEASED, [])
        assert heard(await office.reply()) == (200, Verdict.STORED)


# Lost answers of the store


@pytest.mark.parametrize("losses", [[lost()], [dropped()], [refused()], [lost(), dropped(), refused()]], ids=str)
@pytest.mark.parametrize(
    ("status", "event", "state", "verdict"),
    [
        (200, "complete", State.COMPLETED, Verdict.STORED),
        (503, "release", State.RELEASED, Verdict.RELEASED),
        (502, "abandon", State.IN_DOUBT, Verdict.IN_DOUBT),
        (401, "forget", State.RELEASED, Verdict.RELEASED),
    ],
)
async def test_a_lost_answer_to_an_outcome(
    tmp_path: Path, status: int, event: str, state: State, verdict: Verdict, losses: list[Fault]
) -> None:
    """It is said again until it is known to be recorded; only then does the client hear of it."""
    async with coordination(tmp_path) as office:
        office.upstream.on("/charges", Answer(status))
        office.store.on(event, *losses)
        assert heard(await office.reply()) == (status, verdict)
        assert office.state is state
        assert office.store.said == ["claim", *[event] * (len(losses) + 1)]
        assert [fact.is_late for fact in office.told(OperationSettled)] == [True]
        assert len(office.upstream.requests) == 1


@pytest.mark.parametrize("is_less_taken", [True, False], ids=["taken-without-its-body", "never-taken"])
async def test_an_answer_that_the_store_can_never_take(tmp_path: Path, is_less_taken: bool) -> None:
    """It is recorded with less, or kept in the journal; it is never executed again."""
    async with coordination(tmp_path) as office:
        office.upstream.on("/charges", Answer(201, body=b"charged"))
        if is_less_taken:
            office.store.on("complete", TOO_LONG)
            reply = await office.reply()
            assert (heard(reply), reply.body) == ((201, Verdict.RESPONSE_NOT_STORED), b"charged")
        else:
            office.store.break_("complete", fault=TOO_LONG)
            assert heard(await office.reply()) == (503, Verdict.IN_DOUBT)
            await idle(office)
            assert office.journal.tally.waiting == 1
        assert heard(await office.reply()) == (409, Verdict.RESPONSE_NOT_STORED)
        assert len(office.upstream.requests) == 1


async def test_a_journal_that_cannot_be_read_keeps_repeats_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have the response, which the store did not take: nothing is executed for want of it."""
    monkeypatch.setattr(operation, "_STORE_RETRY_SECONDS", 0.0)
    async with coordination(tmp_path) as office:
        office.store.break_("complete", fault=refused())
        assert heard(await office.reply()) == (200, Verdict.JOURNALED)
        await office.journal.close()
        office.store.said.clear()
        assert heard(await office.reply()) == (503, Verdict.STORE_UNAVAILABLE)
        assert office.store.said == []
        await office.journal.start()
        assert heard(await office.reply()) == (200, Verdict.REPLAYED)
        assert len(office.upstream.requests) == 1


async def test_a_defect_while_recording(tmp_path: Path) -> None:
    """The final command of an attempt that ends by an error of the program is said all the same."""
    async with coordination(tmp_path) as office:
        office.store.on("complete", Fault(ZeroDivisionError("defect"), has_effect=False))
        assert heard(await office.reply()) == (503, Verdict.IN_DOUBT)
        await idle(office)
        assert office.state is State.COMPLETED
        assert heard(await office.reply()) == (200, Verdict.REPLAYED)


# Fences


def others_did(office: Office, what: str) -> None:
    """Say what others say of the operation, whose lease is over."""
    operation_id, token = office.record.identity.operation_id, office.record.token
    if what == "proved":
        say(office, Prove(operation_id, token, uuid4(), THEIRS, WINDOW_US, WINDOW_US))
    elif what != "nothing":
        say(office, Disprove(operation_id, token, uuid4(), WINDOW_US))
    if "claimed" in what:
        before = office.record
        assert before.fingerprint is not None
        other = say(office, Claim(before.identity, uuid4(), "other", before.fingerprint, 30_000_000, before.token))
        ids = (operation_id, other.token, other.attempt_id)
        if what.endswith("completed"):
            say(office, Complete(*ids, THEIRS, WINDOW_US, WINDOW_US))


@pytest.mark.parametrize(
    ("ended", "in_time", "too_late"),
    [
        (LOST, (502, Verdict.IN_DOUBT), (503, Verdict.STORE_UNAVAILABLE)),
        (Answer(503), (503, Verdict.RELEASED), (503, Verdict.STORE_UNAVAILABLE)),
        (Answer(), (200, Verdict.REPLAYED), (200, Verdict.REPLAYED)),
    ],
    ids=["lost", "released", "answered"],
)
@pytest.mark.parametrize("is_over", [False, True], ids=["within-its-lease", "after-its-lease"])
async def test_how_it_ended_while_the_store_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Answer, in_time: object, too_late: object, is_over: bool
) -> None:
    """Those who waited are not told of an end that others may have gone on from; an answer is final."""
    monkeypatch.setattr(operation, "_STORE_RETRY_SECONDS", 0.0)
    async with coordination(tmp_path) as office:
        first, hold = await office.begin(answer=ended)
        waiter = office.ask()
        await office.wait_for_waiters()
        office.store.break_("read", "complete", "release", "abandon", fault=refused())
        if is_over:
            office.pass_time(LEASE_SECONDS)
        hold.set()
        await first
        assert heard(await waiter) == (too_late if is_over else in_time)


@pytest.mark.parametrize("is_silent", [False, True], ids=["refuses", "silent"])
async def test_a_duplicate_while_the_store_is_away_and_the_lease_is_over(tmp_path: Path, is_silent: bool) -> None:
    """That the first request still runs here says nothing: another gateway may know how the operation ended."""
    async with coordination(tmp_path) as office:
        first, hold = await office.begin()
        office.store.break_("renew", fault=refused())
        office.pass_time(LEASE_SECONDS)
        office.leases.run_once()
        if is_silent:
            office.store.stop_before("read")
        else:
            office.store.break_("read", fault=refused())
        assert heard(await office.reply(headers=[("Prefer", "wait=0")])) == (503, Verdict.STORE_UNAVAILABLE)
        hold.set()
        assert heard(await first) == (200, Verdict.STORED)


@pytest.mark.parametrize(
    ("others", "heard_now"),
    [
        ("nothing", (409, Verdict.IN_FLIGHT)),
        ("proved", (202, Verdict.RECOVERED)),
        ("disproved", (503, Verdict.RELEASED)),
        ("disproved-claimed", (409, Verdict.IN_FLIGHT)),
        ("disproved-claimed-completed", (202, Verdict.REPLAYED)),
    ],
)
@pytest.mark.parametrize("is_waiting", [False, True], ids=["came-after", "waited"])
async def test_a_duplicate_of_an_attempt_that_others_went_on_from(
    tmp_path: Path, others: str, heard_now: tuple[int, Verdict], is_waiting: bool
) -> None:
    """Once the lease is over it hears what the record says, while the attempt still runs here; and executes nothing."""
    async with coordination(tmp_path) as office:
        first, hold = await office.begin()
        if is_waiting:
            duplicate = office.ask(headers=[("Prefer", "wait=1")])
            await office.wait_for_waiters()
        office.pass_time(LEASE_SECONDS)
        others_did(office, others)
        # The loop was not stuck.
        office.leases.run_once()
        if not is_waiting:
            duplicate = office.ask(headers=[("Prefer", "wait=0")])
        assert heard(await duplicate) == heard_now
        assert len(office.upstream.requests) == 1
        hold.set()
        await first


# Leases


async def test_a_lease_that_is_over_before_the_first_byte(tmp_path: Path) -> None:
    """Nothing is sent under a claim that can no longer be trusted, and the key is free."""
    async with coordination(tmp_path) as office:
        gate = office.store.stop_after("claim")
        task = office.ask()
        await gate.reached.wait()
        office.pass_time(LEASE_SECONDS - 4)
        gate.opened.set()
        assert heard(await task) == (503, Verdict.UPSTREAM_UNREACHABLE)
        assert (office.state, office.upstream.requests) == (State.RELEASED, [])


async def test_places_to_wait_are_the_route_s(tmp_path: Path) -> None:
    """However many operations are waited for, the waiters of a route are bounded together, here and elsewhere."""
    async with coordination(tmp_path, route={"in_flight": {"wait": "20s", "max_waiters": 3}}) as office:
        hold = asyncio.Event()
        office.upstream.on("/charges", Answer(hold=hold))
        firsts = [office.ask(key) for key in ("a", "b")]
        await office.upstream.wait_for_requests(2)
        async with coordination(tmp_path, memory=office.memory, behind=office.upstream) as other:
            waiting = [office.ask(key) for key in ("a", "b", "a", "b", "a")]
            await eventually(lambda: sum(task.done() for task in waiting) == 2)
            assert office.coordinator.waiters == 3
            route = replace(office.route, in_flight=other.route.in_flight.model_copy(update={"max_waiters": 1}))
            remote = [other.ask(key, route=route) for key in ("a", "b")]
            await eventually(lambda: sum(task.done() for task in remote) == 1)
            hold.set()
            answers = [heard(await task) for task in (*firsts, *waiting, *remote)]
        words = [(200, Verdict.STORED), (200, Verdict.REPLAYED), (409, Verdict.IN_FLIGHT)]
        assert [answers.count(each) for each in words] == [2, 4, 3]


# Those who wait


PROBED = {
    "recovery": {
        "probe": {
            "path": "/status?operation={operation_id}",
            "done": [{"status": [200]}],
            "never_happened": [{"status": [404]}],
        }
    }
}


@pytest.mark.parametrize("route", [{"recovery": "resend"}, PROBED], ids=["resend", "probe"])
async def test_doubt_about_a_request_that_cannot_be_compared(tmp_path: Path, route: dict[str, Any]) -> None:
    """A route that accepts records from before a change answers from them: it recovers nothing for what may differ."""
    async with coordination(tmp_path, route=route) as office:
        office.upstream.on("/charges", LOST, Answer())
        assert heard(await office.reply()) == (502, Verdict.IN_DOUBT)
        otherwise = Fingerprinter(FingerprintSpec(headers=(b"X-Tenant",)))
        accepting = replace(office.route, fingerprinter=otherwise, accepts_recipe_change=True)
        assert heard(await office.reply(body=b'{"amount": 7}', route=accepting)) == (409, Verdict.IN_DOUBT)
        assert len(office.upstream.requests) == 1
        recovered = Verdict.STORED if route is not PROBED else Verdict.RECOVERED
        assert heard(await office.reply(route=accepting)) == (200, recovered)


@pytest.mark.parametrize("is_held_up", [False, True], ids=["after-it-was-kept", "before-it-was-kept"])
async def test_a_window_that_may_be_over_while_the_answer_is_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_held_up: bool
) -> None:
    """The store may have taken it when it was first told: from the end of that window on the store alone can tell."""
    monkeypatch.setattr(operation, "_STORE_RETRY_SECONDS", 0.1)
    async with coordination(tmp_path, route={"retention": {"replay": "5s", "remember": "1d"}}) as office:
        gate = Gate()
        office.store.on("complete", replace(lost(), after=gate))
        # It is told again and again, but may have taken the first.
        office.store.break_("complete", fault=lost())
        asked = office.ask()
        await gate.reached.wait()
        if is_held_up:
            office.pass_time(6)
        gate.opened.set()
        assert heard(await asked) == (200, Verdict.JOURNALED)
        if not is_held_up:
            office.store.break_("claim", "read", fault=refused())
            assert heard(await office.reply()) == (200, Verdict.REPLAYED)
            office.store.mend()
            office.pass_time(6)
        assert heard(await office.reply()) == (410, Verdict.KEY_EXPIRED)
        assert len(office.upstream.requests) == 1


# The store away


@pytest.mark.parametrize(
    "faults",
    [
        [TOO_LONG],
        [lost(), TOO_LONG, TOO_LONG],
        [Fault(Amnesic("it forgot"), has_effect=False)],
        [Fault(ZeroDivisionError("defect"), has_effect=False)],
    ],
    ids=["rejected", "lost-then-rejected", "amnesic", "defect"],
)
async def test_what_a_store_refuses_is_forwarded_nowhere(tmp_path: Path, faults: list[Fault]) -> None:
    """A route may do without a store that is away, never against one that is there; a claim of it is released."""
    async with coordination(tmp_path, route={"store_unavailable": "forward"}) as office:
        office.store.on("claim", *faults)
        assert (await office.reply()).status == 503
        await office.claiming.wait_pursuits_ended()
        assert office.upstream.requests == []
        assert office.state in (State.ABSENT, State.RELEASED)


async def test_without_a_store(tmp_path: Path) -> None:
    """What is forwarded keeps its body, and its lost claim ends in doubt; pursued claims keep others from beginning."""
    async with coordination(tmp_path, route={"store_unavailable": "forward"}, in_flight_max=1) as office:
        office.store.break_("claim", fault=lost())
        answer = await office.ask(body=SPOOLED)
        assert isinstance(answer, Untouched)
        assert answer.verdict is Verdict.UNPROTECTED
        assert b"".join([chunk async for chunk in answer.request.body.stream()]) == SPOOLED
        answer.request.body.close()
        for body in (BODY, Pieces(BODY)):
            assert heard(await office.reply("k2", body)) == (503, Verdict.OVERLOADED)
        assert len(office.claiming.pursuits) == 1
        office.store.mend()
        await office.claiming.wait_pursuits_ended()
        assert office.state is State.IN_DOUBT


# Callers who leave


@pytest.mark.parametrize("steps", range(40))
@pytest.mark.parametrize("route", [STREAMED, {}], ids=["streamed", "stored"])
async def test_the_first_caller_leaves_at_any_step(tmp_path: Path, route: Any, steps: int) -> None:
    """What was begun for it runs to its end and is recorded; no body, stream or run is left."""
    async with coordination(tmp_path, route=route) as office:
        long = Answer(body=(b"a" * 100_000, asyncio.Event(), b"z"))
        office.upstream.on("/charges", long if route else Answer())
        await left_after(steps, office.ask(body=SPOOLED if steps % 2 else b"{}"))
        await idle(office)
        assert office.state in (State.ABSENT, State.COMPLETED)
        assert len(office.upstream.requests) == (0 if office.state is State.ABSENT else 1)
        await eventually(lambda: spooled_files(tmp_path) == [], what="bodies are closed")
        if route:
            await eventually(lambda: office.open_connections == 0, what="the connection to the upstream is closed")
