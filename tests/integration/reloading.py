"""Reloads of one gateway under a load of so many requests a second, with one process and with two workers.

`python -m tests.integration.reloading --reloads 20 --rate 300`. Requests are due at that rate whatever became of the
earlier ones, half of them new keys and half their repeats, on connections that stay open and on new ones. By turns a
reload lets a 418 free its key, and be stored. Nothing may be lost, no key may run twice, what is in flight at a reload
ends by the policy that it began with, what begins afterwards has the new one, and the load may not have been less than
was asked for.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.admin.shell import Shell
from tests.support import http, long_run
from tests.support.fleet import key_of, process, send
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, JSON, ROUTE, status_of
from tests.support.upstream import Answer, Received, RecordingUpstream

_CLIENTS: Final = 32
# A little more is due than has to be answered, since the last ones are answered behind the last reload.
_MARGIN: Final = 1.05
_ROUTES: Final = (ROUTE, ROUTE | {"name": "refund", "match": {"path": "/refunds"}})


@dataclass
class Verdict(long_run.Verdict):
    """What reloads under load came to. It holds when there are no `faults`."""

    workers: int
    reloads: int = 0
    answered: int = 0
    # Requests a second, from the first reload to the end of the last.
    rate: float = 0.0
    slowest_seconds: float = 0.0

    def summary(self) -> str:
        text = f"{self.workers} workers: {self.reloads} reloads, {self.answered} requests, {self.rate:.0f} a second"
        return f"{text}, the slowest {self.slowest_seconds * 1e3:.0f} ms"


class _Load:
    """Requests at a fixed rate, from `run` until `is_over`. Each client keeps to its times, also when it is late."""

    def __init__(self, port: int, verdict: Verdict, rate: float) -> None:
        self.is_over = False
        self.keys = 0
        self._port = port
        self._verdict = verdict
        # One key is two requests.
        self._pause_seconds = 2 * _CLIENTS / (rate * _MARGIN)

    async def run(self) -> None:
        """Raises what a client met: a lost connection, or a response that was not expected."""
        async with asyncio.TaskGroup() as group:
            for number in range(_CLIENTS):
                group.create_task(self._keep_open(number) if number % 2 else self._open_each(number))

    async def _keep_open(self, number: int) -> None:
        async with http.Connection(self._port) as connection:
            async for key, due in self._keys_of(number):
                await self._send(connection, key, due)

    async def _open_each(self, number: int) -> None:
        async for key, due in self._keys_of(number):
            async with http.Connection(self._port) as connection:
                await self._send(connection, key, due)

    async def _keys_of(self, number: int) -> AsyncIterator[tuple[str, float]]:
        due = time.monotonic() + number / _CLIENTS * self._pause_seconds
        while not self.is_over:
            await asyncio.sleep(due - time.monotonic())
            self.keys += 1
            yield f"w{self._verdict.workers}-{self.keys}", due
            due += self._pause_seconds

    async def _send(self, connection: http.Connection, key: str, due: float) -> None:
        headers = [JSON, ("Idempotency-Key", key), ("X-Tenant", "t1")]
        for expected in ("stored", "replayed"):
            await connection.send(http.request_bytes("POST", "/charges", headers, BODY))
            response = await connection.read_response("POST")
            if status_of(response) != (201, expected):
                self._verdict.faults.append(f"{key}: {status_of(response)}")
            self._verdict.answered += 1
            self._verdict.slowest_seconds = max(self._verdict.slowest_seconds, time.monotonic() - due)


class _Service:
    """Charges, and refunds that are refused with 418; the one with the key `held` waits."""

    def __init__(self, upstream: RecordingUpstream) -> None:
        self.held = ""
        self.arrived, self.hold = asyncio.Event(), asyncio.Event()
        upstream.on("/charges", Answer(201))
        upstream.on("/refunds", self._refund)

    def hold_back(self, key: str) -> None:
        """From now on the request with this key waits until `hold` is set; `arrived` is set when it is there."""
        self.held, self.arrived, self.hold = key, asyncio.Event(), asyncio.Event()

    def _refund(self, received: Received) -> Answer:
        if key_of(received) != self.held:
            return Answer(418)
        self.arrived.set()
        return Answer(418, hold=self.hold)


async def reload_under_load(
    directory: Path, store: dict[str, Any], *, workers: int, reloads: int, rate: float, floor: float = 0.0
) -> Verdict:
    """See the module. Fewer requests a second than `floor` are a fault."""
    verdict = Verdict(workers)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(RecordingUpstream())
        service = _Service(upstream)
        gateway = await stack.enter_async_context(
            process(store, directory / f"gateway-{workers}", upstream.url, routes=list(_ROUTES), workers=workers)
        )
        load = _Load(gateway.port, verdict, rate)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            began = time.monotonic()
            for number in range(reloads):
                await _reload(gateway, service, verdict, f"w{workers}-{number}", is_stored=number % 2 == 1)
            verdict.rate = verdict.answered / (time.monotonic() - began)
            load.is_over = True
        runs = Counter(key_of(received) for received in upstream.requests)
        verdict.faults += [f"{key} ran {count} times" for key, count in runs.items() if count > 1]
        if len(runs) != (expected := load.keys + 2 * reloads):
            verdict.faults.append(f"{len(runs)} keys ran, {expected} were sent")
        if verdict.rate < floor:
            verdict.faults.append(f"{floor:.0f} requests a second were asked for")
    return verdict


async def _reload(gateway: GatewayProcess, service: _Service, verdict: Verdict, name: str, *, is_stored: bool) -> None:
    """From now on a 418 is stored, or else frees its key; before, it was the other way."""
    service.hold_back(f"held-{name}")
    held = asyncio.create_task(send(gateway.port, f"held-{name}", target="/refunds"))
    await service.arrived.wait()
    document = yaml.safe_load(gateway.config_file.read_text())
    document["routes"][1]["outcome"] = ROUTE["outcome"] | ({} if is_stored else {"retryable": [418]})
    gateway.config_file.write_text(yaml.safe_dump(document, sort_keys=False))
    shell = Shell(gateway.config_file.parent, "")
    shell.config = gateway.config_file
    said = await shell("reload")
    service.hold.set()
    later = await send(gateway.port, f"later-{name}", target="/refunds")
    found = [response.header("Idempotency-Status") == "stored" for response in (await held, later)]
    verdict.reloads += 1
    if said.code != 0:
        verdict.faults.append(f"reload {name}: {said}")
    if found != [not is_stored, is_stored]:
        verdict.faults.append(f"reload {name}: stored by the one in flight and by the next: {found}")


async def _run(directory: Path, store: dict[str, Any], *, reloads: int, rate: float, seed: int) -> Verdict:
    """With one process, then with two workers; the first verdict that is not good, or the last."""
    for workers in (1, 2):
        verdict = await reload_under_load(directory, store, workers=workers, reloads=reloads, rate=rate, floor=rate)
        print(verdict, flush=True)
        if verdict.faults:
            break
    return verdict


if __name__ == "__main__":
    sys.exit(long_run.main("reloading", __doc__, _run, reloads=20, rate=300.0))
