"""Ways around a route: paths and headers that some service reads as protected ones, through a whole gateway.

The table of the documentation is the list of what is tried.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.http.gateway.test_forward_auth import ALICE, guarded
from tests.support import http
from tests.support.house import ROUTE, house, sqlite_store, status_of

PAGE = Path(__file__).parents[3] / "docs/configure/paths.md"


def listed() -> dict[str, list[str]]:
    """The spellings of the table, by framework."""
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = {row[0].strip(): re.findall("`([^`]+)`", row[2]) for row in rows if len(row) == 3}
    del found["framework or front end"]
    # They are read from the page: an empty table would hold nothing.
    assert len(found) >= 25
    assert sum(map(len, found.values())) >= 85
    return found


SPELLINGS = listed()


def a_route(name: str, path: str, *methods: str, **more: Any) -> dict[str, Any]:
    match = {"path": path, "methods": list(methods or ("POST",)), **more.pop("match", {})}
    return ROUTE | {"name": name, "match": match} | more


# Its service gets the principal.
PAYMENT: dict[str, Any] = {
    "settings": {"copy": ["X-User-Id"]}, "route": {"name": "payment", "match": {"path": "/v1/payments"}},
}  # fmt: skip


def is_refusal(response: http.Response, path: str) -> bool:
    """Whether it says that the request is invalid, and how the path is written."""
    if status_of(response) != (400, "request-invalid"):
        return False
    problem = response.json()
    assert problem["code"] == "request-invalid"
    return any(text in problem["detail"] for text in (path, "The path holds", "The request target"))


@pytest.mark.parametrize("framework", SPELLINGS)
async def test_a_spelling_is_no_way_around_a_route(tmp_path: Path, framework: str) -> None:
    """None of them reaches the service where the authorising service says no, nor a second time under one key."""
    async with guarded(tmp_path, **PAYMENT) as it:
        home, authority = it.home, it.authority
        assert status_of(await home.send(target="/v1/payments", headers=[ALICE])) == (200, "stored")
        for path in SPELLINGS[framework]:
            asked = len(authority.requests)
            response = await home.send(target=path, headers=[("X-User-Id", "victim")])
            is_asked = response.status == 401 and len(authority.requests) == asked + 1
            assert is_asked or is_refusal(response, "/v1/payments"), path
            response = await home.send(target=path, headers=[ALICE])
            assert response.header("Idempotency-Status") in ("replayed", "request-invalid", "key-reused"), path
        assert len(home.upstream.requests) == 1


NOBODYS = (
    "/", "/v1", "/v1/payment", "/v1/payments-2", "/v1/payments2.json", "/v1/paymentsx", "/v2/payments", "/payments",
    "/v1/payments/7", "/v1/payments.d/7", "/v1/payments/7.json", "/x/v1/payments", "/index.php/v1/refunds",
    "/v1/refunds.json", "/v1/refunds?next=/v1/payments", "/v1/x%2fpayments", "/v1/caf%c3%a9", "/files/a;b=c/d%20e",
    "/v1/refunds/..", "//x//v1", "/index.html", "/v1/100%25", "/projects/a%2Fb/merge", "/v1/%zz",
)  # fmt: skip


async def test_what_nobody_reads_as_a_route_passes(tmp_path: Path) -> None:
    """Its bytes are forwarded as they came, and so are those of another method in every spelling."""
    async with house(sqlite_store(tmp_path), tmp_path, routes=[a_route("payment", "/v1/payments")]) as home:
        for path in NOBODYS:
            assert (await home.send(target=path)).status == 200, path
        spelled = [path for each in SPELLINGS.values() for path in each if "\\" not in path]
        for path in spelled:
            assert (await home.send(None, b"", target=path, method="GET")).status == 200, path
        assert [request.target.decode() for request in home.upstream.requests] == [*NOBODYS, *spelled]


async def test_a_value_is_no_other_spelling(tmp_path: Path) -> None:
    """What stands for a variable may look like anything that is one segment."""
    async with house(sqlite_store(tmp_path), tmp_path, routes=[a_route("pay", "/v1/orders/{id}/pay")]) as home:
        for number, value in enumerate(("a.json", "A", "a%2Fb", "a;b", "index.php", "%3f", "a.", "100%25")):
            response = await home.send(f"k{number}", target=f"/v1/orders/{value}/pay")
            assert status_of(response) == (200, "stored"), value


@pytest.mark.parametrize(
    ("route", "paths"),
    [
        ("/v1/payments.json", ["/v1/payments", "/v1/payments.xml", "/v1/Payments.json", "/v1/payments.json.gz"]),
        ("/v1/payments.{format}", ["/v1/payments", "/V1/payments.json"]),
        ("/pay/index.php", ["/pay", "/pay/", "/pay/index", "/pay/index.php/x", "/PAY/INDEX.PHP"]),
        ("/index.php/v1/pay", ["/v1/pay", "/app.php/v1/pay", "/index/v1/pay", "/v1/pay.json"]),
        ("/charge.php", ["/charge.php/x", "/charge", "/charge.PHP", "/charge/x", "/charge.php;x"]),
        ("/v1/{rest:.*}", ["/V1", "/V1/x", "/v1.json", "/x/..;/v1/y", "/index.php/v1/x"]),
        ("/Caf\u00e9/pay", ["/cafe/pay", "/CAF%C3%89/pay", "/cafe%cc%81/pay"]),
        (
            "/v1/orders/{id}/pay",
            ["/V1/orders/a%2Fb/pay", "/v1/orders/7/pay.json", "/v1/orders/7/Pay;x", "/x.php/v1/orders/7/pay"],
        ),
        ("/v1/x-{id}:pay", ["/v1/X-7:pay", "/v1/x-7:PAY", "/v1/x-7:pay.json", "/v1/x-7%3apay;x"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_path_of_any_form_has_its_spellings(tmp_path: Path, route: str, paths: list[str]) -> None:
    """Formats that a path names may be left out, a script gets what follows it, a directory serves its index."""
    async with house(sqlite_store(tmp_path), tmp_path, routes=[a_route("pay", route)]) as home:
        for path in paths:
            assert is_refusal(await home.send(target=path), route), path
        assert home.upstream.requests == []


async def test_a_path_with_too_many_readings_is_refused(tmp_path: Path) -> None:
    """The response says what to do about it."""
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        for path in ("//x%2f;a%3f/%20;b./..%5c%00/y", "/%25%32%35%32%35%32%35%2525%32%35%32%35%32%35%32%35x%%%333231x"):
            response = await home.send(target=path)
            assert (response.status, b"fewer escapes" in response.body) == (400, True), path
        assert home.upstream.requests == []


async def test_a_variable_takes_nothing_from_a_route_before_it(tmp_path: Path) -> None:
    """What may be read as the first is refused on the second, which would not ask anybody."""
    routes = [a_route("payment", "/v1/payments"), a_route("any", "/v1/{kind}"), a_route("rest", "/{rest:.*}")]
    async with house(sqlite_store(tmp_path), tmp_path, routes=routes) as home:
        other = (
            "/v1/Payments",
            "/v1/payments.json",
            "/v1/payments%3f",
            "/index.php/v1/payments",
            "/x%2f..%2fv1/payments",
        )
        for path in other:
            assert is_refusal(await home.send(target=path), "/v1/payments"), path
        for number, path in enumerate(("/v1/payments", "/v1/refunds", "/v1/refunds.json", "/v2/Payments", "/v2/a%2fb")):
            assert status_of(await home.send(f"k{number}", target=path)) == (200, "stored"), path


async def test_spellings_that_the_file_lists(tmp_path: Path) -> None:
    """Under `also` they are protected, under `unprotected` they pass, and others are refused as before."""
    route = a_route("payment", "/v1/payments", match={"also": ["/v1/payments.json", "/api/payments"]})
    unprotected = [{"path": "/v1/payments.search"}, {"path": "/index.php", "methods": ["POST"]}]
    async with house(sqlite_store(tmp_path), tmp_path, routes=[route], unprotected=unprotected) as home:
        for number, path in enumerate(("/v1/payments", "/v1/payments.json", "/api/payments", "/api/payments/")):
            assert status_of(await home.send(f"k{number}", target=path)) == (200, "stored"), path
            assert status_of(await home.send(f"k{number}", target=path)) == (200, "replayed"), path
        assert (await home.send("k0", target="/v1/payments.json")).status == 422
        for path in ("/v1/payments.search", "/v1/payments.search?x=%2f", "/index.php?r=/v1/payments"):
            assert status_of(await home.send("k0", target=path)) == (200, None), path
        other = (
            "/v1/payments.Search",
            "/v1/payments.search/",
            "/v1/payments.xml",
            "/API/payments",
            "/v1/payments%2esearch",
        )
        for path in other:
            response = await home.send(target=path)
            assert response.status == 400 or path.endswith("/"), path


NAMING: list[tuple[str, list[tuple[str, str]]]] = [
    ("/v1/limits/7?_method=PUT", []),
    ("/v1/limits/7", [("X.HTTP.Method.Override", "PUT")]),
    ("/v1/charges?_method=PUT", []),
    ("/v1/charges", [("X-Original-URL", "/v1/payments"), ("X-Other", "1")]),
    ("/ping", [("X_Rewrite~URL", "/V1/payments.json")]),
    ("/?r=v1/payments", []),
    ("/index.php?a=1&route=%2fv1%2fpayments", []),
    ("/?rest_route=/wc/v3/orders", []),
]


async def test_what_names_another_method_or_path_is_refused(tmp_path: Path) -> None:
    """Whether a route matches beside that or not."""
    routes = [
        a_route("payment", "/v1/payments"),
        a_route("charge", "/v1/charges"),
        a_route("recharge", "/v1/charges", "PUT"),
        a_route("limit", "/v1/limits/{id}", "PUT"),
        a_route("order", "/wp-json/wc/v3/orders"),
    ]
    async with house(sqlite_store(tmp_path), tmp_path, routes=routes) as home:
        for target, headers in NAMING:
            assert status_of(await home.send(target=target, headers=headers)) == (400, "request-invalid"), target
        assert home.upstream.requests == []


SEPARATORS = ("_", ".", "!", "#", "$", "%", "&", "'", "*", "+", "^", "`", "|", "~")


@pytest.mark.parametrize("name", ["X-Tenant", "Idempotency-Key", "Content-Length", "Transfer-Encoding", "Content-Type"])
async def test_a_header_in_another_spelling_is_refused(tmp_path: Path, name: str) -> None:
    """On a route that reads it, beside the right spelling or instead of it; framing everywhere."""
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        for separator in SEPARATORS:
            header = (name.replace("-", separator), "5")
            assert status_of(await home.send(headers=[header])) == (400, "request-invalid"), header
            is_framing = name in ("Content-Length", "Transfer-Encoding")
            passes = await home.send(target="/other", headers=[header])
            assert passes.status == (400 if is_framing else 200), header


async def test_a_principal_is_dropped_on_every_path(tmp_path: Path) -> None:
    """Whatever the method, and in every spelling."""
    names = ("X-User-Id", *("X-User-Id".replace("-", each) for each in SEPARATORS))
    async with guarded(tmp_path, **PAYMENT) as it:
        home = it.home
        for target in ("/v1/payments", "/v1/payments/7", "/other", "/other.json"):
            before = len(home.upstream.requests)
            for (number, name), method in product(enumerate(names), ("GET", "POST")):
                for more in ([], [("Connection", f"close, {name}")]):
                    sent = [ALICE, (name, "victim"), *more]
                    await home.send(f"{method}-{number}", target=target, method=method, headers=sent)
            assert len(home.upstream.requests) > before
        assert not any(value == b"victim" for each in home.upstream.requests for _, value in each.headers)
