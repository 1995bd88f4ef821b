"""By what a start learns whether a key is the one that it was."""

from __future__ import annotations

import os

from gateway.core.confidential import EncryptionKey, KeyRing, Sealing
from gateway.store.operations import ManagedStore
from gateway.store.sealed import EXAMPLES_MAX, SealedStore, why_unopenable
from tests.conformance.hand import Hand, do

OLD, NEW = EncryptionKey("old", bytes(32)), EncryptionKey("new", bytes(range(32)))
IMPOSTOR = EncryptionKey(OLD.id, b"another key of 32 bytes, as here")


def sealing(*keys: EncryptionKey) -> Sealing:
    return Sealing(KeyRing(keys, os.urandom))


async def test_examples_of_a_key(store: ManagedStore) -> None:
    """A few of those that are encrypted with it alone, whatever else there is: its own key opens them, no other one
    does, and one that is damaged among them does not matter."""
    # Without the layer that encrypts, if it is there.
    store = getattr(store, "behind", store)
    await do(store, Hand(), Hand.claim)
    for key, number in ((NEW, 1), (OLD, EXAMPLES_MAX + 2)):
        for _ in range(number):
            await do(SealedStore(store, sealing(key)), Hand(), Hand.claim, Hand.complete)
    examples = await store.cold.sealed_examples(OLD.id)
    # A store of several shards has some of each.
    assert EXAMPLES_MAX <= len(examples) <= EXAMPLES_MAX + 2
    assert why_unopenable(examples, sealing(NEW, OLD)) is None
    assert "key 'old' is another key than it was" in (why_unopenable(examples, sealing(IMPOSTOR, NEW)) or "")
    await do(SealedStore(store, sealing(IMPOSTOR)), Hand(), Hand.claim, Hand.complete)
    (example,) = await store.cold.sealed_examples(NEW.id)
    assert why_unopenable([example], sealing(NEW)) is None
    assert why_unopenable([example, *examples], sealing(IMPOSTOR, NEW)) is None
    assert await store.cold.sealed_examples("nobody") == []
    assert why_unopenable([], sealing(NEW)) is None
