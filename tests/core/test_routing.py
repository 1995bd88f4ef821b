"""Which route a request falls under."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.routing import (
    PathPattern,
    PatternError,
    RouteTable,
    Rule,
    normalise_host,
    normalise_path,
    unreachable,
)
from tests.core.rows import rows


def rule(path: str, *methods: str, host: str | None = None) -> Rule:
    names = frozenset(method.encode() for method in methods or ("POST",))
    return Rule(names, PathPattern.parse(path), None if host is None else normalise_host(host.encode()))


def table(*rules: Rule) -> RouteTable[int]:
    return RouteTable((each, index) for index, each in enumerate(rules))


def found_in(routes: RouteTable[int], method: bytes, target: bytes, host: bytes | None) -> int | None:
    entry = routes.find(method, target, host)
    return None if entry is None else entry.value


@rows(
    "target, path",
    plain=(b"/v1/payments", b"/v1/payments"),
    runs_of_slashes=(b"//v1///payments//", b"/v1/payments"),
    root=(b"/", b"/"),
    query=(b"/v1/payments?a=/b//", b"/v1/payments"),
    unreserved_escapes=(b"/v1/%70ayments%2D%7e", b"/v1/payments-~"),
    escapes_that_a_segment_does_not_need=(b"/v1/a%3ab%40c", b"/v1/a:b@c"),
    slash_and_percent_stay_escaped=(b"/v1/a%2fb%25", b"/v1/a%2Fb%25"),
    broken_escapes=(b"/v1/%zz%4", b"/v1/%25zz%254"),
    escaped_octets=(b"/v1/%c3%a9", b"/v1/%C3%A9"),
    absolute_form=(b"http://host:80/v1/payments?x", b"/v1/payments"),
    dot_segments_stay=(b"/v1/../%2e%2e/x", b"/v1/../../x"),
    asterisk_form=(b"*", b"*"),
)
def test_normal_form(target: bytes, path: bytes) -> None:
    """Spellings of one path that a service may take alike have one normal form."""
    assert normalise_path(target) == path


@given(st.lists(st.sampled_from([b"/", b"a", b".", b"..", b"%2F", b"%61", b"%", b"%2", b"\xff", b"?", b":"])))
def test_normal_form_is_stable(parts: list[bytes]) -> None:
    """Without broken escapes the normal form of a normal form is itself."""
    path = normalise_path(b"/" + b"".join(parts))
    if b"%25" not in path:
        assert normalise_path(path) == path


@rows(
    "pattern, fits, differs",
    folded_like_a_target=("/v1//payments/", ["/v1/payments"], ["/v1"]),
    escapes=("/caf%c3%a9/a%2Db", ["/café/a-b", "/caf%C3%A9/a-b"], ["/cafe/a-b"]),
    segment=("/v1/{id}", ["/v1/7", "/v1/a%2Fb"], ["/v1", "/v1/", "/v1/7/x"]),
    part=("/v1/x-{id}:pay", ["/v1/x-7:pay", "/v1/x-7%3Apay"], ["/v1/x-:pay", "/v1/7:pay"]),
    rest=("/v1/{rest:.*}", ["/v1", "/v1/", "/v1/a", "/v1/a/b"], ["/v", "/v1x"]),
    everything=("/{rest:.*}", ["/", "/a", "/a/b"], []),
    no_regular_expression=("/v1/a.b", ["/v1/a.b"], ["/v1/axb"]),
)
def test_pattern(pattern: str, fits: list[str], differs: list[str]) -> None:
    """A pattern takes in what it says and nothing else."""
    routes = table(rule(pattern))
    assert [path for path in fits if found_in(routes, b"POST", path.encode(), None) is None] == []
    assert [path for path in differs if found_in(routes, b"POST", path.encode(), None) is not None] == []


@rows(
    "pattern, reason",
    asterisk=("/v1/*", "* is not a wildcard"),
    open_brace=("/v1/{id", "not closed"),
    white_space=("/v1/{a b}", "white space"),
    no_name=("/v1/{}", "name of a variable"),
    expression=("/v1/{id:[0-9]+}", "no expression but .*"),
    after_the_rest=("/v1/{a:.*}/x", "nothing can follow"),
    rest_within_a_segment=("/v1/x{a:.*}", "stands alone"),
    two_in_a_segment=("/v1/{a}{b}", "at most one"),
    name_twice=("/v1/{a}/{a}", "used twice"),
    dots=("/v1/../x", "no . or .."),
    query=("/v1?x=1", "without query"),
    escapes=("/%%%%%333333323131", "within others"),
    long=("/" + "x" * 2000, "at most 1024"),
)
def test_pattern_that_is_refused(pattern: str, reason: str) -> None:
    """A pattern that cannot be meant is refused with a reason."""
    with pytest.raises(PatternError, match=re.escape(reason)):
        PathPattern.parse(pattern)


def test_method_and_host_decide() -> None:
    """Methods differ by case, hosts do not, and a port or a final dot of the host is nothing."""
    routes = table(rule("/a", "POST", host="api.example.com"), rule("/a", "PATCH"), rule("/a", "POST"))
    asked = [
        (b"POST", b"API.example.com:8080"), (b"POST", b"api.example.com."), (b"POST", b"other"), (b"POST", None),
        (b"PATCH", b"api.example.com"), (b"post", b"api.example.com"), (b"GET", None),
    ]  # fmt: skip
    assert [found_in(routes, method, b"/a", host) for method, host in asked] == [0, 0, 2, 2, 1, None, None]


def test_a_request_without_a_host_is_for_the_default_one() -> None:
    """A rule for the host that a request is forwarded with takes in the one that names none; a port counts nowhere."""
    rules = [(rule("/a", "POST", host="api.example.com"), 0)]
    assert found_in(RouteTable(rules, b"api.example.com:8080"), b"POST", b"/a", None) == 0
    assert found_in(RouteTable(rules, b"api.example.com:8080"), b"POST", b"/a", b"other") is None
    assert found_in(RouteTable(rules, b"other"), b"POST", b"/a", None) is None
    assert found_in(table(rule("/a", host="[::1]")), b"POST", b"/a", b"[::1]:80") == 0


RULES = st.builds(
    lambda path, methods, host: rule(path, *methods, host=host),
    st.sampled_from(["/", "/a", "/a/b", "/a/{x}", "/{x}/b", "/{x}", "/a/x{y}", "/a/{r:.*}", "/{r:.*}", "/a/b/{x}"]),
    st.lists(st.sampled_from(["POST", "PATCH"]), min_size=1, unique=True),
    st.sampled_from([None, "h", "i"]),
)
REQUESTS = st.tuples(
    st.sampled_from([b"POST", b"PATCH"]),
    st.sampled_from([b"/", b"/a", b"/b", b"/a/b", b"/a/xy", b"/a/c", b"/c/b", b"/a/b/c", b"/a/b/c/d"]),
    st.sampled_from([b"h", b"i", b"j"]),
)


@given(st.lists(RULES, max_size=6), REQUESTS)
def test_index_keeps_file_order(rules: list[Rule], request: tuple[bytes, bytes, bytes]) -> None:
    """The table finds what a look at one rule after the other finds."""
    method, path, host = request
    fits = (
        index
        for index, each in enumerate(rules)
        if method in each.methods and each.host in (None, host) and each.path.expression().fullmatch(path)
    )
    routes = table(*rules)
    assert found_in(routes, method, path, host) == next(fits, None)
    # What is said of each rule agrees with that.
    assert next((entry.value for entry, miss in routes.misses(method, path, host) if miss is None), None) == found_in(
        routes, method, path, host
    )


@given(st.lists(RULES, max_size=6), REQUESTS)
def test_unreachable_rules_never_match(rules: list[Rule], request: tuple[bytes, bytes, bytes]) -> None:
    """A rule that is called unreachable is never found."""
    assert found_in(table(*rules), *request) not in unreachable(rules)


@rows(
    "rules, found",
    behind_the_rest=([rule("/a/{r:.*}"), rule("/a/b")], [(1, (0,))]),
    other_variable_name=([rule("/a/{x}"), rule("/a/{y}/")], [(1, (0,))]),
    part_behind_segment=([rule("/a/{x}"), rule("/a/x{y}z")], [(1, (0,))]),
    segment_behind_part=([rule("/a/x{y}"), rule("/a/{x}")], []),
    shared_blame=([rule("/a"), rule("/a", "PATCH"), rule("/a", "POST", "PATCH")], [(2, (0, 1))]),
    narrow_before_the_rest=([rule("/a/b/{r:.*}"), rule("/a/{r:.*}")], []),
    one_method_left=([rule("/a"), rule("/a", "POST", "PATCH")], []),
    host_behind_any=([rule("/a"), rule("/a", host="h")], [(1, (0,))]),
    rest_behind_segment=([rule("/a/{x}"), rule("/a/{r:.*}")], []),
)
def test_unreachable(rules: list[Rule], found: list[tuple[int, tuple[int, ...]]]) -> None:
    """A rule is unreachable when those before it take all that it would."""
    assert [(place, tuple(behind)) for place, behind in unreachable(rules).items()] == found
