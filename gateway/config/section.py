"""The base of all sections of the file: how a mapping is read, and how one of several forms is chosen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    TypeAdapter,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError

from gateway.config.document import Path, nearest
from gateway.config.leaf import Leaf, duration_text, wrong

# Hints for forms that other programs have, by their key. None of them is a misspelling.
INSTEAD = {
    "query": "the query ends up in logs, and nothing is read from it; let the caller send a header",
    "cookie": "cookies change while the caller stays the same; let the caller send a header",
}


NOT_KEYS = ("<word>", "<list>", "<one>")
"""The tags of forms that are no mapping with a key of its own."""
FORM_ERROR = "config_form"
"""The type of the error when no form fits; its text is ready to be shown."""
DISAGREEMENT_ERROR = "config_disagreement"
"""The type of the error when keys of one section contradict each other; its context has all `disagreements`."""


Disagreement = tuple[str | Path, str] | tuple[str | Path, str, str]
"""A contradiction between valid keys: where it is reported, below the section; what it is; perhaps what to write."""


class Section(BaseModel):
    """A mapping of the file. Immutable; an unknown key is a mistake; `descriptions` has the docstrings of its keys."""

    ORDERED: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of durations; the first must not be longer than the second. If only one of them is written, the default of
    the other is adapted, so that no value is refused because of a default."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,
        hide_input_in_errors=True,
        validate_by_name=False,
        validate_by_alias=True,
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        follow(self, {})
        if found := (*_repetitions(self), *self.disagreements()):
            raise PydanticCustomError(DISAGREEMENT_ERROR, "keys disagree", {"disagreements": found})
        return self

    def __getstate__(self) -> dict[Any, Any]:
        """What a worker gets. What was made of the settings is made anew where they are, as tables are not sent."""
        state = super().__getstate__()
        return state | {"__dict__": _settings_in(self)}

    def __copy__(self) -> Self:
        """The settings alone: in a copy with other ones, something else is made of them."""
        copied = super().__copy__()
        object.__setattr__(copied, "__dict__", _settings_in(self))
        return copied

    def disagreements(self) -> Iterator[Disagreement]:
        """All contradictions between the keys of this section."""
        yield from too_long(self, self.model_fields_set)


def _settings_in(section: Section) -> dict[str, Any]:
    fields = type(section).model_fields
    return {name: value for name, value in section.__dict__.items() if name in fields}


def too_long(section: Section, written: Collection[str]) -> Iterator[tuple[str, str]]:
    """Durations of `ORDERED` that are longer than their bound, where one of the two is `written`."""
    for short, long in type(section).ORDERED:
        value, bound = getattr(section, short), getattr(section, long)
        keys = [key for key in (short, long) if key in written]
        if value > bound and keys:
            limits = f"{duration_text(value)} is longer than {duration_text(bound)}"
            yield keys[0], f"{short} must be at most {long}; {limits}"


def repeated(items: Iterable[object]) -> list[int]:
    seen: set[object] = set()
    found = []
    for index, item in enumerate(items):
        if item in seen:
            found.append(index)
        seen.add(item)
    return found


@dataclass(frozen=True)
class Distinct:
    """In the annotation of a list: of its texts no two are the same, in any case; of its members, each a `what`, no two
    have the same `name`."""

    what: str = ""
    name: str = ""


@cache
def _distinct(model: type[Section]) -> list[tuple[str, str, Distinct]]:
    """The lists of a section with distinct members: by attribute and key."""
    fields = model.model_fields.items()
    found = ((name, field, each) for name, field in fields for each in field.metadata)
    return [(name, field.alias or name, each) for name, field, each in found if isinstance(each, Distinct)]


def _repetitions(section: Section) -> Iterator[Disagreement]:
    for attribute, key, rule in _distinct(type(section)):
        members = getattr(section, attribute)
        if not isinstance(members, tuple):
            continue  # One member, or a word for all, may stand in its place.
        for index in repeated(getattr(each, rule.name) if rule.name else each.lower() for each in members):
            if rule.name:
                yield (key, index, rule.name), f"another {rule.what} has this {rule.name} already"
            else:
                yield (key, index), "this is listed already"


def follow(section: Section, longest: Mapping[str, float]) -> None:
    """Adapt the defaults of `ORDERED` durations. `longest` has further bounds of defaults, by name. Call it before the
    section is shared, since sections are immutable."""
    written, values = section.model_fields_set, section.__dict__
    for short, long in type(section).ORDERED:
        for name in (short, long):
            if name not in written:
                values[name] = min(_default(type(section), name), longest.get(name, float("inf")))
        if values[short] > values[long] and short not in written:
            values[short] = values[long]
        elif values[short] > values[long] and long not in written:
            values[long] = values[short]


@cache
def _default(model: type[Section], name: str) -> float:
    value: float = adapter(model, name).validate_python(model.model_fields[name].default)
    return value


@cache
def adapter(model: type[Section], name: str) -> TypeAdapter[Any]:
    """Reads the value of one key by itself."""
    field = model.model_fields[name]
    kind: Any = field.annotation
    return TypeAdapter(Annotated[kind, *field.metadata, None])


DIVIDED = "divided among the workers"
"""In the annotation of a limit of the whole gateway: each worker has its share of it."""


def written(text: str) -> Any:
    """A default as a user would write it."""
    return Field(text, validate_default=True)


@dataclass(frozen=True)
class Forms:
    """Chooses which type of a union a value is meant for: by the tag of the type, which is part of an error's location.
    A mapping is known by its `kind`, or by the first key that one of the types requires, also where that is probably
    misspelt. Tags are in angle brackets, so that they are never keys of the file."""

    expected: str
    """All forms, as the text after "expected"."""

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        tagged, of_any = self.tagged(union), Union.__getitem__
        has_kinds = any("kind" in _fields(kind) for kind in tagged.values())
        kinds = tuple(Annotated[kind, *self._checks(kind), Tag(tag)] for tag, kind in tagged.items())
        message = f"expected {self.expected}"

        def choose(value: object) -> str | None:
            return _chosen(tagged, has_kinds, value)

        form = Discriminator(choose, custom_error_type=FORM_ERROR, custom_error_message=message)
        return form.__get_pydantic_core_schema__(of_any(kinds), handler)

    def tagged(self, union: Any) -> dict[str, Any]:
        tags = [_tag(kind) for kind in get_args(union)]
        # One mapping in place of a list of them is known by being one.
        is_one = "<list>" in tags and "<word>" not in tags
        tags = ["<one>" if is_one and tag != "<list>" else tag for tag in tags]
        return dict(zip(tags, get_args(union), strict=True))

    def _checks(self, kind: Any) -> Iterator[BeforeValidator]:
        """Another word is refused with an error that lists all forms of the value."""
        words = get_args(kind)

        def check(value: object) -> object:
            if value not in words:
                raise wrong(f"expected {self.expected}")
            return value

        if get_origin(kind) is Literal:
            yield BeforeValidator(check)


def _chosen(tags: Collection[str], has_kinds: bool, value: object) -> str | None:
    """The tag of the form that a value is meant for, if it is one of these."""
    match value:
        case str():
            tag = "<word>"
        case list() | tuple():
            tag = "<list>"
        case Mapping() if "<one>" in tags:
            tag = "<one>"
        case Mapping():
            keys = [tag.strip("<>") for tag in tags if tag not in NOT_KEYS]
            given = [str(value.get(_key_of_kind(value)))] if has_kinds else list(value)
            present = [key for key in keys if key in given]
            meant = present or [close for key in given if key not in INSTEAD and (close := nearest(str(key), keys))]
            tag = f"<{meant[0]}>" if meant else ""
        case _:
            tag = ""
    return tag if tag in tags else None


def _key_of_kind(value: Mapping[Any, Any]) -> object:
    return "kind" if "kind" in value else next((key for key in value if nearest(str(key), ("kind",))), None)


def _tag(kind: Any) -> str:
    bare, *metadata = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if get_origin(bare) is tuple:
        return "<list>"
    fields = _fields(bare)
    if not fields or any(isinstance(each, Leaf) for each in metadata):
        return "<word>"
    if "kind" in fields:
        return f"<{get_args(fields['kind'].annotation)[0]}>"
    return f"<{next(field.alias or name for name, field in fields.items() if field.is_required())}>"


def _fields(kind: Any) -> Mapping[str, FieldInfo]:
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, Section) else {}
