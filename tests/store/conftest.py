"""What the tests of one store share: a disk that can fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.failing_disk import FailingDisk, failing_disk


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    with failing_disk() as disk:
        yield disk
