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
from functools import cache
from hashlib import sha256
from itertools import pairwise
from textwrap import dedent
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from gateway.config.address import PostgresUrl, RedisUrl
from gateway.config.document import NOTHING, Path, path_text
from gateway.config.leaf import Leaf, placeholder
from gateway.config.models import Config
from gateway.config.route import Route
from gateway.config.section import Section

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
    """What differs between two texts of `effective`, by the path of each value; secrets are not compared.

    Members of a list that have a name or an id are compared by that. Raises `ValueError` for other text.
    """
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
                return [f"{mark}{key}: {self._flow(value, field, path)}"]

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

    def _flow(self, value: object, field: FieldInfo, path: Path) -> str:
        """A value on one line."""
        match value:
            case tuple():
                return f"[{', '.join(self._flow(item, field, (*path, index)) for index, item in enumerate(value))}]"
            case dict():
                pairs = (f"{_scalar(key)}: {self._flow(item, field, (*path, key))}" for key, item in value.items())
                return f"{{{', '.join(pairs)}}}"
            case None:
                return "null"
            case _:
                return _scalar(self._text(value, field, path))

    def _text(self, value: object, field: FieldInfo, path: Path) -> str:
        leaf = next(_leaves((*field.metadata, field.annotation)), None)
        match value:
            case SecretStr() | SecretBytes() | PostgresUrl():
                name = path_text(self._named(path))
                return placeholder(name) if leaf is None else leaf.placeholder(name)
            case RedisUrl():
                # Another host for each, because a stream may not be in the database of the fast tier.
                scheme = value.url.get_secret_value().partition("://")[0]
                place = {"sentinel": "/name/0", "cluster": ""}.get(scheme.partition("+")[2], "/0")
                return f"{scheme}://{'-'.join(map(str, self._named(path)))}{place}"
            case _:
                return str(value) if leaf is None else leaf.write(value)


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


def changes(before: Config, after: Config) -> list[str]:
    """The paths of all settings that differ, in the order of the models. That a default is written counts as a
    difference, since others follow it."""
    return list(_differing(before, after, ""))


def digest_of(config: Config) -> str:
    """A short digest of all settings, by which two gateways can be compared. Secrets are not in it: a short digest of
    a weak one could be guessed."""
    return sha256(effective(config).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _differing(before: object, after: object, path: str) -> Iterator[str]:
    match before, after:
        case Section(), Section() if type(before) is type(after):
            for name, field in type(before).model_fields.items():
                key = field.alias or name
                place = f"{path}.{key}" if path else key
                found = list(_differing(getattr(before, name), getattr(after, name), place))
                is_written_once = (name in before.model_fields_set) != (name in after.model_fields_set)
                yield from found or ([place] if is_written_once else [])
        case (Route(), *_), (Route(), *_):
            # By name: a route that comes in front is one change, and not one of each behind it.
            old, new = ({each.name: each for each in routes if isinstance(each, Route)} for routes in (before, after))
            for name in dict.fromkeys((*old, *new)):
                yield from _differing(old.get(name), new.get(name), f"{path}[{name}]")
            if [name for name in old if name in new] != [name for name in new if name in old]:
                yield path
        case (Section(), *_), (Section(), *_) if len(before) == len(after):
            for index, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from _differing(one, other, f"{path}[{index}]")
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
    """The schema as it is published."""
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
