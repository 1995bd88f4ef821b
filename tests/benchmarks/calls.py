"""How many calls of the gateway's own functions a request is, in how many modules, and how often one leads to another.

A gateway on SQLite in this process, with one request at a time. Calls are counted in all of its threads, a coroutine
that goes on after a wait as another one; modules in that of the event loop. Of each function the lower quartile over
the requests counts, so that a timer that many of them meet on a busy machine is in no figure.

`CEILINGS` only fall: `--check` fails above one of them, and far below it. `--trace` prints each call, indented by depth
and with a T in other threads, to be compared with what an earlier revision prints.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import uvloop

import gateway
from gateway.app.gateway import Gateway
from gateway.config import parse
from tests.benchmarks.load import Shape, new_keys
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED, UNPROTECTED
from tests.benchmarks.table import show
from tests.support.house import config_text

CEILINGS: Final[Mapping[str, int]] = {
    "new key": 141,
    "replay, in the worker that answered": 39,
    "passed through, unprotected": 47,
}
# Requests of each kind.
OPTIONS: Final = {"requests": 20, "trace": False}
# A ceiling that is higher by more than this has to be lowered.
SLACK: Final = 5
# Comprehensions are functions in one version and not in the next. The ceilings are for this one.
_PYTHON: Final = (3, 11)
_HOME: Final = str(Path(gateway.__file__).parent)
# Until connections are open, and after a response for what is done behind it.
_WARM_REQUESTS: Final = 6
_QUIET_SECONDS: Final = 0.015
_TRIES: Final = 3


class Call(NamedTuple):
    """One call. `depth`: how many calls of the gateway's own functions it is in."""

    is_on_loop: bool
    depth: int
    module: str
    function: str


@dataclass(frozen=True, slots=True)
class Counted:
    """A kind of request: how many calls it takes, and those of a request that took as many, or nearly so, in order."""

    number: int
    calls: Sequence[Call]

    @property
    def figures(self) -> tuple[int, int, int]:
        """Calls, modules, and changes of module."""
        of_loop = [call.module for call in self.calls if call.is_on_loop]
        return self.number, len(set(of_loop)), sum(one != other for one, other in pairwise(of_loop))


class _Profile:
    """Every call since `begin`, of all threads. It is what `sys.setprofile` takes."""

    def __init__(self) -> None:
        self._loops = threading.get_ident()
        self.begin()

    def begin(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(_HOME):
            return
        depth, outer = 0, frame.f_back
        while outer is not None:
            depth += outer.f_code.co_filename.startswith(_HOME)
            outer = outer.f_back
        is_on_loop = threading.get_ident() == self._loops
        self.calls.append(Call(is_on_loop, depth, file[len(_HOME) + 1 : -len(".py")], frame.f_code.co_qualname))

    async def wait_quiet(self) -> None:
        before = -1
        while before != len(self.calls):
            before = len(self.calls)
            await asyncio.sleep(_QUIET_SECONDS)


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Count, and print; whether all is within the ceilings."""
    tries, faults = 0, [""]
    counted: dict[str, Counted] = {}
    while faults and tries < _TRIES:
        # On a machine that is busy enough more may come between, but not every time.
        tries += 1
        counted = uvloop.run(_counted(place, place.directory / f"calls-{tries}", asked.requests))
        faults = faults_of({kind: each.number for kind, each in counted.items()})
    if asked.trace:
        for kind, each in counted.items():
            print(f"===== {kind}, {len(each.calls)} calls")
            for call in each.calls:
                print(f"{' ' if call.is_on_loop else 'T'} {' ' * call.depth}{call.module}:{call.function}")
        return True
    rows = [(kind, *map(str, each.figures), str(CEILINGS[kind])) for kind, each in counted.items()]
    names = "one request on SQLite", "calls", "modules", "changes of module", "ceiling"
    show(names, rows, after="\n".join(faults))
    return not faults


def faults_of(found: Mapping[str, int]) -> list[str]:
    """Which kinds of request take more calls than their ceiling, or so many fewer that it has to be lowered."""
    faults = []
    for kind, calls in found.items():
        ceiling = CEILINGS[kind]
        if calls > ceiling:
            faults.append(
                f"{kind}: {calls} calls, above the ceiling of {ceiling}. `--trace` here and before shows which"
            )
        elif calls < ceiling - SLACK and sys.version_info[:2] == _PYTHON:
            faults.append(f"{kind}: {calls} calls, far below the ceiling of {ceiling}. Lower it")
    return faults


def _typical(requests: Sequence[Sequence[Call]]) -> Counted:
    """What a request takes, given what each of them took."""
    each = [Counter((call.module, call.function) for call in calls) for calls in requests]
    number = sum(sorted(one[name] for one in each)[len(each) // 4] for name in set().union(*each))
    return Counted(number, min(requests, key=lambda calls: abs(len(calls) - number)))


async def _counted(place: Place, directory: Path, requests: int) -> dict[str, Counted]:
    profile = _Profile()
    threading.setprofile(profile)
    url = f"http://127.0.0.1:{place.service.port}"
    running = Gateway(parse(config_text(url, place.store("sqlite"), directory, log={"requests": "none"})))
    await running.start()
    reader, writer = await asyncio.open_connection(*running.address)

    async def counted(path: bytes, keys: Iterator[bytes]) -> Counted:
        before, after = Shape(path, 200, None).parts()
        taken = []
        for _ in range(_WARM_REQUESTS + requests):
            profile.begin()
            writer.write(before + next(keys) + after)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            await profile.wait_quiet()
            taken.append(profile.calls)
        return _typical(taken[_WARM_REQUESTS:])

    keys = new_keys()
    sys.setprofile(profile)
    try:
        return {
            "new key": await counted(PROTECTED, keys),
            "replay, in the worker that answered": await counted(PROTECTED, repeat(next(keys))),
            "passed through, unprotected": await counted(UNPROTECTED, keys),
        }
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        writer.close()
        await running.stop()
