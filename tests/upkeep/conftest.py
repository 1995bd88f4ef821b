"""What most of these tests begin with: a store that answers as they say, and what was told."""

from __future__ import annotations

import pytest

from gateway.observe.facts import Fact
from tests.upkeep.hand import Scripted


@pytest.fixture
async def store() -> Scripted:
    store = Scripted()
    await store.start()
    return store


@pytest.fixture
def facts() -> list[Fact]:
    return []
