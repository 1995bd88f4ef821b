"""What may stand at a place of the file, by the models: for mistakes, and for checking a file without its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from gateway.config.document import Path
from gateway.config.leaf import Leaf, placeholder
from gateway.config.models import Config
from gateway.config.section import NOT_KEYS, Forms


@dataclass(frozen=True, slots=True)
class Form:
    """One of the types that a value may have, its tag, and what reads it if it is a scalar."""

    kind: Any
    tag: str | None
    leaf: Leaf | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an error is: its path in the file, the possible types, and the keys that choose between them."""

    path: Path
    forms: tuple[Form, ...]
    choices: tuple[str, ...]

    @property
    def models(self) -> list[type[BaseModel]]:
        return [form.kind for form in self.forms if isinstance(form.kind, type) and issubclass(form.kind, BaseModel)]

    @property
    def keys(self) -> dict[str, Any]:
        """The known keys of a mapping here, with their fields."""
        return {f.alias or name: f for model in self.models for name, f in model.model_fields.items()}

    def below(self, part: str | int) -> Place:
        if isinstance(part, int):
            items = [get_args(form.kind)[0] for form in self.forms if get_origin(form.kind) is tuple]
            return Place((*self.path, part), tuple(form for item in items for form in forms_of(item)), ())
        if part.startswith("<"):
            choices = tuple(form.tag.strip("<>") for form in self.forms if form.tag and form.tag not in NOT_KEYS)
            return Place(self.path, tuple(form for form in self.forms if form.tag == part), choices)
        fields = [f for model in self.models for name, f in model.model_fields.items() if (f.alias or name) == part]
        forms = (form for f in fields for form in forms_of(Annotated[f.annotation, *f.metadata, None]))
        return Place((*self.path, part), tuple(forms), ())


def forms_of(annotation: Any, tag: str | None = None, leaf: Leaf | None = None) -> Iterator[Form]:
    """The types that an annotation allows."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        leaf = next((item for item in metadata if isinstance(item, Leaf)), leaf)
        if forms := next((item for item in metadata if isinstance(item, Forms)), None):
            for tag, kind in forms.tagged(inner).items():
                yield from forms_of(kind, tag)
        else:
            yield from forms_of(inner, tag, leaf)
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from forms_of(member, tag, leaf)
    elif annotation is not NoneType:
        yield Form(annotation, tag, leaf)


ROOT = Place((), (Form(Config, None),), ())


class Placeholders:
    """A `StandIn` for checking a file without its secrets, as in CI; it remembers the references that it replaced."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """The replaced variables and files (`file:/path`), in the order of the file."""

    def __call__(self, path: Path, name: str, is_all: bool) -> str:
        """A placeholder for `name` at this path, of the kind that the path needs if it is the whole value."""
        if name not in self.names:
            self.names.append(name)
        place = ROOT
        for part in path if is_all else ():
            place = place.below(part)
        leaf = next((form.leaf for form in place.forms if form.leaf is not None), None)
        return placeholder(name) if leaf is None else leaf.placeholder(name)
