"""Concurrent verbs of several stores on few operations of a real Postgres, for a moment; see `postgres_fuzz`."""

from __future__ import annotations

from gateway.core.operation import EVENT_OF
from tests.store.postgres_fuzz import fuzz
from tests.store.postgres_fuzz_judge import judge

SECONDS = 2.5
SEED = 7


async def test_concurrent_verbs_do_what_the_model_does(migrated_url: str) -> None:
    """Whatever is applied at once, each result and each change is one that the model has in some order."""
    history = await fuzz(migrated_url, SEED, SECONDS)
    assert judge(history) == []
    assert history.applied == EVENT_OF.keys()
