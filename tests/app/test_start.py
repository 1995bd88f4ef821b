"""What the log says of a start, in the form that the configuration asks for."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import EXIT_FAILED, EXIT_OK
from gateway.app.life import run
from tests.support.gateway import GatewayProcess
from tests.support.house import JSON, config_text
from tests.support.http import request
from tests.support.postgres import PostgresServer
from tests.support.upstream import RecordingUpstream


def configuration(directory: Path, upstream: str, store: dict[str, Any], **changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = yaml.safe_load(config_text(upstream, store, directory, **changes))
    return whole


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("form", ["json", "text"])
async def test_why_it_cannot_start_is_a_line_of_the_log(tmp_path: Path, form: str, workers: int) -> None:
    """Once, as an error, in the form that is asked for; the exit code says so, too."""
    store = {"durable": f"sqlite://{tmp_path}/operations.db"}
    changes = {"log": {"format": form}, "workers": workers}
    gateway = GatewayProcess(configuration(tmp_path, "http://127.0.0.1:9", store, **changes), tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", gateway.port))
        taken.listen()
        gateway.launch()
        assert await gateway.wait_exit() == EXIT_FAILED
    lines = gateway.output().splitlines()
    assert sum("another program listens there already" in line for line in lines) == 1
    if form == "json":
        told = [json.loads(line) for line in lines]
        assert ["another program" in line["message"] for line in told if line["level"] == "error"] == [True]


async def test_what_is_accepted_of_the_server_is_loud_at_the_start(
    tmp_path: Path, own_postgres: PostgresServer
) -> None:
    """A server whose storage replaces a setting is used where that is accepted, with a warning; otherwise it is not."""
    await own_postgres.fetch("ALTER SYSTEM SET full_page_writes = off")
    own_postgres.restart()
    fields = [JSON, ("X-Tenant", "acme"), ("Idempotency-Key", "k1")]
    async with RecordingUpstream() as upstream:
        refusing = GatewayProcess(configuration(tmp_path, upstream.url, {"durable": own_postgres.url}), tmp_path / "a")
        refusing.launch()
        assert await refusing.wait_exit() == EXIT_FAILED
        assert "write store.durability: external" in refusing.output()
        store = {"durable": own_postgres.url, "durability": "external"}
        async with GatewayProcess(configuration(tmp_path, upstream.url, store), tmp_path / "b") as gateway:
            response = await request(gateway.port, "POST", "/charges", fields, b"{}")
            assert (response.status, response.header("Idempotency-Status")) == (200, "stored")
            assert gateway.terminate() == EXIT_OK
    lines = [json.loads(line) for line in gateway.output().splitlines()]
    (warning,) = [line for line in lines if "store.durability" in line["message"]]
    assert warning["level"] == "warning"
    assert "keys execute again" in warning["message"]


async def forget(error: Exception) -> None:
    """A future fails, and nobody asks it."""
    asyncio.get_running_loop().create_future().set_exception(error)
    gc.collect()


def test_a_name_that_nobody_waits_for_any_more_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """What a driver gave up, which uvloop leaves behind in every outage of the DNS, is not logged; all else is."""
    with caplog.at_level(logging.ERROR):
        run(forget(socket.gaierror(-3, "Temporary failure in name resolution")))
        assert caplog.messages == []
        run(forget(ConnectionResetError("what somebody ought to have awaited")))
    assert ["never retrieved" in message for message in caplog.messages] == [True]


_LOOK = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from gateway.app.host import client_connections_max
print(client_connections_max(1_000, 24), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "clients"),
    [
        pytest.param(256, 900, 300, id="a-third-of-little"),
        pytest.param(900, 900, 300, id="at-the-hard-limit"),
        # What the operations in flight and the upstreams need at most is left for them.
        pytest.param(256, 9_000, 9_000 - 3 * 1_000 - 24 - 1_024, id="what-is-left-of-much"),
    ],
)
def test_clients_get_a_part_of_the_descriptors(soft: int, hard: int, clients: int) -> None:
    """The process takes all that it may, and leaves the rest for upstream and store."""
    look = [sys.executable, "-c", _LOOK.format(soft=soft, hard=hard)]
    said = subprocess.run(look, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.split() == [str(clients), str(hard)]
