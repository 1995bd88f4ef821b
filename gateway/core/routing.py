"""Which route a request matches: path patterns, the path they are matched on, and routes that never match.

Owns the comparison of targets with patterns; does not know what a route does. A target is compared in a normal form and
forwarded as it came, so two spellings that a service may take for one path must match one route. In doubt a request
matches: a write that slips past its route loses its protection, while a match too many only applies a rule. Invariant:
the first rule of the file that matches decides, however the table is indexed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Generic, TypeVar

Value = TypeVar("Value")

# RFC 3986 section 3.3: what may stand in a path segment without an escape.
_SEGMENT_OCTETS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@")
# Escapes, and all that may not stand in a path without one.
_TO_BE_SPELT = re.compile(rb"%[0-9A-Fa-f]{2}|[^A-Za-z0-9\-._~!$&'()*+,;=:@/]")
# The normal spelling of each match. A table, because a long path may consist of nothing else.
_SPELLINGS = {bytes((octet,)): b"%%%02X" % octet for octet in range(256)} | {
    b"%%%c%c" % digits: bytes((octet,)) if (octet := int(bytes(digits), 16)) in _SEGMENT_OCTETS else b"%%%02X" % octet
    for digits in product(b"0123456789ABCDEFabcdef", repeat=2)
}
_PLAIN_PATH = re.compile(rb"/[A-Za-z0-9\-._~!$&'()*+,;=:@/]*\Z")
# What `normalise_path` leaves as it is.
_NORMAL_PATH = re.compile(rb"(?:/[A-Za-z0-9\-._~!$&'()*+,;=:@]++)++")
_ABSOLUTE_FORM = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*")
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PATTERN_CHARS_MAX = 1024


class PatternError(ValueError):
    """A path pattern that cannot be understood. The text says what to write instead."""


def normalise_path(target: bytes) -> bytes:
    """The path of a request target in the form that patterns are compared with; never what is forwarded.

    Escapes of octets that need none in a segment are decoded, other octets are escaped in upper case, runs of `/`
    become one and a `/` at the end goes. This decodes more than RFC 3986 section 6.2.2.2 asks: clients do escape
    `:` and `@`, and services take both spellings alike. `%2F` and `%25` stay escaped. Dot segments stay as well;
    `resolve_dot_segments` removes them. Query, fragment, and the authority of an absolute form are cut off.
    """
    return target if _NORMAL_PATH.fullmatch(target) else _folded(_spelt_path(target))


def _folded(path: bytes) -> bytes:
    """A path in normal spelling without empty segments."""
    if b"//" in path:
        path = re.sub(rb"/+", b"/", path)
    return path.rstrip(b"/") or b"/"


def _spelt_path(target: bytes) -> bytes:
    """The path in normal spelling, with its slashes unchanged."""
    path = re.split(rb"[?#]", target, maxsplit=1)[0]
    if not path.startswith(b"/"):
        path = _ABSOLUTE_FORM.sub(b"", path, count=1) or b"/"
    return path if _PLAIN_PATH.match(path) else _respell(path)


def has_dot_segments(path: bytes) -> bool:
    """Whether a normalised path holds a `.` or `..` segment, which a service may resolve to another path."""
    return b"/." in path and any(segment in (b".", b"..") for segment in path.split(b"/"))


def resolve_dot_segments(path: bytes) -> bytes:
    """The normalised path at a service that resolves dot segments (RFC 3986 section 5.2.4).

    `path` is in normal spelling. An empty segment (`//`) counts as one that `..` removes.
    """
    kept: list[bytes] = []
    for segment in path.split(b"/")[1:]:
        if segment == b"..":
            del kept[-1:]
        elif segment != b".":
            kept.append(segment)
    return _folded(b"/" + b"/".join(kept))


def _paths(target: bytes) -> tuple[bytes, ...]:
    """The path of a target in normal form, and what it is at a service that resolves dot segments."""
    if _NORMAL_PATH.fullmatch(target):
        spelt = path = target
    else:
        spelt = _spelt_path(target)
        path = _folded(spelt)
    if not has_dot_segments(path):
        return (path,)
    # Some services fold `//` before they resolve, some do not.
    return path, resolve_dot_segments(path), resolve_dot_segments(spelt)


def normalise_host(host: bytes) -> bytes:
    """A `Host` value in lower case, without its port and the trailing dot of a fully qualified name."""
    name = host.strip().lower()
    if name.startswith(b"["):
        return name.partition(b"]")[0] + b"]"
    return name.partition(b":")[0].rstrip(b".")


@dataclass(frozen=True, slots=True)
class _Segment:
    """One segment of a pattern: a literal, or a variable with a prefix and a suffix."""

    prefix: bytes
    is_variable: bool = False
    suffix: bytes = b""

    @property
    def expression(self) -> bytes:
        return re.escape(self.prefix) + (b"([^/]+)" if self.is_variable else b"") + re.escape(self.suffix)

    def covers(self, other: _Segment) -> bool:
        """Whether every text that fits `other` fits this one."""
        if not self.is_variable:
            return self == other
        if not other.is_variable:
            around = len(self.prefix) + len(self.suffix)
            literal = other.prefix
            return len(literal) > around and literal.startswith(self.prefix) and literal.endswith(self.suffix)
        return other.prefix.startswith(self.prefix) and other.suffix.endswith(self.suffix)

    def common(self, other: _Segment) -> _Segment | None:
        """The texts that fit both, or None where there are none. It omits texts in which the prefix of one overlaps the
        suffix of the other (`aa` for `a{x}` and `{x}a`).
        """
        if not self.is_variable and not other.is_variable:
            return self if self.prefix == other.prefix else None
        if not self.is_variable:
            return self if other.covers(self) else None
        if not other.is_variable:
            return other if self.covers(other) else None
        prefix, suffix = max(self.prefix, other.prefix, key=len), max(self.suffix, other.suffix, key=len)
        found = _Segment(prefix, True, suffix)
        return found if self.covers(found) and other.covers(found) else None


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A route's compiled path: `{name}` stands for one segment or part of one, a last `{name:.*}` for the rest.

    The rest may be empty: `/v1/` and `/v1` have one normal form, so `/v1/{rest:.*}` matches both.
    """

    text: str
    segments: tuple[_Segment, ...]
    takes_rest: bool
    names: tuple[str, ...] = ()
    """The variables, in order."""

    @classmethod
    def parse(cls, text: str) -> PathPattern:
        """Raises PatternError."""
        _check_text(text)
        segments: list[_Segment] = []
        names: list[str] = []
        takes_rest = False
        for part in (part for part in text.split("/") if part):
            if takes_rest:
                raise PatternError("nothing can follow {name:.*}, which stands for the rest of the path")
            name, segment = _parse_segment(part)
            if name in names:
                raise PatternError(f"the name {{{name}}} is used twice")
            names.extend([name] if name else [])
            takes_rest = segment is None
            segments.extend([segment] if segment else [])
        return cls(text, tuple(segments), takes_rest, tuple(names))

    @property
    def literal(self) -> bytes | None:
        """The only normalised path that fits, or None if there are variables."""
        if self.takes_rest or any(segment.is_variable for segment in self.segments):
            return None
        return b"/" + b"/".join(segment.prefix for segment in self.segments)

    def expression(self, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[bytes]:
        """The expression for a whole normalised path."""
        fixed = b"".join(b"/" + segment.expression for segment in self.segments)
        rest = b"((?:/.*)?)" if self.takes_rest else b"" if fixed else b"/"
        return re.compile(fixed + rest, re.DOTALL | flags)

    def variables(self, path: bytes) -> dict[str, bytes]:
        """The values of the variables in a normalised path that fits; escapes stay as they are."""
        found = self.expression().fullmatch(path)
        return {} if found is None else dict(zip(self.names, found.groups(), strict=True))

    def covers(self, other: PathPattern) -> bool:
        """Whether every path that fits `other` fits this one."""
        if self.takes_rest:
            if len(other.segments) < len(self.segments):
                return False
        elif other.takes_rest or len(other.segments) != len(self.segments):
            return False
        return all(mine.covers(theirs) for mine, theirs in zip(self.segments, other.segments, strict=False))

    def common(self, other: PathPattern) -> PathPattern | None:
        """The paths that fit both, or None where there are none."""
        shorter, longer = (self, other) if len(self.segments) <= len(other.segments) else (other, self)
        if len(shorter.segments) < len(longer.segments) and not shorter.takes_rest:
            return None
        segments = []
        for mine, theirs in zip(shorter.segments, longer.segments, strict=False):
            segment = mine.common(theirs)
            if segment is None:
                return None
            segments.append(segment)
        segments.extend(longer.segments[len(segments) :])
        return PathPattern(f"{self.text} and {other.text}", tuple(segments), self.takes_rest and other.takes_rest)


class Miss(StrEnum):
    """The conditions of a rule, in the order in which they are checked."""

    METHOD = "method"
    HOST = "host"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Rule:
    """Which requests match a route. `host` is as `normalise_host` returns it; None matches any host."""

    methods: frozenset[bytes]
    path: PathPattern
    host: bytes | None = None

    def covers(self, other: Rule, method: bytes) -> bool:
        """Whether every request of this method that fits `other` fits this one."""
        return method in self.methods and self.host in (None, other.host) and self.path.covers(other.path)

    def miss(self, method: bytes, paths: Iterable[bytes], host: bytes) -> Miss | None:
        """The first condition that a request does not meet; None where it matches. `paths` and `host` are as rules
        spell them."""
        if method not in self.methods:
            return Miss.METHOD
        if self.host not in (None, host):
            return Miss.HOST
        expression = self.path.expression()
        return None if any(expression.fullmatch(path) for path in paths) else Miss.PATH

    def common(self, other: Rule) -> Rule | None:
        """The requests that fit both, or None where there are none."""
        methods = self.methods & other.methods
        if not methods or (self.host != other.host and None not in (self.host, other.host)):
            return None
        path = self.path.common(other.path)
        return None if path is None else Rule(methods, path, other.host if self.host is None else self.host)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Value]):
    order: int
    rule: Rule
    value: Value


class _Index(Generic[Value]):
    """Finds the first rule in file order that matches; literal paths take one look-up, whatever their number.

    With `folds_case`, paths are compared case-insensitively.
    """

    def __init__(self, entries: Iterable[_Entry[Value]], *, folds_case: bool) -> None:
        self._folds_case = folds_case
        self._literal: dict[tuple[bytes, bytes], list[_Entry[Value]]] = {}
        self._patterns: dict[bytes, list[tuple[re.Pattern[bytes], _Entry[Value]]]] = {}
        for entry in entries:
            literal = entry.rule.path.literal
            expression = entry.rule.path.expression(re.IGNORECASE if folds_case else re.NOFLAG)
            for method in entry.rule.methods:
                if literal is None:
                    self._patterns.setdefault(method, []).append((expression, entry))
                else:
                    spelt = literal.lower() if folds_case else literal
                    self._literal.setdefault((method, spelt), []).append(entry)

    def first(self, method: bytes, path: bytes, host: bytes) -> _Entry[Value] | None:
        found: _Entry[Value] | None = None
        for entry in self._literal.get((method, path.lower() if self._folds_case else path), ()):
            if entry.rule.host is None or entry.rule.host == host:
                found = entry
                break
        for expression, entry in self._patterns.get(method, ()):
            if found is not None and entry.order > found.order:
                break
            if (entry.rule.host is None or entry.rule.host == host) and expression.fullmatch(path):
                return entry
        return found


class RouteTable(Generic[Value]):
    """Finds a gateway's route for a request by method, target and host."""

    def __init__(self, rules: Iterable[tuple[Rule, Value]], default_host: bytes | None = None) -> None:
        """`default_host` is the `Host` that a request without one is forwarded with."""
        entries = [_Entry(order, rule, value) for order, (rule, value) in enumerate(rules)]
        self._default_host = default_host
        self._entries = entries
        self._methods = frozenset(method for entry in entries for method in entry.rule.methods)
        self._names_hosts = any(entry.rule.host is not None for entry in entries)
        self._exact = _Index(entries, folds_case=False)
        self._folded = _Index(entries, folds_case=True)

    def match(self, method: bytes, target: bytes, host: bytes | None) -> Value | None:
        """The route that a request matches, or None. `target` and `host` are as received.

        A target with dot segments matches the route of any of its readings, so that the edge refuses it there: such a
        request must not bypass the route at a service that resolves them.
        """
        if method not in self._methods:
            return None
        return self._match(self._exact, (method,), target, (self._name_of(host),))

    def misses(self, method: bytes, target: bytes, host: bytes | None) -> Iterator[tuple[Value, Miss | None]]:
        """Every route in order, with the condition that keeps the request from matching; for people, as it is slow.

        The first without one is what `match` returns, unless the target has dot segments.
        """
        paths, name = _paths(target), self._name_of(host)
        for entry in self._entries:
            yield entry.value, entry.rule.miss(method, paths, name)

    def match_in_any_case(self, methods: Iterable[bytes], target: bytes, hosts: Iterable[bytes | None]) -> Value | None:
        """As `match`, for a service with case-insensitive paths, and for any of these methods and hosts: one call
        normalises the target, which is the expensive part, only once.
        """
        known = [method for method in methods if method in self._methods]
        return self._match(self._folded, known, target, {*map(self._name_of, hosts)}) if known else None

    def path_in_other_case(self, method: bytes, target: bytes, host: bytes | None) -> str | None:
        """The path, as configured, of the route that this request would match case-insensitively. For a request that
        matches none.
        """
        for path in _paths(target):
            found = self._folded.first(method, path, self._name_of(host))
            if found is not None:
                return found.rule.path.text
        return None

    def _match(
        self, index: _Index[Value], methods: Sequence[bytes], target: bytes, names: Collection[bytes]
    ) -> Value | None:
        for path in _paths(target):
            for method in methods:
                for name in names:
                    found = index.first(method, path, name)
                    if found is not None:
                        return found.value
        return None

    def _name_of(self, host: bytes | None) -> bytes:
        """The host's name as rules spell it; empty if no rule names a host."""
        if host is None:
            host = self._default_host
        return b"" if host is None or not self._names_hosts else normalise_host(host)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Rule number `order` never matches, because the earlier rules `behind` take all of its requests."""

    order: int
    behind: tuple[int, ...]


def unreachable(rules: Sequence[Rule]) -> tuple[Unreachable, ...]:
    """The rules that can never match. Each method is checked alone, so several earlier rules may be the cause."""
    found = []
    for order, rule in enumerate(rules):
        causes: set[int] = set()
        for method in rule.methods:
            first = next((index for index in range(order) if rules[index].covers(rule, method)), None)
            if first is None:
                break
            causes.add(first)
        else:
            found.append(Unreachable(order, tuple(sorted(causes))))
    return tuple(found)


def _respell(path: bytes) -> bytes:
    return _TO_BE_SPELT.sub(lambda found: _SPELLINGS[found[0]], path)


def _check_text(text: str) -> None:
    if not text.startswith("/"):
        raise PatternError("a path begins with /")
    if len(text) > _PATTERN_CHARS_MAX:
        raise PatternError(f"a path has at most {_PATTERN_CHARS_MAX} characters")
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise PatternError("a path holds no white space")
    if "?" in text or "#" in text:
        raise PatternError("only the path is matched, without query or fragment")


def _parse_segment(part: str) -> tuple[str | None, _Segment | None]:
    """The variable's name, if any, and the segment; no segment stands for the rest of the path."""
    variables = _VARIABLE.findall(part)
    outside = _VARIABLE.sub("", part)
    if "{" in outside or "}" in outside:
        raise PatternError("a brace is not closed or not opened: write {name} or {name:.*}")
    if "*" in outside:
        raise PatternError("* is not a wildcard: write {name} for one segment or {name:.*} for the rest")
    if not variables:
        literal = normalise_path(b"/" + part.encode())[1:]
        if literal in (b".", b".."):
            raise PatternError("a path holds no . or .. segment")
        return None, _Segment(literal)
    if len(variables) > 1:
        raise PatternError("one segment holds at most one variable")
    name, colon, expression = variables[0].partition(":")
    if not _VARIABLE_NAME.match(name):
        raise PatternError("the name of a variable is letters, digits and _: write {name} or {name:.*}")
    if not colon:
        before, _, after = part.partition("{" + name + "}")
        return name, _Segment(_literal_part(before), True, _literal_part(after))
    if expression != ".*":
        raise PatternError("a variable takes no expression but .*: write {name} or {name:.*}")
    if outside:
        raise PatternError("{name:.*} stands alone after a /")
    return name, None


def _literal_part(text: str) -> bytes:
    return _respell(text.encode())
