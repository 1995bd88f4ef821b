"""`init --openapi` writes what a description says, leaves open what it does not, and `check` asks for exactly that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.config import Config, load, models, openapi
from gateway.config.openapi import DESCRIPTION_BYTES_MAX

DESCRIPTIONS = Path(__file__).parent / "descriptions"
DECISION = re.compile(r'"DECIDE: ([^"]*)"')
KEY, OUTCOME = "where the key is; no header is documented", "which statuses mean that nothing was done"
ACCEPT, FILE = "202 is documented; {} or leave this out", "the path of a PEM file"
NO_SECURITY = "whose key it is; no security is required"
TOKEN = "whose key it is; a token changes, use claims"
PUT = "PUT is idempotent by definition; protect it only if a repeat would act again or get another response."
OUTGOING = "the service sends it, and the gateway is for what it gets."
JWT = "{jwt: {issuer: https://login.test/, audience: api, keys: discover, claims: [sub]}}"
CHOICES = {
    "upstream.url": "expected a URL such as http://127.0.0.1:9000",
    "key": "expected {header: NAME}, {headers: [A, B]}, {body: /pointer} or {compose: [...]}",
    "scope": "expected {header: NAME, from: [...]}, {api_key: HEADER}, {jwt: {...}}",
    "outcome.preset": "expected standard, payments or success_only",
    "accept": "expected a mapping with mode, identity",
    "listen.tls.cert": "expected an absolute path",
    "listen.tls.key": "expected an absolute path",
    "listen.tls.client_ca": "expected an absolute path",
}


class Init:
    """The command, with a file for what it writes."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self.file, self._capsys = directory, directory / "gateway.yaml", capsys

    def __call__(self, description: Path | str | bytes, *options: str) -> str:
        code, _, error = self.run(description, "--to", str(self.file), *options)
        assert code == 0, error
        return self.file.read_text()

    def run(self, description: Path | str | bytes, *options: str) -> tuple[int, str, str]:
        """Its exit code, what it says, and its errors."""
        if not isinstance(description, Path):
            text = description.encode() if isinstance(description, str) else description
            description = self.directory / "openapi"
            description.write_bytes(text)
        code = main(["init", "--openapi", str(description), *options])
        return code, *self._capsys.readouterr()

    def refusal(self, description: Path | str | bytes, *options: str) -> str:
        """The one line with which it refuses, without the name of the file."""
        code, said, error = self.run(description, *options)
        assert (code, said, error.count("\n")) == (2, "", 1)
        return error.removeprefix(f"idempotency-gateway: {self.directory / 'openapi'}").strip()

    def check(self) -> tuple[int, str, list[str]]:
        """The exit code of a strict check, what it says, and its mistakes."""
        code = main(["check", "--strict", "--without-files", "--config", str(self.file)])
        said, error = self._capsys.readouterr()
        return code, said, error.splitlines()

    def decide(self, *, notes: int = 0) -> Config:
        """Fill in every decision; `check` then has no mistake, and this many remarks."""
        chosen = {KEY: "{header: Idempotency-Key}", OUTCOME: "standard", TOKEN: JWT, FILE: "/tls.pem"}
        text = re.sub(rf"(?m)^#?    accept: \"DECIDE: {re.escape(ACCEPT)}\"\n", "", self.file.read_text())
        text = text.replace('"DECIDE: where the service is"', "http://127.0.0.1:9000")
        self.file.write_text(DECISION.sub(lambda found: chosen.get(found[1], "shared"), text))
        code, said, mistakes = self.check()
        assert (code, len(mistakes), said.count("note: ")) == ((2, 1, notes) if notes else (0, 0, 0)), mistakes
        return load(self.file, {})


@pytest.fixture
def init(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Init:
    return Init(tmp_path, capsys)


def described(paths: dict[str, Any], **more: Any) -> str:
    return json.dumps({"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "paths": paths, **more})


def comments(text: str) -> list[str]:
    """What is said of what is no route."""
    return [line for line in text.splitlines()[3:] if re.match("(  )?# [^ ]", line)]


ROUTES = {
    "repositories.yaml": """
issues_create POST /api/v3/repos/{owner}/{repo}/issues | scope: NO_SECURITY
repos_create-fork POST /api/v3/repos/{owner}/{repo}/forks | scope: NO_SECURITY | accept: ACCEPT
""",
    "orders.yaml": """
create POST /shop/orders | key: {header: X-Idempotency-Key, required: true} | scope: {compose: [{api_key: X-Api-Key},
    {api_key: X-Tenant}]}
create_2 PATCH /shop/orders/{order_id} | scope: TOKEN
transfer POST /shop/transfers | key: {header: Idempotency-Token, required: false} | scope: {client_certificate: san} |
    accept: ACCEPT
""",
    "items.json": """
create_item_items__post POST /items/ | key: {header: idempotency-key, required: false} | scope: TOKEN
upload_files__path__post POST /files/{path} | scope: whose key it is; the API key is in no header
""",
}
"""The routes of each description, in order; a setting in braces is written, any other is left open."""
Written = list[tuple[str, str, str, dict[str, str]]]


def routes_of(name: str) -> Written:
    open_ = {"NO_SECURITY": NO_SECURITY, "TOKEN": TOKEN, "ACCEPT": ACCEPT}
    found: Written = []
    for row in re.sub(r"\n +", " ", ROUTES[name].strip()).split("\n"):
        route, *said = row.split(" | ")
        settings = dict(each.split(": ", 1) for each in said)
        route_name, method, path = route.split(" ")
        found.append((route_name, method, path, {key: open_.get(value, value) for key, value in settings.items()}))
    return found


LEFT_OUT = {
    "repositories.yaml": [
        f"  # Left out: {PUT}",
        f'# callback "forked" of POST "/repos/{{owner}}/{{repo}}/forks": {OUTGOING}',
        '# POST "/repos/{owner}/{repo}/compare/{base}...{head}": one segment holds at most one variable.',
        '# "/gists": its reference leads to nothing in this file.',
        f'# webhook "issue-opened": {OUTGOING}',
    ],
    "orders.yaml": [],
    "items.json": [f"  # Left out: {PUT}"],
}


@pytest.mark.parametrize("name", ROUTES)
def test_check_names_each_decision_and_nothing_else(init: Init, name: str) -> None:
    """With its place, its choices and what is to be decided. What is decided passes: each write is a route that
    matches what is described, in an order in which each gets its own requests; so is one that is left out without its
    mark, which needs no more than that somebody wants it protected."""
    text = init(DESCRIPTIONS / name)
    left = [("upstream.url", "where the service is")]
    if name == "orders.yaml":
        left += [(f"listen.tls.{key}", FILE) for key in ("cert", "key", "client_ca")]
    for index, (_, _, _, said) in enumerate(routes_of(name)):
        settings = {"key": KEY, **said}
        asked = {key: settings.get(key, "") for key in ("key", "scope")}
        asked |= {"outcome.preset": OUTCOME, "accept": settings.get("accept", "")}
        left += [(f"routes[{index}].{key}", what) for key, what in asked.items() if what and not what.startswith("{")]
        assert all(f"    {key}: {value}\n" in text for key, value in said.items() if value.startswith("{"))
    code, said_by_check, mistakes = init.check()
    assert (code, said_by_check) == (2, "")
    assert [mistake.split(": ")[1] for mistake in mistakes] == [place for place, _ in left]
    for mistake, (place, what) in zip(mistakes, left, strict=True):
        assert CHOICES[re.sub(r"routes\[\d+\]\.", "", place)] in mistake
        assert mistake.endswith(f"found 'DECIDE: {what}'")
    config = init.decide()
    assert [(route.name, route.match.methods, route.match.path.text) for route in config.routes] == [
        (route, (method,), path) for route, method, path, _ in routes_of(name)
    ]
    assert comments(text) == LEFT_OUT[name]
    init.file.write_text(re.sub(r"(?m)^#(?=  )", "", text))
    count = sum("idempotent by definition" in line for line in LEFT_OUT[name])
    assert len(init.decide(notes=count).routes) == len(routes_of(name)) + count


def test_what_is_said_and_where_it_is_written(init: Init) -> None:
    """Standard output, or a file that does not exist; what is left is counted, and the upstream can be said at once."""
    code, text, said = init.run(DESCRIPTIONS / "items.json")
    assert (code, said) == (0, "2 routes; left to decide: 6. idempotency-gateway check --config FILE names them\n")
    assert init(DESCRIPTIONS / "items.json") == text
    assert init.run(DESCRIPTIONS / "items.json", "--to", str(init.file))[::2] == (
        2,
        f"idempotency-gateway: {init.file}: nothing was written: File exists\n",
    )
    assert init.file.read_text() == text
    _, text, said = init.run(DESCRIPTIONS / "items.json", "--upstream", "https://items.internal:8443")
    assert 'upstream: {url: "https://items.internal:8443"}\n' in text
    assert said.startswith("2 routes; left to decide: 5.")
    assert init.refusal(DESCRIPTIONS / "items.json", "--upstream", "items").startswith(
        "idempotency-gateway: --upstream: expected a URL such as http://127.0.0.1:9000"
    )


NOT_OPENAPI = ": this is no description in OpenAPI 3.0 or 3.1, which begins with `openapi: 3.1.0`"
NO_ROUTE = ": no POST, PUT, PATCH or DELETE can be a route;"
DEDUP = {"name": "Content-Dedup", "in": "header"}
OF_THE_BODY = "this header describes the connection or the body, not the intent, found 'Content-Dedup'"
UNREADABLE: dict[str, tuple[str | bytes, str]] = {
    "Swagger": ("swagger: '2.0'\npaths: {}\n", ': this is Swagger "2.0"; convert it to OpenAPI 3.0 or 3.1'),
    "another version": ("openapi: 4.0.0\n", NOT_OPENAPI),
    "broken YAML": (
        "openapi: 3.1.0\npaths: [\n",
        ":3:1: this is neither JSON nor YAML: did not find expected node content",
    ),
    "broken JSON": ('{"openapi": "3.1.0"\n"paths"}', "this is neither JSON nor YAML: did not find expected ',' or '}'"),
    "no UTF-8": (b"\xff\xfe\xff", ": this is neither JSON nor YAML in UTF-8"),
    "too deep": ("[" * 100_000, ": this is neither JSON nor YAML in UTF-8"),
    "too long": (b" " * (DESCRIPTION_BYTES_MAX + 1), ": a description has at most 16 MiB"),
    "merged": ("openapi: 3.1.0\npaths: {/a: {<<: {post: {}}}}\n", "the description merges mappings with <<"),
    "no route": (
        described({"/a/{b}{c}": {"post": {}}}),
        f'{NO_ROUTE} POST "/a/{{b}}{{c}}": one segment holds at most one variable',
    ),
    "refused": (described({"/a": {"post": {"parameters": [DEDUP]}}}), f"{NO_ROUTE} post_a: {OF_THE_BODY}"),
}


@pytest.mark.parametrize(("description", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_gets_one_line(init: Init, description: str | bytes, said: str) -> None:
    """Which says what to do, where there is something to be done."""
    found = init.refusal(description)
    assert found == said or (not said.startswith(":") and said in found)


def test_a_file_that_is_not_there(init: Init) -> None:
    _, _, said = init.run(init.directory / "none.yaml")
    assert said == f"idempotency-gateway: {init.directory}/none.yaml: cannot be read: No such file or directory\n"


def test_a_route_that_the_gateway_refuses_is_a_comment(init: Init) -> None:
    """One service may read two paths as one, and a credential is not a key."""
    writes = {"/a": {"post": {}}, "/A": {"post": {}}, "/b": {"post": {"parameters": [DEDUP]}}, "/a/": {"post": {}}}
    left_out = comments(init(described(writes)))
    assert left_out[0].startswith("  # Left out: a service may read this as /a of post_a: one key would run twice")
    assert left_out[1:3] == [f"  # Left out: {OF_THE_BODY}.", '# POST "/a/": post_a takes the same requests.']
    assert [route.name for route in init.decide().routes] == ["post_a"]


def test_each_route_gets_its_own_requests(init: Init) -> None:
    """A path comes before one with a variable in its place."""
    init(described({"/charges/{id}": {"post": {}}, "/charges/search": {"post": {}}}))
    assert [route.match.path.text for route in init.decide().routes] == ["/charges/search", "/charges/{id}"]


def test_more_routes_than_a_gateway_has(init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are routes, and the others comments."""
    assert openapi.ROUTES_MAX == models.ROUTES_MAX
    monkeypatch.setattr(openapi, "ROUTES_MAX", 20)
    text = init(described({f"/r{number}": {"post": {}} for number in range(22)}))
    assert text.count("# Left out: there are at most 20 routes.") == 2
    assert len(init.decide().routes) == 20


PARAMETERS = {
    "key": {"name": "Idempotency-Key", "in": "header", "required": True},
    "a": {"$ref": "#/components/parameters/b"},
    "b": {"$ref": "#/components/parameters/a"},
}
SCHEMES = {
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"$ref": "#/components/x-schemes/a~1b"},
    "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "open": {"type": "openIdConnect", "openIdConnectUrl": "https://login.test/"},
    "elsewhere": {"$ref": "schemes.yaml#/a"},
}


def keyed_in_its_body(*required: str) -> dict[str, Any]:
    schema = {"properties": {"amount": {}, "idempotency_key": {}}, "required": required}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def signed_in(*ways: str) -> dict[str, Any]:
    """Each with the schemes that it needs together."""
    return {"post": {"security": [dict.fromkeys(way.split(), ()) for way in ways]}}


WRITES: dict[str, tuple[dict[str, Any], str]] = {
    # Where there is nothing else, writes that are idempotent are what is to be protected.
    "delete": ({"put": {}, "delete": {}}, "  - name: delete_a"),
    # What documents a key says that a repeat would act again; where no header is, a property that is named like one.
    "documented": ({"parameters": [PARAMETERS["key"]], "delete": {}}, "  - name: delete_a"),
    "by reference": (
        {"parameters": [{"$ref": "#/components/parameters/key"}], "delete": {}},
        "    key: {header: Idempotency-Key, required: true}",
    ),
    "in a circle": ({"post": {"parameters": [{"$ref": "#/components/parameters/a"}]}}, f'    key: "DECIDE: {KEY}"'),
    "in the body": (
        {"post": keyed_in_its_body("idempotency_key")},
        "    key: {body: /idempotency_key, required: true}",
    ),
    # Only what names one caller for all retries is taken; an operation's own security goes before that of all.
    "one header": (signed_in("bearer", "basic"), "    scope: {api_key: Authorization}"),
    "several": (signed_in("bearer", "key"), '    scope: "DECIDE: whose key it is; there are several ways in"'),
    "optional": (signed_in("bearer", ""), f'    scope: "DECIDE: {NO_SECURITY}"'),
    "another file": (signed_in("elsewhere"), '    scope: "DECIDE: whose key it is; the scheme is not described"'),
    "unknown": (signed_in("key none"), '    scope: "DECIDE: whose key it is; the scheme is not described"'),
}


@pytest.mark.parametrize(("path", "line"), WRITES.values(), ids=WRITES)
def test_what_is_written_of_a_path(init: Init, path: dict[str, Any], line: str) -> None:
    components = {"parameters": PARAMETERS, "securitySchemes": SCHEMES}
    components["x-schemes"] = {"a/b": {"type": "http", "scheme": "basic"}}
    text = init(described({"/a": path}, components=components, security=[{"key": []}]))
    assert f"\n{line}\n" in text


@pytest.mark.parametrize(
    ("servers", "path"),
    [
        pytest.param([{"url": "/v2/"}, {"url": "/v3"}], "/v2/a", id="relative"),
        pytest.param(
            [{"url": "https://{place}.test:8443/{base}?x", "variables": {"base": {"default": "v4"}}}],
            "/v4/a",
            id="variables",
        ),
        pytest.param([{"url": "//api.test/v5#part"}], "/v5/a", id="no scheme"),
    ],
)
def test_the_base_path_of_the_server(init: Init, servers: list[dict[str, Any]], path: str) -> None:
    """The first one's; an operation's own server goes before that of all."""
    init(described({"/a": {"post": {}}, "/b": {"post": {"servers": [{"url": "/own"}]}}}, servers=servers))
    assert [route.match.path.text for route in init.decide().routes] == [path, "/own/b"]


def test_what_a_description_says_stays_text(init: Init) -> None:
    """No line, variable or comment of the configuration comes out of it."""
    paths = {
        "/${HOME}/größe": {"post": {"operationId": "a: b\n- name: c #"}},
        "/x\u0085y": {"post": {}},
        "/\ud800": {"post": {}},
        "/null": {"post": {"operationId": "null", "callbacks": {"a\nb": {}}}},
    }
    text = init(described(paths, webhooks={"a\nroutes: []": {}}))
    config = init.decide()
    assert [(route.name, route.match.path.text) for route in config.routes] == [
        ("a_b_-_name_c", "/${HOME}/größe"),
        ("null", "/null"),
    ]
    assert text.count("control characters") == 2
