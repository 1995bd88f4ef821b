"""The configuration in force as text: `effective` writes it, `differences` compares two of them.

The text is a file that `check` accepts and that means the same. What the file of the gateway leaves out stands there as
a comment with its default, because some defaults follow from other keys, and would not do so if they were written.
Invariant: a secret is recognised by its type, and what is written in its place depends on nothing but where it is.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import pairwise
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway import __version__
from gateway.config.document import NOTHING, Document, Mistake, Path, alternatives, nearest, path_of, path_text
from gateway.config.leaf import Leaf, PostgresUrl, RedisUrl
from gateway.config.models import Config
from gateway.config.route import Route
from gateway.config.section import DISAGREEMENT_ERROR, FORM_ERROR, INSTEAD, NOT_KEYS, Forms, Section

# -- effective ---------------------------------------------------------------------------------------------------------

_HEADER = """\
# The configuration in force. A line that begins with '#' and no space is a default; a secret is a placeholder.
"""
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./+-]*")
# A section of which nothing is written: what follows are its defaults.
_EMPTY = "{} #"


def effective(config: Config) -> str:
    """The whole configuration as YAML, without its secrets."""
    return _HEADER + "\n".join(_Writer(config).section(config, (), is_default=False)) + "\n"


def differences(old: str, new: str) -> list[str]:
    """What differs between two texts of `effective`, by the path of each value; secrets are not compared. Members of a
    list that have a name or an id are compared by that. Raises `ValueError` for other text."""
    before, after = _values(old), _values(new)
    paths = [*before, *(path for path in after if path not in before)]
    return [
        f"{path}: {before.get(path, 'nothing')} -> {after.get(path, 'nothing')}"
        for path in paths
        if before.get(path) != after.get(path)
    ]


class _Writer:
    def __init__(self, config: Config) -> None:
        self._config = config

    def section(self, section: Section, path: Path, *, is_default: bool, values: Section | None = None) -> list[str]:
        """The lines of a mapping, what is written first. `values` has the defaults, if another section gives them."""
        fields = type(section).model_fields
        written = section.model_fields_set
        lines = []
        for name in sorted(fields, key=lambda name: name not in written):
            value = getattr(section if name in written else values or section, name)
            key = fields[name].alias or name
            unwritten = is_default or name not in written or value is None
            lines += self._entry(key, value, fields[name], (*path, key), is_default=unwritten)
        return lines

    def _entry(self, key: str, value: object, field: FieldInfo, path: Path, *, is_default: bool) -> list[str]:
        mark = "#" if is_default else ""
        match value:
            case Section():
                lines = self.section(value, path, is_default=is_default, values=self._inherited(path))
                is_empty = not is_default and all(line.lstrip().startswith("#") for line in lines)
                return [f"{mark}{key}:{' ' + _EMPTY if is_empty else ''}", *_indented(lines)]
            case tuple() if value and isinstance(value[0], Section):
                lines = []
                for index, item in enumerate(value):
                    first, *rest = self.section(item, (*path, index), is_default=is_default)
                    lines += [f"{mark}- {first.removeprefix('#')}", *_indented(rest)]
                return [f"{mark}{key}:", *_indented(lines)]
            case _:
                leaf = next(_leaves((*field.metadata, field.annotation)), Leaf())
                return [f"{mark}{key}: {self._flow(value, leaf, path)}"]

    def _inherited(self, path: Path) -> Section | None:
        """The global section that a route's section overrides."""
        match path:
            case ("routes", int() as index, "upstream"):
                return self._config.upstream_for(self._config.routes[index])
            case ("routes", int() as index, "delivery"):
                return self._config.delivery_for(self._config.routes[index])
            case _:
                return None

    def _named(self, path: Path) -> Path:
        """The path with the name of a route or a sink, which may change its place."""
        match path:
            case ("routes", int() as index, *rest):
                return ("routes", self._config.routes[index].name, *rest)
            case ("events", "sinks", int() as index, *rest):
                return ("events", "sinks", self._config.events.sinks[index].name, *rest)
            case _:
                return path

    def _flow(self, value: object, leaf: Leaf, path: Path) -> str:
        match value:
            case tuple():
                return f"[{', '.join(self._flow(item, leaf, (*path, index)) for index, item in enumerate(value))}]"
            case dict():
                pairs = (f"{_scalar(key)}: {self._flow(item, leaf, (*path, key))}" for key, item in value.items())
                return f"{{{', '.join(pairs)}}}"
            case None:
                return "null"
            case SecretStr() | SecretBytes() | PostgresUrl():
                return _scalar(leaf.stand_in(path_text(self._named(path))))
            case RedisUrl():
                # Another host for each, because a stream may not be in the database of the fast tier.
                scheme = value.url.get_secret_value().partition("://")[0]
                place = {"sentinel": "/name/0", "cluster": ""}.get(value.kind, "/0")
                return _scalar(f"{scheme}://{'-'.join(map(str, self._named(path)))}{place}")
            case _:
                return _scalar(leaf.write(value))


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _scalar(text: str) -> str:
    text = text.replace("${", "$${")
    if _PLAIN.fullmatch(text) and text not in NOTHING:
        return text
    quoted: str = yaml.safe_dump(text, default_style='"', width=float("inf"), allow_unicode=True)
    return quoted.strip()


def _leaves(types: tuple[Any, ...]) -> Iterator[Leaf]:
    """What reads and writes the scalars of a field."""
    for each in types:
        if isinstance(each, Leaf):
            yield each
        elif get_args(each):
            yield from _leaves((*getattr(each, "__metadata__", ()), *get_args(each)))


def _values(text: str) -> dict[str, str]:
    """Every value of a text of `effective`, defaults included, by its path."""
    text = re.sub(r"^( *)#(?! )", r"\1", text, flags=re.MULTILINE).replace(f" {_EMPTY}\n", "\n")
    try:
        return dict(_flat(yaml.load(text, yaml.BaseLoader), ""))  # noqa: S506 - it makes nothing but text
    except yaml.YAMLError:
        raise ValueError("this is not the text of a configuration") from None


def _flat(tree: object, path: str) -> Iterator[tuple[str, str]]:
    match tree:
        case Mapping():
            for key, value in tree.items():
                yield from _flat(value, f"{path}.{key}" if path else key)
        case [{}, *_] if names := [item.get("name", item.get("id")) for item in tree if isinstance(item, Mapping)]:
            labels = [str(index) if name is None else name for index, name in enumerate(names)]
            yield path, f"[{', '.join(labels)}]"
            for label, item in zip(labels, tree, strict=True):
                yield from _flat(item, f"{path}[{label}]")
        case list():
            yield path, f"[{', '.join(map(str, tree))}]"
        case _:
            yield path, str(tree)


# -- changes -----------------------------------------------------------------------------------------------------------
#
# What two configurations differ in, and a digest of one. No value leaves this module.
#
# All settings but those of `NEEDS_RESTART` can change while the gateway runs.

NEEDS_RESTART: Final = ("listen.address", "workers")
_DIGEST_CHARACTERS: Final = 12


def digest_of(config: Config) -> str:
    """A short digest of all settings, by which two gateways can be compared. Secrets are not in it: a short digest of
    a weak one could be guessed."""
    return sha256(effective(config).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def changes(before: object, after: object, path: str = "") -> Iterator[str]:
    """The paths of all settings that differ, in the order of the models. That a default is written counts as a
    difference, since others follow it."""
    match before, after:
        case Section(), Section() if type(before) is type(after):
            for name, field in type(before).model_fields.items():
                key = field.alias or name
                place = f"{path}.{key}" if path else key
                found = list(changes(getattr(before, name), getattr(after, name), place))
                is_written_once = (name in before.model_fields_set) != (name in after.model_fields_set)
                yield from found or ([place] if is_written_once else [])
        case (Route(), *_), (Route(), *_):
            # By name: a route that comes in front is one change, and not one of each behind it.
            old, new = ({each.name: each for each in routes if isinstance(each, Route)} for routes in (before, after))
            for name in dict.fromkeys((*old, *new)):
                yield from changes(old.get(name), new.get(name), f"{path}[{name}]")
            if [name for name in old if name in new] != [name for name in new if name in old]:
                yield path
        case (Section(), *_), (Section(), *_) if len(before) == len(after):
            for index, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from changes(one, other, f"{path}[{index}]")
        case _ if before != after:
            yield path


# -- schema ------------------------------------------------------------------------------------------------------------
#
# What the docstrings of settings say, and the JSON Schema of the file, for editors. Both are made of the models.
#
# `python -m gateway.config.effective` prints the schema. The docstrings are read from the source where somebody asks:
# pydantic would read them at each start (`use_attribute_docstrings`), which made it take a quarter longer.


@cache
def descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """The description of each setting that has one, by its key in the file. Of a program without its source only those
    that are no docstrings."""
    below: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            below.update(_docstrings(each))
    found = {field.alias or name: field.description or below.get(name) for name, field in model.model_fields.items()}
    return {key: text for key, text in found.items() if text}


def _docstrings(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(dedent(inspect.getsource(model)))
    except OSError:
        return
    for one, other in pairwise(statement for definition in tree.body for statement in ast.iter_child_nodes(definition)):
        match one, other:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def schema_text() -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
    for model in _sections(Section):
        properties = (schema if model is Config else schema["$defs"].get(model.__name__, {})).get("properties", {})
        for key, text in descriptions(model).items():
            if key in properties:
                properties[key] = dict(sorted({**properties[key], "description": text}.items()))
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _sections(base: type[Section]) -> Iterator[type[Section]]:
    for each in base.__subclasses__():
        yield each
        yield from _sections(each)


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
        return next((form.leaf for form in place.forms if form.leaf is not None), Leaf()).stand_in(name)


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
                for keys, message, *hint in details["ctx"]["disagreements"]:
                    yield document.mistake((*place.path, *path_of(keys)), message, *hint)
            case "extra_forbidden":
                yield _unknown_key(place, details["loc"], document)
            case "missing" if place.path not in meant:
                yield document.mistake(place.path, "required, but missing", _description(details["loc"]))
            case "missing":
                pass
            case "too_short" if len(details["input"]) >= details["ctx"]["min_length"]:
                pass  # It only lacks items because some are invalid, which is reported already.
            case kind if kind == FORM_ERROR and (key := _unsupported_key(place, details["input"])) is not None:
                message = f"this is not supported here; {details['msg']}"
                path = (*place.path, key)
                yield document.mistake(path, message, INSTEAD.get(key, ""), at=document.keys.get(path))
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
    key, at = str(loc[-1]), document.keys.get(place.path)
    if key in holder.choices:
        return document.mistake(place.path, f"only one of {alternatives(holder.choices)} can be used", at=at)
    near = _nearest_key(loc)
    hint = f"did you mean {near}?" if near else f"known here: {', '.join(holder.keys)}"
    # A value in the place of a key may be a secret.
    is_shown = near or (key.isidentifier() and len(key) <= _KEY_CHARS_MAX and not _HOLDERS.intersection(place.path))
    path = place.path if is_shown else place.path[:-1]
    return document.mistake(path, f"unknown key in version {__version__}", hint, at=at)


def _description(loc: tuple[str | int, ...]) -> str:
    """The first sentence of the key's docstring."""
    said = (descriptions(model).get(str(loc[-1])) for model in _place(loc[:-1]).models)
    text = next(filter(None, said), "").split(". ")[0].removesuffix(".")
    return text[:1].lower() + text[1:]


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
    return document.mistake(place.path, message + _found(place.path, given, is_hidden, document), hint)


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


def _found(path: Path, given: object, is_hidden: bool, document: Document) -> str:
    """What is written there, as far as it may be shown; of a mapping that has a `kind`, that."""
    match given:
        case {"kind": str(kind)} if not is_hidden and (*path, "kind") not in document.substituted and _is_short(kind):
            return f", found kind: {kind!r}"
        case Mapping():
            return ", found a mapping"
        case [_, *_]:
            return ", found a list"
        case str() if not is_hidden and _is_short(given):
            return f", found {given!r}"
        case _:
            return ""


def _is_short(text: str) -> bool:
    return len(text) <= _SHOWN_CHARS_MAX and text.isprintable()
