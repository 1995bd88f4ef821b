"""What the tests of one store share: a disk that can fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.store.redis import node, store
from tests.support.failing_disk import FailingDisk, failing_disk


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    with failing_disk() as disk:
        yield disk


@pytest.fixture
def no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read from Redis may take as long as a busy machine needs for it."""
    monkeypatch.setattr(node, "GET_SECONDS", 30.0)
    monkeypatch.setattr(store, "SEEN_SECONDS", 30.0)
