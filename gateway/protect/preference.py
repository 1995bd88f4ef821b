"""What callers prefer (RFC 7240): `wait=N`, how long they wait, and `respond-async`, not to wait at all.

The only module that reads `Prefer`: the gateway heeds both, and removes from a protected request what it heeds. The
header is a list whose members may hold quoted strings (RFC 9110 sections 5.6.1 and 5.6.4), in which commas separate
nothing.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.core.identity.fingerprint import CONDITIONS
from gateway.core.identity.scope import SINGLE_USE_SCHEMES
from gateway.core.message import Headers, RequestHead, header_values

# An unclosed quote takes the rest, so that many of them do not each search to the end.
_MEMBER: Final = re.compile(rb'(?:[^,"]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))++')
_WAIT: Final = re.compile(
    rb"""wait[ \t]*+                              # the name; upper and lower case are equal
    (?:=[ \t]*+ (?: (?P<bare>[^";\t ]++) | "(?P<quoted>(?:[^"\\]++|\\.)*+)" )?+ [ \t]*+)?+
    (?P<rest>;.*)?+\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_IS_WAIT: Final = re.compile(rb"wait[ \t]*(?:[=;]|\Z)", re.IGNORECASE)
# It has no value, and an empty value is none (RFC 7240 section 2).
_IS_ASYNC: Final = re.compile(rb'respond-async[ \t]*(?:=[ \t]*(?:"")?[ \t]*)?(?:;|\Z)', re.IGNORECASE)
_DIGITS: Final = re.compile(rb"0*([0-9]+)\Z")
_SECONDS_MAX: Final = 10**9

RESPOND_ASYNC: Final = b"respond-async"

# Later, a precondition would be about another state (RFC 9110 section 13.1), and a proof or a signature would be too
# old or used up (RFC 9449, RFC 9421).
_ONLY_NOW: Final = frozenset(
    (*[name for name in CONDITIONS if b"if" in name.split(b"-")], b"dpop", b"signature", b"signature-input")
)
_PRESIGNED: Final = re.compile(rb"[?&]X-Amz-Signature=", re.IGNORECASE)


def wait_preference(headers: Headers) -> int | None:
    """The seconds that the caller prefers to wait, or None. The first of several `wait` counts (section 2)."""
    for value in header_values(headers, b"prefer"):
        for member in _members(value):
            if _IS_WAIT.match(member):
                return _seconds(member)
    return None


def prefers_async(headers: Headers) -> bool:
    """Whether the caller prefers not to wait for the outcome (section 4.1)."""
    return any(_IS_ASYNC.match(member) for value in header_values(headers, b"prefer") for member in _members(value))


def responds_async(head: RequestHead, *, is_always: bool) -> bool:
    """Whether a route that accepts requests accepts this one, `is_always` or where the caller prefers it.

    It does not where the request has a meaning only now: what it asks for would be refused later, or be something else.
    """
    if not is_always and not prefers_async(head.headers):
        return False
    by_name = head.headers.by_name
    if not _ONLY_NOW.isdisjoint(by_name) or _PRESIGNED.search(head.target):
        return False
    schemes = [value.strip(b" \t").partition(b" ")[0].lower() for value in by_name.get(b"authorization", [])]
    return not any(_is_single_use(scheme) for scheme in schemes)


def _is_single_use(scheme: bytes) -> bool:
    return scheme in SINGLE_USE_SCHEMES or scheme == b"dpop" or scheme.startswith(b"aws4-")


def without_heeded(value: bytes, *, heeds_async: bool) -> bytes:
    """The preferences of one header line without `wait` and, where the gateway heeds it, `respond-async`.

    Unchanged bytes if neither is there.
    """
    members = _members(value)
    kept = [member for member in members if not _IS_WAIT.match(member)]
    if heeds_async:
        kept = [member for member in kept if not _IS_ASYNC.match(member)]
    return value if len(kept) == len(members) else b", ".join(member for member in kept if member)


def preference_applied(applied: bytes | int) -> tuple[bytes, bytes]:
    """The header that names the preference that decided (section 3); a number is that of `wait`."""
    return b"Preference-Applied", b"wait=%d" % applied if isinstance(applied, int) else applied


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
