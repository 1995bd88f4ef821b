"""One request, from its head at the edge to its record: what came, what it is, and what became known of it.

The edge makes it, identification completes it, and the steps behind that fill in what operators are told. One task has
it at a time; an operation in flight has that of its first caller, and changes nothing of it.

Operators never see the query, a body or a credential: a path is enough to recognise a request in other logs. What they
see is short and printable, whatever was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from time import thread_time
from typing import Any, BinaryIO, Final, TypeVar, cast
from uuid import UUID

from gateway.core import immutable
from gateway.core.confidential import FileCipher
from gateway.core.identity.body import Body
from gateway.core.identity.caller import Hop
from gateway.core.identity.fingerprint import Digests
from gateway.core.identity.key import Key, KeyFault, Scope
from gateway.core.message import RequestHead, logged, trace_id_of
from gateway.core.operation import (
    CUT,
    Content,
    Fingerprint,
    Identity,
    ProbeTarget,
    Record,
    RequestInfo,
    Snapshot,
    is_withdrawn,
    trace_of_attempt,
)
from gateway.core.verdict import Claimable, Judgement, Match, Refuse, Verdict, compare, judge
from gateway.observe.facts import TraceContext
from gateway.protect.reply import Cut, Reply, RequestBody, RequestCut, refuse
from gateway.protect.route import Route
from gateway.upstream.connection import FileBody, closed_after

# -- turns -------------------------------------------------------------------------------------------------------------
#
# How requests share the event loop: in slices.
#
# Work that may come all at once, a little of it in each turn of the event loop.
#
# Between two turns the loop reads what has arrived and runs who was woken, so nobody else waits for longer than a
# slice. Work has a flow: of several flows each has its turn, so that thousands of requests under one key hold up no
# other one. How much is a slice is learned from how long turns take; what the work causes in the next turn counts, too.
#
# Where nobody waits, the work is done at once: `is_free` takes one of many places in this turn, and that is all. Only
# what comes beyond them waits, and as long as something waits, turns are measured, and slices are small. Turns are not
# even counted before the `spare` places are gone, which may be taken by counting them down.

# How much of the processor a turn may take before slices become smaller: a request has some twenty turns until it has
# its response. Then how small and large slices are, and the first one.
_TURN_SECONDS: Final = 0.002
_SIZE_MIN: Final = 2
_SIZE_MAX: Final = 64
_SIZE_FIRST: Final = 16
# More than the connections of a busy gateway ask for in one turn.
_PLACES: Final = 128
_SPARE: Final = 32


class Slices:
    """The work of one kind. Lives on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # In the order of their turns. None of them is empty.
        self._flows: dict[Hashable, deque[Callable[[], object]]] = {}
        # Who waits for what to be done.
        self._groups: dict[asyncio.Future[Any], dict[asyncio.Future[None], None]] = {}
        self._size, self._left = _SIZE_FIRST, _PLACES
        self.spare = _SPARE
        """Only where no turn is counted, and so nothing waits."""
        self._is_counting = False
        self._turn_began: float | None = None

    def is_free(self) -> bool:
        """Whether there is a place in this turn, and nobody waits for one. It is then taken."""
        if self._flows or not self._left:
            return False
        self._left -= 1
        if not self._is_counting:
            self._begin()
        return True

    def put(self, flow: Hashable, work: Callable[[], object]) -> None:
        """Do this in one of the next turns, in the order of its flow."""
        works = self._flows.get(flow)
        if works is None:
            self._flows[flow] = deque((work,))
        else:
            works.append(work)
        if not self._is_counting:
            self._begin()

    async def until(self, future: asyncio.Future[Any], timeout_seconds: float | None = None) -> None:
        """Wait until this is done, or for so long. Any number may wait for the same, and each goes on in its turn.

        Cancelling this does not cancel the future.
        """
        if future.done():
            return
        group = self._groups.get(future)
        if group is None:
            group = self._groups[future] = {}
            future.add_done_callback(self._wake_group)
        waiter = self._loop.create_future()
        group[waiter] = None
        timer = None if timeout_seconds is None else self._loop.call_later(max(0.0, timeout_seconds), _wake, waiter)
        try:
            await waiter
        finally:
            group.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    def _wake_group(self, future: asyncio.Future[Any]) -> None:
        waiters = self._groups.pop(future)
        if waiters:
            self._flows[future] = deque(partial(_wake, waiter) for waiter in waiters)
            if not self._is_counting:
                self._begin()

    def _begin(self) -> None:
        self._is_counting = True
        self.spare = 0
        self._turn_began = thread_time() if self._flows else None
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_counting = False
        flows = self._flows
        if not flows:
            self._size, self._left, self.spare = _SIZE_FIRST, _PLACES, _SPARE
            return
        if self._turn_began is not None and thread_time() - self._turn_began > _TURN_SECONDS:
            self._size = max(_SIZE_MIN, self._size // 2)
        elif self._size < _SIZE_MAX:
            self._size += 1
        self._left = self._size
        self._begin()
        while flows and self._left:
            self._left -= 1
            flow = next(iter(flows))
            works = flows.pop(flow)
            work = works.popleft()
            if works:
                flows[flow] = works
            work()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


# -- its body ----------------------------------------------------------------------------------------------------------
#
# Receives the whole body of a request before anything is claimed: a short one in memory, a long one in a file of mode
# 0600 that never has a name, so that nothing is left behind whatever happens. Where other things are encrypted at rest,
# files are, too, with a key that is nowhere else. A body over its limit is refused as soon as that is known, and one
# that is cut short raises, so that half a request has no effect. The last part of the disk is reserved for the journal,
# and for a store on the same disk: without them, no outcome can be recorded.
#
# A body that has not arrived yet needs an upload slot, which costs its client only a head, and a byte now and then. So
# when all slots are taken, a new request takes that of one whose body comes too slowly.

# A longer body is read in a thread.
INLINE_BYTES_MAX: Final = 16 << 10

_WRITE_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 256 * 1024
# The reserved part of the disk: its last tenth, up to a maximum.
_LEFT_SHARE: Final = 10
_LEFT_BYTES_MAX: Final = 256 * 1024 * 1024

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class TakenBody:
    """A whole body; also the `RequestBody` of a request that is forwarded unprotected after all. `digest` is the
    SHA-256 of its bytes, if they were hashed while they came in. `cipher` is that of an encrypted file."""

    content: bytes | BinaryIO = field(repr=False)
    length: int
    digest: bytes | None = None
    cipher: FileCipher | None = field(default=None, repr=False)
    is_closed: bool = field(default=False, init=False)
    # A descriptor that is closed under a reading thread could give it another request's bytes.
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def outbound(self) -> bytes | FileBody:
        """The body as the upstream client takes it, valid until `close`. Raises ValueError after that."""
        if self.is_closed:
            raise ValueError("the body was closed")
        if isinstance(self.content, bytes):
            return self.content
        return FileBody(self.content.fileno(), self.length, None if self.cipher is None else self.cipher.apply)

    def close(self) -> None:
        """Release file and memory, once no thread of `stream` reads it. Safe to repeat."""
        if not isinstance(self.content, bytes):
            with self._lock:
                self.is_closed = True
                self.content.close()
        self.content, self.is_closed = b"", True

    async def read(self, use: Callable[[Body], Result]) -> Result:
        """The result of `use` on the bytes. It does not block the event loop: a long body, or one in a file, is read in
        a thread. The result depends on the bytes alone, never on where they are kept.

        When this is cancelled, the thread ends by itself. It holds the file's content, not the file, so the body may be
        closed.
        """
        body = self.content
        if isinstance(body, bytes):
            return use(body) if len(body) <= INLINE_BYTES_MAX else await asyncio.to_thread(use, body)
        if os.fstat(body.fileno()).st_size == 0:
            return use(b"")
        # Mapped before the thread starts: the mapping stays valid when the file object is closed.
        mapped = mmap.mmap(body.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            return await asyncio.to_thread(_use_and_close, mapped, use, self.cipher)
        except asyncio.CancelledError:
            # The thread may never start. If it is reading, it closes the mapping itself.
            with contextlib.suppress(BufferError):
                mapped.close()
            raise

    def whole(self) -> bytes | None:
        """Its bytes, if they are in memory. Raises ValueError after `close`, as `stream` does."""
        if self.is_closed:
            raise ValueError("the body was closed")
        return self.content if isinstance(self.content, bytes) else None

    async def stream(self) -> AsyncIterator[bytes]:
        if (whole := self.whole()) is not None:
            yield whole
            return
        content = cast("BinaryIO", self.content)
        content.seek(0)
        offset = 0
        while chunk := await _at_disk(self._read_chunk, content, offset):
            offset += len(chunk)
            yield chunk

    def _read_chunk(self, content: BinaryIO, offset: int) -> bytes:
        with self._lock:
            if self.is_closed:
                raise SpoolFailed("the body is no longer needed")
            chunk = content.read(_READ_BYTES)
        return chunk if self.cipher is None else self.cipher.apply(chunk, offset)

    def crowd_out(self) -> bool:
        """Never: the body is here."""
        return False


def _use_and_close(mapped: mmap.mmap, use: Callable[[Body], Result], cipher: FileCipher | None) -> Result:
    with mapped:
        if cipher is None:
            return use(mapped)
        with memoryview(mapped) as view:
            content = cipher.apply(view, 0)
        return use(content)


class SpoolFailed(Exception):
    """The disk is full or failed. The request had no effect."""


class Spool:
    """Receives bodies. `directory` must exist and belong to this program. With `encrypts`, files are encrypted."""

    def __init__(self, directory: Path, *, encrypts: bool = False) -> None:
        self._directory = directory
        self._encrypts = encrypts

    async def take(self, body: RequestBody, *, bytes_max: int, spool_over_bytes: int) -> TakenBody | None:
        """The body, or None if it is longer than `bytes_max`. When cancelled or cut short, this leaves nothing behind.

        Raises what the body raises when it is cut short, and `SpoolFailed`.
        """
        if body.length is not None and body.length > bytes_max:
            return None
        parts: list[bytes] = []
        length = 0
        async with closed_after(body.stream()) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                length += len(chunk)
                if length > bytes_max:
                    return None
                if length > spool_over_bytes:
                    return await self._take_to_file(b"".join(parts), chunks, bytes_max)
        return TakenBody(parts[0] if len(parts) == 1 else b"".join(parts), length)

    async def _take_to_file(self, prefix: bytes, chunks: AsyncIterator[bytes], bytes_max: int) -> TakenBody | None:
        cipher = FileCipher(os.urandom) if self._encrypts else None
        file = _GrowingFile(self._directory, cipher)
        length = len(prefix)
        buffer = bytearray(prefix)
        is_whole = False
        try:
            async for chunk in chunks:
                length += len(chunk)
                if length > bytes_max:
                    return None
                buffer += chunk
                if len(buffer) >= _WRITE_BYTES:
                    await _at_disk(file.write, bytes(buffer))
                    buffer.clear()
            content, digest = await _at_disk(file.finish, bytes(buffer))
            is_whole = True
        finally:
            if not is_whole:
                file.give_up()
        return TakenBody(content, length, digest, cipher)


class _GrowingFile:
    """The file of a body that is still coming in, and the hash of its content.

    Threads open and write it. They run on when their caller is cancelled, and after `give_up` they write nothing more.
    """

    def __init__(self, directory: Path, cipher: FileCipher | None) -> None:
        self._directory = directory
        self._cipher = cipher
        self._length = 0
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._hash = sha256()
        self._is_given_up = False

    def write(self, data: bytes) -> None:
        with self._lock:
            self._write(data)

    def finish(self, data: bytes) -> tuple[BinaryIO, bytes]:
        """Write the last bytes; returns the file and the digest of all of it."""
        with self._lock:
            return self._write(data), self._hash.digest()

    def give_up(self) -> None:
        """Close the file, once no thread writes to it."""
        with self._lock:
            self._is_given_up = True
            if self._file is not None:
                self._file.close()

    def _write(self, data: bytes) -> BinaryIO:
        if self._is_given_up:
            raise SpoolFailed("the body is no longer needed")
        if self._file is None:
            # Unbuffered, so that closing it writes nothing, and cannot fail.
            self._file = _unnamed_file(self._directory)
        disk = os.fstatvfs(self._file.fileno())
        if disk.f_bavail < min(disk.f_blocks // _LEFT_SHARE, _LEFT_BYTES_MAX // disk.f_frsize):
            raise OSError(errno.ENOSPC, "the rest of it is reserved for the journal and the store")
        self._hash.update(data)
        left = memoryview(data if self._cipher is None else self._cipher.apply(data, self._length))
        self._length += len(data)
        while left:
            left = left[self._file.write(left) :]
        return self._file


def _unnamed_file(directory: Path) -> BinaryIO:
    return cast("BinaryIO", TemporaryFile(dir=directory, prefix="body-", buffering=0))


async def _at_disk(work: Callable[..., Result], *arguments: object) -> Result:
    """Read or write a file in a thread. Raises `SpoolFailed`."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except OSError as error:
        raise SpoolFailed(f"the body could not be kept on disk: {error.strerror}") from error


class NoSlot(Exception):
    """There was no slot, or another request took it. This request had no effect."""


class UploadSlots:
    """The upload slots of one gateway process."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._bodies: set[RequestBody] = set()

    @contextmanager
    def slot(self, body: RequestBody) -> Iterator[None]:
        """Hold a slot while the body is received. Raises `NoSlot`."""
        if len(self._bodies) >= self._slots and not self._make_room():
            raise NoSlot
        self._bodies.add(body)
        try:
            yield
        except RequestCut as cut:
            if cut.cut is Cut.CROWDED_OUT:
                raise NoSlot from None
            raise
        finally:
            self._bodies.discard(body)

    def _make_room(self) -> bool:
        for body in self._bodies:
            if body.crowd_out():
                self._bodies.discard(body)
                return True
        return False


# -- the request -------------------------------------------------------------------------------------------------------

_HOST_CHARS_MAX: Final = 255
_PATH_CHARS_MAX: Final = 512
# What is shown as it is.
_HOST: Final = re.compile(rb"[!-~]{0,255}")
_PATH: Final = re.compile(rb"[!-~]{0,512}")
_NO_VALUES: Final = (b"",)


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """See the module. `arrived` and `wait_until` are on the loop's clock, `began` on the monotonic one, which is
    finer: the loop counts whole milliseconds under uvloop."""

    head: RequestHead
    body: RequestBody
    """As it comes from the client."""
    hop: Hop
    upgrades: bool = False
    """It asks for an upgrade, and may get one."""

    # -- what it is: by identification --------------------------------------------------------------------------------

    route: Route = field(init=False)
    taken: TakenBody = field(init=False)
    """Its whole body. Its owner closes it."""
    owner: object = field(init=False, default=None)
    """The operation that sends it, or its delivery; None for the request's own task."""
    key: Key | KeyFault = field(init=False)
    scope: Scope = field(init=False)
    identity: Identity = field(init=False)
    fingerprints: Sequence[Fingerprint] = field(init=False)
    """The current one first, then those that it may be recorded with under older keys."""
    digests: Digests | None = field(init=False, default=None)
    probe: ProbeTarget | None = field(init=False, default=None)
    """What to ask the upstream if the operation comes into doubt."""
    canonical_key: bytes | None = field(init=False, default=None)
    """The key as sent where a route sends again."""
    is_async: bool = field(init=False, default=False)
    """It is accepted and delivered later, so its caller does not wait."""
    lane: bytes | None = field(init=False, default=None)
    """What it is delivered in order with."""
    version: bytes = field(init=False, default=b"")
    """A digest of the version of the API that it expects its response in, empty where none is known."""
    content: Content | None = field(init=False, default=None)
    """By what a repeat under another key is recognised, where the route looks for those and the request has it."""

    # -- what became known of it: for operators, and for its own waits -------------------------------------------------

    arrived: float = field(init=False, default=0.0)
    began: float = field(init=False, default_factory=time.monotonic)
    operation_id: UUID | None = field(init=False, default=None)
    upstream_status: int | None = field(init=False, default=None)
    upstream_seconds: float | None = field(init=False, default=None)
    attempt: int = field(init=False, default=0)
    wait_until: float | None = field(init=False, default=None)
    """When its time to wait for other requests ends; None until its first wait."""
    waits_from_seconds: float = field(init=False, default=0.0)
    """How long after its arrival that wait began."""
    preferred: int | None = field(init=False, default=None)
    """The caller's preference, in seconds, if that decided how long it waits."""
    is_executed: bool = field(init=False, default=False)
    """Whether it is the request that was sent, or was to be."""
    is_reported_there: bool = field(init=False, default=False)
    """Whether a gateway of another region replied to it, and has reported that."""
    context: TraceContext | None = field(init=False, default=None)
    origin: str | None = field(init=False, default=None)

    @property
    def content_to_hold(self) -> Content | None:
        """What its claim or acceptance holds, where the route refuses repeats."""
        return self.content if self.route.repeats is not None and self.route.repeats.refuses else None

    def differences(self, record: Record) -> tuple[str, ...]:
        """In what it differs from the request of this record, as far as that can be known."""
        if self.digests is None or record.fingerprint is None:
            return ()
        operation_id = self.identity.operation_id
        return tuple(self.route.fingerprinter.differences(self.digests, record.fingerprint, operation_id))

    def why_incomparable(self, record: Record) -> str | None:
        """Why nobody can tell whether it is the request of this record; None where it is known."""
        recorded = record.fingerprint
        if recorded is None or compare(recorded, self.fingerprints)[0] is not Match.UNKNOWN or self.differences(record):
            return None
        return f"recorded under fingerprint key '{recorded.key_id}' or settings that this route does not have"

    def judge(self, snapshot: Snapshot) -> Judgement:
        """Rules 9 to 19 for this request. An event that was called off is not accepted anew: its sender may repeat it
        only because an acknowledgement was lost."""
        route = self.route
        judgement = judge(
            snapshot,
            self.fingerprints,
            accept_recipe_change=route.accepts_recipe_change,
            version=self.version if route.keep.is_version_strict else None,
            is_fetched=route.keep.is_fetched,
        )
        record = snapshot.record
        is_event = route.inbox is not None and isinstance(judgement, Claimable)
        if is_event and record is not None and is_withdrawn(record):
            return Refuse(Verdict.WITHDRAWN, record)
        return judgement

    def refuse(
        self,
        verdict: Verdict,
        detail: str | None = None,
        *,
        status: int | None = None,
        first_operation: UUID | None = None,
    ) -> Reply:
        """The problem of this verdict about its operation, as far as that is known, in the form of its route."""
        return refuse(
            verdict,
            shape=self.route.shape,
            status=status,
            operation_id=self.operation_id,
            detail=detail,
            first_operation=first_operation,
        )

    def saw(self, record: Record | None) -> None:
        """The reply is from this record, which may have no request: a copy of it has none."""
        self.attempt = 0 if record is None else record.attempts
        if record is not None and self.context is not None:
            self.origin = trace_of_attempt(record) or self.origin


@immutable
class Untouched:
    """The coordinator's decision not to protect a request: forward it unchanged, streamed.

    `request` may have a body that has been read already; `verdict` is why it is not protected.
    """

    request: Request
    verdict: Verdict


# -- what operators see of it ------------------------------------------------------------------------------------------


def scope_name(scope_digest: bytes) -> str:
    """What distinguishes callers for operators: the beginning of the scope's digest."""
    return scope_digest[:6].hex()


def request_info(head: RequestHead) -> RequestInfo:
    """The request in short; a value over its limit ends in `CUT`."""
    by_name = head.headers.by_name
    host, path = by_name.get(b"host", _NO_VALUES)[0], head.target.partition(b"?")[0]
    request_id, parent = by_name.get(b"x-request-id"), by_name.get(b"traceparent")
    return RequestInfo(
        head.method.decode("latin-1"),
        host.decode() if _HOST.fullmatch(host) else _shown(host, _HOST_CHARS_MAX),
        path.decode() if _PATH.fullmatch(path) else _shown(path, _PATH_CHARS_MAX),
        None if request_id is None else logged(request_id[0]),
        None if parent is None else trace_id_of(logged(parent[0])),
    )


def _shown(octets: bytes, chars_max: int) -> str:
    """Visible ASCII unchanged, every other octet as `%XX`."""
    chars = (chr(octet) if 0x21 <= octet <= 0x7E else f"%{octet:02X}" for octet in octets[:chars_max])
    text = "".join(chars)
    return text if len(text) <= chars_max and len(octets) <= chars_max else text[: chars_max - 1] + CUT
