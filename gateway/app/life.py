"""From the start of a process that serves to its exit code: signals, the log, and what to do when the start fails.

Knows nothing of what serves. SIGTERM and SIGINT end it in order, also while it starts; a second one of them says that
no load balancer needs to be waited for.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from typing import Any, Protocol

from gateway import EXIT_OK
from gateway.config import Config, notices
from gateway.observe.logs import Logs

_LOG = logging.getLogger("gateway")


class StartError(Exception):
    """The gateway cannot start. The text says why and what to do."""


class Server(Protocol):
    """What serves between `start` and `stop`."""

    @property
    def failed(self) -> asyncio.Future[StartError]:
        """Resolved when it found out, after its start, that it must not go on."""

    async def start(self) -> None:
        """Serve. Raises `StartError`, and then nothing is left open; cancelled, likewise."""

    @property
    def in_flight(self) -> str:
        """What a stop waits for, in words."""

    async def stop(self) -> int:
        """Stop in order; returns the exit code."""

    def skip_delay(self) -> None:
        """Let a stop, also one that is under way, leave out `shutdown.delay`. What is in flight has its time."""


async def live(config: Config, build: Callable[[Logs], Server], *, worker: int | None = None) -> int:
    """Serve with what `build` makes until SIGTERM or SIGINT; returns the exit code. Raises `StartError`, and logs it.

    `worker` is the number of this process among several; its supervisor says when it is to skip_delay, and what failed.
    """
    logs = Logs(
        level=config.log.level,
        format=config.log.format,
        requests=config.log.requests,
        worker=worker,
        is_shared=config.workers != 1,
    )
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    server: Server | None = None

    def tell() -> None:
        if not told.is_set():
            told.set()
        elif worker is None and server is not None:
            server.skip_delay()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell)
    loop.add_signal_handler(signal.SIGHUP, _LOG.warning, "SIGHUP changes nothing: restart to read the file again")
    try:
        for notice in notices(config) if worker is None else ():
            _LOG.warning("%s", notice)
        server = build(logs)
        asked = loop.create_task(told.wait())
        if not await _started(server, asked):
            return EXIT_OK
        _tune_collector()
        await asyncio.wait((asked, server.failed), return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            _LOG.info("told to stop: %s", _what_follows(config, server))
        asked.cancel()
        code = await server.stop()
        if server.failed.done():
            raise server.failed.result()
        # Without it, an end in order looks in the log like one that was cut short.
        _LOG.info("stopped with exit code %d", code)
        return code
    except StartError as error:
        if worker is None:
            _LOG.error("it cannot serve: %s", error)
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
        logs.close()


def _what_follows(config: Config, server: Server) -> str:
    shutdown = config.shutdown
    serving = f"serving on for {shutdown.delay:g} s, then " if shutdown.delay else ""
    return f"{serving}up to {shutdown.drain_timeout:g} s for {server.in_flight}"


async def _started(server: Server, asked: asyncio.Task[Any]) -> bool:
    """Start it, unless somebody asks to stop meanwhile. Raises `StartError`."""
    starting = asyncio.get_running_loop().create_task(server.start())
    try:
        await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not starting.done():
            starting.cancel()
        await asyncio.wait((starting,))
        if starting.cancelled() or starting.exception() is not None:
            asked.cancel()
    if starting.cancelled():
        return False
    starting.result()
    return True


def _tune_collector() -> None:
    """Look for garbage in cycles less often: a request makes many objects and no cycle, which cost a fifth of it.

    What is there after the start stays for good and is not looked at again. A look at ten thousand young objects is a
    pause of a few milliseconds, and one at what four of these left is four times as long; the last threshold keeps the
    walk over everything that is remembered rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 3, 140)
