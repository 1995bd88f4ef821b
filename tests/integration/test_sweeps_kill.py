"""A gateway that is killed at the N-th write of one operation's life, for every N there is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fleet import NOW, key_of, nonce_of, process, send, try_send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of, stores
from tests.support.http import Response
from tests.support.trap import Trap
from tests.support.upstream import RecordingUpstream

_WRITES_MAX = 100


@dataclass
class Life:
    """One key: where the gateway was killed, what the caller got, and what a retry got from its successor."""

    key: str
    killed_at: Sequence[str]
    first: Response | None
    second: Response


store = stores("sqlite", "postgres-redis")


async def test_killed_at_every_write(store: dict[str, Any], tmp_path: Path, upstream: RecordingUpstream) -> None:
    """Wherever in one operation's life its gateway is killed, it has one effect at most and one answer for ever."""
    async with process(store, tmp_path, upstream, store={"lease": "3s"}) as gateway:
        lives: list[Life] = []
        first: Response | None = None
        for number in itertools.count(1):
            assert number < _WRITES_MAX, "the operation never ends"
            # Connections to the upstream and the store are there; what is traced is the operation alone.
            assert status_of(await send(gateway.port, f"warm-{number}")) == (201, "stored")
            key = f"key-{number}"
            async with Trap.killing(gateway.pid, number, tmp_path / "trap.log") as trap:
                first = await try_send(gateway.port, key)
                await _settle(gateway)
            # Also where what comes behind the answer was slow to be written.
            if not (killed_at := trap.sprung):
                break
            gateway.kill()
            await gateway.start()
            seen_before = _count(upstream, key)
            second = await send(gateway.port, key, headers=NOW)
            lives.append(Life(key, killed_at, first, second))
            _judge(lives[-1], seen_before)
        assert first is not None
        assert status_of(first) == (201, "stored")
        for life in lives:
            # Executed only now: the next gateway found that the first one had not sent it.
            last = await wait_answered(
                gateway.port, life.key, verdicts=frozenset(("replayed", "in-doubt", "stored")), headers=NOW
            )
            assert _count(upstream, life.key) <= 1, life
            for answer in (life.first, life.second):
                if answer is not None and answer.status == 201:
                    assert (status_of(last), nonce_of(last)) == ((201, "replayed"), nonce_of(answer)), life
        words = Counter(life.second.header("Idempotency-Status") for life in lives)
        # Before the claim, under it, and behind the record: the sweep was everywhere. A slow start outlasts a lease.
        assert min(words["stored"], words["in-flight"] + words["in-doubt"], words["replayed"]) >= 1, words


def _judge(life: Life, seen_before: int) -> None:
    """What the retry may get from the next gateway, given whether the upstream had seen the first request."""
    verdict = life.second.header("Idempotency-Status")
    if life.first is not None:
        assert (verdict, nonce_of(life.second)) == ("replayed", nonce_of(life.first)), life
    elif seen_before:
        assert verdict in ("in-flight", "in-doubt", "replayed"), life
    else:
        # A claim without a request cannot be told from one with a request by whoever comes next, unless the mark of the
        # attempt says so: then it was released, before this retry or while it was answered.
        assert verdict in ("in-flight", "in-doubt", "released", "stored"), life


async def _settle(gateway: GatewayProcess) -> None:
    """If it lives: by the time it answers this, it has usually written what came behind the operation's answer."""
    with suppress(OSError):
        await gateway.status("/livez")


def _count(upstream: RecordingUpstream, key: str) -> int:
    return sum(key_of(received) == key for received in upstream.effects)
