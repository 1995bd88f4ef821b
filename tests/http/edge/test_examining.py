"""Which route a request meets before anybody works on it, and which one only slips past its route."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.message import Headers, IndexedHeaders, RequestHead
from gateway.core.routing import PathPattern, RouteTable, Rule, normalise_path
from gateway.protect.ambiguity import Fault, examine, examine_closely
from tests.http.edge.harness import PlainRoute

POST = frozenset((b"POST",))
PUT = frozenset((b"PUT",))
ROUTES = RouteTable(
    [
        (Rule(POST, PathPattern.parse("/v1/payments")), PlainRoute("payments")),
        (Rule(POST, PathPattern.parse("/v1/payments/{id}/Capture")), PlainRoute("capture")),
        (Rule(POST, PathPattern.parse("/v2/payments"), b"pay.test"), PlainRoute("hosted")),
        (Rule(PUT, PathPattern.parse("/v1/limits/{id}")), PlainRoute("limits")),
    ]
)


def asked(target: bytes, *, host: bytes = b"api.test", more: Headers = ()) -> tuple[PlainRoute | None, Fault | None]:
    """What is found of a request with this target."""
    return examine(ROUTES, RequestHead(b"POST", target, IndexedHeaders(((b"Host", host), *more))), (1, 1))


@pytest.mark.parametrize(
    ("target", "host"),
    [
        *[(target, b"api.test") for target in (
            # Two slashes begin an authority for those who read the target as a reference (RFC 3986 section 4.2).
            b"//user@x:1/v1/payments?q", b"/\\x/v1/payments", b"//pay.test/v2/payments",
            b"http://api.test//x/v1/payments",
            # `..` takes `//` back for a service that does not fold it before (RFC 3986 section 5.2.4).
            b"/v1//../payments", b"/v1/x//../../payments", b"/v1/payments/7//../Capture",
            # Whether the service tells upper from lower case is not known, nor whether it trims blanks around a
            # segment, as Spring did before 4.3 (CVE-2016-5007).
            b"http://h/v1/Payments", b"/v1%09/payments/?x", b"/x/..%20/v1/payments.%0a/",
            # Each script gets what follows it.
            b"/a.php/b.php/v1/payments",
        )],
        # A service may take the path from such a target and still go by its `Host` field.
        *[(target, b"pay.test") for target in (
            b"//x/v2/payments", b"/\\x/v2/payments", b"http://x/v2%2Fpayments", b"http://x//y/v2/payments",
        )],
    ],
)  # fmt: skip
def test_another_spelling_is_not_a_way_round_a_route(target: bytes, host: bytes) -> None:
    """What some service reads as a protected path is refused."""
    route, fault = asked(target, host=host)
    assert route is not None
    assert fault is not None
    assert host == b"api.test" or route.name == "hosted"


@pytest.mark.parametrize(
    ("target", "field"),
    [
        (b"/v1/limits/7", (b"X-HTTP-Method-Override", b"Put , DELETE")),
        (b"/ping", (b"X_ORIGINAL_URL", b"v1%2fpayments")),
        (b"/ping", (b"X-Original-URL", b"http://api.test/v1/payments#x")),
    ],
)
def test_another_method_or_path_in_a_field_is_not_a_way_round_a_route(
    target: bytes, field: tuple[bytes, bytes]
) -> None:
    """A service that lets such a field override method or path does what the route protects."""
    route, fault = asked(target, more=(field,))
    assert route is not None
    assert fault is not None


# Read in four ways, in each of which dot segments may be resolved in two.
DEAR = b"//x/%2e%2e/" + b"%25%32%65/" * 810


@pytest.mark.parametrize(
    "target",
    [
        DEAR, b"/" + b"a./" * 2700 + b";x%20%2f", b"/x;" + b"%2e%2e/a.php/" * 620,
        b"//h/" + b".%20/a.php;b/" * 600 + b"%3f", b"/" + b"%2e%2e;/" * 1000 + b"x%5c",
        b"/" + b"%c3%84/" * 1100 + b"..;%2f",
    ],
    ids=range(6),
)  # fmt: skip
def test_all_readings_of_a_request_take_a_few_times_as_long_as_one(target: bytes) -> None:
    """Whoever sends nothing but such requests holds others up no longer than a long path must."""
    one = least_seconds(lambda: normalise_path(DEAR))
    assert least_seconds(lambda: asked(target)) < 11 * one


def test_what_names_another_request_takes_no_longer_than_that() -> None:
    """However many there are: a target is looked at once for all methods, and paths together may be no longer than one
    path."""
    methods = tuple((b"X-HTTP-Method", method) for method in [b"M%d" % number for number in range(100)])
    paths = tuple((b"X-Original-URL", DEAR[: len(DEAR) // parts]) for parts in (8, 8, 8, 8, 2))
    one = least_seconds(lambda: asked(DEAR))
    assert least_seconds(lambda: asked(DEAR, more=methods)) < 3 * one
    assert least_seconds(lambda: asked(b"/ping", more=paths)) < 3 * one
    assert asked(b"/ping", more=(*paths, paths[0])) == (None, Fault(400, "What names another target is too long."))


def least_seconds(work: Callable[[], object]) -> float:
    """What this takes of the processor when nothing comes between."""
    found = []
    for _ in range(7):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found)


@pytest.mark.parametrize(
    ("target", "host", "more"),
    [
        (b"/v2/Payments", b"api.test", ()),
        (b"//x/v2/payments", b"api.test", ()),
        (b"/v1/limits/7", b"api.test", ((b"X-HTTP-Method-Override", b"DELETE"),)),
        (b"/v1/limits/7", b"api.test", ((b"X-Method-Override", b""),)),
        (b"/v1/limits/7", b"api.test", ((b"X-Original-URL", b"/v1/refunds?to=/v1/payments"),)),
        (b"/v1/limits/7", b"api.test", ((b"X-Rewrite-URL", b""),)),
        *[(b"/v1/refunds", host, ()) for host in (b"", b"my_service", b"api.test:8080", b"[::1]:80")],
    ],
)
def test_what_meets_no_route_in_any_reading_passes(target: bytes, host: bytes, more: Headers) -> None:
    """Nothing is refused that nobody could take for a protected operation, whatever a client says of its host."""
    assert asked(target, host=host, more=more) == (None, None)


# Those of one group take requests from each other.
PATHS = (
    ("/a", "/A", "/A/b", "/a/{x}", "/a/x{y}"),
    ("/{x}/b", "/A/b", "/a/{r:.*}", "/a/b%2Fc", "/{r:.*}"),
    ("/index/a", "/index.php/{r:.*}", "/a", "/a/default.asp", "/index"),
    ("/a.json", "/a/{x}.json", "/a", "/a/{x}", "/x.cgi"),
    ("/", "/\u00e4", "/_method", "/a;b/c", "/{x}"),
)
BEFORE = (b"", b"/index", b"/INDEX", b"/index.php", b"/x.cgi", b"/", b"//h", b"http://h", b"/x/..", b"h")
ASKED = (
    b"/", b"/a", b"/A", b"/a/b", b"/A/B", b"/x/b", b"/a/xy", b"/a/Xy", b"/a/b/c", b"/%61", b"/a/b%2fc", b"/\xc3\xa4",
    b"/a;b/c", b"/a.json", b"/_method",
)  # fmt: skip
BEHIND = (b"", b"/", b".json", b"/index", b"/index.html", b"/default.asp", b";x", b"/.", b"%00", b"/b")
QUERIES = (b"", b"?", b"?q=1", b"?a_b=/a", b"?r=a/b", b"?_method=PATCH", b"?%5fmethod=PATCH", b"#a")
TARGETS = [b"".join(parts) for parts in product(BEFORE, ASKED, BEHIND)]
FIELDS = (
    (b"Content-Length", b"2"), (b"Content-Length", b"+2"), (b"content_length", b"2"), (b"Content-Length", b"9" * 19),
    (b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"gzip"), (b"Host", b"h"), (b"Host", b"x y"),
    (b"Connection", b"keep-alive"), (b"Connection", b"close, authorization"), (b"Connection", b"Cookie"),
    (b"Authorization", b"x"), (b"X-Key", b"1"), (b"x_key", b"1"), (b"X-Other", b"a\x01"), (b"X-Other", b"a\tb"),
    (b"X-HTTP-Method-Override", b"PATCH"), (b"X_Method_Override", b"POST"), (b"X-Original-URL", b"/a"),
    (b"Expect", b"100-continue"), (b"Accept", b"*/*"),
)  # fmt: skip


def rules_of(paths: tuple[str, ...]) -> st.SearchStrategy[Rule]:
    """Rules of one group of paths."""
    return st.builds(
        lambda path, methods, host: Rule(frozenset(methods), PathPattern.parse(path), host),
        st.sampled_from(paths),
        st.sampled_from(((b"POST",), (b"POST", b"PATCH"), (b"PATCH",))),
        st.sampled_from((None, None, b"h")),
    )


def related(rules: list[tuple[Rule, bool]], unprotected: list[Rule]) -> RouteTable[PlainRoute]:
    """A table of these rules, of which some only observe."""
    routes = [
        (each, PlainRoute(str(number), frozenset((b"x-key",)), frozenset((b"x-other",)), is_observed))
        for number, (each, is_observed) in enumerate(rules)
    ]
    return RouteTable(routes, unprotected=unprotected)


def compare_looks(routes: RouteTable[PlainRoute], head: RequestHead, version: tuple[int, int] = (1, 1)) -> None:
    """What a short look finds is what a close one does."""
    assert examine(routes, head, version) == examine_closely(routes, head, version), head


@pytest.mark.parametrize("paths", PATHS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_short_look_at_a_target(paths: tuple[str, ...], data: st.DataObject) -> None:
    """It finds what a close one does, whatever the target, also when the table has learned which rules are clear."""
    one = rules_of(paths)
    rules = data.draw(st.lists(st.tuples(one, st.sampled_from((False, False, False, True))), min_size=2, max_size=4))
    routes = related(rules, data.draw(st.lists(one, max_size=1)))
    method, query = data.draw(st.sampled_from((b"POST", b"POST", b"GET"))), data.draw(st.sampled_from(QUERIES))
    headers = IndexedHeaders(((b"Host", b"h"),))
    for target in TARGETS:
        compare_looks(routes, RequestHead(method, target + query, IndexedHeaders(headers)))


@pytest.mark.parametrize("is_observed", [False, True], ids=["protected", "observed"])
@pytest.mark.parametrize("target", [b"/a", b"/A", b"/other"])
@pytest.mark.parametrize("method", [b"POST", b"GET", b"CONNECT"])
def test_a_short_look_at_a_head(method: bytes, target: bytes, is_observed: bool) -> None:
    """It finds what a close one does, whatever the headers."""
    rules = [
        (Rule(frozenset((b"POST",)), PathPattern.parse("/a")), is_observed),
        (Rule(frozenset((b"PATCH",)), PathPattern.parse("/other")), False),
    ]
    routes = related(rules, [])
    for first, second, host, version in product(FIELDS, FIELDS, (b"h", b"", None), ((1, 1), (1, 0))):
        headers = IndexedHeaders((*([] if host is None else [(b"Host", host)]), first, second))
        compare_looks(routes, RequestHead(method, target, IndexedHeaders(headers)), version)
