"""What the sections of the file have in common: how a mapping is read, and how one of several forms is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field

from gateway.config.leaf import wrong
from gateway.config.report import nearest

FORM_ERROR = "config_form"
"""The type of the error when no form fits; its text is ready to be shown."""


class Section(BaseModel):
    """A mapping of the file. Immutable; an unknown key is a mistake; its docstrings are the schema's descriptions."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        validate_by_name=False,
        validate_by_alias=True,
    )


def written(text: str) -> Any:
    """A default in the form in which a user would write it."""
    return Field(text, validate_default=True)


def form_tag(name: str) -> str:
    """The tag of a form of a value. It stands in the location of an error and can be no key of the file."""
    return f"<{name}>"


def one_of(*keys: str, expected: str, word: bool = False) -> Discriminator:
    """Chooses the form of a mapping by the one of `keys` that it has, or was probably meant to have.

    `word` allows a plain word as well, under the tag `<word>`.
    """

    def choose(value: object) -> str | None:
        if isinstance(value, str):
            return form_tag("word") if word else None
        if not isinstance(value, Mapping):
            return None
        present = [key for key in keys if key in value]
        meant = present or [close for key in value if (close := nearest(str(key), keys))]
        return form_tag(meant[0]) if meant else None

    return _discriminator(choose, expected)


def only(*words: str, expected: str) -> BeforeValidator:
    """Refuses every other word, and says all the forms that the value may have."""

    def check(value: object) -> object:
        if value not in words:
            raise wrong(f"expected {expected}")
        return value

    return BeforeValidator(check)


def word_or_list(expected: str) -> Discriminator:
    """Chooses between a plain word, `<word>`, and a list, `<list>`."""

    def choose(value: object) -> str | None:
        return form_tag("word") if isinstance(value, str) else form_tag("list") if _is_list(value) else None

    return _discriminator(choose, expected)


def mapping_or_list(expected: str) -> Discriminator:
    """Chooses between one mapping, `<one>`, and a list of them, `<list>`."""

    def choose(value: object) -> str | None:
        return form_tag("one") if isinstance(value, Mapping) else form_tag("list") if _is_list(value) else None

    return _discriminator(choose, expected)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _discriminator(choose: Callable[[object], str | None], expected: str) -> Discriminator:
    return Discriminator(choose, custom_error_type=FORM_ERROR, custom_error_message=f"expected {expected}")
