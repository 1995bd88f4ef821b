"""The paths that services and front ends may read from one request target.

Servers decode a path more than once, resolve dots, cut off parameters, formats and what follows a NUL, take a backslash
for a slash, ignore case, and run a script with the rest of the path. A request must not slip past its route in such a
spelling, so a target that no route matches as it is written is compared in its readings. This module owns what may be
read from a target; it knows no routes. Its cost is for targets of that kind alone.

A reading is compared with patterns that are folded alike (`folded`): lower case, without marks, `\\` for a slash that
was escaped. Each step of `_LENIENT` is what some servers do and others do not, so each doubles the readings at most,
and a target with more than a few is `Unreadable`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Final

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


def without_format(segment: bytes) -> bytes:
    """The last segment of a folded pattern without the format that it names."""
    return _FORMAT.sub(b"", segment)


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


def _with_slashes(path: bytes) -> bytes:
    return path.replace(b"\\", b"/")


def _cut(path: bytes) -> bytes:
    return _ENDS.split(path, maxsplit=1)[0]


def _cut_at_semicolon(path: bytes) -> bytes:
    return path.partition(b";")[0]


def _without_parameters(path: bytes) -> bytes:
    return _PARAMETERS.sub(b"", path)


def _trimmed(path: bytes) -> bytes:
    """Without control characters, blanks around segments, and dots at their ends."""
    return _LAST_DOTS.sub(b"", _BLANKS.sub(b"", path.translate(None, _CONTROLS)))


_LENIENT: Final[tuple[Callable[[bytes], bytes], ...]] = (
    _with_slashes,
    _cut,
    _cut_at_semicolon,
    _without_parameters,
    _trimmed,
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
