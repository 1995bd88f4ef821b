"""The demonstration does what it says, and says what to do when it cannot."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
import socket
from functools import partial
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.demo import in_front_of_cards
from gateway.demo import story as traffic
from gateway.demo.world import Caller, CardService
from tests.support import http
from tests.support.demo import DemoProcess, curl, curl_lines, run_program
from tests.support.eventually import eventually
from tests.support.reference import DOCS
from tests.support.upstream import RecordingUpstream

JSON = ("Content-Type", "application/json")


async def charged(port: int) -> int:
    return len((await http.request(port, "GET", "/v1/charges")).json()["data"])


def bearer(token: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {token}")


def test_the_story_comes_out_as_told() -> None:
    said = run_program("demo", "--story")
    assert len(re.findall(r"^\d\. ", said, re.MULTILINE)) == 6
    assert said.rstrip().endswith("The ledger shows 5.")


def test_the_three_corners_come_out_as_the_guide_says() -> None:
    """Charges, webhooks and events go through a `kill -9`, and each corner that is left out leaks what it holds."""
    said = run_program("demo", "--triangle")
    (shown,) = re.findall(r"```text\n(1\. .*?)```", (DOCS / "events.md").read_text(), re.DOTALL)
    # An acknowledgement that was slow makes one more.
    came = re.compile(r"got \d+ events under")
    assert came.sub("", said.strip()) == came.sub("", shown.strip())


async def test_the_lines_that_it_prints_do_what_it_says(tmp_path: Path) -> None:
    """Each printed curl line, sent twice in order, gets the announced verdicts, and the ledger counts two charges."""
    with DemoProcess(tmp_path) as demo:
        charge, reuse, lost, ledger = curl_lines(demo.output)
        assert all(f"127.0.0.1:{demo.port}/" in line for line in (charge, reuse, lost, ledger))
        answers = [await curl(line, demo.port) for line in (charge, charge, reuse, reuse, lost, lost)]
        assert [(answer.status, answer.header("Idempotency-Status")) for answer in answers] == [
            (201, "stored"),
            (201, "replayed"),
            (400, "key-reused"),
            (400, "key-reused"),
            (502, "in-doubt"),
            (409, "in-doubt"),
        ]
        assert len((await curl(ledger, demo.port)).json()["data"]) == 2


@pytest.mark.parametrize(
    ("how", "arguments"), [(signal.SIGINT, ("--traffic",)), (signal.SIGTERM, ())], ids=["ctrl-c", "sigterm"]
)
def test_it_ends_when_told_and_leaves_nothing(tmp_path: Path, how: signal.Signals, arguments: tuple[str, ...]) -> None:
    """Told to end, it ends well, also in the midst of its traffic, and what it kept is gone."""
    with DemoProcess(tmp_path, *arguments) as demo:
        assert list(demo.directory.rglob("operations.db"))
        assert demo.stop(how) == 0
    assert "Traceback" not in demo.output
    assert list(demo.directory.iterdir()) == []


@pytest.mark.parametrize("arguments", [(), ("--upstream-only",)], ids=["gateway", "upstream only"])
def test_a_port_that_is_taken_is_named_with_a_way_out(arguments: tuple[str, ...]) -> None:
    """On a port that another program has, it fails, names the port and says how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"failed with 1:(.|\n)*:{port}(.|\n)*--port 8090") as failed:
            run_program("demo", "--port", str(port), *arguments)
    assert "Traceback" not in str(failed.value)


async def test_it_protects_a_service_of_ones_own(tmp_path: Path) -> None:
    """In front of another service a POST with a key runs once, and without a key every time."""
    async with RecordingUpstream() as upstream:
        with DemoProcess(tmp_path, "--upstream", upstream.url) as demo:
            assert "share one key space" in demo.output
            assert "Nothing listens" not in demo.output
            keyed = [("Idempotency-Key", "one")]
            answers = [await http.request(demo.port, "POST", "/a/b?c=d", keyed, b"{}") for _ in range(2)]
            assert [answer.header("Idempotency-Status") for answer in answers] == ["stored", "replayed"]
            for _ in range(2):
                await http.request(demo.port, "POST", "/a/b?c=d", [], b"{}")
            assert len(upstream.requests) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--upstream localhost:9000", "expected a URL such as http://127.0.0.1:9000"),
        ("--story --upstream http://localhost:9000", "not allowed with argument"),
        ("--port 99999", "expected a port"),
        ("--upstream http://localhost:8080", "would forward to itself; write where the service listens"),
    ],
)
def test_a_wrong_command_line_is_explained(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake on the command line ends with exit code 2 and says what was expected."""
    try:
        code: object = main(["demo", *arguments.split()])
    except SystemExit as ended:
        code = ended.code
    assert (code, said in capsys.readouterr().err) == (2, True)


async def test_the_service_charges_nothing_that_it_refuses() -> None:
    async with CardService("127.0.0.1", 0) as service:
        for wrong in (b'"amount": 1.5, "source": "tok_visa"', b'"amount": 1200, "source": "tok_other"', b"{"):
            answer = await http.request(service.port, "POST", "/v1/charges", [JSON], b'{"currency": "eur", %b}' % wrong)
            assert answer.status == 400, wrong
            assert answer.json()["error"]["message"]
        assert await charged(service.port) == 0


async def test_a_doubt_ends_with_what_the_service_says(tmp_path: Path) -> None:
    """By an operator with the printed token, at the console on loopback; the service is asked by the operation's id."""
    with DemoProcess(tmp_path, "--host", "0.0.0.0") as demo:
        port, token = demo.console
        assert (await http.request(port, "GET", "/ui/", [("Host", f"127.0.0.1:{port}")])).status in (200, 303)
        asked = [await http.request(port, "GET", "/operations", [bearer(each)]) for each in (token, "x" * 32)]
        assert [answer.status for answer in asked] == [200, 401]
        lines = curl_lines(demo.output.replace("0.0.0.0", "127.0.0.1"))
        (lost,) = [line for line in lines if "tok_lost_response" in line]
        operation = (await curl(lost, demo.port)).json()["error"]["operation_id"]
        assert "/operations/ID" in demo.output
        said = await http.request(demo.port, "GET", f"/operations/{operation}")
        completed = {"status": said.status, "body_base64": base64.b64encode(said.body).decode()}
        done = json.dumps({"completed": completed, "why": "seen in the ledger"}).encode()
        resolve = f"/operations/{operation}/resolve"
        assert (await http.request(port, "POST", resolve, [bearer(token), JSON], done)).status == 200
        answer = await curl(lost, demo.port)
        assert (answer.status, answer.header("Idempotency-Status")) == (200, "recovered")
        assert answer.json()["source"] == "tok_lost_response"
        assert await charged(demo.port) == 1


async def test_its_traffic_has_something_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of request comes, also while the service is away for a moment."""
    monkeypatch.setattr(traffic, "_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(traffic, "_OUTAGE_SECONDS", 0.5)
    async with in_front_of_cards("127.0.0.1", 0, log_level="error") as world:
        caller = Caller(*world.gateway.address)
        sending = asyncio.create_task(traffic.Traffic(caller, world.service, world.consumer, world.keys).run())

        async def has_come(verdict: str) -> bool:
            assert not sending.done()
            metrics = (await http.request(world.gateway.status_address[1], "GET", "/metrics")).body.decode()
            return re.search(f'^idempotency_requests_total.*"{verdict}"}} [1-9]', metrics, re.MULTILINE) is not None

        for verdict in ("replayed", "key-reused", "in-doubt", "upstream-unreachable", "recovered", "event-duplicate"):
            await eventually(partial(has_come, verdict), 30.0, verdict)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
