"""The event loop that the program runs on."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket

import pytest

from gateway.app.life import run


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
