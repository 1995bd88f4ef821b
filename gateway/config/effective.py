"""The configuration in force as text: `effective` writes it, `differences` compares two of them.

The text is a file that `check` accepts and that means the same. What the file of the gateway leaves out stands there as
a comment with its default, because some defaults follow from other keys, and would not do so if they were written.
Invariant: a secret is recognised by its type, and what is written in its place depends on nothing but where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import yaml
from pydantic import SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from gateway.config.address import PostgresUrl, RedisUrl
from gateway.config.document import NOTHING, Path, path_text
from gateway.config.leaf import Leaf, placeholder
from gateway.config.models import Config
from gateway.config.section import Section

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
