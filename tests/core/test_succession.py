"""Which operations lose requests to which others when routes change."""

from __future__ import annotations

import itertools

from gateway.core.routing import RouteTable, ServedRoute, handed_over
from tests.support.serving import served

Table = list[tuple[str, str]]


def routes(table: Table) -> list[ServedRoute]:
    return [served(route, operation) for route, operation in table]


def lost(before: Table, after: Table) -> set[tuple[str, str]]:
    """The operations that lose requests, each with the one that gets them."""
    pairs = handed_over(routes(before), routes(after))
    return {(former.operation, latter.operation) for former, latter in pairs}


PATHS = tuple(
    b"/" + b"/".join(segments)
    for length in range(4)
    for segments in itertools.product((b"a", b"b", b"c", b"bcb", b"xyz"), repeat=length)
)


def test_no_request_changes_hands_unseen() -> None:
    """Whatever the two tables are: a request that is routed to another operation than before is of a pair found."""
    tables = [
        list(zip((f"POST {pattern}" for pattern in patterns), operations, strict=True))
        for patterns in itertools.permutations(("/a/{x}", "/{x}/b", "/a/{r:.*}"), 2)
        for operations in (("one", "two"), ("two", "one"), ("one", "one"))
    ]
    for before, after in itertools.product(tables, repeat=2):
        found = lost(before, after)
        then, now = (RouteTable((route.rule, route.operation) for route in routes(table)) for table in (before, after))
        for path in PATHS:
            former, latter = then.find(b"POST", path, None), now.find(b"POST", path, None)
            if former is not None and latter is not None and former.value != latter.value:
                assert (former.value, latter.value) in found, (before, after, path)
