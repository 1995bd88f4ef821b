"""What the suites of both wires share: they run on uvloop, which the product uses, and with `--full` also on asyncio's
own loop, which sees the end of a connection differently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.support.tls import Authority


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that each coroutine test is run on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates here."""
    return Authority(tmp_path_factory.mktemp("tls"))
