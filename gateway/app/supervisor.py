"""Several workers as one gateway: starts, watches, reports for and stops them.

It handles no requests, so no request can crash it. It owns what exists once: the seats, on which the workers accept
connections, and the status port. Workers are separate processes, started by exec; they inherit the seats and a channel
each.

One worker starts first, because a mistake is the same for all and should be reported once; the others follow together.
A worker that dies later is replaced, after pauses that grow while it keeps dying; meanwhile another one listens on its
seat. When none serves and a new one cannot start either, the gateway gives up.

All workers get SIGTERM at once, and those that have not ended in time are killed. The supervisor ends last; if it dies
early, the kernel kills the workers. For a reload all workers prepare the configuration; if each of them can, all have
to switch. No worker starts in between.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from gateway import EXIT_FAILED, EXIT_OK, EXIT_WORK_LEFT, __version__
from gateway.app.gateway import start_aside
from gateway.app.host import make_state_dir
from gateway.app.life import StartError
from gateway.app.reload import ReloadLate, Server
from gateway.app.reload import Report as ReloadReport
from gateway.app.share import FIRST, Seat, bind_seats, close_seats, share_of, shares
from gateway.app.stores import journals_of
from gateway.config import Config
from gateway.observe.logs import Logs
from gateway.observe.metrics import Counted, Exposition, Metrics
from gateway.observe.status import Health, StatusServer
from gateway.store.base import end_tasks
from gateway.store.operations import ActivityRow
from gateway.upkeep.activity import SAVE_SECONDS, Rows, Save

# -- channel -----------------------------------------------------------------------------------------------------------
# Each calls methods of the other by name, in order, over one stream between two processes of the same program and user:
# messages are pickled, each behind its length, and trusted. The end of the stream means that the peer is gone.

_LENGTH: Final = struct.Struct("!I")

Message = tuple[int, str, tuple[Any, ...]]
"""The number of a call, the method and its arguments. A result has no method; a call without a number wants none."""


class Channel:
    """One end. Lives on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        # The loop keeps no task alive that nobody holds.
        self._answering: set[asyncio.Future[Any]] = set()
        self.is_gone = False

    @classmethod
    async def open(cls, sock: socket.socket) -> Self:
        """A channel over one of a pair of stream sockets, which it owns from then on."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def call(self, method: str, *arguments: object) -> None:
        """Call the peer. Never waits and never fails, and nothing is known of what comes of it."""
        self._send((0, method, arguments))

    def ask(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        """The future result of a call; None when the peer is gone."""
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_gone:
            result.set_result(None)
        else:
            number = next(self._numbers)
            self._asked[number] = result
            self._send((number, method, arguments))
        return result

    async def receive(self) -> Message | None:
        """The next message; None when the peer is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            message: Message = pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - see above
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    async def serve(self, receiver: object) -> None:
        """Call this receiver as the peer says, until that is gone. A call that is a coroutine ends before the next one
        begins; one that returns a future goes on by itself."""
        while (message := await self.receive()) is not None:
            number, method, arguments = message
            if not method:
                result = self._asked.pop(number)
                if not result.done():
                    result.set_result(*arguments)
                continue
            found = getattr(receiver, method)(*arguments)
            if isinstance(found, asyncio.Future):
                self._answering.add(found)
                found.add_done_callback(partial(self._answered, number))
            else:
                self._answer(number, await found if isawaitable(found) else found)
        self.is_gone = True
        for result in self._asked.values():
            if not result.done():
                result.set_result(None)

    async def close(self) -> None:
        """Send what is queued, if the peer still reads, and close."""
        with suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()

    def _answered(self, number: int, found: asyncio.Future[Any]) -> None:
        self._answering.discard(found)
        if not found.cancelled():
            self._answer(number, found.result())

    def _answer(self, number: int, result: object) -> None:
        if number:
            self._send((number, "", (result,)))

    def _send(self, message: Message) -> None:
        if self._writer.is_closing():
            # uvloop would raise here; asyncio would not.
            return
        data = pickle.dumps(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)


# -- a worker as its supervisor sees it -------------------------------------------------------------------------------
# Owns how the process is started, its last report, and how its end is described. The supervisor decides which workers
# exist, and what follows from a message or an end.

_SILENT_SECONDS: Final = 10.0
# For a process that has closed its channel.
_EXIT_SECONDS: Final = 10.0


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """A worker that was started; `attend` it until it is gone. `numbers` and `health` are from its last report.
    `report` is done when it has reported since it was asked, or will not report any more. Calls `on_change` when it
    begins to serve, and when it closes its channel; `reload` for an operator, and `save_activity` with what it
    counted."""

    number: int
    process: Process
    channel: Channel
    on_change: Callable[[], None]
    reload: Callable[[], asyncio.Future[ReloadReport]]
    save_activity: Save
    has_served: bool = False
    why_failed: str | None = None
    numbers: Counted = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    report: asyncio.Future[None] | None = None
    _asked_seconds: float = 0.0

    def ask_report(self) -> asyncio.Future[None]:
        """Ask for a report, unless one is still pending: otherwise requests would pile up."""
        if self.report is None or self.report.done():
            self._asked_seconds = asyncio.get_running_loop().time()
            self.report = self.channel.ask("report")
        return self.report

    @property
    def is_serving(self) -> bool:
        """Whether it has begun to serve, and has not closed its channel."""
        return self.has_served and not self.channel.is_gone

    @property
    def is_silent(self) -> bool:
        is_pending = self.report is not None and not self.report.done()
        return is_pending and asyncio.get_running_loop().time() - self._asked_seconds >= _SILENT_SECONDS

    async def attend(self) -> int:
        """Let it call until it ends; returns its exit status."""
        await self.channel.serve(self)
        # It calls no more, but may take a while to exit.
        self.on_change()
        await self.channel.close()
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                return await self.process.wait()
        except TimeoutError:
            self.end_by(signal.SIGKILL)
            return await self.process.wait()

    # -- called by the worker -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.has_served = True
        self.on_change()

    def take_report(self, numbers: Counted, health: Health) -> None:
        """Its counts and its health: before it answers `report`, and when it stops in order."""
        self.numbers, self.health = numbers, health

    def fail(self, why: str) -> None:
        """It cannot start, or must not go on."""
        self.why_failed = why

    def end_by(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


def end_of(code: int, why: str | None, *, has_served: bool) -> tuple[int, str]:
    """The exit code of a worker and how it ended, from its exit status and the reason that it gave."""
    what = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
    if why is not None:
        what = f"failed: {why}"
    elif not has_served:
        what += " before it served"
    if code == -signal.SIGTERM and not has_served:
        # It was terminated before it had its signal handlers, and has done nothing.
        return EXIT_OK, what
    return EXIT_FAILED if code < 0 else code, what


async def _start(number: int, inherited: Iterable[int]) -> tuple[Process, Channel]:
    """A process that has inherited these descriptors, and waits for its first call. Raises `OSError`."""
    ours, theirs = socket.socketpair()
    try:
        process = await asyncio.create_subprocess_exec(
            *_command(number, theirs.fileno()),
            pass_fds=(theirs.fileno(), *inherited),
            stdin=subprocess.DEVNULL,
            # A Ctrl-C on the terminal reaches the supervisor alone, which stops its workers.
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, await Channel.open(ours)


def _command(number: int, descriptor: int) -> list[str]:
    """How a worker is started: with this interpreter, its flags, and the program from the same place."""
    # Without -P, Python looks for the program in the working directory first, which anybody may own.
    safe = [] if str(Path.cwd()) in sys.path else ["-P"]
    flags = [*subprocess._args_from_interpreter_flags(), *safe]  # type: ignore[attr-defined]  # noqa: SLF001
    return [sys.executable, *flags, "-m", "gateway.app.worker", str(number), str(descriptor), str(os.getpid())]


# -- supervisor --------------------------------------------------------------------------------------------------------

_LOG = logging.getLogger("gateway")

# A kubelet waits for a second, a scraper for ten.
_REPORT_SECONDS: Final = 0.5
# Workers sample at the same moments.
_TOGETHER_SECONDS: Final = 0.5
# A worker that is killed loses what it has counted since its last report.
_WATCH_PAUSE_SECONDS: Final = 2.0
_PAUSE_SECONDS_MIN: Final = 0.5
_PAUSE_SECONDS_MAX: Final = 30.0
# A worker that ran for this long did not die because of its start.
_SOUND_SECONDS: Final = 60.0
# What a stop takes beside the configured times; the documentation asks platforms to allow ten seconds.
_STOP_SECONDS: Final = 9.5
# What a reload waits for its workers: to build everything and compare it with the store; to take it over.
_PREPARE_SECONDS: Final = 30.0
_SWITCH_SECONDS: Final = 10.0


class Supervisor(Server):
    """`start`s and `stop`s `count` workers. Lives on one event loop, in the main thread."""

    def __init__(
        self,
        config: Config,
        count: int,
        logs: Logs | None = None,
        *,
        read: Callable[[], Config] | None = None,
        file: Path | None = None,
    ) -> None:
        """Must be called with the event loop running; opens nothing yet. The options are as in `Server`."""
        super().__init__(config, logs, read, file)
        self._count = count
        self._journal = journals_of(config).view
        has_fast_tier = config.store.fast is not None
        self.metrics = Metrics(
            [route.name for route in config.routes], has_fast_tier=has_fast_tier, version=__version__
        )
        self.metrics.read_with(lambda: {"log_lines_dropped_total": self._lines_dropped()})
        self.health = Health(fast_up=False if has_fast_tier else None)
        self._status = self._made_status()
        # Held by a reload: a worker that starts meanwhile would get a configuration and miss the switch.
        self._switching = asyncio.Lock()
        self._seats: dict[int, Seat] = {}
        self._workers: dict[int, WorkerProcess] = {}
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._codes: list[int] = []
        self._pausing: set[int] = set()
        self._collecting = asyncio.Lock()
        # What the workers of a service say within a moment, and what is to be the result for all of them.
        self._saving: dict[str, tuple[list[ActivityRow], asyncio.Future[bool]]] = {}
        self._has_started = False
        self._is_stopping = False

    async def start(self) -> None:
        # Before any worker makes it: commands are taken there before they start.
        make_state_dir(self.config)
        await super().start()

    async def _begin(self) -> None:
        try:
            self._seats = bind_seats(self.config.listen.address, self._count)
            address = self.config.status.listen
            _, status_port = await start_aside("status", self._status.port, address)
            await self._start_workers(FIRST)
            await self._start_workers(*range(FIRST + 1, self._count + 1))
        except BaseException:
            # Some workers may be serving already.
            await self._end_workers()
            await self._close()
            raise
        self._has_started = True
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        host, port = next(iter(self._seats[FIRST])).getsockname()[:2]
        _LOG.info(
            "serving on %s:%d with %d workers, status on %s:%d", host, port, self._count, address.host, status_port
        )

    def _made_status(self) -> StatusServer:
        return StatusServer(self.health, self._render, self._update_health)

    @property
    def in_flight(self) -> str:
        return "what the workers have in flight"

    def skip_delay(self) -> None:
        for worker in self._workers.values():
            worker.channel.call("skip_delay")
        close_seats(self._seats)

    async def stop(self) -> int:
        """Stop every worker in order; returns the exit code, the highest of the workers'. It is not 0 either while a
        journal of this host holds an outcome: a worker that died may have left one behind."""
        self.health.draining = True
        if self._reloading is not None:
            await self._reloading.stop()
        try:
            await self._end_workers()
        finally:
            await self._close()
        code = max(self._codes, default=EXIT_OK)
        if code == EXIT_OK and (await asyncio.to_thread(self._journal, is_refused=False, limit=1)).entries:
            _LOG.warning("stopped with outcomes left in the journal that no worker could record")
            return EXIT_WORK_LEFT
        return code

    async def _close(self) -> None:
        await end_tasks((self._watching,))
        close_seats(self._seats)
        await self._status.port.stop()

    # -- processes ----------------------------------------------------------------------------------------------------

    async def _start_workers(self, *numbers: int) -> None:
        """Start these workers and return when all of them serve. Raises `StartError`."""
        loop = asyncio.get_running_loop()
        for number in numbers:
            keeper = self._keepers[number] = loop.create_task(self._keep(number))
            keeper.add_done_callback(self._keeper_ended)
        while not self.failed.done() and not all(self._is_serving(number) for number in numbers):
            self._changed.clear()
            await self._changed.wait()
        if self.failed.done():
            raise self.failed.result()

    async def _end_workers(self) -> None:
        """Have all workers stop, close the seats when they do, and kill those that have not ended in time."""
        self._is_stopping = True
        for worker in self._workers.values():
            worker.end_by(signal.SIGTERM)
        for number in self._pausing:
            self._keepers[number].cancel()
        keepers = list(self._keepers.values())
        if not keepers:
            return
        config = self.config.shutdown
        closing = asyncio.get_running_loop().call_later(config.delay, close_seats, self._seats)
        try:
            _, late = await asyncio.wait(keepers, timeout=config.delay + config.drain_timeout + _STOP_SECONDS)
            if late:
                _LOG.error("workers did not stop in time and are killed: %s", sorted(self._workers))
        finally:
            closing.cancel()
            for worker in self._workers.values():
                worker.end_by(signal.SIGKILL)
            await asyncio.wait(keepers)

    async def _keep(self, number: int) -> None:
        """Keep a worker of this number running until the gateway stops."""
        loop, pause_seconds = asyncio.get_running_loop(), 0.0
        while True:
            started_seconds, worker = loop.time(), None
            try:
                worker = await self._spawn(number)
            except OSError as error:
                code, what = EXIT_FAILED, f"could not be started: {error}"
            else:
                code, what = await self._run(worker)
            if self._is_stopping:
                self._codes.append(code)
                return
            # Whether no worker serves and none can be started. During the start, one failure is enough.
            has_served = worker is not None and worker.has_served
            if not has_served and not (self._has_started and self._workers):
                why = None if worker is None else worker.why_failed
                self._give_up(why or f"worker {number} {what}; see the log")
                return
            if loop.time() - started_seconds >= _SOUND_SECONDS:
                pause_seconds = 0.0
            _LOG.error("worker %d %s; starting another one in %g s", number, what, pause_seconds)
            self._pausing.add(number)
            await asyncio.sleep(pause_seconds)
            self._pausing.discard(number)
            pause_seconds = min(max(2 * pause_seconds, _PAUSE_SECONDS_MIN), _PAUSE_SECONDS_MAX)
            self.metrics.count_restart()

    async def _run(self, worker: WorkerProcess) -> tuple[int, str]:
        """Attend a worker until it ends; returns its exit code and how it ended."""
        code = await worker.attend()
        del self._workers[worker.number]
        # Its counts stay in the totals.
        self.metrics.absorb(worker.numbers)
        self._reassign_seats()
        return end_of(code, worker.why_failed, has_served=worker.has_served)

    async def _spawn(self, number: int) -> WorkerProcess:
        seats = {seat: tuple(sock.fileno() for sock in socks) for seat, socks in self._seats.items()}
        inherited = [descriptor for seat in seats.values() for descriptor in seat]
        async with self._switching:
            process, channel = await _start(number, inherited)
            worker = WorkerProcess(number, process, channel, self._reassign_seats, self._reload, self._save_activity)
            self._workers[number] = worker
            # What is in force, and never the file: the others serve with that.
            channel.call("start", number, share_of(self.config, number, self._count), seats)
        if self._is_stopping:
            worker.end_by(signal.SIGTERM)
        return worker

    # -- reload -------------------------------------------------------------------------------------------------------

    async def apply(self, config: Config) -> None:
        """Put a configuration in force in every worker, or in none. Raises `StartError`. One that ends meanwhile is
        replaced afterwards, with what is in force then."""
        async with self._switching:
            workers = list(self._workers.values())
            before = status = self._status
            try:
                if config.status != self.config.status:
                    status = self._made_status()
                    await start_aside("status", status.port, config.status.listen)
                await self._prepare(config, workers)
            except BaseException:
                for worker in workers:
                    worker.channel.call("drop_config")
                if status is not before:
                    await status.port.stop()
                raise
            # From here on it is in force: a worker that starts gets it, and a slow one follows.
            self.config, self._journal, self._status = config, journals_of(config).view, status
            self.metrics.add_routes(route.name for route in config.routes)
            self._log_as(config)
            switched = [worker.channel.ask("switch_config") for worker in workers]
            if switched:
                _, late = await asyncio.wait(switched, timeout=_SWITCH_SECONDS)
                if late:
                    _LOG.error("%d workers have not confirmed the new configuration: they do not respond", len(late))
            if status is not before:
                await before.port.stop()

    async def _prepare(self, config: Config, workers: list[WorkerProcess]) -> None:
        prepared = {
            worker.channel.ask("prepare_config", share_of(config, worker.number, self._count)): worker
            for worker in workers
        }
        if not prepared:
            return
        done, late = await asyncio.wait(prepared, timeout=_PREPARE_SECONDS)
        if late:
            numbers = sorted(prepared[each].number for each in late)
            raise ReloadLate(f"workers did not prepare the configuration in time: {numbers}")
        refusals = dict.fromkeys(why for each in done if (why := each.result()) is not None)
        if refusals:
            raise StartError("; ".join(refusals))

    def _reload(self) -> asyncio.Future[ReloadReport]:
        """An operator asked for it on a worker's admin port."""
        if self._reloading is None:
            raise RuntimeError("there is no file to read")
        return self._reloading.tasks.spawn(self._reloading.reload())

    # -- what changes -------------------------------------------------------------------------------------------------

    def _is_serving(self, number: int) -> bool:
        worker = self._workers.get(number)
        return worker is not None and worker.is_serving

    def _serving(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers.values() if worker.is_serving]

    def _reassign_seats(self) -> None:
        """A worker began to serve, or no longer does: spread the seats anew."""
        if not self._is_stopping:
            responsive = [worker.number for worker in self._serving() if not worker.is_silent]
            for number, seats in shares(self._count, responsive).items():
                self._workers[number].channel.call("take_seats", seats)
        self._changed.set()

    def _give_up(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_result(StartError(why))
        self._changed.set()

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            _LOG.error("a worker is no longer watched, because of a bug", exc_info=error)
            self._give_up("the supervisor failed; see the log")

    # -- reports ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Collect reports regularly, to lose few counts when a worker dies, and to notice silent workers."""
        before: set[int] = set()
        while True:
            await asyncio.sleep(_WATCH_PAUSE_SECONDS)
            await self._collect_reports()
            silent = {worker.number for worker in self._serving() if worker.is_silent}
            for number in silent - before:
                _LOG.error("worker %d does not respond; others accept its new connections", number)
            for number in before - silent:
                if self._is_serving(number):
                    _LOG.warning("worker %d responds again", number)
            self.health.is_live = not silent
            if silent != before:
                self._reassign_seats()
            before = silent

    async def _collect_reports(self) -> list[WorkerProcess]:
        """Ask every worker for a report; returns those that sent one in time. The reports are newer than this call."""
        async with self._collecting:
            reports = {worker: worker.ask_report() for worker in self._serving()}
            if reports:
                await asyncio.wait(reports.values(), timeout=_REPORT_SECONDS)
            return [worker for worker, report in reports.items() if report.done() and self._is_serving(worker.number)]

    def _save_activity(self, service: str, rows: Rows) -> asyncio.Future[bool]:
        """Have a worker write these rows with those of all others; the result is whether it did."""
        if service not in self._saving:
            self._saving[service] = [], asyncio.get_running_loop().create_task(self._write(service))
        said, written = self._saving[service]
        said.extend(rows)
        return written

    async def _write(self, service: str) -> bool:
        until_seconds = time.monotonic() + SAVE_SECONDS
        await asyncio.sleep(_TOGETHER_SECONDS)
        said, _ = self._saving.pop(service)
        rows = tuple({(row.writer, row.span_us, row.at_us): row for row in said}.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(until_seconds - time.monotonic()):
                for worker in [each for each in self._serving() if not each.is_silent]:
                    if await worker.channel.ask("write_activity", service, rows, until_seconds):
                        return True
        return False

    async def _update_health(self) -> None:
        responsive = await self._collect_reports()
        self.health.take_over([worker.health for worker in responsive], are_all=len(responsive) == self._count)
        numbers = {worker.number for worker in responsive}
        self.health.workers = {
            number: "serving" if number in numbers else "silent" if self._is_serving(number) else "absent"
            for number in range(1, self._count + 1)
        }
        self.health.serving = self._has_started and bool(responsive)

    async def _render(self, accept: str) -> Exposition:
        """The metrics of all workers. A worker that does not respond counts with its last report."""
        responsive = await self._collect_reports()
        serving = self._serving()
        self.metrics.count_workers(
            serving=len(responsive), silent=len(serving) - len(responsive), absent=self._count - len(serving)
        )
        return await self.metrics.render(accept, self._counted)

    def _counted(self) -> tuple[list[Counted], list[int]]:
        workers = self._workers.values()
        # Also of workers that are stopping: they were not absorbed yet.
        return [worker.numbers for worker in workers if worker.has_served], [worker.process.pid for worker in workers]
