"""What every kind of single value in the file has in common.

A Leaf stands in the annotation of a field (`Annotated[float, Duration("1s", "1h")]`), reads the text of a scalar, and
says the same in the JSON Schema. What is wrong is said by `wrong`, which never repeats the value: whether a value may
be shown is known only where the report is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# In a JSON Schema pattern: a value that is filled in when the file is read.
SUBSTITUTED = r"|.*\$\{.*"


def wrong(message: str, hint: str = "", *, is_secret: bool = False) -> PydanticCustomError:
    """A value that is not as `message` expects; `is_secret` keeps the value itself out of the report."""
    return PydanticCustomError("config", "{message}", {"message": message, "hint": hint, "is_secret": is_secret})


@dataclass(frozen=True)
class Leaf(ABC):
    """Reads one kind of scalar. A default is written in the same form and read in the same way."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """What is asked for, to stand after "expected"."""

    @abstractmethod
    def read(self, text: str) -> Any:
        """The value. Raises what `wrong` makes."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """The same for editors."""

    def unexpected(self, hint: str = "", *, is_secret: bool = False) -> PydanticCustomError:
        """What to raise for a value that is not what is asked for; see `wrong`."""
        return wrong(f"expected {self.expected}", hint, is_secret=is_secret)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.json_schema()

    def _validate(self, value: object) -> Any:
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, int):
            value = str(value)
        if not isinstance(value, str):
            raise self.unexpected()
        return self.read(value)
