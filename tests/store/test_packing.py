"""Values as bytes: each comes back as what it was, and nothing else is taken for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.base import Unreadable
from gateway.store.relational.rows import pack, unpack

_VALUES = st.lists(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=9)
    | st.binary(max_size=9),
    max_size=9,
).map(tuple)


@given(_VALUES, st.binary(max_size=3))
def test_values_come_back(values: tuple[object, ...], before: bytes) -> None:
    """With their kinds: a truth is no number, and an empty text is neither None nor bytes."""
    found = unpack(before + pack(values), len(before))
    assert (found, [*map(type, found)]) == (values, [*map(type, values)])


@given(_VALUES, st.data())
def test_what_was_cut_or_goes_on_is_unreadable(values: tuple[object, ...], data: st.DataObject) -> None:
    """Wherever it ends."""
    packed = pack(values)
    for wrong in (packed[: data.draw(st.integers(0, len(packed) - 1))], packed + b"\0"):
        with pytest.raises(Unreadable):
            unpack(wrong)
