"""What most of these tests begin with: a service that charges."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.upstream import Answer, RecordingUpstream


@pytest.fixture
async def upstream() -> AsyncIterator[RecordingUpstream]:
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", Answer(201))
        yield upstream
