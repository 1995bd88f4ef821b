"""A layer in front of a store, with the verbs of its `cold` at hand: as a store itself has them."""

from __future__ import annotations

from typing import Any, cast

from gateway.store.base import Store
from gateway.store.operations import ManagedStore


class _Whole:
    def __init__(self, layer: Store) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer if hasattr(self._layer, name) else self._layer.cold, name)


def whole(layer: Store) -> ManagedStore:
    """All verbs of the layer and of its `cold`."""
    return cast(ManagedStore, _Whole(layer))
