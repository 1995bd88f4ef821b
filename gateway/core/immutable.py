"""How a value is declared where one is made for every request.

To the type checker a value is a frozen dataclass, and that is where its immutability is held: `make lint` refuses an
assignment. At run time it is an ordinary one with slots, because a frozen one is filled field by field through
`object.__setattr__`, which takes six times as long, and a request makes some twenty of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make the class a value: compared and hashed by its fields, never changed."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
