"""How long a caller is willing to wait: `Prefer: wait=N` (RFC 7240 section 4.3).

The only module that reads `Prefer`: the gateway waits accordingly, and removes the preference from a protected request.
The header is a list whose members may hold quoted strings (RFC 9110 sections 5.6.1 and 5.6.4), in which commas separate
nothing.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.core.message import Headers, header_values

# An unclosed quote takes the rest, so that many of them do not each search to the end.
_MEMBER: Final = re.compile(rb'(?:[^,"]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))++')
_WAIT: Final = re.compile(
    rb"""wait[ \t]*+                              # the name; upper and lower case are equal
    (?:=[ \t]*+ (?: (?P<bare>[^";\t ]++) | "(?P<quoted>(?:[^"\\]++|\\.)*+)" )?+ [ \t]*+)?+
    (?P<rest>;.*)?+\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_IS_WAIT: Final = re.compile(rb"wait[ \t]*(?:[=;]|\Z)", re.IGNORECASE)
_DIGITS: Final = re.compile(rb"0*([0-9]+)\Z")
_SECONDS_MAX: Final = 10**9


def wait_preference(headers: Headers) -> int | None:
    """The seconds that the caller prefers to wait, or None. The first of several `wait` counts (section 2)."""
    for value in header_values(headers, b"prefer"):
        for member in _members(value):
            if _IS_WAIT.match(member):
                return _seconds(member)
    return None


def without_wait(value: bytes) -> bytes:
    """The preferences of one header line without `wait`; unchanged bytes if it is not there."""
    members = _members(value)
    kept = [member for member in members if not _IS_WAIT.match(member)]
    return value if len(kept) == len(members) else b", ".join(member for member in kept if member)


def preference_applied(seconds: int) -> tuple[bytes, bytes]:
    """The header that tells the caller that its preference decided (RFC 7240 section 3)."""
    return b"Preference-Applied", b"wait=%d" % seconds


def _members(value: bytes) -> list[bytes]:
    return [member.strip(b" \t") for member in _MEMBER.findall(value)]


def _seconds(member: bytes) -> int | None:
    """The number in a `wait`, quoted or not, capped. None if there is no number, or anything else."""
    found = _WAIT.match(member)
    if found is None:
        return None
    quoted = found["quoted"]
    text = found["bare"] if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted)
    digits = None if text is None else _DIGITS.match(text)
    if digits is None:
        return None
    return _SECONDS_MAX if len(digits[1]) > 9 else int(digits[1])
