"""A cheap frozen dataclass, for values that are made for every request.

The type checker sees a frozen dataclass, so `make lint` refuses an assignment. At run time it is an ordinary one with
slots: a frozen one sets each field through `object.__setattr__`, which takes six times as long, and a request makes
some twenty of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make the class a value: compared and hashed by its fields, never modified."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
