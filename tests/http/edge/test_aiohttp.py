"""What the edge takes of aiohttp beside its public interface: seen here when that changes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.streams import StreamReader

from gateway.config.leaf import METHODS
from gateway.http import connection as module
from gateway.http.connection import HEAD_TOO_BIG, ClientConnection, EdgeSettings, has_c_parser
from gateway.http.server import ListenError
from tests.http.edge.harness import HOST, serving
from tests.support.http import Connection, exchange

SOURCES = {path.name: path.read_text() for path in Path(module.__file__).parent.glob("*.py")}
# Of aiohttp's handler of a connection, as they stand there.
OWN_TO_AIOHTTP = (
    "_messages", "_waiter", "_request_count", "_loop", "_parser", "_upgraded", "_message_tail", "_buffer_paused",
    "_resume_reading_if_drained", "_reading_paused", "_resume_transport_reading", "_drain_helper", "_task_handler",
)  # fmt: skip


async def test_what_is_used_of_its_own_is_there() -> None:
    """And the module that uses it names all of it, and no other module uses any."""
    handler = web.RequestHandler(web.Server(None), loop=asyncio.get_running_loop())  # type: ignore[arg-type]
    used = set(re.findall(r"self\.(_[a-z_]+)", SOURCES["connection.py"]))
    theirs = {name for name in used if name not in vars(ClientConnection) and hasattr(handler, name)}
    assert theirs == set(OWN_TO_AIOHTTP)
    assert "_http_chunk_splits" in StreamReader.__slots__
    assert module.__doc__ is not None
    assert all(f"`{name}`" in module.__doc__ for name in theirs)
    for name, text in SOURCES.items():
        assert name == "connection.py" or not re.findall(r"\b(?:connection|client|payload|message)\._[a-z]", text), name


async def test_the_parser_is_the_one_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """The edge does not listen with another."""
    assert has_c_parser()
    monkeypatch.setattr("gateway.http.server.has_c_parser", lambda: False)
    with pytest.raises(ListenError, match="HTTP parser in C"):
        async with serving():
            pass


async def test_the_methods_that_a_route_may_have_are_those_of_the_parser() -> None:
    """A route with another registered one could never match, so the configuration refuses it."""
    methods = {*METHODS, "LIST", "UPDATE", "LABEL", "CHECKIN", "UNCHECKOUT", "MKWORKSPACE", "VERSION-CONTROL"}
    async with serving() as edge:
        for method in methods:
            response = await exchange(edge.port, method.encode() + b" /a HTTP/1.1\r\n" + HOST + b"\r\n", method=method)
            assert (response.status != 400) == (method in METHODS), method


async def test_a_head_that_does_not_end_is_refused_before_its_limit_is_far_behind() -> None:
    """aiohttp bounds each line, and their number; all of them together are bounded here."""
    async with serving(settings=EdgeSettings(header_bytes_max=8192)) as edge, Connection(edge.port) as connection:
        await connection.send(b"GET / HTTP/1.1\r\n" + HOST + (b"X: " + b"a" * 1000 + b"\r\n") * 9)
        response = await connection.read_response()
        assert (response.status, response.json()["detail"]) == (431, HEAD_TOO_BIG.detail)
