"""Tables of cases."""

from __future__ import annotations

from typing import Any

import pytest


def rows(names: str, /, **table: Any) -> pytest.MarkDecorator:
    """A test of each row, called by its keyword: the values of these names, or where there is one name its value."""
    return pytest.mark.parametrize(names, list(table.values()), ids=[name.replace("_", "-") for name in table])
