"""The package for callers in Python: one key and one effect for an intent, and what is known where it gives up."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import httpx
import pytest
import requests

from idempotency_client import FileKeys, GaveUp, Keys, Known, New, Patience, intent
from idempotency_client.httpx import AsyncIdempotentTransport, IdempotentTransport
from idempotency_client.requests import IdempotentAdapter
from idempotency_client.table import Advice, advice, known_after
from idempotency_client.tries import Tries
from tests.clients.border import PATH, api, charges
from tests.support.ports import free_port
from tests.support.reference import DOCS, ROOT
from tests.support.relay import Relay
from tests.support.upstream import Answer

SOON: Final = Patience(tries=6, first_seconds=0.005)
BODY: Final[dict[str, Any]] = {"amount": 1000, "currency": "eur"}


def post(url: str, keys: Keys, patience: Patience = SOON, *, timeout: float = 30.0) -> int:
    """The status of the answer, under whatever intent is open, as for all of these."""
    with httpx.Client(transport=IdempotentTransport(keys, patience=patience), timeout=timeout) as client:
        return client.post(url, json=BODY).status_code


async def post_async(url: str, keys: Keys, *, timeout: float = 30.0) -> int:
    async with httpx.AsyncClient(transport=AsyncIdempotentTransport(keys, patience=SOON), timeout=timeout) as client:
        return (await client.post(url, json=BODY)).status_code


def post_by_requests(url: str, keys: Keys, *, timeout: float = 30.0) -> int:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", IdempotentAdapter(keys, patience=SOON))
        return session.post(url, json=BODY, timeout=timeout).status_code


Send = Callable[..., Awaitable[int]]
# Those that block run beside the gateway in this thread.
POSTS: Final[dict[str, Send]] = {
    "httpx": partial(asyncio.to_thread, post),
    "async-httpx": post_async,
    "requests": partial(asyncio.to_thread, post_by_requests),
}


def charging(post: Send) -> Send:
    """It charges at a port, for an intent."""

    async def send(port: int, keys: Keys, name: str, **how: Any) -> int:
        with intent(name):
            return await post(f"http://127.0.0.1:{port}{PATH}", keys, **how)

    return send


SENDERS: Final = {name: charging(post) for name, post in POSTS.items()}
each_sender = pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)


@pytest.fixture
def keys(tmp_path: Path) -> FileKeys:
    return FileKeys(tmp_path / "keys.db")


@each_sender
async def test_one_effect_for_each_intent(send: Send, keys: FileKeys, tmp_path: Path) -> None:
    """A third of the responses is lost behind the gateway, and two before it."""
    async with api(tmp_path, "probe") as (home, border):
        for number in range(6):
            border.lost = number % 2
            assert await send(border.port, keys, f"order-{number}") in (200, 201)
        assert len(charges(home)) == len(set(charges(home))) == 6
        # Whoever forgot that it was done gets the same answer.
        assert await send(border.port, keys, "order-1") == 201
        assert len(charges(home)) == 6


@each_sender
async def test_it_stops_at_doubt(send: Send, keys: FileKeys, tmp_path: Path) -> None:
    """At once, also for whoever asks again, and it says whom to ask about what."""
    async with api(tmp_path, "hold") as (home, border):
        for _ in range(2):
            with pytest.raises(GaveUp, match=r"order-1: in doubt.*Do not send it again under a new key") as raised:
                await send(border.port, keys, "order-1")
            assert (raised.value.known, raised.value.may_repeat) == (Known.IN_DOUBT, False)
            assert [raised.value.problem["operation_id"].encode()] == charges(home)
        assert b'route="charge",verdict="in-doubt"} 2.0' in (await home.status("/metrics")).body


async def test_killed_between_two_tries(keys: FileKeys, tmp_path: Path) -> None:
    """The next process goes on with the key of the one before."""
    async with api(tmp_path, "probe") as (home, border):
        border.after = 9
        program = readme(border.port)[0].replace("order-1001", "order-1")
        process = await python(program, tmp_path)
        await border.told.wait()
        process.kill()
        await process.wait()
        border.after = 0
        assert await SENDERS["httpx"](border.port, keys, "order-1") == 200
        assert len(charges(home)) == 1


@each_sender
async def test_nothing_ever_happened(send: Send, keys: FileKeys, tmp_path: Path) -> None:
    """That is said where the key is new and no try had an effect: nobody was there, or the gateway says so."""
    for name, known in (("order-1", Known.NEVER_HAPPENED), ("order-1", Known.IN_DOUBT)):
        with pytest.raises(GaveUp) as raised:
            await send(free_port(), keys, name)
        assert (raised.value.known, raised.value.may_repeat, raised.value.problem) == (known, True, {})
    async with api(tmp_path, "hold") as (home, border):
        home.upstream.on(PATH, Answer(503, effect=False))
        with pytest.raises(GaveUp, match="order-2: never happened"):
            await send(border.port, keys, "order-2")
        border.lost = 1
        with pytest.raises(GaveUp, match="order-3: in doubt"):
            await send(border.port, keys, "order-3")
        home.upstream.on(PATH, Answer(201))
        assert await send(border.port, keys, "order-3") == 201


@each_sender
async def test_nobody_answers(send: Send, keys: FileKeys) -> None:
    """A timeout is a loss: what was sent may have arrived."""
    async with Relay(free_port()) as silence:
        silence.black_hole = True
        with pytest.raises(GaveUp, match="order-1: in doubt") as raised:
            await send(silence.port, keys, "order-1", timeout=0.02)
        assert raised.value.may_repeat
        assert silence.connections == SOON.tries


@each_sender
async def test_done_without_a_response(send: Send, keys: FileKeys, tmp_path: Path) -> None:
    """Where a response was not kept, whoever did not get it hears that it happened."""
    async with api(tmp_path, "hold", response={"max_stored_bytes": 0}) as (home, border):
        home.upstream.on(PATH, Answer(201))
        border.lost = 1
        with pytest.raises(GaveUp, match=r"order-1: done. The first request was answered with 201") as raised:
            await send(border.port, keys, "order-1")
        assert (raised.value.known, raised.value.may_repeat) == (Known.DONE, False)


async def test_whoever_has_to_wait_for_long_is_told(keys: FileKeys, tmp_path: Path) -> None:
    """A pause that is longer than the longest one is the end."""
    async with api(tmp_path, "probe") as (_, border):
        border.after = 9
        with pytest.raises(GaveUp) as raised:
            await SENDERS["httpx"](border.port, keys, "order-1", patience=Patience(longest_seconds=8.0))
        assert raised.value.may_repeat


async def test_an_intent_is_one_request(keys: FileKeys, tmp_path: Path) -> None:
    """Another one under its name is refused. Reads need none; a write without one, or with another key, is not sent."""
    async with api(tmp_path, "probe") as (home, border):
        url = f"http://127.0.0.1:{border.port}{PATH}"
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(keys, patience=SOON)) as client:
            assert (await client.get(url)).status_code == 404
            with pytest.raises(RuntimeError, match="with intent"):
                await client.post(url, json=BODY)
            with intent("order-1"):
                with pytest.raises(ValueError, match="another key"):
                    await client.post(url, json=BODY, headers={"Idempotency-Key": "mine"})
                assert (await client.post(url, json=BODY)).status_code == 200
                with pytest.raises(GaveUp, match=r"order-1: done. This key was used at .* for a different request"):
                    await client.post(url, json={"amount": 2})
                border.lost = SOON.tries
                with pytest.raises(GaveUp, match="order-1: done"):
                    await client.post(url, json=BODY)
        assert len(charges(home)) == 1


@pytest.mark.parametrize("send", POSTS.values(), ids=POSTS)
async def test_two_requests_at_once_under_one_intent(send: Send, keys: FileKeys, tmp_path: Path) -> None:
    """The second one is not sent, and its caller hears why. One after the other they may, and get one answer."""
    async with api(tmp_path, "hold") as (home, border):
        hold, url = asyncio.Event(), f"http://127.0.0.1:{border.port}{PATH}"
        home.upstream.on(PATH, Answer(201, hold=hold))
        with intent("order-1"):
            first = asyncio.create_task(send(url, keys))
            try:
                await home.upstream.wait_for_requests(1)
                with pytest.raises(RuntimeError, match="another request of the intent 'order-1' is on its way"):
                    await asyncio.wait_for(send(url, keys), 10.0)
            finally:
                hold.set()
            assert await first == await send(url, keys) == 201
        assert len(charges(home)) == 1


async def test_a_request_that_was_given_up_leaves_its_intent_free(keys: FileKeys, tmp_path: Path) -> None:
    """Cancelled in the middle of a try, it may be sent again."""
    async with api(tmp_path, "hold") as (home, border):
        hold, url = asyncio.Event(), f"http://127.0.0.1:{border.port}{PATH}"
        home.upstream.on(PATH, Answer(201, hold=hold))
        with intent("order-1"):
            first = asyncio.create_task(post_async(url, keys))
            await home.upstream.wait_for_requests(1)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            hold.set()
            assert await post_async(url, keys) == 201
        assert len(charges(home)) == 1


def test_a_body_that_can_be_read_once(keys: FileKeys) -> None:
    """requests cannot send it twice, so it is not sent at all."""
    with requests.Session() as session, intent("order-1"):
        session.mount("http://", IdempotentAdapter(keys))
        with pytest.raises(ValueError, match="has to be bytes"):
            session.post("http://127.0.0.1:1/", data=iter([b"{}"]))


def test_keys_of_the_user(tmp_path: Path) -> None:
    """Any function will do. A key of which it does not say that it is new may have been used before."""
    for made, known in (("k1", Known.IN_DOUBT), (New("k1"), Known.NEVER_HAPPENED)):
        with pytest.raises(GaveUp) as raised, intent("order-1"):
            post(f"http://127.0.0.1:{free_port()}{PATH}", {"order-1": made}.__getitem__, Patience(tries=1))
        assert raised.value.known is known


def test_a_key_is_made_once(keys: FileKeys) -> None:
    """By however many at once, and only one of them is told that it is new."""
    together = Barrier(4)

    def make(name: str) -> str:
        together.wait()
        return keys(name)

    with ThreadPoolExecutor(together.parties) as pool:
        for number in range(20):
            made = list(pool.map(make, [f"order-{number}"] * together.parties))
            assert len(set(made)) == 1
            assert [isinstance(key, New) for key in made].count(True) == 1


def test_a_full_file_drops_no_key(tmp_path: Path) -> None:
    """It takes no further intent until one is forgotten."""
    keys = FileKeys(tmp_path / "keys.db", intents_max=2)
    first, _ = keys("order-1"), keys("order-2")
    with pytest.raises(RuntimeError, match="holds 2 intents"):
        keys("order-3")
    assert keys("order-1") == first
    keys.forget("order-2")
    assert keys("order-3") not in (first, "")


def test_pauses_grow_and_are_as_long_as_is_asked_for(keys: FileKeys) -> None:
    """To the longest, and for as many tries as there may be."""
    patience = Patience(tries=6, first_seconds=1.0, longest_seconds=5.0)
    pauses = []
    with intent("order-1"):
        tries = Tries(keys, patience, {}, lambda _: None)
        for after in ("", "0", "4", "Fri, 27 Nov 2026 12:00:00 GMT", "3"):
            with tries:
                assert not tries.is_answer(503, {"Retry-After": after}, b"")
            pauses.append(tries.pause_seconds)
        with pytest.raises(GaveUp), tries:
            tries.is_answer(503, {}, b"")
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]


# -- the table ---------------------------------------------------------------------------------------------------------


def rows(page: Path, part: str) -> list[list[str]]:
    """The cells of a generated table."""
    (table,) = re.findall(rf"<!-- generated: {part} -->\n(.*?)<!-- end -->", page.read_text("utf-8"), re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


SAID: Final = {
    code: meaning.strip("`")
    for meaning, codes in rows(DOCS / "configure" / "outcomes.md", "said")
    for code in re.findall(r"`([a-z-]+)`", codes)
}
REFUSALS: Final = [
    (code, int(status), again, SAID[code])
    for cell, status, again, _ in rows(DOCS / "for-callers.md", "problems")
    if (code := re.findall(r"`([a-z-]+)`", cell)[0]) in SAID
]


@pytest.mark.parametrize(("code", "status", "again", "outcome"), REFUSALS, ids=str)
def test_the_table_knows_every_refusal(code: str, status: int, again: str, outcome: str) -> None:
    """What the documentation says of each code, by its headers."""
    headers = httpx.Headers({"Idempotency-Status": code, "Idempotency-Outcome": outcome})
    headers["x-should-retry"] = {"yes": "true", "no": "false"}[again]
    assert advice(status, headers) is {"yes": Advice.REPEAT, "no": Advice.STOP}[again]
    known = {"final": Known.DONE, "retryable": Known.NEVER_HAPPENED, "in-doubt": Known.IN_DOUBT}[outcome]
    assert known_after(headers, Known.NEVER_HAPPENED) is known
    assert known_after(headers, Known.IN_DOUBT) is (known if outcome == "final" else Known.IN_DOUBT)


@pytest.mark.parametrize(
    ("status", "headers", "advised", "known"),
    [
        (201, {"Idempotency-Status": "stored"}, Advice.ANSWER, Known.DONE),
        (503, {"Idempotency-Status": "replayed"}, Advice.ANSWER, Known.DONE),
        (500, {"Idempotency-Status": "in-doubt"}, Advice.STOP, Known.IN_DOUBT),
        (500, {"Idempotency-Status": "in-doubt", "x-should-retry": "true"}, Advice.REPEAT, Known.IN_DOUBT),
        (503, {"Idempotency-Status": "released", "x-should-retry": "true"}, Advice.REPEAT, Known.NEVER_HAPPENED),
        (401, {"Idempotency-Status": "released"}, Advice.ANSWER, Known.NEVER_HAPPENED),
        (202, {"Idempotency-Status": "accepted"}, Advice.ANSWER, Known.IN_DOUBT),
        (502, {"Idempotency-Outcome": "in-doubt"}, Advice.STOP, Known.IN_DOUBT),
        (503, {"x-should-retry": "false"}, Advice.ANSWER, Known.IN_DOUBT),
        (504, {}, Advice.REPEAT, Known.IN_DOUBT),
        (500, {}, Advice.ANSWER, Known.IN_DOUBT),
        (201, {}, Advice.ANSWER, Known.IN_DOUBT),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else str(value),
)
def test_the_table_knows_other_responses(status: int, headers: dict[str, str], advised: Advice, known: Known) -> None:
    """Of the service, of a gateway without its headers, and of what is between."""
    assert advice(status, httpx.Headers(headers)) is advised
    assert known_after(httpx.Headers(headers), Known.NEVER_HAPPENED) is known
    assert known_after(httpx.Headers(headers), Known.DONE) is Known.DONE


async def test_the_readme(tmp_path: Path) -> None:
    """Its programs run as they stand."""
    async with api(tmp_path, "hold") as (home, border):
        with_httpx, with_requests = readme(border.port)
        for program, said in ((with_httpx, b"It may have happened."), (with_requests, b"201")):
            output, _ = await (await python(program, tmp_path)).communicate()
            assert output.startswith(said)
        assert len(charges(home)) == 2


def readme(port: int) -> list[str]:
    """The programs of the package's README, for an API on this port."""
    programs = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "client/README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return [each.replace("https://api.example.com", f"http://127.0.0.1:{port}") for each in programs]


async def python(program: str, directory: Path) -> asyncio.subprocess.Process:
    environment = {"PYTHONPATH": str(ROOT / "client"), "NO_PROXY": "127.0.0.1"}
    words = (sys.executable, "-c", program)
    return await asyncio.create_subprocess_exec(*words, cwd=directory, env=environment, stdout=asyncio.subprocess.PIPE)
