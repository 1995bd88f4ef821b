"""The recipe for Envoy with a real Envoy: `python -m tests.integration.envoy`."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml

from gateway.app.gateway import Gateway
from gateway.config import parse
from tests.support import http, programs
from tests.support.eventually import eventually
from tests.support.house import BODY, JSON, status_of
from tests.support.ports import free_port
from tests.support.postgres import workspace
from tests.support.processes import end, spawn
from tests.support.upstream import Answer, Received, RecordingUpstream

ROOT = Path(__file__).parents[2]
NAMES = {b"session=a": "alice", b"session=b": "bob"}


def decide(request: Received) -> Answer:
    """An authorising service that knows two sessions."""
    name = next((name for cookie in request.values("Cookie") if (name := NAMES.get(cookie))), None)
    return Answer(403, "Forbidden", body=b"who?") if name is None else Answer(200, headers=(("X-User-Id", name),))


def bootstrap(port: int, gateway: int, authority: int) -> dict[str, Any]:
    """A configuration of Envoy with the filters of the page."""
    page = (ROOT / "docs" / "configure" / "scopes.md").read_text("utf-8")
    (block,) = [
        each for each in re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if "ext_authz" in each
    ]
    extensions = "type.googleapis.com/envoy.extensions.filters"
    everything = {"match": {"prefix": "/"}, "route": {"cluster": "gateway"}}
    router = f"{extensions}.http.router.v3.Router"
    manager = {
        "@type": f"{extensions}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "http_filters": [
            *yaml.safe_load(block)["http_filters"],
            {"name": "envoy.filters.http.router", "typed_config": {"@type": router}},
        ],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [everything]}]},
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "in", "address": _address(port), "filter_chains": [{"filters": filters}]}
    clusters = [_cluster("gateway", gateway), _cluster("auth", authority)]
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _cluster(name: str, port: int) -> dict[str, Any]:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}]
    return {"name": name, "type": "STATIC", "load_assignment": {"cluster_name": name, "endpoints": endpoints}}


async def run(program: Path, directory: Path) -> None:
    """Two callers, a forged name, nobody, and a permission that is withdrawn. Raises AssertionError."""
    async with AsyncExitStack() as stack:
        upstream, authority = [await stack.enter_async_context(RecordingUpstream()) for _ in range(2)]
        authority.on(None, decide)
        text = (ROOT / "config" / "examples" / "envoy.yaml").read_text("utf-8")
        text = text.replace("http://127.0.0.1:9000", upstream.url).replace("10.1.0.0/16", "127.0.0.0/8")
        text = text.replace("/var/lib/idempotency-gateway", f"{directory}/state").replace("0.0.0.0:8080", "127.0.0.1:0")
        gateway = Gateway(
            parse(text + f"state_dir: {directory}/state\nstatus: {{listen: 127.0.0.1:0}}\nshutdown: {{delay: 0s}}\n")
        )
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        port = free_port()
        (directory / "envoy.yaml").write_text(yaml.safe_dump(bootstrap(port, gateway.address[1], authority.port)))
        words = [str(program), "--config-path", str(directory / "envoy.yaml")]
        words += ["--concurrency", "1", "--disable-hot-restart"]
        process = spawn(words, output=directory / "envoy.log", directory=directory)
        stack.callback(end, process, signal.SIGTERM)

        async def send(*headers: tuple[str, str]) -> tuple[int, str | None]:
            fields = [JSON, ("Idempotency-Key", "k1"), *headers]
            return status_of(await http.request(port, "POST", "/v1/payments", fields, BODY))

        async def is_up() -> bool:
            try:
                return (await send())[0] == 403
            except OSError:
                return False

        await eventually(is_up, 30, "Envoy serves")
        alice, bob, forged = ("Cookie", "session=a"), ("Cookie", "session=b"), ("X-User-Id", "bob")
        assert await send(forged) == (403, None)
        for headers, verdict in (([alice], "stored"), ([alice, forged], "replayed"), ([bob], "stored")):
            assert await send(*headers) == (200, verdict), headers
        assert len(upstream.requests) == 2
        authority.on(None, Answer(403, "Forbidden", body=b"no more"))
        assert await send(alice) == (403, None)
        assert len(upstream.requests) == 2


def main() -> int:
    """Run it; returns the exit code."""
    with workspace("envoy") as directory:
        asyncio.run(run(programs.envoy().path, directory))
    print("Envoy asks about every request, replays included, and a caller names nobody itself")
    return 0


if __name__ == "__main__":
    sys.exit(main())
