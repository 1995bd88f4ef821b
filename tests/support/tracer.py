"""Watch a live process do its writes, and end it, or fail one of them, exactly at a given one.

`python tracer.py PID NUMBER kill` kills the process as it enters its NUMBER-th write: that write is not done, and all
before it are. `python tracer.py PID ERRNO fail SYSCALL…` lets every such call fail with that error, without its being
done, until this program ends. It says `ready` once it watches, and one line for each call that it stopped.

A write is whatever puts bytes where another process, or the next start, can find them: into sockets and files, and
whatever makes files durable, shorter, or gone. Wakeups between threads and the log are none.

A program of its own, because the kernel lets only the thread that attached to a process go on with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
from pathlib import Path

NAMES = {
    1: "write", 18: "pwrite64", 20: "writev", 44: "sendto", 46: "sendmsg", 74: "fsync", 75: "fdatasync",
    77: "ftruncate", 82: "rename", 87: "unlink", 263: "unlinkat", 296: "pwritev",
}  # fmt: skip
_WITHOUT_FILE = frozenset(("rename", "unlink", "unlinkat"))

_CONT, _SYSCALL, _SEIZE, _INTERRUPT, _LISTEN, _SYSCALL_INFO = 7, 24, 0x4206, 0x4207, 0x4208, 0x420E
_PEEKUSER, _POKEUSER = 3, 6
_OPTIONS = 0x1 | 0x8  # TRACESYSGOOD, TRACECLONE
_WALL = 0x40000000
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_EVENT_STOP = 128
_ENTRY, _EXIT = 1, 2
# Where it keeps them in `struct user`: the call's number, and its answer.
_ORIG_RAX, _RAX = 15 * 8, 10 * 8
_INFO_BYTES = 88


class _Ptrace:
    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long

    def __call__(self, request: int, tid: int, address: int = 0, data: int = 0) -> bool:
        """Whether it was done; False when the thread is gone."""
        ctypes.set_errno(0)
        self._libc.ptrace(request, tid, address, data)
        number = ctypes.get_errno()
        if number in (0, errno.ESRCH):
            return number == 0
        raise OSError(number, f"ptrace {request:#x}: {os.strerror(number)}")

    def stopped_at(self, tid: int) -> tuple[int, int, int]:
        """Entry or exit; then, at an entry, the number of the call and its first argument."""
        buffer = ctypes.create_string_buffer(_INFO_BYTES)
        if not self(_SYSCALL_INFO, tid, _INFO_BYTES, ctypes.addressof(buffer)):
            return 0, 0, 0
        return buffer.raw[0], int.from_bytes(buffer.raw[24:32], "little"), int.from_bytes(buffer.raw[32:40], "little")


class Tracer:
    """`kill_at` counts writes; 0 kills nobody. `failing` calls get `error` instead of being done."""

    def __init__(self, pid: int, *, kill_at: int = 0, failing: frozenset[str] = frozenset(), error: int = 0) -> None:
        self._pid = pid
        self._kill_at = kill_at
        self._failing = failing
        self._error = error
        self._seen = 0
        self._refused: set[int] = set()
        self._ptrace = _Ptrace()

    def run(self) -> None:
        threads = {int(entry.name) for entry in Path(f"/proc/{self._pid}/task").iterdir()}
        for tid in threads:
            if self._ptrace(_SEIZE, tid, 0, _OPTIONS):
                self._ptrace(_INTERRUPT, tid)
        waiting = set(threads)
        while True:
            try:
                tid, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                return
            if os.WIFSTOPPED(status):
                self._stopped(tid, status)
            if waiting:
                waiting.discard(tid)
                if not waiting:
                    print("ready", flush=True)

    def _stopped(self, tid: int, status: int) -> None:
        number, event = os.WSTOPSIG(status), status >> 16
        if number == _SYSCALL_STOP:
            self._at_call(tid)
            self._ptrace(_SYSCALL, tid)
        elif event == _EVENT_STOP and number in (signal.SIGSTOP, signal.SIGTSTP):
            # Frozen by somebody: it stays so until it is woken.
            self._ptrace(_LISTEN, tid)
        elif event:
            self._ptrace(_SYSCALL, tid)
        else:
            self._ptrace(_SYSCALL, tid, 0, number)

    def _at_call(self, tid: int) -> None:
        kind, call, argument = self._ptrace.stopped_at(tid)
        if kind == _EXIT and tid in self._refused:
            self._refused.discard(tid)
            self._ptrace(_POKEUSER, tid, _RAX, (-self._error) & (2**64 - 1))
        name = NAMES.get(call) if kind == _ENTRY else None
        if name is None:
            return
        if name in self._failing:
            self._refused.add(tid)
            self._ptrace(_POKEUSER, tid, _ORIG_RAX, 2**64 - 1)
            print(f"failed: {name} {self._file(argument)}", flush=True)
        elif self._kill_at and (name in _WITHOUT_FILE or self._is_counted(argument)):
            self._seen += 1
            if self._seen == self._kill_at:
                # Said first: whoever sees the process end may end this one at once. It stands still until it is killed.
                print(f"killed: {name} {self._file(argument)}", flush=True)
                os.kill(self._pid, signal.SIGKILL)

    def _file(self, descriptor: int) -> str:
        try:
            return str(Path(f"/proc/{self._pid}/fd/{descriptor}").readlink())
        except OSError:
            return "?"

    def _is_counted(self, descriptor: int) -> bool:
        return descriptor > 2 and not self._file(descriptor).startswith(("anon_inode:", "pipe:"))


def main() -> None:
    assert platform.machine() == "x86_64", "the numbers of calls are those of x86_64"
    pid, number, action, *names = sys.argv[1:]
    if action == "kill":
        Tracer(int(pid), kill_at=int(number)).run()
    else:
        Tracer(int(pid), failing=frozenset(names), error=int(number)).run()


if __name__ == "__main__":
    main()
