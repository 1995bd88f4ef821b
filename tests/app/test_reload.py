"""Reloading the shipped program: all of a configuration or none, in every worker, and every request by one of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import reduce
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.app.reload import reload_gateways
from gateway.app.supervisor import Supervisor
from gateway.app.worker import Generations
from gateway.cli import main
from gateway.config import Config, parse
from gateway.config.effective import NEEDS_RESTART
from tests.support import http
from tests.support.eventually import eventually
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, JSON, ROUTE, config_text, sqlite_store
from tests.support.ports import free_port
from tests.support.processes import descendants
from tests.support.relay import Relay
from tests.support.tls import Authority
from tests.support.upstream import Answer, RecordingUpstream

TOKEN = "t" * 20
ROOT = Path(__file__).parents[2]
FULL = pytest.mark.full
# The others show what is different about several workers, or about one process.
ONE_PROCESS = pytest.mark.parametrize(
    "workers", [pytest.param(1, id="one-process"), pytest.param(2, id="two-workers", marks=FULL)]
)
TWO_WORKERS = pytest.mark.parametrize(
    "workers", [pytest.param(1, id="one-process", marks=FULL), pytest.param(2, id="two-workers")]
)


@dataclass
class Reloaded:
    """The program, and the upstream behind it."""

    gateway: GatewayProcess
    upstream: RecordingUpstream

    def set(self, path: str, value: object) -> None:
        """Change a setting in the file; None takes it out."""
        document = yaml.safe_load(self.gateway.config_file.read_text())
        *sections, name = path.split(".")
        section = reduce(lambda inner, key: inner[int(key) if key.isdigit() else key], sections, document)
        section[name] = value
        if value is None:
            del section[name]
        self.gateway.config_file.write_text(yaml.safe_dump(document, sort_keys=False))

    def add_route(self, name: str, path: str, **changes: Any) -> None:
        routes = yaml.safe_load(self.gateway.config_file.read_text())["routes"]
        self.set("routes", [*routes, ROUTE | {"name": name, "match": {"path": path}} | changes])

    async def reload(self, *options: str, file: Path | None = None) -> tuple[int, str]:
        """Run the command; its exit code and its output."""
        words = ["reload", "--config", str(file or self.gateway.config_file), *options]
        with redirect_stdout(StringIO()) as output, redirect_stderr(output):
            return await asyncio.to_thread(main, words), output.getvalue()

    async def applied(self, said: str = "") -> None:
        code, output = await self.reload()
        assert (code, said in output) == (0, True), output

    async def refused(self, said: str) -> None:
        code, output = await self.reload()
        assert (code, said in output) == (1, True), output

    async def verdict(self, key: str, target: str = "/charges") -> str | None:
        """None where nobody answers."""
        with suppress(OSError, TimeoutError):
            return (await self.send(key, target)).header("Idempotency-Status")
        return None

    async def send(self, key: str, target: str = "/charges", **options: Any) -> http.Response:
        headers = [JSON, ("Idempotency-Key", key), ("X-Tenant", "t1")]
        return await http.request(self.gateway.port, "POST", target, headers, BODY, **options)

    async def metric(self, name: str) -> float:
        text = (await self.gateway.status("/metrics")).body.decode()
        return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    async def part(self, name: str) -> Any:
        """What `/readyz` says of it."""
        return json.loads((await self.gateway.status("/readyz")).body)["parts"].get(name)


@asynccontextmanager
async def stopped(directory: Path, workers: int, **changes: Any) -> AsyncIterator[Reloaded]:
    async with RecordingUpstream() as upstream:
        config = {
            "service": "shop",
            "upstream": {"url": upstream.url},
            "store": sqlite_store(directory),
            "shutdown": {"delay": "0s", "drain_timeout": "5s"},
            "workers": workers,
            "routes": [ROUTE],
        }
        yield Reloaded(GatewayProcess(config | changes, directory), upstream)


@asynccontextmanager
async def running(directory: Path, workers: int, **changes: Any) -> AsyncIterator[Reloaded]:
    async with stopped(directory, workers, **changes) as it, it.gateway:
        yield it


def replacing(old: str, new: str) -> Callable[[str], str]:
    """An edit of the file as an operator makes it."""

    def edit(text: str) -> str:
        assert old in text, text
        return text.replace(old, new)

    return edit


BAD_FILES: dict[str, tuple[int, str, Callable[[str], str]]] = {
    "half of it was written": (2, "routes", lambda text: text[: text.index("routes:")]),
    "a misspelt setting": (2, "did you mean outcome", replacing("outcome:", "outcom:")),
    "a variable that the service lacks": (2, "NOT_SET", replacing("service: shop", "service: ${NOT_SET}")),
    "a secret that was not mounted": (2, "/run/nowhere", replacing("service: shop", "service: ${file:/run/nowhere}")),
    "a scope left out": (2, "scope", replacing("  scope:\n    header: X-Tenant\n    from: any\n", "")),
    "another port": (1, "needs a restart: listen", replacing("listen: 127.0.0.1:", "listen: 0.0.0.0:")),
    "more workers, another lease": (
        1,
        "needs a restart: workers",
        lambda text: replacing("store:\n", "store:\n  lease: 20s\n")(replacing("workers: ", "workers: 1")(text)),
    ),
    "an authority that is not there": (
        1,
        "cannot be used",
        replacing("upstream:\n  url: http:", "upstream:\n  tls: {ca: /nowhere.pem}\n  url: https:"),
    ),
    "a renamed route": (1, "charge", replacing("name: charge", "name: payment")),
    "another scope of living keys": (1, "charge", replacing("header: X-Tenant", "header: X-Customer")),
}


@TWO_WORKERS
async def test_bad_files_change_nothing(tmp_path: Path, workers: int) -> None:
    """As operators make them: the exit code says which kind, everybody is told, and the gateway serves on."""
    async with running(tmp_path, workers) as it:
        good = it.gateway.config_file.read_text()
        await it.send("k1")
        before = await it.metric("idempotency_config_info")
        for what, (code, said, edit) in BAD_FILES.items():
            it.gateway.config_file.write_text(edit(good))
            found, output = await it.reload()
            assert (found, said in output) == (code, True), f"{what}: {found}, {output}"
            assert await it.metric("idempotency_config_last_reload_successful") == 0
            assert str(await it.part("configuration")).startswith("refused since ")
        it.gateway.config_file.unlink()
        assert (await it.reload())[0] != 0
        assert await it.metric("idempotency_config_info") == before
        assert await it.verdict("k1") == "replayed"
        it.gateway.config_file.write_text(good)
        await it.applied()
        assert await it.metric("idempotency_config_last_reload_successful") == 1
        assert await it.part("configuration") is None


@TWO_WORKERS
async def test_a_port_that_is_taken(tmp_path: Path, workers: int) -> None:
    """It refuses a reload at any time, and what serves goes on, and can be reloaded."""
    async with running(tmp_path, workers) as it:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for seconds in (1, 2):
                good = it.gateway.config_file.read_text()
                it.set("status", {"listen": f"127.0.0.1:{taken.getsockname()[1]}"})
                await it.refused("listens there already")
                for number in range(6):
                    assert await it.verdict(f"{seconds}-{number}") == "stored"
                it.gateway.config_file.write_text(good)
                it.set("upstream.connect_timeout", f"{seconds}s")
                await it.applied()


async def test_a_renamed_route_with_living_keys_is_refused(tmp_path: Path) -> None:
    """Under its old name as its operation it may be renamed, and its keys are found."""
    async with running(tmp_path, 1) as it:
        await it.send("k1")
        it.set("routes.0.name", "payment")
        await it.refused("charge")
        it.set("routes.0.operation", "charge")
        await it.applied()
        assert await it.verdict("k1") == "replayed"


async def test_a_worker_that_dies_gets_what_is_in_force(tmp_path: Path) -> None:
    """Whatever the file says meanwhile, also where it dies during the reload."""
    async with running(tmp_path, 2) as it:

        async def all_serve() -> bool:
            return set((await it.part("workers")).values()) == {"serving"}

        it.upstream.on("/charges", Answer(418))
        it.set("routes.0.outcome.retryable", [418])
        reloading = asyncio.create_task(it.reload())
        for _ in range(2):
            workers = descendants(it.gateway.pid)
            os.kill(workers[0], signal.SIGKILL)
            await eventually(lambda workers=workers: set(descendants(it.gateway.pid)) != set(workers))  # type: ignore[misc]
            assert (await reloading)[0] == 0
            it.gateway.config_file.write_text("nonsense: 1")
            await eventually(all_serve, 30.0)
        # So many that each of the workers gets some: one may have come in time for the reload, and the other not.
        for number in range(20):
            assert await it.verdict(f"k-{number}") != "stored"


async def test_one_worker_that_cannot_prepare_keeps_all(tmp_path: Path) -> None:
    """None switches, and the next reload is not hampered by what was given up."""
    certificate = Authority(tmp_path).issue()
    tls = {"cert": str(certificate.cert), "key": str(certificate.key)}
    async with running(tmp_path, 2) as it:
        it.upstream.on("/charges", Answer(418))
        good = it.gateway.config_file.read_text()
        it.set("routes.0.outcome.retryable", [418])
        it.add_route("refund", "/refunds")
        it.set("listen", {"address": f"127.0.0.1:{it.gateway.port}", "tls": tls})
        # One of them cannot open a file any more.
        poor = descendants(it.gateway.pid)[-1]
        limits = resource.prlimit(poor, resource.RLIMIT_NOFILE)
        resource.prlimit(poor, resource.RLIMIT_NOFILE, (3, limits[1]))
        await it.refused("Too many open files")
        resource.prlimit(poor, resource.RLIMIT_NOFILE, limits)
        for number in range(6):
            assert await it.verdict(f"k-{number}") == "stored"
        # What was given up is not remembered: the same route may have another scope.
        it.gateway.config_file.write_text(good)
        it.add_route("refund", "/refunds", scope="shared")
        await it.applied()


async def test_the_ways_to_ask_for_it(tmp_path: Path) -> None:
    """SIGHUP, and the admin port, which waits; a command without a gateway says that there is none."""
    port = free_port()

    async def ask() -> tuple[int, dict[str, Any]]:
        response = await http.request(port, "POST", "/config/reload", [("Authorization", f"Bearer {TOKEN}")], b"")
        return response.status, response.json()

    async with running(tmp_path, 2, admin={"listen": f"127.0.0.1:{port}", "token": TOKEN}) as it:
        it.set("upstream.connect_timeout", "1s")
        os.kill(it.gateway.pid, signal.SIGHUP)
        await eventually(lambda: "reloaded: applied" in it.gateway.output(), 30.0)
        status, said = await ask()
        assert (status, said["result"]) == (200, "unchanged")
        it.set("nonsense", 1)
        status, said = await ask()
        assert (status, said["code"]) == (422, "reload-refused")
        assert (await it.reload())[0] == 2
        it.gateway.kill()
        it.set("nonsense", None)
        await it.refused("no gateway could be reached")


async def test_a_file_that_the_gateway_does_not_read_is_refused(tmp_path: Path) -> None:
    """What is written in it would not be applied: the gateway's own file is named. A link to that is that file."""
    async with running(tmp_path, 1) as it:
        own = it.gateway.config_file
        other, link = tmp_path / "other.yaml", tmp_path / "link.yaml"
        other.write_text(own.read_text())
        link.symlink_to(own)
        it.set("upstream.connect_timeout", "1s")
        code, output = await it.reload(file=other)
        assert (code, f"reads {own}, and not {other}" in output) == (1, True), output
        assert "reloaded" not in it.gateway.output()
        code, output = await it.reload(file=link)
        assert (code, output.startswith("applied")) == (0, True), output
        code, output = await it.reload("--state-dir", yaml.safe_load(own.read_text())["state_dir"], file=other)
        assert (code, output.startswith("unchanged")) == (0, True), output


async def test_a_command_is_short_and_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that sends none, or a long line, is closed; and an unexpected failure is reported, too."""

    class Failing(Generations):
        async def apply(self, _: Config) -> None:
            raise ZeroDivisionError

    texts = [config_text("http://127.0.0.1:9", sqlite_store(tmp_path), tmp_path, service=name) for name in ("a", "b")]
    config, changed = map(parse, texts)
    server = Failing(config, read=lambda: changed)
    await server.start()
    try:
        (place,) = (config.state_dir / "control").iterdir()
        # A socket's path is 107 bytes at most (unix(7)), which a directory of tests may exceed.
        monkeypatch.chdir(place.parent)
        for sent in (b"", b"x" * 5000):
            with monkeypatch.context() as short:
                short.setattr("gateway.app.reload._COMMAND_SECONDS", 0.2)
                reader, writer = await asyncio.open_unix_connection(place.name)
                writer.write(sent)
                with suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 5.0) == b""
                writer.close()
        (report,) = await reload_gateways(config.state_dir)
        assert (report.result, "ZeroDivisionError" in report.detail) == ("refused", True)
    finally:
        await server.stop()


@ONE_PROCESS
async def test_an_encryption_key_is_rotated(tmp_path: Path, workers: int) -> None:
    """Without a restart: what was kept stays readable, the new key encrypts, and the old one can go when nothing needs
    it any more."""
    a, b = ({"id": name, "key": name * 64} for name in "ab")
    store = sqlite_store(tmp_path) | {"cache_max_age": "0s"}
    async with running(tmp_path, workers, store=store, secrets={"encryption": [a]}) as it:
        it.upstream.on("/charges", Answer(201, body=b"made"))
        assert await it.verdict("k1") == "stored"
        it.set("secrets.encryption", [b | {"id": "a"}, a | {"id": "old"}])
        await it.refused("another key than it was")
        it.set("secrets.encryption", [b])
        await it.refused("1 records with key 'a'")
        it.set("secrets.encryption", [b, a])
        await it.applied()
        for number in range(6):
            assert await it.verdict(f"new-{number}") == "stored"
            replay = await it.send("k1")
            assert (replay.header("Idempotency-Status"), replay.body) == ("replayed", b"made")
        with redirect_stdout(StringIO()) as said:
            assert await asyncio.to_thread(main, ["rekey", "--config", str(it.gateway.config_file)]) == 0
        assert "records: encrypted 1 with key 'b'" in said.getvalue(), said.getvalue()
        it.set("secrets.encryption", [b])
        await it.applied()
        for key in ("k1", "new-0"):
            assert (await it.send(key)).body == b"made"
        it.set("secrets", None)
        await it.refused("with key 'b'")


@ONE_PROCESS
async def test_nearly_all_can_change(tmp_path: Path, workers: int) -> None:
    """The store, where the gateway keeps what is its own, and who can ask it what; an open connection stays."""
    admin_port, status_port = free_port(), free_port()
    steps: list[tuple[str, Any]] = [
        ("store.lease", "20s"),
        ("delivery", {"breaker": {"failures": 9}}),
        ("egress", {"allow": ["10.0.0.0/8"]}),
        ("state_dir", str(tmp_path / "elsewhere")),
        ("secrets", {"encryption": [{"id": "a", "key": "a" * 64}]}),
        ("traces", {"endpoint": "http://127.0.0.1:9/spans"}),
        ("admin", {"listen": f"127.0.0.1:{admin_port}", "token": TOKEN}),
        ("admin", {}),
        ("events", {"sinks": [{"name": "lines", "kind": "stdout"}]}),
        ("status", {"listen": f"127.0.0.1:{status_port}"}),
        ("store", {"durable": f"sqlite://{tmp_path}/other.db"}),
    ]
    async with running(tmp_path, workers) as it, http.Connection(it.gateway.port) as connection:
        it.upstream.on("/charges", Answer(201))
        assert await it.verdict("k1") == "stored"
        for path, value in steps:
            state_dir = yaml.safe_load(it.gateway.config_file.read_text())["state_dir"]
            it.set(path, value)
            code, output = await it.reload("--state-dir", state_dir)
            assert (code, output.startswith("applied")) == (0, True), f"{path}: {output}"
            headers = [JSON, ("Idempotency-Key", "k1"), ("X-Tenant", "t1")]
            await connection.send(http.request_bytes("POST", "/charges", headers, BODY))
            found = (await connection.read_response("POST")).header("Idempotency-Status")
            assert found == ("store-amnesia" if path == "store" else "replayed"), path
            assert await _listens(admin_port) == (path == "admin" and "listen" in value), path
            assert await _listens(status_port) == (path == "status" or it.gateway.status_port == status_port), path
            if path == "status":
                it.gateway.status_port = status_port
        answered = [
            await it.metric(f'idempotency_requests_total{{route="charge",verdict="{word}"}}')
            for word in ("stored", "replayed", "store-amnesia")
        ]
        assert answered == [1, len(steps) - 1, 1], "a counter fell"


@ONE_PROCESS
async def test_what_is_earlier_is_bounded(tmp_path: Path, workers: int) -> None:
    """Requests last over reloads, until too many configurations are in use: then those of the oldest end as at a
    stop."""
    async with running(tmp_path, workers, shutdown={"delay": "0s", "drain_timeout": "1s"}) as it:
        holds, requests = [], []
        for number in range(5):
            holds.append(hold := asyncio.Event())
            it.upstream.on("/charges", Answer(201, hold=hold))
            # So many that each of the workers gets some.
            requests.append([asyncio.create_task(it.send(f"k{number}-{each}")) for each in range(8)])
            await it.upstream.wait_for_requests(8 * (number + 1))
            it.set("upstream.connect_timeout", f"{number + 1}s")
            await it.applied()
        oldest = [*requests[0], *requests[1]]
        await eventually(lambda: all(each.done() for each in oldest), 15.0, "those of the oldest have ended")
        for hold in holds:
            hold.set()
        for tasks, verdict in ((oldest, "in-doubt"), ([*requests[2], *requests[3], *requests[4]], "stored")):
            assert {each.header("Idempotency-Status") for each in await asyncio.gather(*tasks)} == {verdict}


@ONE_PROCESS
async def test_a_store_that_is_away(tmp_path: Path, workers: int, postgres_url: str) -> None:
    """What concerns no key is put in force all the same; what may, is refused, and put in force once it is back."""
    parts = urlsplit(postgres_url)
    async with Relay(parts.port or 5432) as relay:
        durable = postgres_url.replace(f":{parts.port}/", f":{relay.port}/")
        async with running(tmp_path, workers, store={"durable": durable}) as it:

            async def is_applied() -> bool:
                return (await it.reload())[0] == 0

            async def is_back() -> bool:
                """Each connection to the store comes back by itself."""
                found = [await it.verdict("k2", "/new"), await it.verdict("k1")]
                assert set(found) <= {"stored", "replayed", "store-unavailable"}
                return found == ["replayed", "replayed"]

            await it.send("k1")
            relay.refuse()
            relay.cut()
            it.set("upstream.connect_timeout", "1s")
            await it.applied()
            it.add_route("new", "/new")
            await it.refused("the store has to be asked")
            assert await it.verdict("k2", "/new") is None
            await relay.listen()
            await eventually(is_applied, 30.0)
            await eventually(is_back, 30.0)


@ONE_PROCESS
async def test_a_terminal_that_hangs_up(tmp_path: Path, workers: int) -> None:
    """It ends a gateway in order, also during the start; what is in flight is finished."""
    async with stopped(tmp_path, workers) as it:
        terminal = it.gateway.launch_on_terminal()
        try:
            await it.gateway.wait_ready()
            hold = asyncio.Event()
            it.upstream.on("/charges", Answer(201, hold=hold))
            request = asyncio.create_task(it.send("k1"))
            await it.upstream.wait_for_requests(1)
            os.close(terminal)
            await eventually(lambda: "stopping: " in it.gateway.output(), 10.0)
            hold.set()
            assert (await request).header("Idempotency-Status") == "stored"
            assert await it.gateway.wait_exit() == 0, it.gateway.output()
            terminal = it.gateway.launch_on_terminal()
            await eventually(lambda: _listens(it.gateway.status_port), 30.0)
            os.close(terminal)
            assert await it.gateway.wait_exit() == 0, it.gateway.output()
        finally:
            it.gateway.kill()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_a_reload_that_is_wanted_during_the_start(tmp_path: Path) -> None:
    """SIGHUP while the second worker starts is not lost, and kills nobody."""
    async with stopped(tmp_path, 2) as it:
        it.gateway.launch()
        try:
            await eventually(lambda: _listens(it.gateway.status_port), 30.0)
            it.set("upstream.connect_timeout", "1s")
            os.kill(it.gateway.pid, signal.SIGHUP)
            await eventually(lambda: "upstream.connect_timeout" in it.gateway.output(), 30.0)
            await it.gateway.wait_ready()
        finally:
            it.gateway.kill()


@pytest.mark.parametrize("ends", [False, True], ids=["reload", "terminal"])
async def test_a_hangup_while_the_program_loads(tmp_path: Path, ends: bool) -> None:
    """SIGHUP before anything of the gateway exists ends nothing, unless its terminal hung up."""
    async with stopped(tmp_path, 1) as it:
        terminal = it.gateway.launch_on_terminal()
        try:
            mapped = Path(f"/proc/{it.gateway.pid}/maps")
            await eventually(lambda: "pydantic_core" in mapped.read_text(), 30.0, "the program loads")
            if ends:
                os.close(terminal)
                assert await it.gateway.wait_exit() == 0, it.gateway.output()
            else:
                os.kill(it.gateway.pid, signal.SIGHUP)
                await eventually(lambda: "reloaded: unchanged" in it.gateway.output(), 30.0)
                await it.gateway.wait_ready()
        finally:
            it.gateway.kill()
            if not ends:
                os.close(terminal)


@ONE_PROCESS
async def test_files_are_looked_at(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a command: the authorities of callers and of the upstream, and the certificate with its key, each by
    itself; a pair that does not match waits; links that move, as Kubernetes has them, are followed."""
    monkeypatch.setattr("gateway.app.reload._LOOK_SECONDS", 0.1)
    secrets, in_place, old, new = (tmp_path / name for name in ("secrets", "in-place", "old", "new"))
    for directory in (in_place, old, new):
        directory.mkdir()
    authorities = {each: Authority(each) for each in (old, new)}
    servers = {each: authority.issue() for each, authority in authorities.items()}
    clients = {each: authority.issue_to(common_name="me") for each, authority in authorities.items()}
    secrets.symlink_to(old)

    def replace_file(source: Path, name: str) -> None:
        written = in_place / f"{name}.new"
        written.write_bytes((source / name).read_bytes())
        written.replace(in_place / name)

    tls = {"cert": "localhost.pem", "key": "localhost.key", "client_ca": "ca.pem"}
    for name in tls.values():
        replace_file(old, name)
    port, service = free_port(), servers[old].server_context()
    listen: dict[str, Any] = {"address": f"127.0.0.1:{port}", "tls": {"client_certificate": "required"}}
    listen["tls"] |= {setting: str(in_place / name) for setting, name in tls.items()}
    own = {"tls": {"ca": str(secrets / "ca.pem")}, "keepalive": "0s"}

    async def become(server_of: Path, client_of: Path, status: int | None) -> None:
        """A client that trusts the one, and has a certificate of the other, gets this status, or is not served."""
        context = authorities[server_of].client_context(clients[client_of])

        async def seen() -> int | None:
            with suppress(OSError):
                return (await http.request(port, "GET", "/reports", tls=context)).status
            return None

        async def has_become() -> bool:
            """It may be another worker each time."""
            return [await seen() for _ in range(4)] == [status] * 4

        await eventually(has_become, 10.0)

    async with RecordingUpstream(tls=service) as upstream:
        changes = {"listen": listen, "upstream": own, "workers": workers}
        config = parse(config_text(upstream.url, sqlite_store(tmp_path), tmp_path, **changes))
        read = lambda: config  # noqa: E731
        server = Generations(config, read=read) if workers == 1 else Supervisor(config, workers, read=read)
        await server.start()
        try:
            await become(old, old, 200)
            replace_file(new, "ca.pem")
            await become(old, new, 200)
            await become(old, old, None)
            replace_file(new, "localhost.pem")
            await become(old, new, 200)
            replace_file(new, "localhost.key")
            await become(new, new, 200)
            await become(old, new, None)
            service.load_cert_chain(servers[new].cert, servers[new].key)
            await become(new, new, 502)
            moved = tmp_path / "moved"
            moved.symlink_to(new)
            moved.replace(secrets)
            await become(new, new, 200)
        finally:
            await server.stop()


@ONE_PROCESS
async def test_a_certificate_is_rotated(tmp_path: Path, workers: int) -> None:
    """New connections get the new one, open ones stay; a pair that does not match is refused."""
    old, new = ((tmp_path / name) for name in ("old", "new"))
    for directory in (old, new):
        directory.mkdir()
    one, other = Authority(old), Authority(new)
    first, second = one.issue(), other.issue()
    cert, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    cert.write_bytes(first.cert.read_bytes())
    key.write_bytes(first.key.read_bytes())
    async with running(tmp_path, workers) as it:
        it.set("listen", {"address": f"127.0.0.1:{it.gateway.port}", "tls": {"cert": str(cert), "key": str(key)}})
        await it.applied()
        async with http.Connection(it.gateway.port, tls=one.client_context()) as connection:
            cert.write_bytes(second.cert.read_bytes())
            await it.refused("another certificate")
            assert (await it.send("k1", tls=one.client_context())).status < 500
            key.write_bytes(second.key.read_bytes())
            await it.applied("tls.pem (file)")
            served = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", it.gateway.port))
            assert served == second.cert.read_text(), "not the new one"
            assert (await it.send("k2", tls=other.client_context())).status < 500
            await connection.send(b"GET /reports HTTP/1.1\r\nHost: gateway\r\n\r\n")
            assert (await connection.read_response("GET")).status == 200
        assert await it.metric("idempotency_tls_certificate_expiry_timestamp_seconds") > 0


def test_the_guide_names_what_needs_a_restart() -> None:
    text = (ROOT / "docs" / "reload.md").read_text().partition("## What needs a restart")[2].partition("##")[0]
    assert tuple(re.findall(r"`([a-z_.]+)`", text.partition("All else")[0])) == NEEDS_RESTART
