"""What `explain` says of a request is what a fresh gateway then does with it; and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from cryptography.x509 import DNSName

from gateway import PROGRAM
from gateway.app.gateway import Gateway
from gateway.cli import main
from gateway.config import load
from gateway.explain import Given, from_file, from_words
from gateway.observe.facts import Fact, RequestAnswered, RequestPassed
from tests.support.http import exchange, request_bytes
from tests.support.issuer import signing_key
from tests.support.ports import free_port
from tests.support.senders import WHSEC, signed
from tests.support.tls import Authority
from tests.support.upstream import RecordingUpstream

TOKEN_SECRET = "the secret that tokens are signed with"
FINGERPRINT_KEY = "the secret that fingerprints are keyed with"
ENCRYPTION_KEY = "5e" * 32
KEY = ("Idempotency-Key", "k-0123456789-s3cret")
TENANT = ("X-Tenant", "tenant-s3cret")
TYPE = ("Content-Type", "application/json")
BODY = b'{"amount": 1000, "order": "o-1", "sent_at": "body-s3cret"}'
"""Values of the request that are not shown: each holds `s3cret`."""

STANDARD = {"outcome": {"preset": "standard"}}
HEADER = {"key": {"header": "Idempotency-Key", "required": True}, "scope": {"header": "X-Tenant", "from": "any"}}


def route(name: str, path: str, /, **changes: Any) -> dict[str, Any]:
    return {"name": name, "match": {"path": path}, **HEADER, **STANDARD, **changes}


def token(**claims: Any) -> tuple[str, str]:
    payload = {"iss": "me", "aud": "us", "sub": "alice-s3cret", "exp": time.time() + 86_400, **claims}
    return "Authorization", f"Bearer {jwt.encode(payload, TOKEN_SECRET, 'HS256')}"


ISSUER = {"issuer": "me", "audience": "us", "claims": ["sub"]}
ROUTES = [
    route("host", "/v1/pay", match={"path": "/v1/pay", "host": "other.test"}),
    route("put", "/v1/pay", match={"path": "/v1/pay", "methods": ["PUT"]}),
    route("pay", "/v1/pay", fingerprint={"ignore": ["/sent_at"]}, body={"max_bytes": 64}),
    route("capture", "/v1/charges/{id}/capture", key={"header": "Idempotency-Key"}, retention={"replay": "1h"}),
    route("rest", "/v2/{rest:.*}", key={"headers": ["A-Key", "B-Key"]}, scope="shared"),
    route("structured", "/structured", key={"header": "Idempotency-Key", "format": "structured", "required": True}),
    route("uuid", "/uuid", key={"header": "Idempotency-Key", "format": "uuid"}, errors="stripe"),
    route("order_number", "/orders", key={"body": "/order"}),
    route("composed", "/composed", key={"compose": [{"header": "A-Key"}, {"body": "/order"}], "required": True}),
    route("trusted", "/trusted", scope={"header": "X-Tenant", "from": ["127.0.0.0/8"]}),
    route("untrusted", "/untrusted", scope={"header": "X-Tenant", "from": ["10.0.0.0/8"]}),
    route("api_key", "/api-key", scope={"api_key": "Authorization"}),
    route("jwt", "/jwt", scope={"jwt": {**ISSUER, "keys": {"secret": TOKEN_SECRET}, "algorithms": ["HS256"]}}),
    route("parts", "/parts", scope={"compose": [{"header": "X-Tenant", "from": "any"}, {"api_key": "X-Api-Key"}]}),
    route("raw", "/raw", fingerprint={"body": "raw"}, status_header=False),
    route("accept", "/accept", accept={"identity": "unverified", "max_bytes": 60}),
    route("lanes", "/lanes", accept={"mode": "always", "identity": "unverified"}, order={"by": "/order"}),
    {
        "name": "inbox",
        "match": {"path": "/inbox"},
        "inbox": {"preset": "standard_webhooks", "secrets": [{"id": "a", "key": WHSEC}]},
        "scope": "shared",
        "outcome": {"preset": "success_only"},
    },
    route("quiet", "/quiet", response={"max_stored_bytes": "0"}),
    route("doubtful", "/doubtful", outcome={"preset": "standard", "in_doubt": ["2xx"]}),
    route("observed", "/observed", mode="observe", body={"max_bytes": 64}),
    route("shared", "/shared", mode="observe", enforce_share="50%"),
]


def request(method: str, target: str, *headers: tuple[str, str], body: bytes = b"") -> bytes:
    return request_bytes(method, target, headers, body)


def good(target: str, *headers: tuple[str, str], method: str = "POST", body: bytes = BODY) -> bytes:
    return request(method, target, TYPE, *headers, body=body)


LONG = b'{"amount": "' + b"x" * 80 + b'"}'
CHUNKED = ("Transfer-Encoding", "chunked")
ASYNC = ("Prefer", "respond-async")
BEARER = ("Authorization", "Bearer sk_live_s3cret_s3cret")
WEBHOOK = b'{"type": "paid", "data": {"id": 1}}'


def cases() -> Iterator[tuple[str, bytes]]:
    """Requests, each under a key that no other one of its route and caller has."""
    yield "pay", good("/v1/pay", KEY, TENANT)
    yield "pay by absolute path with a query", good("/v1/pay?a=b", ("Idempotency-Key", "k2"), TENANT)
    yield "pay in chunks", good("/v1/pay", ("Idempotency-Key", "k4"), TENANT, CHUNKED, body=b"2\r\n{}\r\n0\r\n\r\n")
    yield "pay without a body", request("POST", "/v1/pay", ("Idempotency-Key", "k5"), TENANT)
    yield "another host", good("/v1/pay", KEY, TENANT, ("Host", "other.test:80"))
    yield "a method of no route", good("/v1/pay", KEY, TENANT, method="DELETE")
    yield "a GET", request("GET", "/v1/pay")
    yield "no key", good("/v1/pay", TENANT)
    yield "no key where none is required", good("/v1/charges/ch_1/capture", TENANT)
    yield "malformed key", good("/v1/pay", ("Idempotency-Key", "a b"), TENANT)
    yield "two keys", good("/v1/pay", KEY, ("Idempotency-Key", "k6"), TENANT)
    yield "key with an underscore", good("/v1/pay", KEY, ("Idempotency_Key", "k7"), TENANT)
    yield "no caller", good("/v1/pay", KEY)
    yield "two callers", good("/v1/pay", KEY, TENANT, TENANT)
    yield "dot segments", good("/v1/x/../pay", KEY, TENANT)
    yield "two lengths", good("/v1/pay", KEY, TENANT, ("Content-Length", "3"), ("Content-Length", "3"), body=b"abc")
    yield "malformed chunks", good("/v1/pay", KEY, TENANT, CHUNKED, body=b"zz\r\n{}\r\n0\r\n\r\n")
    yield "method override", good("/v1/other", KEY, TENANT, ("X-HTTP-Method-Override", "PUT"))
    yield "target override", good("/other", KEY, TENANT, ("X-Original-URL", "/v1/pay"))
    yield "connection names the key", good("/v1/pay", KEY, TENANT, ("Connection", "Idempotency-Key"))
    yield "not HTTP", b"what is this?\r\n\r\n"
    yield "long head", good("/v1/pay", KEY, TENANT, ("X-Long", "x" * 70_000))
    yield "CONNECT", b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"
    yield "too large", good("/v1/pay", KEY, TENANT, body=LONG)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(LONG), LONG)
    yield "too large in chunks", good("/v1/pay", KEY, TENANT, CHUNKED, body=chunks)
    yield "not the JSON that it says", good("/v1/pay", ("Idempotency-Key", "k8"), TENANT, body=b"{")
    yield "variable", good("/v1/charges/ch_1/capture", KEY, TENANT)
    yield "rest by the first header", good("/v2/a/b", ("A-Key", "k1"))
    yield "structured", good("/structured", ("Idempotency-Key", '"k1"'), TENANT)
    yield "not structured", good("/structured", ("Idempotency-Key", "k1"), TENANT)
    yield "uuid", good("/uuid", ("Idempotency-Key", "123e4567-e89b-12d3-a456-426614174000"), TENANT)
    yield "not a uuid, in Stripe's form", good("/uuid", ("Idempotency-Key", "k1"), TENANT)
    yield "key in the body", good("/orders", TENANT)
    yield "no key in the body", good("/orders", TENANT, body=b"{}")
    yield "key in a body that is not JSON", good("/orders", TENANT, body=b"{")
    yield "composed", good("/composed", ("A-Key", "k1"), TENANT)
    yield "half composed", good("/composed", ("A-Key", "k1"), TENANT, body=b"{}")
    yield "trusted hop", good("/trusted", KEY, TENANT)
    yield "untrusted hop", good("/untrusted", KEY, TENANT)
    yield "credential", good("/api-key", KEY, BEARER)
    yield "no credential", good("/api-key", KEY)
    yield "credential that changes", good("/api-key", KEY, token())
    yield "token", good("/jwt", KEY, token())
    yield "token of another issuer", good("/jwt", KEY, token(iss="you"))
    yield "no token", good("/jwt", KEY)
    yield "two parts", good("/parts", KEY, TENANT, ("X-Api-Key", "s3cret-of-the-caller"))
    yield "raw", good("/raw", KEY, TENANT)
    yield "long enough for a file", good("/raw", ("Idempotency-Key", "k2"), TENANT, body=b"x" * 400_000)
    chunks = b"61a80\r\n%b\r\n0\r\n\r\n" % (b"x" * 400_000)
    yield "long enough for a file, in chunks", good("/raw", ("Idempotency-Key", "k3"), TENANT, CHUNKED, body=chunks)
    yield "accepted", good("/accept", KEY, TENANT, ASYNC)
    only_now = good("/accept", ("Idempotency-Key", "k3"), TENANT, ASYNC, ("If-Match", '"1"'))
    yield "not accepted, because it has a meaning only now", only_now
    yield "too long to be accepted", good("/accept", ("Idempotency-Key", "k2"), TENANT, ASYNC, body=LONG)
    yield "in its lane", good("/lanes", KEY, TENANT)
    yield "in no lane", good("/lanes", KEY, TENANT, body=b"{}")
    signature = signed("standard_webhooks", WEBHOOK, int(time.time()))
    yield "event", request("POST", "/inbox", *signature.items(), body=WEBHOOK)
    yield "event that is not signed", request("POST", "/inbox", TYPE, body=WEBHOOK)
    yield "its status", request("GET", "/_operations/nothing")
    yield "not stored", good("/quiet", KEY, TENANT)
    yield "in doubt", good("/doubtful", KEY, TENANT)
    yield "observed", good("/observed", KEY, TENANT)
    yield "observed without a key", good("/observed", TENANT)
    yield "observed and too large", good("/observed", KEY, TENANT, body=LONG)
    for number in range(6):
        yield f"of an enforced share, {number}", good("/shared", ("Idempotency-Key", f"k{number}"), TENANT)
    yield "of a share without a key", good("/shared", TENANT)


CASES = list(cases())
INCOMPLETE = "--|http://a/v1/pay|-X|POST|-H|Idempotency-Key: k|-H|X-Tenant: t|-H|Content-Length: 5"


def written(directory: Path, upstream_url: str = "http://127.0.0.1:9", **changes: Any) -> Path:
    """A configuration with all routes, or with these changes."""
    config = {
        "service": "shop",
        "listen": "127.0.0.1:0",
        "status": {"listen": "127.0.0.1:0"},
        "state_dir": str(directory / "state"),
        "upstream": {"url": upstream_url},
        "store": {"durable": f"sqlite://{directory}/operations.db"},
        "shutdown": {"delay": "0s", "drain_timeout": "5s"},
        "secrets": {
            "fingerprint_key": {"id": "f1", "key": FINGERPRINT_KEY},
            "encryption": [{"id": "e1", "key": ENCRYPTION_KEY}],
        },
        "routes": ROUTES,
        **changes,
    }
    file = directory / "gateway.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    return file


def explained(capsys: pytest.CaptureFixture[str], file: Path, wire: bytes, *options: str) -> dict[str, Any]:
    request_file = file.parent / "request.http"
    request_file.write_bytes(wire)
    assert main(["explain", "--config", str(file), "--format", "json", "--file", str(request_file), *options]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


async def observed(file: Path, upstream: RecordingUpstream) -> dict[str, list[Any]]:
    """What a fresh gateway does with each request: route, verdict, status and operation."""
    facts: list[Fact] = []
    gateway = Gateway(load(file, {}), (facts.append,))
    await gateway.start()
    found: dict[str, list[Any]] = {}
    try:
        for name, wire in CASES:
            facts.clear()
            before = len(upstream.requests)
            response = await exchange(gateway.address[1], wire, method=wire.split(b" ")[0].decode())
            seen = [fact for fact in facts if isinstance(fact, RequestAnswered | RequestPassed)]
            about = seen[0] if seen else None
            answered = about if isinstance(about, RequestAnswered) else None
            found[name] = [
                None if about is None else about.route,
                None if about is None or about.verdict is None else about.verdict.value,
                response.status,
                None if answered is None or answered.operation_id is None else str(answered.operation_id),
            ]
            if answered is not None and answered.verdict.value in ("stored", "in-doubt", "response-not-stored"):
                # What was accepted before is delivered meanwhile.
                assert len(upstream.requests) > before
    finally:
        await gateway.stop()
    return found


def test_what_is_explained_is_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def play() -> dict[str, list[Any]]:
        async with RecordingUpstream(port=port) as upstream:
            return await observed(file, upstream)

    port = free_port()
    file = written(tmp_path, f"http://127.0.0.1:{port}")
    said = {name: explained(capsys, file, wire, "--response", "200") for name, wire in CASES}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gateway.yaml", "request.http"]
    text = json.dumps(said)
    for _, wire in CASES[::4]:
        (tmp_path / "request.http").write_bytes(wire)
        assert main(["explain", "--config", str(file), "--file", str(tmp_path / "request.http")]) == 0
        text += capsys.readouterr().out
    for secret in (TOKEN_SECRET, FINGERPRINT_KEY, ENCRYPTION_KEY, WHSEC, "s3cret"):
        assert secret not in text
    found = asyncio.run(play())
    told = {
        # Of an observed request, explaining knows the operation that it would be.
        name: [each["route"], each["verdict"], each["status"], each["verdict"] and each["operation_id"]]
        for name, each in said.items()
    }
    # The gateway's own resource looks into the store.
    assert found.pop("its status")[2] == 404
    assert told.pop("its status") == [None, None, None, None]
    assert told == found
    assert {found[f"of an enforced share, {number}"][1] for number in range(6)} == {"stored", None}
    for name, verdict in (("", "stored"), (" without a key", "key-missing"), (" and too large", "body-too-large")):
        assert verdict in said[f"observed{name}"]["steps"][-1]["facts"][0]
    assert {verdict for _, verdict, _, _ in found.values()} >= {
        None, "request-invalid", "key-missing", "key-invalid", "unkeyed", "scope-missing", "scope-unsuitable",
        "body-too-large", "order-missing", "signature-missing", "accepted", "stored", "in-doubt", "response-not-stored",
    }  # fmt: skip


WATCHED = """
import sys
from gateway.cli import main

def watch(event, arguments):
    is_written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (1 | 2 | 0o100 | 0o1000)
    if is_written or event in ("os.mkdir", "os.remove", "os.rename", "os.chmod", "os.link", "os.symlink", "socket.bind",
                               "socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
        print(event, arguments, file=sys.stderr)

sys.addaudithook(watch)
for request in sys.argv[2:]:
    assert main(["explain", "--config", sys.argv[1], "--response", "200", "--file", request]) == 0
"""


def test_nothing_is_touched(tmp_path: Path) -> None:
    """No file is written, made, moved or removed, and nobody is connected to: the interpreter says so."""
    file = written(tmp_path)
    requests = []
    for number, (_, wire) in enumerate(CASES[::3]):
        requests.append(str(tmp_path / f"{number}.http"))
        (tmp_path / f"{number}.http").write_bytes(wire)
    command = [sys.executable, "-B", "-c", WATCHED, str(file), *requests]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\nverdict ") == len(requests) >= 22


def test_each_decision_has_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values of the request are shown where that is asked for, and no secret of the gateway."""
    file = written(tmp_path)
    lines = file.read_text().splitlines()
    said = explained(capsys, file, good("/v1/pay", KEY, TENANT), "--response", "503", "--show")
    assert all(value in json.dumps(said) for value in (KEY[1], TENANT[1], "body-s3cret"))
    assert FINGERPRINT_KEY not in json.dumps(said)
    settings = {each["path"]: each["line"] for step in said["steps"] for each in step["settings"]}
    for path, line in settings.items():
        key = path.rpartition(".")[2].partition("[")[0]
        assert line is None or lines[line - 1].strip().removeprefix("- ").startswith(f"{key}:"), path
    assert settings["routes[2].fingerprint.ignore"] is not None
    assert settings["routes[2].retention.replay" if said["verdict"] == "stored" else "routes[2].key.format"] is None
    route_step = next(step for step in said["steps"] if step["name"] == "route")
    facts = [fact.partition(": ")[2] for fact in route_step["facts"]]
    assert facts == ["the host is not other.test", "the method POST is not PUT"]


def test_nobody_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who would be asked is said; nothing listens there, and a question would be refused."""
    url = f"http://127.0.0.1:{free_port()}"
    keys = {"keys": f"{url}/keys?secret=s3cret", "algorithms": ["ES256"]}
    routes = [
        route("principal", "/a", scope={"forward_auth": {"url": f"{url}/auth?secret=s3cret", "principal": "X-User"}}),
        route("permission", "/b", authorize={"forward_auth": {"url": f"{url}/may"}}),
        route("token", "/c", scope={"jwt": ISSUER | keys}),
    ]
    file = written(tmp_path, routes=routes)
    claims = {"iss": "me", "aud": "us", "sub": "a", "exp": time.time() + 60}
    signed_token = jwt.encode(claims, signing_key().private, "ES256")
    for path, step, asked in (("/a", "scope", "/auth"), ("/b", "authorize", "/may"), ("/c", "scope", "/keys")):
        wire = good(path, KEY, TENANT, ("Authorization", f"Bearer {signed_token}"))
        said = explained(capsys, file, wire, "--response", "200")
        assert (said["verdict"], said["status"], said["operation_id"], said["steps"][-2]["name"]) == (*[None] * 3, step)
        assert f"would ask {url}{asked}, " in said["steps"][-2]["decision"]
        assert "s3cret" not in json.dumps(said)
    # What needs no keys is decided.
    assert explained(capsys, file, good("/c", KEY, token()))["verdict"] == "scope-missing"


def test_a_certificate_names_the_caller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    certificate = authority.issue_to(DNSName("orders.shop.example")).cert
    own = authority.issue("localhost")
    files = {"cert": str(own.cert), "key": str(own.key), "client_ca": str(authority.ca_file)}
    routes = [route("certificate", "/a", scope={"client_certificate": "san"})]
    file = written(tmp_path, listen={"address": "127.0.0.1:0", "tls": files}, routes=routes)
    said = explained(capsys, file, good("/a", KEY), "--certificate", str(certificate), "--response", "200")
    assert (said["verdict"], said["status"]) == ("stored", 200)
    assert explained(capsys, file, good("/a", KEY))["verdict"] == "scope-missing"


def test_the_record_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --store: new, replayed, and another request; without a store, exit code 1."""

    async def execute() -> None:
        async with RecordingUpstream(port=port):
            gateway = Gateway(load(file, {}))
            await gateway.start()
            await exchange(gateway.address[1], wire, method="POST")
            await gateway.stop()

    port = free_port()
    file = written(tmp_path, f"http://127.0.0.1:{port}")
    wire = good("/v1/pay", KEY, TENANT)
    command = ["explain", "--config", str(file), "--store", "--", "-X", "POST", "http://gateway.test/v1/pay"]
    headers = [word for name, value in (KEY, TENANT, TYPE) for word in ("-H", f"{name}: {value}")]
    data = ["--data-raw", BODY.decode()]
    assert main([*command, *headers, *data]) == 1
    assert "the store does not exist" in capsys.readouterr().err
    asyncio.run(execute())
    again = explained(capsys, file, wire, "--store")
    assert (again["verdict"], again["status"]) == ("replayed", 200)
    assert main([*command, *headers, *data]) == 0
    assert "200 replayed" in capsys.readouterr().out
    other = explained(capsys, file, good("/v1/pay", KEY, TENANT, body=b'{"amount": 2}'), "--store")
    assert (other["verdict"], other["status"]) == ("key-reused", 422)
    record = next(step for step in other["steps"] if step["name"] == "record")
    assert "differs in: body" in record["facts"]
    config = yaml.safe_load(file.read_text())
    config["secrets"]["fingerprint_key"]["id"] = "later"
    rotated = tmp_path / "rotated.yaml"
    rotated.write_text(yaml.safe_dump(config))
    unknown = explained(capsys, rotated, wire, "--store")
    assert (unknown["verdict"], unknown["status"]) == ("key-reused", 422)
    record = next(step for step in unknown["steps"] if step["name"] == "record")
    assert record["decision"].startswith("nobody can tell whether of the same request: recorded under fingerprint key")
    new = explained(capsys, file, good("/v1/pay", ("Idempotency-Key", "new"), TENANT), "--store", "--response", "200")
    assert new["verdict"] == "stored"
    assert new["steps"][-2]["decision"].startswith("there is none")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give the request"),
        (["--", "--compressed", "http://a/b"], "these words of curl are known"),
        (["--", "/v1/pay"], "expected a URL"),
        (["--", "http://a/b", "-H", "nothing"], "a header is written"),
        (["--file", "/nowhere"], "/nowhere cannot be read"),
        ([*INCOMPLETE.split("|")], "the request is not complete"),
        (["--certificate", "/dev/null", "--", "http://a/b"], "expected one certificate"),
    ],
)
def test_what_is_no_request_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    file = written(tmp_path)
    assert main(["explain", "--config", str(file), *words]) == 2
    assert message in capsys.readouterr().err


def test_words_of_curl_are_told_about_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    """They look like options of `explain`; other commands have none that they do not know either."""
    for words, is_told in ((["explain", "curl", "http://shop/v1/pay", "-H", "A: b"], True), (["check", "--x"], False)):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        said = capsys.readouterr().err
        assert ("write the request behind --: idempotency-gateway explain -- curl" in said) is is_told, words
        assert ("behind --" in said) is is_told, words


def test_words_of_curl_are_the_request_that_curl_sends(tmp_path: Path) -> None:
    """A file with a request may be written by hand."""
    data = tmp_path / "data"
    data.write_bytes(b"a=1\r\n")
    words = ["http://shop/x?y", "-d", f"@{data}", "--data", "b=2", "-H", "Accept:", "-H", "X-Empty;", "-u", "me:pw"]
    assert from_words(words) == Given(
        b"POST /x?y HTTP/1.1\r\nHost: shop\r\nAuthorization: Basic bWU6cHc=\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\nX-Empty: \r\n\r\na=1&b=2"
    )
    assert from_words(["curl", *words]) == from_words(words)
    assert from_words(["https://shop", "--json", "{}"]) == Given(
        b"POST / HTTP/1.1\r\nHost: shop\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\n\r\n{}",
        is_secure=True,
    )
    file = tmp_path / "request.http"
    file.write_text("POST https://shop/x\nA: b\n\n{}")
    expected = b"POST /x HTTP/1.1\r\nHost: shop\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"
    assert from_file(file) == Given(expected, is_secure=True)


GUIDE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def test_what_is_shown_is_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = blocks("yaml")
    Path("gateway.yaml").write_text(text)
    shown = blocks("console")
    assert len(shown) == 2
    for block in shown:
        command, _, output = block.partition("\n")
        words = shlex.split(command)
        assert words[:2] == ["$", PROGRAM]
        assert main(words[2:]) == 0
        assert capsys.readouterr().out == output
