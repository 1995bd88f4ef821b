"""Become another program that cannot outlive the process that started this one.

`python leash.py PARENT_PID DEATH_SIGNAL UID:GID|- PROGRAM ARGUMENT…`. A program of its own, because the kernel forgets
the death signal when the user changes, and code between fork and exec in a process with threads may hang.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import termios

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1


def main() -> None:
    """Drop to the user, tie the knot, become the program."""
    parent, death_signal, account, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if account != "-":
        uid, gid = map(int, account.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # Where only a parent may trace its children, everybody may trace this one; elsewhere the call is refused.
    libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)
    if os.isatty(0):
        # The session is this process's own: its terminal hangs up on it.
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # The parent may have died before the knot was tied.
    if os.getppid() != int(parent):
        sys.exit("the parent is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
