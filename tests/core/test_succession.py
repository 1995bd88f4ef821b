"""Which operations lose requests to which others when routes change."""

from __future__ import annotations

import itertools

import pytest

from gateway.core.routing import PathPattern, RouteTable, handed_over
from tests.support.serving import served

Table = list[tuple[str, str]]


def lost(before: Table, after: Table) -> set[tuple[str, str]]:
    """The operations that lose requests, each with the one that gets them."""
    pairs = handed_over([served(*each) for each in before], [served(*each) for each in after])
    return {(former.operation, latter.operation) for former, latter in pairs}


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        pytest.param([("POST /a", "a")], [("POST /a", "b")], {("a", "b")}, id="renamed"),
        pytest.param([("POST /a", "a")], [("POST /b", "a")], set(), id="moved-away"),
        pytest.param([("POST,PUT /a", "a")], [("PUT,PATCH /a", "b")], {("a", "b")}, id="a-common-method"),
        pytest.param([("POST x.org/a", "a")], [("POST y.org/a", "b")], set(), id="another-host"),
        pytest.param([("POST /a/{id}", "a")], [("POST /{x}/new", "b")], {("a", "b")}, id="across"),
        pytest.param([("POST /a/v{id}", "a")], [("POST /a/w{id}", "b")], set(), id="other-prefix"),
        pytest.param([("POST /a%7E", "a")], [("POST /a~", "b")], {("a", "b")}, id="another-spelling"),
        pytest.param([("POST /a", "a"), ("POST /b", "b")], [("POST /b", "a"), ("POST /a", "b")],
            {("a", "b"), ("b", "a")}, id="names-exchanged"),
        pytest.param([("POST /{rest:.*}", "all")], [("POST /a", "a"), ("POST /{rest:.*}", "all")],
            {("all", "a")}, id="a-part-taken"),
        pytest.param([("POST /a", "a"), ("POST /{rest:.*}", "all")], [("POST /a", "a"), ("POST /{rest:.*}", "rest")],
            {("all", "rest")}, id="the-rest-renamed"),
        pytest.param([("POST /a", "a")], [("POST /a", "a"), ("POST /a", "b")], set(), id="never-reached"),
    ],
)  # fmt: skip
def test_who_loses_requests_to_whom(before: Table, after: Table, found: set[tuple[str, str]]) -> None:
    """An operation loses what led to it and now leads to another, as requests are routed, and nothing else."""
    assert lost(before, after) == found


PATTERNS = (
    "/", "/a", "/a/b", "/a/{x}", "/{x}/b", "/a/b{x}", "/a/{x}b", "/a/{x}/c", "/a/{r:.*}", "/{x}/{r:.*}", "/{r:.*}",
)  # fmt: skip
PATHS = tuple(
    b"/" + b"/".join(segments)
    for length in range(4)
    for segments in itertools.product((b"a", b"b", b"c", b"bcb", b"xyz"), repeat=length)
)


@pytest.mark.parametrize("one", PATTERNS)
@pytest.mark.parametrize("other", PATTERNS)
def test_what_two_patterns_have_in_common(one: str, other: str) -> None:
    """A path fits what is common to two patterns exactly if it fits both."""
    first, second = PathPattern.parse(one), PathPattern.parse(other)
    shared = first.common(second)
    for path in PATHS:
        fits_both = bool(first.expression().fullmatch(path) and second.expression().fullmatch(path))
        assert fits_both == (shared is not None and bool(shared.expression().fullmatch(path))), path


def test_no_request_changes_hands_unseen() -> None:
    """Whatever the two tables are: a request that is routed to another operation than before is of a pair found."""
    tables = [
        list(zip((f"POST {pattern}" for pattern in patterns), operations, strict=True))
        for patterns in itertools.permutations(("/a/{x}", "/{x}/b", "/a/{r:.*}"), 2)
        for operations in (("one", "two"), ("two", "one"), ("one", "one"))
    ]
    for before, after in itertools.product(tables, repeat=2):
        found = lost(before, after)
        then, now = (RouteTable((served(*each).rule, each[1]) for each in table) for table in (before, after))
        for path in PATHS:
            former, latter = then.find(b"POST", path, None), now.find(b"POST", path, None)
            if former is not None and latter is not None and former.value != latter.value:
                assert (former.value, latter.value) in found, (before, after, path)
