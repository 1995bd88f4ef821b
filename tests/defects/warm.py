"""Runs pytest in children that have the libraries imported already: half of what a short run costs is importing."""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys

# What product and tests stand on.
LIBRARIES = (
    "aiohttp.web", "apsw", "asyncpg", "brotli", "cryptography.x509", "http_sf", "hypothesis",
    "hypothesis.stateful", "prometheus_client", "pydantic", "pytest", "redis.asyncio", "trustme",
    "unittest.mock", "uvloop", "yaml", "zstandard",
)  # fmt: skip
# Pytest would like to rewrite the assertions of Hypothesis, which is a plugin too; they are not what is judged here.
ARGUMENTS = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
PR_SET_PDEATHSIG = 1


def main() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    # Ended children are nobody's to wait for; whoever asked for them looks at the process itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.readline():
        run = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run(run["root"], run["arguments"]))
        print(child, flush=True)


def _run(root: str, arguments: list[str]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(root)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    sys.path[0] = root
    import pytest

    try:
        return int(pytest.main([*ARGUMENTS, *arguments]))
    finally:
        sys.stdout.flush()


if __name__ == "__main__":
    main()
