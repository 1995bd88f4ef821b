"""Reloading: the file is read again, and put in force whole or not at all.

Owns the order of a reload, its report, and the regular look at the TLS files. What is put in force, and how, is the
server's.

The order: read the file with every mistake; compare it with what is in force; refuse it if a setting changed that needs
a restart, or fewer keys would be enforced; have the server apply it, which starts everything anew before it switches.
The TLS files are read anew with every reload, and when one of them has changed: that is a reload of the configuration
in force.

One reload runs at a time. One that comes meanwhile waits, and reads the file then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from gateway import CommandError
from gateway.app.host import Stamp, expiries_of, stamps_of
from gateway.app.life import StartError
from gateway.config import Config, ConfigError, changes, digest_of
from gateway.config.effective import NEEDS_RESTART, effective
from gateway.observe.logs import Logs, Tasks
from gateway.observe.metrics import Metrics, ReloadResult
from gateway.observe.status import Health
from gateway.store.base import end_tasks

# -- control -----------------------------------------------------------------------------------------------------------
# The socket in `state_dir` by which commands reach a gateway of this host, and both its ends.
#
# A command is a word on a line, its response a JSON document on a line; what they mean is the gateway's. Whoever may
# enter the directory may ask.

_LOG = logging.getLogger("gateway")

_DIRECTORY: Final = "control"
_COMMAND_BYTES_MAX: Final = 1024
# For a client to send its command, and to take the response.
_COMMAND_SECONDS: Final = 5.0
_RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
# Longer than a reload takes that waits for its workers and the store, and for one before it.
_PATIENCE_SECONDS: Final = 90.0


class NotReached(CommandError):
    """No gateway with this `state_dir` answers on its socket."""


class ControlSocket:
    """The gateway's end: `open` and `close` it. `respond` gets each command."""

    def __init__(self, state_dir: Path, respond: Callable[[str], Awaitable[dict[str, Any]]]) -> None:
        self._place = state_dir / _DIRECTORY / f"{uuid4().hex[:12]}.sock"
        self._respond = respond
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen; without the socket, the gateway serves all the same."""
        try:
            self._place.parent.mkdir(mode=0o700, exist_ok=True)
            await asyncio.to_thread(_drop_dead, self._place.parent)
            with _short(self._place) as place:
                self._server = await asyncio.start_unix_server(self._converse, place, limit=_COMMAND_BYTES_MAX)
            self._place.chmod(0o600)
        except OSError as error:
            _LOG.warning("commands cannot reach this gateway, SIGHUP can: %s: %s", self._place, error.strerror)

    def close(self) -> None:
        """Listen no more. Safe to repeat."""
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                self._place.unlink()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_COMMAND_SECONDS):
                command = (await reader.readuntil(b"\n")).strip().decode()
            writer.write(json.dumps(await self._respond(command)).encode() + b"\n")
            async with asyncio.timeout(_COMMAND_SECONDS):
                await writer.drain()
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            # It left, or sent no command in time.
            pass
        finally:
            writer.close()


async def ask_all(state_dir: Path, command: str) -> list[dict[str, Any]]:
    """What each gateway of this `state_dir` responds to a command. Raises `NotReached`."""
    try:
        places = sorted((state_dir / _DIRECTORY).glob("*.sock"))
    except OSError as error:
        raise NotReached(f"{state_dir}: {error.strerror}") from error
    found: list[dict[str, Any]] = []
    why = "no gateway runs with it, or this is another user than its"
    for place in places:
        try:
            found.append(await _ask(place, command))
        except (ConnectionRefusedError, FileNotFoundError):
            # Of a gateway that was killed.
            continue
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            why = f"{place}: {getattr(error, 'strerror', None) or 'no report came'}; see its log"
            raise NotReached(f"the gateway could not be reached through {why}") from error
    if not found:
        raise NotReached(f"no gateway could be reached through state_dir {state_dir}: {why}")
    return found


async def _ask(place: Path, command: str) -> dict[str, Any]:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        with _short(place) as short:
            reader, writer = await asyncio.open_unix_connection(short, limit=_RESPONSE_BYTES_MAX)
        try:
            writer.write(command.encode() + b"\n")
            document: dict[str, Any] = json.loads(await reader.readuntil(b"\n"))
            return document
        finally:
            writer.close()


@contextmanager
def _short(place: Path) -> Iterator[str]:
    """A path for the kernel, which takes 107 bytes for a socket (unix(7)), however long the directory's is."""
    directory = os.open(place.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{place.name}"
    finally:
        os.close(directory)


def _drop_dead(directory: Path) -> None:
    """Remove the sockets of gateways that were killed."""
    for place in directory.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError), _short(place) as short:
            probe.settimeout(1.0)
            try:
                probe.connect(short)
            except ConnectionRefusedError:
                place.unlink(missing_ok=True)


# -- reload ------------------------------------------------------------------------------------------------------------


_LOOK_SECONDS: Final = 60.0
_RELOAD: Final = "reload"
SHOW: Final = "configuration"


class ReloadLate(StartError):
    """A configuration was not put in force in time. The same one may be put in force later."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a reload. `is_file_wrong`: what is refused is the file itself, and not its change."""

    result: str
    detail: str
    hash_before: str
    hash_after: str
    changed: tuple[str, ...] = ()
    is_file_wrong: bool = False

    @property
    def document(self) -> dict[str, Any]:
        return asdict(self)


class Server(ABC):
    """What serves in this process between `start` and `stop`, and its reloads, if there is something to `read` again:
    `file`. Lives on one event loop."""

    config: Config
    """The one in force."""
    metrics: Metrics
    health: Health
    """Where reloads are reported."""

    def __init__(self, config: Config, logs: Logs | None, read: Callable[[], Config] | None, file: Path | None) -> None:
        self.config, self._logs = config, logs
        self._reloading = None if read is None else Reloading(self, read, file)
        self.failed: asyncio.Future[StartError] = asyncio.get_running_loop().create_future()
        """Resolved when it finds out, after its start, that it must not go on."""

    @property
    @abstractmethod
    def in_flight(self) -> str:
        """What a stop waits for, as text."""

    async def start(self) -> None:
        """Serve. Raises `StartError`, and then nothing is left open; cancelled, likewise."""
        if self._reloading is None:
            await self._begin()
        else:
            await self._reloading.start(self._begin)

    @abstractmethod
    async def _begin(self) -> None:
        """Serve, as `start` does, without its reloads."""

    @abstractmethod
    async def stop(self) -> int:
        """Stop in order; returns the exit code."""

    @abstractmethod
    def skip_delay(self) -> None:
        """Let a stop, also one under way, skip `shutdown.delay`. Operations in flight keep their time."""

    @abstractmethod
    async def apply(self, config: Config) -> None:
        """Put a configuration in force, or raise `StartError`, and the one before stays."""

    def reload_soon(self) -> None:
        """Read the file again without waiting for the report, which is logged."""
        if self._reloading is not None:
            self._reloading.tasks.spawn(self._reloading.reload())

    def _lines_dropped(self) -> int:
        return 0 if self._logs is None else self._logs.dropped

    def _log_as(self, config: Config) -> None:
        if self._logs is not None:
            self._logs.adopt(config.log.level, config.log.format, config.log.requests)


class Reloading:
    """Reloads of one server. `start` it to have that serve, and `stop` it before that stops. `read` reads `file`."""

    def __init__(self, server: Server, read: Callable[[], Config], file: Path | None = None) -> None:
        self._server = server
        # Its links are not resolved: they may point elsewhere tomorrow.
        self._file = None if file is None else file.absolute()
        self._read = read
        self._stamps: dict[Path, Stamp] = stamps_of(server.config)
        self._refused_stamps: dict[Path, Stamp] | None = None
        self._one_at_a_time = asyncio.Lock()
        self.tasks = Tasks("a reload failed because of a bug; what was in force stays")
        """What is done until `stop`."""
        self._is_stopped = False
        self._socket = ControlSocket(server.config.state_dir, self._respond)

    async def start(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Listen for commands, `begin` to serve, and then to look at the TLS files.

        Whoever sees that the server is ready can have it reload. What comes before that waits for it.
        """
        server = self._server
        try:
            async with self._one_at_a_time:
                server.metrics.put_configuration(digest_of(server.config), time.time())
                server.metrics.put_certificate_expiries(expiries_of(server.config))
                await self._socket.open()
                await begin()
        except BaseException:
            await self.stop()
            raise
        self.tasks.spawn(self._keep_looking())

    async def stop(self) -> None:
        """End both. A reload that is under way is given up, and what was in force stays; later ones are refused."""
        self._is_stopped = True
        self._socket.close()
        await end_tasks(self.tasks)

    async def reload(self) -> Report:
        """Read the file and put it in force; never raises. Safe to repeat."""
        async with self._one_at_a_time:
            if self._is_stopped:
                return self._refused("the gateway is stopping")
            try:
                config = await asyncio.to_thread(self._read)
            except ConfigError as error:
                return self._refused(str(error), is_file_wrong=True)
            in_force = self._server.config
            found = tuple(changes(in_force, config))
            if fixed := [path for path in found if path in NEEDS_RESTART]:
                return self._refused(f"this needs a restart: {', '.join(fixed)}. Nothing was changed", changed=found)
            if lowered := _lowered(in_force, config):
                text = (
                    f"fewer keys would be enforced on {', '.join(lowered)}, and repeats of the others would run again"
                )
                return self._refused(f"{text}; if that is meant, write mode_change: accept", changed=found)
            stamps = stamps_of(config)
            if not found and stamps == self._stamps:
                return self._done(ReloadResult.UNCHANGED, "nothing has changed", digest_of(in_force))
            return await self._put_in_force(config, stamps, found)

    async def renew_certificates(self) -> Report | None:
        """Read the TLS files in force anew if one of them has changed; None if none has, or is as it was refused."""
        async with self._one_at_a_time:
            config = self._server.config
            stamps = await asyncio.to_thread(stamps_of, config)
            if stamps in (self._stamps, self._refused_stamps):
                return None
            return await self._put_in_force(config, stamps, ())

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _put_in_force(self, config: Config, stamps: dict[Path, Stamp], changed: tuple[str, ...]) -> Report:
        before = self._server.config
        files = tuple(f"{path} (file)" for path in stamps if stamps[path] != self._stamps.get(path))
        try:
            await self._server.apply(config)
        except StartError as error:
            if config is before and not isinstance(error, ReloadLate):
                # They would be refused again: the next look waits for others.
                self._refused_stamps = stamps
            return self._refused(str(error), changed=changed + files)
        except Exception as error:  # noqa: BLE001 - the caller gets a report of everything
            _LOG.exception("a reload failed because of a bug; what was in force stays")
            return self._refused(f"it failed because of a bug: {error!r}; see the log", changed=changed + files)
        if config.state_dir != before.state_dir:
            self._socket.close()
            self._socket = ControlSocket(config.state_dir, self._respond)
            await self._socket.open()
        self._stamps, self._refused_stamps = stamps, None
        self._server.metrics.put_certificate_expiries(expiries_of(config))
        return self._done(ReloadResult.APPLIED, "applied", digest_of(before), changed + files)

    def _refused(self, why: str, *, changed: tuple[str, ...] = (), is_file_wrong: bool = False) -> Report:
        digest, health, now = digest_of(self._server.config), self._server.health, time.time()
        self._server.metrics.count_reload(ReloadResult.REFUSED, digest, now)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        health.configuration = health.configuration or f"refused since {since}"
        _LOG.error("the configuration is not reloaded, %s stays in force: %s", digest, why)
        return Report(ReloadResult.REFUSED, why, digest, digest, changed, is_file_wrong)

    def _done(self, result: ReloadResult, detail: str, before: str, changed: tuple[str, ...] = ()) -> Report:
        after = digest_of(self._server.config)
        self._server.metrics.count_reload(result, after, time.time())
        self._server.health.configuration = ""
        what = ", ".join(changed)
        _LOG.info("reloaded: %s, %s -> %s%s", result, before, after, what and f": {what}")
        return Report(result, detail, before, after, changed)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.renew_certificates()

    async def _respond(self, command: str) -> dict[str, Any]:
        if command == _RELOAD:
            # The caller may leave; the reload goes on.
            return (await asyncio.shield(self.tasks.spawn(self.reload()))).document
        if command == SHOW:
            config, file = self._server.config, None if self._file is None else str(self._file)
            return {"hash": digest_of(config), "configuration": effective(config), "file": file}
        return {"detail": f"expected: {_RELOAD}, or {SHOW}"}


def _lowered(before: Config, after: Config) -> list[str]:
    """The routes on which fewer keys would be enforced. While one is enforced its keys go on coming, also between a
    look at the store and the switch."""
    shares = {route.operation: before.share_of(route) for route in before.routes}
    return [
        route.name
        for route in after.routes
        if after.share_of(route) < shares.get(route.operation, 0.0) and route.mode_change != "accept"
    ]


# -- for commands -----------------------------------------------------------------------------------------------------


async def reload_gateways(state_dir: Path) -> list[Report]:
    """Have each gateway of this `state_dir` reload; returns their reports. Raises `NotReached`."""
    documents = await ask_all(state_dir, _RELOAD)
    return [Report(**{**document, "changed": tuple(document["changed"])}) for document in documents]
