"""Which route a request matches: path patterns, the path they are matched on, and routes that never match.

Owns the comparison of targets with patterns; does not know what a route does. A target is compared in a normal form,
and forwarded as it came. What a service may read from it beside that (its readings) is compared with folded patterns: a
target that falls on another route only there is a near miss, and to be refused. Invariant: the first rule of the file
that matches decides, however the table is indexed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Final, Generic, TypeVar

# -- spelling ----------------------------------------------------------------------------------------------------------
#
# The paths that services and front ends may read from one request target.
#
# Servers decode a path more than once, resolve dots, cut off parameters, formats and what follows a NUL, take a
# backslash for a slash, ignore case, and run a script with the rest of the path. A request must not slip past its
# route in such a spelling, so a target that no route matches as it is written is compared in its readings.
#
# A reading is compared with patterns that are folded alike (`folded`): lower case, without marks, `\` for a slash
# that was escaped. Each step of `_LENIENT` is what some servers do and others do not, so each doubles the readings at
# most, and a target with more than a few is `Unreadable`.

_READINGS_MAX: Final = 16
# How often an escape may be within another one.
_ROUNDS_MAX: Final = 4

# Nearly all targets: no escape, parameter, empty segment, or dot but between letters and the like.
_PLAIN_TARGET: Final = re.compile(
    rb"(?:/[A-Za-z0-9\-_~!&')*+,=:@]++(?:\.[A-Za-z0-9\-_~!&')*+,=:@]++)*+)++/?(?:\?[!\"$-~]*+)?"
)
# Of those, the ones with one reading and no other path or method in their query: no dot, which begins a format or a
# script's suffix, no index, no escape, no `_method`. Their path in normal form is the first group.
CERTAIN_TARGET: Final = re.compile(
    rb"((?:/(?![Ii][Nn][Dd][Ee][Xx])[A-Za-z0-9\-_~!&')*+,=:@]++)++)/?"
    rb"(?:\?[!\"$&-^`-~]*+(?:_(?!method)[!\"$&-^`-~]*+)*+)?"
)
_ABSOLUTE_FORM: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://(?:[^/?#@]*@)?([^/?#]*)")

_DEEP_ESCAPE: Final = re.compile(rb"%(?:25)+")
# IIS reads %uXXXX, too.
_ESCAPE: Final = re.compile(rb"%(?:[0-9A-Fa-f]{2}|[uU][0-9A-Fa-f]{4})")
_DECODED: Final = {b"%%%02x" % octet: b"\\" if octet == 0x2F else bytes((octet,)) for octet in range(256)}
# What UTF-8 forbids, because a shorter form says the same (RFC 3629 section 3).
_OVERLONG: Final = re.compile(
    rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]|\xf0[\x80-\x8f][\x80-\xbf]{2}", re.DOTALL
)
# Other characters that are taken for a slash where text is converted to an older character set.
_SLASHES: Final = {ord(slash): "\\" for slash in "\u2044\u2215\u2216\u29f5\u29f8\u29f9\ufe68"}
_KEPT_SLASH: Final = "\ue000"
# Combining marks, format characters, and what is no character.
_IGNORED: Final = ("Mn", "Cf", "Cn")

_CONTROLS: Final = bytes((*range(0x20), 0x7F))
_BLANKS: Final = re.compile(rb"(?<! ) ++(?=/|\Z)|(?<=/) ++")
# `.` and `..` are dot segments.
_LAST_DOTS: Final = re.compile(rb"(?<![ ./])[ .]++(?=/|\Z)|(?<=/)(?!\.\.?(?:/|\Z))[ .]++(?=/|\Z)")
_DOT_SEGMENT: Final = re.compile(rb"/\.\.?(?:/|\Z)")
# The alternate streams of NTFS (`::$DATA`), and the session ids of ASP.NET (`/(S(x))`).
_PARAMETERS: Final = re.compile(rb";[^/]*|::?\$[^/]*|/\((?:[a-z]\([^()/]*\))+\)(?=/)")
_ENDS: Final = re.compile(rb"[?#\x00]")
_SCRIPT_SUFFIXES: Final = (
    rb"(?:php[0-9]?|phtml|cgi|fcgi|pl|py|rb|wsgi|asp|aspx|ashx|asmx|svc|cfm|dll|exe|jsp|jspx|nsf|do|action)"
)
_SCRIPT: Final = re.compile(rb"(?:\A/index|[^/]\." + _SCRIPT_SUFFIXES + rb")(?=/)")
# What only may be one, and mostly is none.
_FRONT: Final = re.compile(rb"[.%]|\A/*\Z|/index/*\Z|[\x80-\xff]", re.IGNORECASE)
_INDEX: Final = re.compile(rb"/(?:index|default)\.[a-z0-9]+\Z")
_FORMAT: Final = re.compile(
    rb"\.(?:"
    + _SCRIPT_SUFFIXES
    + rb"|json|jsonp|jsonld|api|xml|html?|xhtml|txt|text|csv|tsv|ya?ml|js|pdf|md|rss|atom|ics|"
    rb"xlsx?|zip|msgpack|cbor|pb|proto|protobuf|faces|jsf|seam|)\Z"
)


class Unreadable(Exception):
    """A target that can be read in too many ways to compare them all."""


def folded(text: bytes) -> bytes:
    """A part of a path without its escapes, letter case and marks. Raises `Unreadable`."""
    text = _DEEP_ESCAPE.sub(b"%", text)
    for _ in range(_ROUNDS_MAX):
        decoded = text.lower()
        if b"%" in decoded:
            decoded = _ESCAPE.sub(_decode, decoded)
        if not decoded.isascii():
            decoded = _without_marks(_OVERLONG.sub(_shortest, decoded))
        if decoded == text:
            return text
        text = decoded
    raise Unreadable


def readings(target: bytes) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """The paths that may be read from a target, folded, and the hosts that it may name itself.

    No path ends with a slash or holds an empty segment. Raises `Unreadable`.
    """
    if _PLAIN_TARGET.fullmatch(target):
        path = target.partition(b"?")[0].lower().rstrip(b"/")
        return frozenset(_by_scripts(path)), frozenset()
    hosts = set()
    path = re.split(rb"[?#]", target, maxsplit=1)[0]
    if (absolute := _ABSOLUTE_FORM.match(path)) is not None:
        hosts.add(absolute[1])
        path = path[absolute.end() :] or b"/"
    found = {folded(path)}
    for read in _LENIENT:
        found |= {read(each) for each in found}
        _bound(found)
    for each in [each for each in found if each.startswith(b"//")]:
        # What follows two slashes is a host (RFC 3986 section 4.2).
        authority, slash, rest = each.lstrip(b"/").partition(b"/")
        hosts.add(authority.rpartition(b"@")[2])
        found.add(slash + rest)
    found |= {_resolved(way) for each in found if _DOT_SEGMENT.search(each) for way in (each, _collapsed(each))}
    _bound(found)
    return frozenset(way for each in found for way in _by_scripts(_collapsed(each))), frozenset(hosts)


def is_plain(target: bytes) -> bool:
    """Whether a target has one reading, but for letter case, formats and scripts."""
    return _PLAIN_TARGET.fullmatch(target) is not None


def is_index(segment: bytes, *, is_first: bool) -> bool:
    """Whether a server may add this segment to a path by itself, or serve the path without it."""
    return (is_first and segment == b"index") or _INDEX.fullmatch(b"/" + segment) is not None


def is_script(segment: bytes) -> bool:
    """Whether a server may run this last segment of a folded pattern, with what follows it."""
    return _SCRIPT.search(segment + b"/") is not None


def is_front(path: bytes) -> bool:
    """Whether a path may be a front controller's, which takes another path from its query. Raises `Unreadable`."""
    if not _FRONT.search(path):
        return False
    last = folded(path).rstrip(b"/").rpartition(b"/")[2]
    return last in (b"", b"index") or is_script(last)


def stem(path: bytes) -> bytes:
    """The path up to the first dot of its last segment, which is where a format may begin."""
    start = path.rfind(b"/") + 1
    dot = path.find(b".", start)
    return path if dot < 0 else path[:dot]


def _bound(found: set[bytes]) -> None:
    if len(found) > _READINGS_MAX:
        raise Unreadable


def _decode(found: re.Match[bytes]) -> bytes:
    escape = found[0]
    return _DECODED.get(escape) or chr(int(escape.removeprefix(b"%u"), 16)).encode("utf-8", "ignore")


def _shortest(found: re.Match[bytes]) -> bytes:
    first, *rest = found[0]
    value = first & (0x3F >> len(rest))
    for octet in rest:
        value = value << 6 | octet & 0x3F
    return b"\\" if value == 0x2F else chr(value).encode("utf-8", "ignore")


def _without_marks(text: bytes) -> bytes:
    """Text in lower case without marks, and as services see it that drop what is no UTF-8."""
    plain = text.decode("utf-8", "ignore").translate(_SLASHES).replace("/", _KEPT_SLASH)
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", plain).upper().casefold())
    plain = "".join([each for each in plain if unicodedata.category(each) not in _IGNORED])
    return plain.replace("/", "\\").replace(_KEPT_SLASH, "/").encode()


_LENIENT: Final[tuple[Callable[[bytes], bytes], ...]] = (
    lambda path: path.replace(b"\\", b"/"),
    lambda path: _ENDS.split(path, maxsplit=1)[0],
    lambda path: path.partition(b";")[0],
    lambda path: _PARAMETERS.sub(b"", path),
    # Without control characters, blanks around segments, and dots at their ends.
    lambda path: _LAST_DOTS.sub(b"", _BLANKS.sub(b"", path.translate(None, _CONTROLS))),
)


def _collapsed(path: bytes) -> bytes:
    return (re.sub(rb"//+", b"/", path) if b"//" in path else path).rstrip(b"/") or b"/"


def _resolved(path: bytes) -> bytes:
    """The path without its dot segments (RFC 3986 section 5.2.4). An empty segment is one that `..` removes."""
    kept: list[bytes] = []
    for segment in path.split(b"/")[1:]:
        if segment == b"..":
            del kept[-1:]
        elif segment != b".":
            kept.append(segment)
    return b"/" + b"/".join(kept)


def _by_scripts(path: bytes) -> Iterator[bytes]:
    """The path; what the first and the last script in it would get of it; and the directory of an index."""
    yield path
    if b"." not in path and not path.startswith(b"/index/"):
        return
    scripts = [found.end() for found in _SCRIPT.finditer(path)]
    for end in {*scripts[:1], *scripts[-1:]}:
        yield path[end:]
    if (index := _INDEX.search(path)) is not None:
        yield path[: index.start()] or b"/"


# -- routing -----------------------------------------------------------------------------------------------------------

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
_BEFORE_PATH = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*")
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PATTERN_CHARS_MAX = 1024


class PatternError(ValueError):
    """A path pattern that cannot be understood. The text says what to write instead."""


def normalise_path(target: bytes) -> bytes:
    """The path of a request target in the form that patterns are compared with; never what is forwarded.

    Escapes of octets that need none in a segment are decoded, other octets are escaped in upper case, runs of `/`
    become one and a `/` at the end goes. This decodes more than RFC 3986 section 6.2.2.2 asks: clients do escape
    `:` and `@`, and services take both spellings alike. `%2F` and `%25` stay escaped, and dot segments stay. Query,
    fragment, and the authority of an absolute form are cut off.
    """
    if _NORMAL_PATH.fullmatch(target):
        return target
    path = re.split(rb"[?#]", target, maxsplit=1)[0]
    if not path.startswith(b"/"):
        path = _BEFORE_PATH.sub(b"", path, count=1) or b"/"
    if not _PLAIN_PATH.match(path):
        path = _respell(path)
    if b"//" in path:
        path = re.sub(rb"/+", b"/", path)
    return path.rstrip(b"/") or b"/"


def has_dot_segments(path: bytes) -> bool:
    """Whether a normalised path holds a `.` or `..` segment, which a service may resolve to another path."""
    return b"/." in path and any(segment in (b".", b"..") for segment in path.split(b"/"))


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

    def folded(self) -> _Segment:
        return _Segment(folded(self.prefix), self.is_variable, folded(self.suffix))

    def without_format(self) -> _Segment:
        """A folded last segment as it is where its format is left out."""
        if not self.is_variable:
            return _Segment(_FORMAT.sub(b"", self.prefix) or self.prefix)
        if self.prefix.endswith(b".") and not self.suffix:
            return _Segment(self.prefix[:-1])
        return _Segment(self.prefix, True, _FORMAT.sub(b"", self.suffix))

    def covers(self, other: _Segment) -> bool:
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
            try:
                _ = segment and segment.folded()
            except Unreadable:
                raise PatternError("an escape is within others: write the character itself") from None
            takes_rest = segment is None
            segments.extend([segment] if segment else [])
        return cls(text, tuple(segments), takes_rest, tuple(names))

    @property
    def literal(self) -> bytes | None:
        """The only normalised path that fits, or None if there are variables."""
        if self.takes_rest or any(segment.is_variable for segment in self.segments):
            return None
        return b"/" + b"/".join(segment.prefix for segment in self.segments)

    def expression(self) -> re.Pattern[bytes]:
        """The expression for a whole normalised path."""
        fixed = b"".join(b"/" + segment.expression for segment in self.segments)
        rest = b"((?:/.*)?)" if self.takes_rest else b"" if fixed else b"/"
        return re.compile(fixed + rest, re.DOTALL)

    def folded(self) -> tuple[re.Pattern[bytes], bytes | None]:
        """The expression for a reading of a target, and the stem of all that fit if they share one.

        Any format may follow, or be left out where the pattern names one; after a script, anything. A directory stands
        for its index.
        """
        segments = [segment.folded() for segment in self.segments]
        tail, is_literal = rb"(?:\.[^/]*)?", not self.takes_rest
        if self.takes_rest:
            tail += rb"(?:/.*)?"
        elif segments:
            *_, last = segments
            if is_script(last.suffix if last.is_variable else last.prefix):
                tail, is_literal = tail + rb"(?:/.*)?", False
            segments[-1] = last.without_format()
        expression = b""
        for place, segment in enumerate(segments):
            is_left_out = is_index(self.segments[place].prefix.lower(), is_first=place == 0)
            is_literal = is_literal and not segment.is_variable and not is_left_out
            expression += b"(?:/%b)?" % segment.expression if is_left_out else b"/" + segment.expression
        literal = stem(b"/" + b"/".join([segment.prefix for segment in segments])) if is_literal else None
        return re.compile((expression or (b"" if self.takes_rest else b"/?")) + tail, re.DOTALL), literal

    def variables(self, path: bytes) -> dict[str, bytes]:
        """The values of the variables in a normalised path that fits; escapes stay as they are."""
        found = self.expression().fullmatch(path)
        return {} if found is None else dict(zip(self.names, found.groups(), strict=True))

    def covers(self, other: PathPattern) -> bool:
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

    def miss(self, method: bytes, path: bytes, host: bytes) -> Miss | None:
        """The first condition that a request does not meet; None where it matches. `path` and `host` are as rules
        spell them."""
        if method not in self.methods:
            return Miss.METHOD
        if self.host not in (None, host):
            return Miss.HOST
        return None if self.path.expression().fullmatch(path) else Miss.PATH

    def spelling(self) -> Rule:
        """The rule for paths that differ from its own in upper and lower case, marks, or their format."""
        segments = [segment.folded() for segment in self.path.segments]
        if segments and not self.path.takes_rest:
            segments[-1] = segments[-1].without_format()
        return replace(self, path=PathPattern("", tuple(segments), self.path.takes_rest))

    def common(self, other: Rule) -> Rule | None:
        """The requests that fit both, or None where there are none."""
        methods = self.methods & other.methods
        if not methods or (self.host != other.host and None not in (self.host, other.host)):
            return None
        path = self.path.common(other.path)
        return None if path is None else Rule(methods, path, other.host if self.host is None else self.host)


@dataclass(frozen=True, slots=True)
class Entry(Generic[Value]):
    order: int
    rule: Rule
    value: Value
    literal: bytes | None


class _Index(Generic[Value]):
    """Finds the first rule in file order that matches; literal paths take one look-up, whatever their number."""

    def __init__(self, entries: Iterable[Entry[Value]], *, is_folded: bool = False) -> None:
        self._literal: dict[tuple[bytes, bytes], list[tuple[re.Pattern[bytes] | None, Entry[Value]]]] = {}
        self._patterns: dict[bytes, list[tuple[re.Pattern[bytes], Entry[Value]]]] = {}
        for entry in entries:
            path = entry.rule.path
            expression, literal = path.folded() if is_folded else (path.expression(), entry.literal)
            for method in entry.rule.methods:
                if literal is None:
                    self._patterns.setdefault(method, []).append((expression, entry))
                else:
                    # Whatever has the literal of an unfolded pattern fits it.
                    narrower = expression if is_folded else None
                    self._literal.setdefault((method, literal), []).append((narrower, entry))

    def first(self, method: bytes, path: bytes, literal: bytes, host: bytes) -> Entry[Value] | None:
        found: Entry[Value] | None = None
        for narrower, entry in self._literal.get((method, literal), ()):
            if entry.rule.host in (None, host) and (narrower is None or narrower.fullmatch(path)):
                found = entry
                break
        for expression, entry in self._patterns.get(method, ()):
            if found is not None and entry.order > found.order:
                break
            if entry.rule.host in (None, host) and expression.fullmatch(path):
                return entry
        return found


class RouteTable(Generic[Value]):
    """Finds a gateway's route for a request by method, target and host."""

    def __init__(
        self,
        rules: Iterable[tuple[Rule, Value]],
        default_host: bytes | None = None,
        unprotected: Iterable[Rule] = (),
    ) -> None:
        """`default_host` is the `Host` that a request without one is forwarded with. What `unprotected` names is no
        other spelling of anything."""
        self._entries = [Entry(order, rule, value, rule.path.literal) for order, (rule, value) in enumerate(rules)]
        self._default_host = default_host
        self._methods = frozenset(method for entry in self._entries for method in entry.rule.methods)
        self._clear: dict[int, bool] = {}
        self._exact = _Index(self._entries)
        self._folded = _Index(self._entries, is_folded=True)
        exempt = [Entry(order, rule, None, rule.path.literal) for order, rule in enumerate(unprotected)]
        self._unprotected = _Index(exempt)
        self._has_unprotected = bool(exempt)
        named = [*[each.rule for each in exempt], *[each.rule for each in self._entries]]
        self._names_hosts = any(rule.host is not None for rule in named)
        self.certain: dict[tuple[bytes, bytes], Entry[Value]] = {}
        """The rules that are certain for a request, by its method and target: those without variables."""
        for entry in [] if self._names_hosts else self._entries:
            path = entry.literal or b""
            if CERTAIN_TARGET.fullmatch(path):
                for method in entry.rule.methods:
                    if self._exact.first(method, path, path, b"") is entry:
                        self.certain[method, path] = entry

    def find_certain(self, method: bytes, target: bytes, host: bytes | None) -> tuple[bool, Entry[Value] | None]:
        """What `find` returns, after whether that is certain: that nobody can read another rule from the target.

        It is so for nearly all targets, by a few look-ups. For the others, the rule is not looked up. Ask `certain`
        first.
        """
        found = CERTAIN_TARGET.fullmatch(target)
        if found is None:
            return False, None
        if method not in self._methods:
            return True, None
        path, name = found[1], self._name_of(host) if self._names_hosts else b""
        lower = path.lower()
        # What matches as it is written does so as it is folded, too.
        if self._folded.first(method, lower, lower, name) is None:
            return True, None
        entry = self._exact.first(method, path, path, name)
        return entry is not None and (entry.literal is not None or self._clear.get(entry.order, False)), entry

    def find(self, method: bytes, target: bytes, host: bytes | None) -> Entry[Value] | None:
        """The rule that a request matches as it is written, or None. `target` and `host` are as received."""
        if method not in self._methods:
            return None
        path = normalise_path(target)
        return self._exact.first(method, path, path, self._name_of(host))

    def misses(self, method: bytes, target: bytes, host: bytes | None) -> Iterator[tuple[Entry[Value], Miss | None]]:
        """Every rule in order, with the condition that keeps the request from matching; for people, as it is slow.

        The first without one is what `find` returns.
        """
        path, name = normalise_path(target), self._name_of(host)
        for entry in self._entries:
            yield entry, entry.rule.miss(method, path, name)

    def is_clear(self, entry: Entry[Value], target: bytes) -> bool:
        """Whether a target that matches this rule cannot be read as one of an earlier rule."""
        if entry.literal is not None:
            return target == entry.literal or is_plain(target)
        if CERTAIN_TARGET.fullmatch(target) is None:
            return False
        if entry.order not in self._clear:
            earlier = self._entries[: entry.order]
            mine = entry.rule.spelling()
            self._clear[entry.order] = all(
                each.value is entry.value or mine.common(each.rule.spelling()) is None for each in earlier
            )
        return self._clear[entry.order]

    def readings(self, methods: Iterable[bytes], target: bytes, host: bytes | None) -> Iterator[Entry[Value]]:
        """The rules that match what may be read from a request, one for each way, in no order.

        Raises `Unreadable`.
        """
        known = [method for method in methods if method in self._methods]
        if not known:
            return
        paths, hosts = readings(target)
        # Many services take the path from a target, but the host from its header.
        names = {self._name_of(each) for each in (host, *hosts)}
        for path in paths:
            literal = stem(path)
            for method in known:
                for name in names:
                    if (entry := self._folded.first(method, path, literal, name)) is not None:
                        yield entry

    def is_unprotected(self, method: bytes, target: bytes, host: bytes | None) -> bool:
        """Whether the file says that this very path, written plainly, is not protected."""
        if not self._has_unprotected or not is_plain(target):
            return False
        path = normalise_path(target)
        return self._unprotected.first(method, path, path, self._name_of(host)) is not None

    def _name_of(self, host: bytes | None) -> bytes:
        """The host's name as rules spell it; empty if no rule names a host."""
        if host is None:
            host = self._default_host
        return b"" if host is None or not self._names_hosts else normalise_host(host)


def unreachable(rules: Sequence[Rule]) -> dict[int, list[int]]:
    """The rules that can never match, by their places, each with those of the earlier rules that take its requests.

    Each method is checked alone, so several earlier rules may be the cause.
    """
    found = {}
    for order, rule in enumerate(rules):
        causes: set[int] = set()
        for method in rule.methods:
            first = next((index for index in range(order) if rules[index].covers(rule, method)), None)
            if first is None:
                break
            causes.add(first)
        else:
            found[order] = sorted(causes)
    return found


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
        return name, _Segment(_respell(before.encode()), True, _respell(after.encode()))
    if expression != ".*":
        raise PatternError("a variable takes no expression but .*: write {name} or {name:.*}")
    if outside:
        raise PatternError("{name:.*} stands alone after a /")
    return name, None


# -- succession --------------------------------------------------------------------------------------------------------
#
# An operation is remembered under a name; a repeat of an old request is recognised only while its route still leads to
# that name. This compares the route tables of before and after, both as requests are routed: does a request exist that
# led to one operation before and leads to another one now? That covers a renamed route, an exchange of two names, a new
# route that takes some of an older one's requests, and a changed order. The requests of a removed route that match no
# other route are lost to no operation.


@dataclass(frozen=True, slots=True)
class ServedRoute:
    """A route of a service: which requests lead to which of its operations, and the share of their keys for which it is
    enforced."""

    service: str
    operation: str
    rule: Rule
    enforced: float = 1.0


def handed_over(before: Sequence[ServedRoute], after: Sequence[ServedRoute]) -> list[tuple[ServedRoute, ServedRoute]]:
    """The pairs of routes, of two operations, where the second now gets requests that led to the first before.

    Both tables are in routing order. Requests that several earlier routes cover only together count as not covered, so
    the result may have a pair too many, never one too few.
    """
    found = []
    before_places, after_places = _places(before), _places(after)
    # A route takes all of its requests before any later one. So if both routes of a pair are in both tables, only a
    # changed order matters.
    bounds = [before_places.get(_key(latter), len(before)) for latter in after]
    for former_place, former in enumerate(before):
        for latter_place in range(after_places.get(_key(former), len(after))):
            latter = after[latter_place]
            is_same = (latter.service, latter.operation) == (former.service, former.operation)
            if is_same or former_place >= bounds[latter_place]:
                continue
            shared = former.rule.common(latter.rule)
            if shared is not None and any(
                not _is_taken(before[:former_place], shared, method)
                and not _is_taken(after[:latter_place], shared, method)
                for method in shared.methods
            ):
                found.append((former, latter))
    return found


def _key(route: ServedRoute) -> tuple[str, str, Rule]:
    return route.service, route.operation, route.rule


def _places(table: Sequence[ServedRoute]) -> dict[tuple[str, str, Rule], int]:
    return {_key(route): place for place, route in reversed(list(enumerate(table)))}


def _is_taken(earlier: Sequence[ServedRoute], shared: Rule, method: bytes) -> bool:
    """Whether one of the earlier routes takes all of these requests."""
    return any(route.rule.covers(shared, method) for route in earlier)
