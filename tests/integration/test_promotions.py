"""Short runs of promotions under gateways; `python -m tests.integration.promotions` has the long ones."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.promotions import ENDS, Scene, end_under_load, fail_over, staged
from tests.support.fleet import send
from tests.support.house import status_of
from tests.support.postgres import PostgresInstallation


@pytest.fixture
def servers(tmp_path: Path, server_workspace: Path) -> Path:
    directory = server_workspace / f"pair-{tmp_path.name}"
    directory.mkdir(mode=0o755)
    return directory


@pytest.fixture
async def scene(tmp_path: Path, postgres_installation: PostgresInstallation, servers: Path) -> AsyncIterator[Scene]:
    async with staged(postgres_installation, tmp_path, servers) as scene:
        yield scene


@pytest.mark.parametrize("how", [ENDS[0], *(pytest.param(how, marks=pytest.mark.full) for how in ENDS[1:])])
async def test_a_synchronous_pair_under_load(scene: Scene, how: str) -> None:
    """New keys are served again within seconds, no key runs twice, and nobody speaks of a loss."""
    await end_under_load(scene, how, seconds=0.5)
    assert not scene.verdict.faults, scene.verdict
    for gateway in scene.fleet:
        assert "lost its memory" not in gateway.output()


async def test_an_asynchronous_pair_with_and_without_a_loss(scene: Scene) -> None:
    """What one gateway alone was told and the standby lacks is noticed; a promotion that lost nothing serves new keys,
    also after a loss that was accepted."""
    rng = random.Random(1)
    for number, lost in enumerate((0, 1, 0)):
        await fail_over(scene, f"round-{number}", lost=lost, rng=rng)
        assert not scene.verdict.faults, scene.verdict


async def test_a_gateway_that_died_with_the_primary(
    tmp_path: Path, postgres_installation: PostgresInstallation, servers: Path
) -> None:
    """Nobody can speak for what it was told: the promotion is a lost memory, which names it."""
    async with staged(postgres_installation, tmp_path, servers, vouched_seconds=5) as scene:
        await scene.pair.follow(is_synchronous=True)
        one, two = scene.fleet
        await scene.send_all(one.port, "one")
        await scene.send_all(two.port, "two")
        two.kill()
        await scene.pair.end("death")
        assert await scene.is_decided(one.port, "new") == "store-amnesia"
        assert status_of(await send(one.port, "two")) == (201, "replayed")
        assert "has not spoken since" in one.output()


async def test_a_gateway_that_was_killed_and_comes_back(scene: Scene) -> None:
    """Its notes vouch for it, and new keys are served, by it as well."""
    await scene.pair.follow(is_synchronous=True)
    one, two = scene.fleet
    for gateway, key in ((one, "one"), (two, "two")):
        await scene.send_all(gateway.port, key)
    two.kill()
    await scene.pair.end("death")
    await two.start()
    for gateway in scene.fleet:
        assert await scene.is_decided(gateway.port, f"new-{gateway.port}") == "stored"
    assert status_of(await send(one.port, "two")) == (201, "replayed")
    scene.check_once()
    assert not scene.verdict.faults
    assert "was promoted: accepted" in one.output()
