"""Serves with a configuration, in one process or several; delivers without serving; migrates the durable store.

Owns the choice between one process and several.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gateway.app import stores
from gateway.app.generations import Generations
from gateway.app.life import StartError, run_until_signal
from gateway.app.share import worker_count
from gateway.app.supervisor import Supervisor
from gateway.config import Config
from gateway.store.base import StoreError

Read = Callable[[], Config]


async def serve(config: Config, read: Read | None = None, file: Path | None = None) -> int:
    """Serve until SIGTERM or SIGINT, in one process or several; returns the exit code. Raises `StartError`.

    `read` reads `file` again, for reloads; without it there are none.
    """
    count = worker_count(config)
    if count == 1:
        return await _serve_here(config, read, file)
    return await run_until_signal(
        config,
        lambda logs: Supervisor(config, count, logs, read=read, file=file),
    )


async def _serve_here(config: Config, read: Read | None, file: Path | None, *, is_public: bool = True) -> int:
    return await run_until_signal(
        config,
        lambda logs: Generations(config, logs, is_public=is_public, read=read, file=file),
    )


async def deliver(config: Config, read: Read | None = None, file: Path | None = None) -> int:
    """Deliver accepted requests until SIGTERM or SIGINT, without a listener for clients; returns the exit code.

    Raises `StartError`.
    """
    # One process: what it does is wait for the store and the upstreams.
    read_again = None if read is None else lambda: _delivering(read())
    return await _serve_here(_delivering(config), read_again, file, is_public=False)


def _delivering(config: Config) -> Config:
    delivery = config.delivery.model_copy(update={"workers": 1})
    return config.model_copy(update={"delivery": delivery, "workers": 1})


async def migrate(config: Config, grant_to: str | None = None) -> list[str]:
    """Bring the durable store's schema up to date; returns what was done. Raises `StartError`."""
    try:
        return await stores.migrate_store(config, grant_to)
    except StoreError as error:
        raise StartError(f"the durable store could not be migrated: {error}") from error


async def finish_upgrade(config: Config) -> bool:
    """Raise the level of the durable store to this program's; returns whether it was lower. Raises `StartError`."""
    try:
        return await stores.finish_upgrade(config)
    except StoreError as error:
        raise StartError(f"the upgrade cannot be finished: {error}") from error
