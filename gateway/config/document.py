"""From the text of a YAML file to a plain tree, with all positions and mistakes.

Owns syntax, positions, duplicate keys, the substitution of `${NAME}` and `${file:/path}`, and the form of a mistake;
does not know what any key means. A leaf is the text as written, or None where nothing is written: its key decides
whether `on`, `22:22` or `0o17` is a word, a time or a number, never YAML's guess. Everything is bounded (bytes, depth,
values), so that an alias that names itself or multiplies is a mistake like any other.

Invariant: no text that came from the environment or from a secret file, and no value of a secret key, is ever part of
a mistake.
"""

from __future__ import annotations

import difflib
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from gateway import CommandWrong

Path = tuple[str | int, ...]
Tree = None | str | list["Tree"] | dict[str, "Tree"]

FILE_BYTES_MAX = 1024 * 1024
_SECRET_BYTES_MAX = 64 * 1024
_DEPTH_MAX = 24
_VALUES_MAX = 50_000
NOTHING = frozenset(("", "~", "null", "Null", "NULL"))
_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_UNFIT = (
    "this does not fit the lines above it",
    "check the indentation, the pairs of quotes, braces and brackets, and the space after each colon",
)
# What is said, or nothing to say it as PyYAML does, and a hint, by a part of PyYAML's message; the first one counts.
_SYNTAX = {
    "but found another document": ("a second document begins here; expected only one", ""),
    "alias": ("this names an anchor that does not exist", "quote a value that begins with *"),
    "anchor": ("this anchor is malformed, or its name is used twice", "quote a value that begins with &"),
    "tag": ("this tag is malformed", "quote a value that begins with !"),
    "expected <block end>": _UNFIT,
    "expected '<document start>'": _UNFIT,
    "found unexpected end of stream": ("this quotation mark has no second one", ""),
    "could not find expected ':'": ("", "is a colon missing, or the space after it?"),
    "but got '{'": ("", 'inside braces or brackets quote a value that holds {, such as "/v1/{id}" or "${NAME}"'),
    "expected ','": ("", "quote the value, or close the brace or bracket that was opened before it"),
    "'\\t'": ("", "indent with spaces"),
    "cannot start any token": ("", "quote a value that begins with it"),
    "escape character": ("", "single quotes take a backslash as it is"),
    "mapping values are not allowed": (
        "",
        "quote a value that holds ': ', check the indentation, and that the line above has a space after its colon",
    ),
}
# Their place is where the quotation, or the line, begins.
_AT_BEGINNING = frozenset(("found unexpected end of stream", "could not find expected ':'"))
_LITERAL_HINT = "write $${ for a literal ${"

Position = tuple[int, int]
StandIn = Callable[[Path, str, bool], str]
"""Returns a value for a missing reference, given the path of its value, its name, and whether it is the whole value."""


@dataclass
class Document:
    """A file that was read: its tree, the position of each part, and the mistakes found so far."""

    file: str
    tree: Tree = None
    values: dict[Path, Position] = field(default_factory=dict)
    keys: dict[Path, Position] = field(default_factory=dict)
    nothing: list[Path] = field(default_factory=list)
    """Where nothing is written."""
    substituted: set[Path] = field(default_factory=set)
    empty: dict[Path, str] = field(default_factory=dict)
    """The name of a reference that has an empty value, by the path where it is written."""
    broken: set[Path] = field(default_factory=set)
    mistakes: list[Mistake] = field(default_factory=list)

    def mistake(self, path: Path, message: str, hint: str = "", *, at: Position | None = None) -> Mistake:
        """A mistake about this path: `at` this place, else at the nearest part of the file that contains it."""
        part = path
        while part and part not in self.values:
            part = part[:-1]
        line, column = at or self.values.get(part, (1, 1))
        return Mistake(self.file, line, column, path_text(path), message, hint)

    def line(self, path: Path) -> int | None:
        """The line of what is written at this path, counted from 1; None where nothing is."""
        found = self.keys.get(path) or self.values.get(path)
        return None if found is None else found[0]

    def holds(self, path: Path) -> bool:
        return path in self.values


def read_document(
    text: str | bytes, file: str, environ: Mapping[str, str], stand_in: StandIn | None = None
) -> Document:
    """Never raises for the content of the file: `mistakes` has what is wrong, the tree has the rest. Without `stand_in`
    a missing reference is a mistake."""
    document = Document(file)
    try:
        root = _compose(_decode(text, file), file)
        document.tree = _Reader(document, environ, stand_in).read(root, ())
    except ConfigError as unusable:
        document.mistakes.extend(unusable.mistakes)
        return document
    if not isinstance(document.tree, dict):
        document.mistakes.append(document.mistake((), "expected a mapping of keys such as listen, upstream and routes"))
    return document


def _decode(text: str | bytes, file: str) -> str:
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError([Mistake(file, None, None, "", f"the file is longer than {FILE_BYTES_MAX // 1024}KiB")])
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _line_column(text[: error.start].decode("latin-1"))
        raise ConfigError([Mistake(file, line, column, "", "the file is not text in UTF-8")]) from None


def _line_column(before: str) -> Position:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _compose(text: str, file: str) -> yaml.Node:
    try:
        root = yaml.BaseLoader(text).get_single_node()
    except yaml.reader.ReaderError as error:
        # `position` counts from the start of the text, because PyYAML got all of it at once.
        line, column = _line_column(text[: error.position])
        raise ConfigError([Mistake(file, line, column, "", "the file contains a control character")]) from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_mistake(error, file)]) from None
    except (yaml.YAMLError, ValueError):
        raise ConfigError([Mistake(file, None, None, "", "the file is not YAML")]) from None
    except RecursionError:
        raise ConfigError([Mistake(file, None, None, "", f"values are nested deeper than {_DEPTH_MAX}")]) from None
    if root is None:
        raise ConfigError([Mistake(file, 1, 1, "", "the file is empty")])
    return root


def _syntax_mistake(error: yaml.MarkedYAMLError, file: str) -> Mistake:
    problem, context = error.problem or error.context or "not YAML", error.context or ""
    mark = error.problem_mark or error.context_mark
    if problem in _AT_BEGINNING:
        mark = error.context_mark or mark
    said, hint = next((_SYNTAX[piece] for piece in _SYNTAX if piece in f"{problem} {context}"), ("", ""))
    # A quotation can be a piece of a secret; single characters and names such as '<block end>' cannot.
    problem = re.sub(
        r"'([^']*)'", lambda quote: quote[0] if len(quote[1]) <= 2 or quote[1][0] == "<" else "this", said or problem
    )
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return Mistake(file, line, column, "", f"YAML: {problem}", hint)


class _Reader:
    def __init__(self, document: Document, environ: Mapping[str, str], stand_in: StandIn | None) -> None:
        self._document = document
        self._environ = environ
        self._stand_in = stand_in
        self._values_left = _VALUES_MAX

    def read(self, node: yaml.Node, path: Path) -> Tree:
        self._document.values[path] = _start(node)
        self._values_left -= 1
        if len(path) > _DEPTH_MAX:
            self._give_up(path, f"values are nested deeper than {_DEPTH_MAX}; does an alias name itself?")
        if self._values_left < 0:
            self._give_up(path, f"the file grows to more than {_VALUES_MAX} values; do aliases multiply?")
        match node:
            case yaml.MappingNode():
                self._refuse_tag(node, path, "map")
                return self._mapping(node, path)
            case yaml.SequenceNode():
                self._refuse_tag(node, path, "seq")
                return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
            case yaml.ScalarNode():
                self._refuse_tag(node, path, "str")
                if node.style is not None or node.value not in NOTHING:
                    return _REFERENCE.sub(lambda found: self._replacement(found, path), node.value)
                self._document.nothing.append(path)
                return None
            case _:
                raise TypeError(type(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Tree]:
        mapping: dict[str, Tree] = {}
        for key, value, is_merged in self._pairs(node, path, 0):
            here = (*path, key.value)
            if key.value not in mapping:
                self._document.keys[here] = _start(key)
                mapping[key.value] = self.read(value, here)
            elif not is_merged:
                first = self._document.keys[here][0]
                self._note(here, f"the key is written twice, first on line {first}", at=_start(key))
        return mapping

    def _pairs(
        self, node: yaml.MappingNode, path: Path, depth: int
    ) -> Iterator[tuple[yaml.ScalarNode, yaml.Node, bool]]:
        """The keys and values of a mapping, then those that `<<` merges into it, marked with True."""
        if depth > _DEPTH_MAX:
            self._give_up(path, "<< merges a mapping into itself")
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._note(path, "a key must be a word", at=_start(key))
            elif key.value == "<<" and key.style is None:
                merged.extend(value.value if isinstance(value, yaml.SequenceNode) else [value])
            else:
                yield key, value, depth > 0
        for other in merged:
            if not isinstance(other, yaml.MappingNode):
                self._note(path, "<< merges mappings only")
                continue
            yield from self._pairs(other, path, depth + 1)

    def _refuse_tag(self, node: yaml.Node, path: Path, default: str) -> None:
        if node.tag != f"tag:yaml.org,2002:{default}":
            self._note(path, "YAML tags are not supported", "quote a value that begins with !")

    def _replacement(self, found: re.Match[str], path: Path) -> str:
        if found[0] == "$${":
            return "${"
        self._document.substituted.add(path)
        name = found[1]
        if name is None:
            return self._broken(path, "${ is not closed", _LITERAL_HINT)
        is_all = found[0] == found.string
        if name.startswith("file:"):
            file = name.removeprefix("file:")
            if self._stand_in is not None and file.startswith("/") and not os.access(file, os.R_OK):
                return self._stand_in(path, name, is_all)
            return self._file(file, path)
        if not _VARIABLE.match(name):
            return self._broken(path, "expected ${NAME} or ${file:/path}", _LITERAL_HINT)
        value = self._environ.get(name)
        if value is None and self._stand_in is not None:
            return self._stand_in(path, name, is_all)
        if value is None:
            return self._broken(path, f"the environment variable {name} is not set")
        if not value:
            self._document.empty[path] = f"the environment variable {name}"
        return value

    def _file(self, name: str, path: Path) -> str:
        if not name.startswith("/"):
            return self._broken(path, "expected ${file:/path} with an absolute path")
        try:
            # A named pipe would block here for ever.
            if pathlib.Path(name).exists() and not pathlib.Path(name).is_file():
                return self._broken(path, f"{name} is not a file")
            with pathlib.Path(name).open("rb") as stream:
                content = stream.read(_SECRET_BYTES_MAX + 1)
            if len(content) > _SECRET_BYTES_MAX:
                return self._broken(path, f"{name} is longer than {_SECRET_BYTES_MAX // 1024}KiB")
            text = content.decode().removesuffix("\n").removesuffix("\r")
            if not text:
                self._document.empty[path] = name
            return text
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            return self._broken(path, f"cannot read {name}: {reason}")

    def _broken(self, path: Path, message: str, hint: str = "") -> str:
        self._document.broken.add(path)
        self._note(path, message, hint)
        return ""

    def _note(self, path: Path, message: str, hint: str = "", at: Position | None = None) -> None:
        self._document.mistakes.append(self._document.mistake(path, message, hint, at=at))

    def _give_up(self, path: Path, message: str) -> None:
        raise ConfigError([self._document.mistake(path[:3], message)])


def _start(node: yaml.Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


# -- mistakes ----------------------------------------------------------------------------------------------------------

DECISION = "DECIDE: "
"""Begins a value that a draft leaves open (`config.openapi`), and that no setting takes."""
_MISTAKES_MAX = 200
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}\Z")


def path_of(keys: str | Path) -> Path:
    """The path that is written with dots, if it is not one already."""
    return tuple(keys.split(".")) if isinstance(keys, str) else keys


def path_text(path: Path) -> str:
    """A path as it is written in the documentation: `routes[0].key.header`. A part that does not look like a key may be
    a misplaced secret, and is not shown."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _KEY.match(part) else "…")
    return text


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to correct. `line` and `column` count from 1; they are None for the file as a whole. `message` is what
    was expected; `hint`, if not empty, is what to write."""

    file: str
    line: int | None
    column: int | None
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        what = f"{self.message}; {self.hint}" if self.hint else self.message
        return ": ".join(part for part in (where, self.path, what) if part)


class ConfigError(CommandWrong):
    """The file cannot be used. `mistakes` has all that were found, in the order of the file."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(dict.fromkeys(mistakes), key=lambda m: (m.line or 0, m.column or 0, m.path)))
        super().__init__(self.mistakes)

    def __str__(self) -> str:
        numbered = enumerate(self.mistakes)
        # A draft of three hundred routes has more decisions than anybody makes mistakes, and no place is left to guess.
        lines = [str(each) for at, each in numbered if at < _MISTAKES_MAX or f"found '{DECISION}" in each.message]
        if len(lines) < len(self.mistakes):
            lines.append(f"and {len(self.mistakes) - len(lines)} more")
        return "\n".join(lines)

    def report(self) -> str:
        """Without the program's name: each line begins with the place in the file."""
        return str(self)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` is probably a misspelling of."""
    by_spelling = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_spelling, n=1, cutoff=0.6)
    return by_spelling[close[0]] if close else None


def alternatives(words: Iterable[object]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    names = [str(word) for word in words]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
