"""A route that is only observed: nobody notices, and the numbers are those that enforcing would have given."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count, pairwise, product
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app.life import StartError
from gateway.store.base import NotApplied
from tests.admin.shell import Shell
from tests.support.eventually import eventually
from tests.support.house import BODY, ROUTE, House, config_text, house, neighbour, sqlite_store, status_of
from tests.support.http import Connection
from tests.support.upstream import Answer, Ending, Framing, Received, RecordingUpstream, Script

Store = dict[str, Any]
OBSERVED = {"mode": "observe", "body": {"max_bytes": "1KiB"}, "in_flight": {"wait": "0s"}}
BIG = b"x" * 5000


class Away:
    """A table that is not there. Every call of it is counted."""

    def __init__(self, hangs: bool) -> None:
        self.hangs = hangs
        self.calls = 0
        self.ended = 0

    async def observed_before(self, *_: object) -> Any:
        self.calls += 1
        try:
            if self.hangs:
                await asyncio.Event().wait()
            raise NotApplied("away")
        finally:
            self.ended += 1

    observed_contents = save_observations = count_observed = observed_before


def exchanges() -> dict[str, tuple[list[bytes], Script]]:
    """Requests of every kind that enforcing treats in another way, each with what the service answers."""
    keys = ["", "Idempotency-Key: k1\r\n", "Idempotency-Key: a b\r\n", "Idempotency-Key: 1\r\nIdempotency-Key: 2\r\n"]
    answers = [
        Answer(201, headers=[("Location", "/charges/1"), ("Idempotency-Outcome", "final")], body=b'{"id":1}'),
        Answer(503, headers=[("Retry-After", "1")], body=b"later"),
        Answer(200, framing=Framing.CHUNKED, body=BIG),
    ]
    found: dict[str, tuple[list[bytes], Script]] = {}
    for key, caller, body, answer in product(
        keys, ("X-Tenant: t1\r\n", ""), (BODY, b'{"amount":1}', BIG, b""), answers
    ):
        head = f"POST /charges HTTP/1.1\r\nHost: shop.test\r\nContent-Type: application/json\r\n{key}{caller}"
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        found[f"{key}{caller}{len(body)} {answer.status}"] = [data], answer
    return found


def seen(request: Received) -> tuple[object, ...]:
    return request.method, request.target, request.version, request.headers, request.body, request.trailers


@asynccontextmanager
async def observing(store: Store, directory: Path, **changes: Any) -> AsyncIterator[House]:
    route = OBSERVED | changes.pop("route", {})
    async with house(store, directory, route=route, **changes) as home:
        yield home


def table_away(hangs: bool) -> tuple[Away, Any]:
    away = Away(hangs)
    return away, lambda environment: replace(environment, observations=away)


def framed(
    *headers: str, version: str = "1.1", method: str = "POST", target: str = "/charges", key: str = "k1"
) -> bytes:
    """A head with a key and a caller."""
    fields = ["Host: shop.test", "X-Tenant: t1", f"Idempotency-Key: {key}", "Content-Type: application/json", *headers]
    return "\r\n".join([f"{method} {target} HTTP/{version}", *fields, "", ""]).encode("latin-1")


def of_length(body: bytes, *headers: str, **head: str) -> bytes:
    return framed(f"Content-Length: {len(body)}", *headers, **head) + body


def in_chunks(*chunks: bytes) -> bytes:
    parts = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return framed(CHUNKED) + parts + b"0\r\n\r\n"


LARGE = b"y" * 300_000
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
UPGRADE = framed("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
WHOLE = framed(LENGTH) + BODY
TRAILED = Answer(200, framing=Framing.CHUNKED, headers=(("Trailer", "X-Sum"),), trailers=(("X-Sum", "1"),))
LEAVES = b""
CONVERSATIONS: dict[str, tuple[list[bytes], Script]] = {
    **exchanges(),
    # What is sent, each part after something came for the one before it, and what the service answers.
    "expects 100": ([framed(LENGTH, "Expect: 100-continue"), BODY], Answer(201)),
    "expects 100, in chunks": ([framed(CHUNKED, "Expect: 100-continue"), b"2\r\n{}\r\n0\r\n\r\n"], Answer(201)),
    "expects 100, over the limit": ([framed("Content-Length: 5000", "Expect: 100-continue"), BIG], Answer(413)),
    "trailers of a request": ([framed(CHUNKED, "Trailer: X-Sum") + b"2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n"], Answer(200)),
    "trailers of a response": ([WHOLE], TRAILED),
    "an upgrade": ([UPGRADE, b"ping", b"pong"], Answer(echo=True)),
    "an upgrade that is not wanted": ([UPGRADE], Answer(200)),
    "two at once": ([WHOLE + WHOLE], Answer(200)),
    "HTTP/1.0": ([framed(LENGTH, version="1.0") + BODY], Answer(200)),
    "ended by the end of the connection": ([WHOLE], Answer(200, framing=Framing.CLOSE)),
    "cut by the service": ([WHOLE], Answer(200, body=BIG, bytes_max=600, ending=Ending.RESET)),
    "lost by the service": ([WHOLE], Answer(bytes_max=0, ending=Ending.RESET)),
    "leaves in its body": ([framed("Content-Length: 5000") + BIG[:2000], LEAVES], Answer(200)),
    "leaves in the response": (
        [WHOLE, LEAVES],
        lambda _: Answer(200, framing=Framing.CHUNKED, body=(BIG, asyncio.Event())),
    ),
    "leaves an upgrade": ([UPGRADE, b"ping", LEAVES], Answer(echo=True)),
    # Bodies: around the limit, beyond it, in pieces, and what no fingerprint can be made of.
    "at the limit": ([of_length(b"x" * 1024)], Answer(200)),
    "one byte over the limit": ([of_length(b"x" * 1025)], Answer(200)),
    "far over the limit, echoed": ([of_length(LARGE)], Answer(200, body=LARGE)),
    "chunks of a byte": ([in_chunks(*(bytes([each]) for each in BODY))], Answer(200)),
    "chunks far over the limit": ([in_chunks(LARGE, LARGE)], Answer(200)),
    "no JSON": ([of_length(b"{")], Answer(400)),
    "gzip": ([of_length(b"\x1f\x8b\x08\x00", "Content-Encoding: gzip")], Answer(200)),
    # Methods and targets, of which the route has but some.
    **{method: ([of_length(BODY, method=method)], Answer(200)) for method in ("PATCH", "DELETE")},
    "GET": ([framed(method="GET")], Answer(200)),
    "HEAD": ([framed(method="HEAD")], Answer(200)),
    "an absolute target": ([of_length(BODY, target="http://shop.test/charges")], Answer(200)),
    "a path in other letters": ([of_length(BODY, target="/Charges")], Answer(200)),
    # Keys and other headers.
    "a quoted key": ([of_length(BODY, key='"k1"')], Answer(200)),
    "a key that is no ASCII": ([of_length(BODY, key="k\xe9")], Answer(200)),
    "a header over the limit": ([of_length(BODY, f"X-Long: {'v' * 70_000}")], Answer(200)),
    "headers for one hop": ([of_length(BODY, "Connection: close, X-Hop", "X-Hop: 1")], Answer(200)),
    "headers that are the gateway's": ([of_length(BODY, "Idempotency-Operation: 1")], Answer(200)),
    "preferences": ([of_length(BODY, "Prefer: respond-async, wait=0")], Answer(202)),
    "a preflight": (
        [framed("Origin: https://shop.test", "Access-Control-Request-Method: POST", method="OPTIONS")],
        Answer(204, framing=Framing.NONE),
    ),
    "a proxy's headers": ([of_length(BODY, "X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4")], Answer(200)),
    # Responses.
    **{f"a {status}": ([WHOLE], Answer(status)) for status in (202, 401, 409, 501)},
    "a 204": ([WHOLE], Answer(204, framing=Framing.NONE)),
    "a 304 that names a length": ([WHOLE], Answer(304, headers=(("Content-Length", "9"),), framing=Framing.NONE)),
    "a large response in chunks": ([WHOLE], Answer(200, framing=Framing.CHUNKED, body=(LARGE, LARGE))),
    "a verdict of the service": ([WHOLE], Answer(200, headers=(("Idempotency-Status", "mine"),))),
    "interim responses": ([WHOLE], Answer(200, interim=((102, ()), (103, (("Link", "</a.css>"),))))),
    "no response of HTTP": ([WHOLE], Answer(raw=b"SSH-2.0-x\r\n\r\n", ending=Ending.CLOSE)),
    "two lengths in a response": (
        [WHOLE],
        Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", ending=Ending.CLOSE),
    ),
    "ended in its body": ([WHOLE], Answer(200, body=BIG, bytes_max=600, ending=Ending.CLOSE)),
}


# Those that the route has, but for a tunnel; of these some did not arrive, which enforcing could not have judged.
OBSERVED_REQUESTS, INCOMPLETE = 139, 3
STORE_DROPPED = ("idempotency_observations_dropped_total", "store")


async def conversed(home: House) -> tuple[dict[str, bytes], list[object]]:
    """What each client got, byte for byte but for the date; and what the service got."""
    got = {}
    for name, (parts, answer) in CONVERSATIONS.items():
        home.upstream.on("/charges", answer)
        said = b""
        async with Connection(home.port) as connection:
            for part, following in pairwise([*parts, None]):
                await connection.send(part or b"")
                if following is not None and name != "leaves in its body":
                    said += await asyncio.wait_for(connection.reader.read(65536), 10.0)
            if parts[-1] is LEAVES:
                # What has arrived of the response depends on the moment.
                said = said.partition(b"\r\n\r\n")[0]
                connection.reset()
            else:
                connection.finish_sending()
                try:
                    said += await connection.read_rest()
                except ConnectionError:
                    said += b"(reset)"
        # What the service got is complete before the next one begins.
        await eventually(lambda: home.gateway.edge.in_flight == 0, 10.0)
        got[name] = re.sub(rb"(Date|X-Nonce): [^\r]*\r\n", b"", said)
    return got, [seen(request) for request in home.upstream.requests]


async def test_nobody_notices(tmp_path: Path) -> None:
    """Client and service see, byte for byte, what they see where no route matches: without a key or a caller, with a
    key twice or malformed, beyond the limits, on repeats and mismatches, where a client expects 100, sends trailers,
    upgrades, or leaves in the middle; and whatever the store does."""
    unmatched = {"match": {"path": "/elsewhere"}}
    assert len(CONVERSATIONS) >= 144
    async with house(sqlite_store(tmp_path), tmp_path, route=unmatched) as home:
        expected = await conversed(home)
        port = home.upstream.port
    assert expected[0]["an upgrade"].endswith(b"pingpong")
    for table in ("there", "away", "hangs", "never-there"):
        directory = tmp_path / table
        store = sqlite_store(directory) if table != "never-there" else {"durable": f"postgresql://u@/d?host={tmp_path}"}
        away, surround = table_away(table == "hangs")
        options = {"surround": surround} if table in ("away", "hangs") else {}
        async with (
            RecordingUpstream(port=port) as upstream,
            neighbour(store, directory, upstream, route=OBSERVED, **options) as home,
        ):
            assert await conversed(home) == expected, table
            is_hung = table == "hangs"
            if is_hung:
                await eventually(lambda away=away: away.calls)
            number = 0 if is_hung else OBSERVED_REQUESTS
            numbers = await eventually(lambda home=home, number=number: settled(home, number))
            assert not {"idempotency_requests_total", "idempotency_claims_total"} & numbers.keys()
            assert is_hung or numbers["idempotency_observations_dropped_total", "incomplete"] == INCOMPLETE
            judged = "idempotency_observed_requests_total" if table == "there" else STORE_DROPPED
            assert is_hung or numbers[judged] == OBSERVED_REQUESTS - INCOMPLETE
            assert bool(away.calls) is (table in ("away", "hangs"))


async def numbers_of(home: House) -> dict[Any, float]:
    """The counters that are not 0, by name and, where there are such labels, by reason, verdict or mode; and sums."""
    found: dict[Any, float] = {}
    for family in text_string_to_metric_families((await home.status("/metrics")).body.decode()):
        for sample in family.samples:
            if sample.value and sample.name.startswith("idempotency_"):
                label = sample.labels.get("verdict") or sample.labels.get("reason") or sample.labels.get("mode")
                found[sample.name, label] = found.get((sample.name, label), 0.0) + sample.value
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


async def settled(home: House, number: int) -> dict[Any, float] | None:
    """The numbers, once this many observed requests were judged or dropped."""
    numbers = await numbers_of(home)
    done = (numbers.get(f"idempotency_{name}_total", 0) for name in ("observed_requests", "observations_dropped"))
    return numbers if sum(done) >= number else None


async def test_the_numbers_are_the_client_s(store: Store, tmp_path: Path) -> None:
    """What is counted and reported is what a client knows of its own requests, also while the host's time is set on;
    and nothing of it is a record."""
    wall = partial(next, count(int(time.time()) - 600))
    options = {
        "surround": lambda environment: replace(environment, wall_seconds=wall),
        "admin": {"listen": "127.0.0.1:0", "token": "t" * 32},
    }
    async with observing(store, tmp_path, **options) as home:
        shell = Shell(tmp_path, config_text(home.upstream.url, store, tmp_path, route=OBSERVED))
        for number in range(4):
            await home.send(f"new-{number}", b'{"n":%d}' % number)  # 4 stored
        for _ in range(3):
            await home.send("new-0", b'{"n":0}')  # 3 replayed
        await home.send("new-1", b'{"n":9}')  # key-reused
        await home.send(None)  # key-missing
        await home.send("k", tenant=None)  # scope-missing
        await home.send("a b")  # key-invalid
        await home.send("long", BIG)  # body-too-large
        await home.send("new-4", b'{"n":3}')  # stored, and rekeyed
        home.upstream.on("/charges", Answer(bytes_max=0, ending=Ending.RESET))
        await home.send("doubt", b'{"n":5}')  # in-doubt, executed
        home.upstream.on("/charges", Answer(200))
        await home.send("doubt", b'{"n":5}')  # in-doubt, refused
        home.upstream.on("/charges", Answer(503))
        await home.send("again", b'{"n":6}')  # released
        home.upstream.on("/charges", Answer(200))
        await home.send("again", b'{"n":6}')  # stored
        first, hold = await home.begin("flight", body=b'{"n":7}')
        home.upstream.on("/charges", Answer(200))
        await home.send("flight", b'{"n":7}')  # in-flight
        hold.set()
        await first  # stored
        numbers = await eventually(lambda: settled(home, 19))
        verdicts = {
            "stored": 7, "replayed": 3, "key-reused": 1, "key-missing": 1, "scope-missing": 1, "key-invalid": 1,
            "body-too-large": 1, "in-doubt": 2, "released": 1, "in-flight": 1,
        }  # fmt: skip
        name = "idempotency_observed_requests_total"
        assert {key[1]: value for key, value in numbers.items() if key[0] == name and key[1]} == verdicts
        assert numbers["idempotency_observed_repeats_total"] == 5
        assert numbers["idempotency_observed_rekeyed_total"] == 1
        assert numbers["idempotency_routes", "observe"] == 1
        assert "idempotency_observations_dropped_total" not in numbers
        (row,) = (await shell("observe", "report", "--format", "jsonl")).rows()
        assert {each["verdict"] for each in row["verdicts"] if each["refused"]} == {
            "key-reused", "key-missing", "scope-missing", "key-invalid", "body-too-large", "in-doubt", "in-flight"
        }  # fmt: skip
        assert (row["requests"], row["refused"], row["repeats"], row["rekeyed"]) == (19, 7, 5, 1)
        assert row["readiness"].startswith("7 of 19 would have been refused; 5 would not have run again.")
        (reused,) = [each for each in row["verdicts"] if each["verdict"] == "key-reused"]
        assert len(reused["operations"]) == 1
        said = await shell("observe", "report", "--route", "charge")
        assert "Enforcing starts with no memory" in said.out
        assert (await shell("observe", "report", "--route", "other")).code == 1
        assert "There" not in (await shell("inspect", "--list", "--state", "all")).out
        assert not [key for key in numbers if key in ("idempotency_requests_total", "idempotency_claims_total")]


@pytest.mark.parametrize("broken", ["uuid4", "_Copy.add", "Observing.arrived", "Exchange", "Observing.shown"])
async def test_a_bug_of_the_observer_reaches_nobody(broken: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever raises while a request is looked at, its response is that of the service, and the bug is counted."""

    def bug(*_: object) -> None:
        raise ZeroDivisionError

    async with observing(sqlite_store(tmp_path), tmp_path, observe={"header": True}) as home:
        monkeypatch.setattr(f"gateway.protect.observing.{broken}", bug)
        home.upstream.on("/charges", Answer(200, body=b"small"), Answer(200, framing=Framing.CHUNKED, body=BIG))
        for body in (b"small", BIG):
            response = await home.send()
            assert (response.status, response.body, response.complete) == (200, body, True)
        numbers = await eventually(lambda: settled(home, 2))
        assert numbers["idempotency_observations_dropped_total", "failed"] == 2


async def test_memory_is_bounded(tmp_path: Path, monkeypatch: Any) -> None:
    """Heads and bodies of what waits for a slow table count; what does not fit is dropped, and its memory is free."""
    monkeypatch.setattr("gateway.protect.observing._COPIED_BYTES_MAX", 20_000)
    away, surround = table_away(hangs=True)
    options = {"surround": surround, "route": {"body": {"max_bytes": "1MiB"}}}
    async with observing(sqlite_store(tmp_path), tmp_path, **options) as home:
        for number in range(3):
            assert status_of(await home.send(f"b{number}", BIG * 3)) == (200, None)
        for number in range(3):
            assert (await home.send(f"h{number}", headers=[("X-Long", "x" * 7000)])).status == 200
        numbers = await eventually(lambda: settled(home, 4))
        assert numbers == numbers | {("idempotency_observations_dropped_total", "memory"): 5}
        assert away.calls <= 1


async def test_a_slow_response_is_waited_for(tmp_path: Path) -> None:
    """As long as without the route, also where its probe bounds what enforcing it would wait."""
    probe = {"path": "/c", "done": [{"status": [200]}], "never_happened": [{"status": [404]}], "settle": "31s"}
    observed = ROUTE | {"recovery": {"probe": probe}, "mode": "observe"}
    enforced = observed | {"name": "refund", "match": {"path": "/refunds"}, "mode": "enforce"}
    async with house(sqlite_store(tmp_path), tmp_path, routes=[observed, enforced]) as home:
        first, hold = await home.begin("k1")
        home.upstream.on("/refunds", Answer(200, hold=asyncio.Event()))
        assert (await home.send("k2", target="/refunds")).status == 504
        hold.set()
        assert status_of(await first) == (200, None)


async def test_enforcing_starts_with_no_memory(store: Store, tmp_path: Path) -> None:
    """An observed key is new to enforcement, as `check` says; the way back is refused while there are keys."""
    text = config_text("http://127.0.0.1:9", store, tmp_path, route={"mode": "observe"})
    assert "Enforcing starts with no memory" in (await Shell(tmp_path, text)("check")).out
    async with observing(store, tmp_path) as home:
        for _ in range(2):
            assert status_of(await home.send()) == (200, None)
        await eventually(lambda: settled(home, 2))
    async with house(store, tmp_path) as home:
        assert [status_of(await home.send())[1] for _ in range(2)] == ["stored", "replayed"]
    shell = Shell(tmp_path, text)
    said = await shell("check", "--store")
    assert (said.code, "is now observed" in said.err, "`mode_change: accept`" in said.err) == (1, True, True)
    with pytest.raises(StartError, match="is now observed"):
        async with observing(store, tmp_path):
            pass
    for change in ({"mode_change": "accept"}, {}):
        async with observing(store, tmp_path, route=change) as home:
            assert status_of(await home.send()) == (200, None)


async def test_a_key_stays_on_its_side(tmp_path: Path) -> None:
    """Of an enforced share, all repeats of a key are protected, or none; a larger share keeps them."""
    enforced: list[set[str]] = []
    for share in ("30%", "60%"):
        directory = tmp_path / share
        async with observing(sqlite_store(directory), directory, route={"enforce_share": share}) as home:
            sides = {
                f"k{n}": [(await home.send(f"k{n}")).header("Idempotency-Status") for _ in range(3)] for n in range(40)
            }
            assert all(side in (["stored", "replayed", "replayed"], [None] * 3) for side in sides.values())
            enforced.append({key for key, side in sides.items() if side[0]})
            assert (await home.send(None)).status == 200
    assert 0 < len(enforced[0]) < len(enforced[1]) < 40
    assert enforced[0] < enforced[1]


async def test_a_mode_for_all_routes(tmp_path: Path) -> None:
    """The mode at the top is that of each route that has none; a route that answers by itself cannot be observed. Where
    it is wanted, a response carries the verdict that enforcement would have given."""
    async with house(sqlite_store(tmp_path), tmp_path, mode="observe") as home:
        assert status_of(await home.send()) == (200, None)
    async with observing(sqlite_store(tmp_path / "b"), tmp_path / "b", observe={"header": True}) as home:
        for body, verdict in ((BODY, "stored"), (BODY, "replayed"), (b'{"n":2}', "key-reused")):
            assert status_of(await home.send(body=body)) == (200, f"observed;would={verdict}")
    async with house(sqlite_store(tmp_path / "c"), tmp_path / "c", mode="observe", route={"mode": "enforce"}) as home:
        assert status_of(await home.send()) == (200, "stored")
    text = config_text("http://127.0.0.1:9", sqlite_store(tmp_path), tmp_path, mode="observe", route={"accept": {}})
    assert "answers by itself" in (await Shell(tmp_path, text)("check")).err
