"""From pydantic's errors to mistakes that name a place in the file, what was expected and the nearest known name.

Owns the wording; the models define what is valid. Expectations come from the models themselves (annotations and
docstrings), so that the report and the schema cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway import __version__
from gateway.config.document import Document, Mistake, Path, alternatives, nearest, path_of
from gateway.config.effective import descriptions
from gateway.config.leaf import Leaf, placeholder
from gateway.config.models import Config
from gateway.config.section import DISAGREEMENT_ERROR, FORM_ERROR, INSTEAD, NOT_KEYS, Forms

# -- places ------------------------------------------------------------------------------------------------------------
#
# What may stand at a place of the file, by the models: for mistakes, and for checking a file without its secrets.


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


def _place(path: Path) -> Place:
    """What may stand at this path, of the file or of an error."""
    place = Place((), (Form(Config, None),), ())
    for part in path:
        place = place.below(part)
    return place


class Placeholders:
    """A `StandIn` for checking a file without its secrets, as in CI; it remembers the references that it replaced."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """The replaced variables and files (`file:/path`), in the order of the file."""

    def __call__(self, path: Path, name: str, is_all: bool) -> str:
        """A placeholder for `name` at this path, of the kind that the path needs if it is the whole value."""
        if name not in self.names:
            self.names.append(name)
        place = _place(path if is_all else ())
        leaf = next((form.leaf for form in place.forms if form.leaf is not None), None)
        return placeholder(name) if leaf is None else leaf.placeholder(name)


# -- mistakes ----------------------------------------------------------------------------------------------------------

_SHOWN_CHARS_MAX = 60
# Sections that contain secrets.
_HOLDERS = frozenset(("secrets", "store", "admin", "sinks"))
_KEY_CHARS_MAX = 40
_WITHOUT_BRACES = re.compile(r"\$[A-Za-z_]")


def explain(error: ValidationError, document: Document) -> Iterator[Mistake]:
    """The mistakes behind the errors, without those that only follow from another one."""
    found = [(_place(details["loc"]), details) for details in error.errors(include_url=False)]
    meant = {
        (*place.path[:-1], near)
        for place, details in found
        if details["type"] == "extra_forbidden" and (near := _nearest_key(details["loc"]))
    }
    for place, details in found:
        match details["type"]:
            case "default_factory_not_called":
                pass
            case kind if kind == DISAGREEMENT_ERROR:
                for keys, message in details["ctx"]["disagreements"]:
                    yield document.mistake((*place.path, *path_of(keys)), message)
            case "extra_forbidden":
                yield _unknown_key(place, details["loc"], document)
            case "missing" if place.path not in meant:
                yield document.mistake(place.path, "required, but missing", _description(details["loc"]))
            case "missing":
                pass
            case "too_short" if _is_long_enough(details):
                pass
            case kind if kind == FORM_ERROR and (key := _unsupported_key(place, details["input"])) is not None:
                message = f"this is not supported here; {details['msg']}"
                yield document.mistake((*place.path, key), message, INSTEAD.get(key, ""), at_key=True)
            case _ if details["input"] is not None and place.path not in document.broken:
                yield _wrong_value(place, details, document)


def empty_values(document: Document) -> Iterator[Mistake]:
    """The known keys and the list items without a value."""
    for path in document.nothing:
        place = _place(path)
        if place.forms:
            hint = "indent its keys below it, or leave it out" if place.models else ""
            yield document.mistake(
                path, "nothing is written here", hint or "leave it out, or quote a word such as 'null'"
            )


def _unsupported_key(place: Place, given: object) -> str | None:
    """The first key of a mapping that no form of the value has, unless it may be a misplaced secret."""
    unknown = [str(key) for key in given if key not in place.keys] if isinstance(given, Mapping) else []
    is_shown = bool(unknown) and unknown[0].isidentifier() and len(unknown[0]) <= _KEY_CHARS_MAX
    return unknown[0] if is_shown else None


def _nearest_key(loc: tuple[str | int, ...]) -> str | None:
    holder = _place(loc[:-1])
    return None if loc[-1] in holder.choices else nearest(str(loc[-1]), holder.keys)


def _unknown_key(place: Place, loc: tuple[str | int, ...], document: Document) -> Mistake:
    holder = _place(loc[:-1])
    key = str(loc[-1])
    if key in holder.choices:
        return document.mistake(place.path, f"only one of {alternatives(holder.choices)} can be used", at_key=True)
    near = _nearest_key(loc)
    hint = f"did you mean {near}?" if near else f"known here: {', '.join(holder.keys)}"
    message = f"unknown key in version {__version__}"
    mistake = document.mistake(place.path, message, hint, at_key=True)
    # A value in the place of a key may be a secret.
    if near or (key.isidentifier() and len(key) <= _KEY_CHARS_MAX and not _HOLDERS.intersection(place.path)):
        return mistake
    shown = document.mistake(place.path[:-1], message, hint)
    return Mistake(document.file, mistake.line, mistake.column, shown.path, shown.message, shown.hint)


def _description(loc: tuple[str | int, ...]) -> str:
    """The first sentence of the key's docstring."""
    said = (descriptions(model).get(str(loc[-1])) for model in _place(loc[:-1]).models)
    text = next(filter(None, said), "").split(". ")[0].removesuffix(".")
    return text[:1].lower() + text[1:]


def _is_long_enough(details: ErrorDetails) -> bool:
    """Whether a list only lacks items because some are invalid, which is reported already."""
    given = details["input"]
    return isinstance(given, list) and len(given) >= details["ctx"]["min_length"]


def _wrong_value(place: Place, details: ErrorDetails, document: Document) -> Mistake:
    given = details["input"]
    context: Mapping[str, Any] = details.get("ctx", {})
    is_hidden = _is_hidden(place.path, document) or bool(context.get("is_secret"))
    hint = ""
    match details["type"]:
        case "config":
            message, hint = context["message"], context["hint"]
            # A hint derived from the value is as secret as the value.
            hint = "" if _is_hidden(place.path, document) and not context["is_secret"] else hint
        case "literal_error":
            # The form that is meant was chosen by what this probably misspells.
            kinds = _place(details["loc"][:-1]).choices if place.path[-1:] == ("kind",) else ()
            words = list(kinds) or [
                word for form in place.forms if get_origin(form.kind) is Literal for word in get_args(form.kind)
            ]
            message = f"expected {alternatives(words)}"
            near = None if is_hidden else nearest(str(given), words)
            hint = f"did you mean {near}?" if near else ""
        case "model_type" | "model_attributes_type":
            message = f"expected a mapping with {', '.join(place.keys)}"
            required = [name for name, known in place.keys.items() if known.is_required()]
            hint = f"write {{{required[0]}: ...}}" if len(required) == 1 and isinstance(given, str) else ""
        case "dict_type":
            message = "expected a mapping of names to values"
        case "string_type":
            message = "expected a word or text"
        case "tuple_type":
            message = "expected a list"
            hint = f"write [{given}]" if isinstance(given, str) and not is_hidden else ""
        case "too_short":
            message, given = f"expected a list of at least {context['min_length']}, found {len(given)}", None
        case "too_long":
            message, given = f"expected a list of at most {context['max_length']}, found {len(given)}", None
        case kind:
            message = details["msg"] if kind == FORM_ERROR else f"expected another value ({kind})"
    if place.path in document.empty:
        hint = f"{document.empty[place.path]} is empty"
    elif isinstance(given, str) and place.path not in document.substituted and _WITHOUT_BRACES.match(given):
        hint = "only ${NAME} is replaced, with its braces"
    return document.mistake(place.path, message + _found_in(place.path, given, is_hidden, document), hint)


def _found_in(path: Path, given: object, is_hidden: bool, document: Document) -> str:
    """As `_found`; of a mapping that has a `kind`, that."""
    kind = given.get("kind") if isinstance(given, Mapping) else None
    found = _found(kind, is_hidden or (*path, "kind") in document.substituted) if isinstance(kind, str) else ""
    return found.replace(", found ", ", found kind: ", 1) if found else _found(given, is_hidden)


def _is_hidden(path: Path, document: Document) -> bool:
    """Whether the value may be a secret: it was substituted, or its place is for secrets or credentials."""
    is_secret = (
        path[:1] == ("secrets",)
        or path[-1:] in (("api_key",), ("secret",))
        or path[:2] in (("admin",), ("admin", "token"), ("admin", "tokens"), ("admin", "sign_in"))
    )
    # A URL with a password may be written in place of its section.
    is_url = path == ("store",) or path[-1:] == ("upstream",)
    is_url = is_url or (path[:2] == ("events", "sinks") and path[-1] in ("url", "servers", "password", "key"))
    is_credential = path[3:5] == ("probe", "headers") or path[2:4] == ("accept", "headers")
    return is_secret or is_url or is_credential or path in document.substituted


def _found(given: object, is_hidden: bool) -> str:
    match given:
        case Mapping():
            return ", found a mapping"
        case list() | tuple():
            return "" if not given else ", found a list"
        case str() if not is_hidden and len(given) <= _SHOWN_CHARS_MAX and given.isprintable():
            return f", found {given!r}"
        case _:
            return ""
