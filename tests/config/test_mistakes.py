"""Each mistake is reported with its place, what was expected, and what to write."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path

import pytest

from gateway import __version__
from gateway.config import ConfigError, load, notices
from gateway.core.lifecycle import LEASE_US_MAX
from gateway.core.operation import microseconds
from tests.config.support import GLOBAL, MINIMAL, ROUTE_LINE, read, report, with_global, with_route

DURATION = "expected a duration such as 300ms, 5s, 2m, 24h or 7d"
SIZE = "expected a size such as 64KiB, 1MiB or a number of bytes"
ADDRESS = "expected an address such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080"
SCOPES = (
    "{header: NAME, from: [...]}, {api_key: HEADER}, {jwt: {...}}, {forward_auth: {url, principal}}, "
    "{client_certificate: san}, {compose: [...]} or shared"
)
KEYS = "{header: NAME}, {headers: [A, B]}, {body: /pointer} or {compose: [...]}"
SOURCES = "expected a list of networks such as [10.0.0.0/8], or any"
FIELD = "expected the name of a header"
CONNECTION = "this header belongs to the connection or to the gateway, not to the request"
NAME = "expected a name of 1 to 64 letters, digits, '_', '-' and '.'"
URL = "expected a URL such as http://127.0.0.1:9000 or https://service.internal"
POINTER = "expected a JSON pointer such as /amount or /customer/id, with ~1 for / and ~0 for ~"
STATUSES = "expected a status code from 200 to 599, or a class: 2xx, 3xx, 4xx or 5xx"
METHOD = "expected a method such as POST or PATCH"
PATHS = "expected a path such as /v1/payments, /v1/orders/{id} or /v1/{rest:.*}"
SQLITE = "expected sqlite:///PATH, postgresql://USER@HOST/DATABASE or redis://USER@HOST:PORT/DATABASE"
REDIS = "expected redis://HOST:PORT/DATABASE, redis+sentinel://HOST,HOST/NAME/DATABASE or redis+cluster://HOST,HOST"
MASTER = "the path is the name that the sentinels have for the master, and the number of the database"
ENCODE = "percent-encode /, ?, # and @ in a password"
UNKNOWN = f"unknown key in version {__version__}"
FRAMING = "this header describes the connection or the body, not the intent"

MARK = "▸"


def column(line: str) -> int:
    """The column of the mark in a line of a route."""
    return len("    ") + line.index(MARK) + 1


ROUTE_MISTAKES = [
    ("in_flight: {wait: ▸5}", "in_flight.wait", f"{DURATION}, found '5'; write 5s"),
    ("in_flight: {wait: ▸5 sec}", "in_flight.wait", f"{DURATION}, found '5 sec'; write 5s"),
    ("in_flight: {wait: ▸[5s]}", "in_flight.wait", f"{DURATION}, found a list"),
    ("in_flight: {wait: ▸1h}", "in_flight.wait", "expected a duration from 0s to 10m, found '1h'"),
    ("in_flight: {wait: ▸22:22}", "in_flight.wait", f"{DURATION}, found '22:22'"),
    (
        "in_flight: {max_wait: 30s, wait: ▸40s}",
        "in_flight.wait",
        "wait must be at most max_wait; 40s is longer than 30s",
    ),
    ("in_flight: {status: ▸410}", "in_flight.status", "expected 409 or 429, found '410'"),
    (
        "in_flight: {max_waiters: ▸0o17}",
        "in_flight.max_waiters",
        "expected a whole number from 0 to 100000, found '0o17'",
    ),
    ("in_flight: ▸5s", "in_flight", "expected a mapping with wait, max_wait, status, max_waiters, found '5s'"),
    ("in_flight:▸", "in_flight", "nothing is written here; indent its keys below it, or leave it out"),
    ("status_header:▸", "status_header", "nothing is written here; leave it out, or quote a word such as 'null'"),
    (
        "recovery: {probe: {path: /a, done: [{status: [200]}], headers: ▸word}}",
        "recovery.probe.headers",
        "expected a mapping of names to values",
    ),
    (
        r'recovery: {probe: {path: /a, done: [{status: [200]}], headers: {Authorization: ▸"Bearer hunter2\n"}}}',
        "recovery.probe.headers.Authorization",
        "expected one line, without white space at its ends",
    ),
    ("▸in_flite: {wait: 5s}", "in_flite", f"{UNKNOWN}; did you mean in_flight?"),
    ("status_header: ▸yes", "status_header", "expected true or false, found 'yes'"),
    ("recovery: ▸retry", "recovery", "expected hold, resend or {probe: {path, done, ...}}, found 'retry'"),
    (
        "recovery: {probe: {path: ▸'/a?x={who}', done: [{status: [200]}]}}",
        "recovery.probe.path",
        "there is no {who}; known here: key, operation_id",
    ),
    (
        "recovery: {probe: {path: /a, done: [{status: [200]}], settle: ▸30s}}",
        "recovery.probe.settle",
        "expected a duration from 31s to 7d, found '30s'",
    ),
    ("errors: ▸stipe", "errors", "expected problem or stripe, found 'stipe'; did you mean stripe?"),
    ("mismatch_status: ▸423", "mismatch_status", "expected 422, 409 or 400, found '423'"),
    ("store_unavailable: ▸on", "store_unavailable", "expected refuse or forward, found 'on'"),
    ("operation: ▸a b", "operation", f"{NAME}, found 'a b'"),
    (
        "retention: {remember: 7d, replay: ▸8d}",
        "retention.replay",
        "replay must be at most remember; 8d is longer than 7d",
    ),
    ("retention: {expired_status: ▸404}", "retention.expired_status", "expected 410, 409 or 204, found '404'"),
    (
        "body: {max_bytes: ▸1MB}",
        "body.max_bytes",
        f"{SIZE}, found '1MB'; write 1MiB",
    ),
    (
        "body: {max_bytes: 1KiB, spool_over: ▸2KiB}",
        "body.spool_over",
        "spool_over must be at most max_bytes; 2KiB is more than 1KiB",
    ),
    (
        "response: {keep: [▸Date]}",
        "response.keep[0]",
        "expected Set-Cookie or WWW-Authenticate; others are always stored",
    ),
    (
        "response: {keep: [▸set-cookie], strip: [Set-Cookie]}",
        "response.keep[0]",
        "this header is listed under strip too",
    ),
    ("response: {strip: [a, ▸A]}", "response.strip[1]", "this is listed already"),
    ("response: {strip: ▸a}", "response.strip", "expected a list, found 'a'; write [a]"),
    ("response: {strip: [▸a b]}", "response.strip[0]", f"{FIELD}, found 'a b'"),
    ("fingerprint: {body: ▸xml}", "fingerprint.body", "expected json, form, multipart, raw or none, found 'xml'"),
    ("fingerprint: {ignore: [▸a]}", "fingerprint.ignore[0]", f"{POINTER}, found 'a'"),
    ("fingerprint: {ignore: [▸/a~2]}", "fingerprint.ignore[0]", f"{POINTER}, found '/a~2'"),
    ("fingerprint: {ignore: ▸[/a], only: [/b]}", "fingerprint.ignore", "ignore and only cannot be used together"),
    ("fingerprint: {body: raw, only: ▸[/b]}", "fingerprint.only", "only is for JSON bodies, but body is raw"),
    (
        "fingerprint: {explain: ▸true}",
        "fingerprint.explain",
        "explain requires secrets.fingerprint_key, so that a stolen table cannot be used to guess members",
    ),
    (
        "repeats: {by: ▸body}",
        "repeats.by",
        "expected fingerprint, or a list of JSON pointers such as [/account, /reference], found 'body'",
    ),
    ("repeats: {by: [/a, ▸/a]}", "repeats.by[1]", "this is listed already"),
    (
        "repeats: {action: refuse, within: ▸8d}",
        "repeats.within",
        "within must be at most retention.remember (7d): what is forgotten cannot be named",
    ),
    (
        "fingerprint: {headers: [▸Accept-Language]}",
        "fingerprint.headers[0]",
        "this header may change from one retry to the next, found 'Accept-Language'",
    ),
    (
        "fingerprint: {headers: [▸idempotency-key]}",
        "fingerprint.headers[0]",
        "this header may change from one retry to the next, found 'idempotency-key'",
    ),
    (
        "upstream: {response_timeout: 10m, answer_within: ▸20m}",
        "upstream.answer_within",
        "answer_within must be at most response_timeout; 20m is longer than 10m",
    ),
    ("upstream: {tls: ▸{ca: /ca.pem}}", "upstream.tls", "tls needs an https URL"),
    ("upstream: {url: 'https://a', tls: ▸{cert: /c.pem}}", "upstream.tls", "cert and key must be given together"),
    ("upstream: {host: ▸a b}", "upstream.host", "expected a host name such as api.example.com, found 'a b'"),
]


@pytest.mark.parametrize(("line", "path", "message"), ROUTE_MISTAKES, ids=[case[0] for case in ROUTE_MISTAKES])
def test_mistake_in_a_route(line: str, path: str, message: str) -> None:
    """A key that is added to a route, what is said about it, and where: at the mark."""
    text = with_route(line.replace(MARK, ""))
    assert report(text) == [f"{ROUTE_LINE}:{column(line)}: routes[0].{path}: {message}"]


def test_a_time_to_settle_in_which_the_request_may_still_arrive() -> None:
    """A probe's "never happened" counts only when nothing can bring the request to the service any more."""
    probe = "recovery: {probe: {path: /a, done: [{status: [200]}], settle: %s}}"
    upstream = "upstream: {response_timeout: 1m, answer_within: 1m}"
    message = "settle must be at least response_timeout and 30s for TCP; 89s is shorter than 90s"
    found = report(with_route(probe % "89s", upstream))
    assert [line.split(": ", 2)[1:] for line in found] == [["routes[0].recovery.probe.settle", message]]
    assert read(with_route(probe % "90s", upstream)).routes


@pytest.mark.parametrize("where", ["upstream: {key: none}", ""], ids=["of-the-route", "of-all"])
def test_resend_to_an_upstream_that_gets_no_key(where: str) -> None:
    """What is sent again must be recognised there, so the two are refused together, wherever each is written."""
    text = with_route("recovery: resend", *([where] if where else []))
    if not where:
        text = text.replace("{url: http://127.0.0.1:9000}", "{url: http://127.0.0.1:9000, key: none}")
    message = "resend needs an upstream that deduplicates on what is forwarded, and upstream.key is none"
    assert report(text) == [f"{ROUTE_LINE}:15: routes[0].recovery: {message}"]


REPLACED = [
    ("key", "key: ▸Idempotency-Key", "", f"expected {KEYS}, found 'Idempotency-Key'"),
    ("key", "key: {▸heder: A}", ".heder", f"{UNKNOWN}; did you mean header?"),
    ("key", "key: {header: A, ▸body: /a}", ".body", "only one of header, headers, body or compose can be used"),
    ("key", "key: ▸{'a b': c}", "", f"expected {KEYS}, found a mapping"),
    ("key", "key: {headers: ▸[]}", ".headers", "expected a list of at least 1, found 0"),
    ("key", "key: {headers: [A, ▸a]}", ".headers[1]", "this is listed already"),
    ("key", "key: {header: ▸Transfer-Encoding}", ".header", f"{CONNECTION}, found 'Transfer-Encoding'"),
    ("key", "key: {header: ▸Idempotency_Status}", ".header", f"{CONNECTION}, found 'Idempotency_Status'"),
    ("key", "key: {header: ▸Content-MD5}", ".header", f"{FRAMING}, found 'Content-MD5'"),
    ("key", "key: {header: ▸Host}", ".header", f"{FRAMING}, found 'Host'"),
    (
        "key",
        "key: {header: ▸Cookie}",
        ".header",
        "a credential is not a key: it stays the same over many requests, found 'Cookie'",
    ),
    (
        "key",
        "key: {header: ▸Idempotency_Key}",
        ".header",
        "services may confuse '_' with '-' in the name of a header, found 'Idempotency_Key'; write Idempotency-Key",
    ),
    ("key", "key: {body: ▸''}", ".body", f"{POINTER}, found ''"),
    ("key", "key: {compose: ▸[{header: A}]}", ".compose", "expected a list of at least 2, found 1"),
    (
        "key",
        "key: {compose: [{header: A}, {▸boddy: /a}]}",
        ".compose[1].boddy",
        f"{UNKNOWN}; did you mean body?",
    ),
    (
        "key",
        "key: {header: A, format: ▸guid}",
        ".format",
        "expected any, structured or uuid, found 'guid'; did you mean uuid?",
    ),
    ("scope", "scope: {▸basic_auth: {}}", ".basic_auth", f"this is not supported here; expected {SCOPES}"),
    ("scope", "scope: ▸global", "", f"expected {SCOPES}, found 'global'"),
    ("scope", "scope: ▸[shared]", "", f"expected {SCOPES}, found a list"),
    ("scope", "scope: {header: X, from: ▸all}", ".from", f"{SOURCES}, found 'all'"),
    ("scope", "scope: {header: X, from: ▸{}}", ".from", f"{SOURCES}, found a mapping"),
    (
        "scope",
        "scope: {header: X, from: [▸10.0.0.1/8]}",
        ".from[0]",
        "expected a network such as 10.0.0.0/8 or fd00::/8, found '10.0.0.1/8'; write 10.0.0.0/8",
    ),
    (
        "scope",
        "scope: ▸{header: X}",
        ".from",
        "required, but missing; "
        "the networks of the hops that may set it, or `any` if only such hops can reach the gateway",
    ),
    (
        "scope",
        "scope: {header: ▸Authorization, from: any}",
        ".header",
        "this header holds a credential: write {api_key: Authorization}, found 'Authorization'",
    ),
    ("scope", "scope: ▸{api_key: idempotency-key}", "", "the header that holds the key cannot name the caller"),
    ("scope", "scope: {compose: [{api_key: A}, ▸{api_key: a}]}", ".compose[1]", "this is listed already"),
    (
        "outcome",
        "outcome: ▸{}",
        ".preset",
        "required, but missing; what each status means; there is no default, because this is a decision about money",
    ),
    (
        "outcome",
        "outcome: ▸standard",
        "",
        "expected a mapping with preset, final, retryable, in_doubt, when, found 'standard'; write {preset: ...}",
    ),
    (
        "outcome",
        "outcome: {preset: ▸payment}",
        ".preset",
        "expected standard, payments or success_only, found 'payment'; did you mean payments?",
    ),
    (
        "outcome",
        "outcome: {preset: ▸payments}",
        ".preset",
        "payments requires secrets.fingerprint_key, so that a stolen table cannot be used to guess bodies",
    ),
    (
        "outcome",
        "outcome: {preset: standard, final: [409, 4xx], retryable: [500, ▸409]}",
        ".retryable[1]",
        "409 is listed already, under final",
    ),
    ("outcome", "outcome: {preset: standard, final: [▸6xx]}", ".final[0]", f"{STATUSES}, found '6xx'"),
    ("outcome", "outcome: {preset: standard, final: [▸101]}", ".final[0]", f"{STATUSES}, found '101'"),
    (
        "match",
        "match: ▸{}",
        ".path",
        "required, but missing; the path: exact, with {name} for a segment, {name:.*} for the rest",
    ),
    (
        "match",
        "match: {path: ▸v1}",
        ".path",
        f"{PATHS}, found 'v1'; a path begins with /",
    ),
    ("match", "match: {path: /a, methods: ▸[]}", ".methods", "expected a list of at least 1, found 0"),
    (
        "match",
        "match: {path: /a, methods: [▸GET]}",
        ".methods[0]",
        f"{METHOD}, found 'GET'; a safe method has no effect to protect",
    ),
    ("match", "match: {path: /a, methods: [▸post]}", ".methods[0]", f"{METHOD}, found 'post'; write POST"),
    ("match", "match: {path: /a, methods: [▸PSOT]}", ".methods[0]", f"{METHOD}, found 'PSOT'; did you mean POST?"),
    (
        "match",
        "match: {path: /a, methods: [▸XYZ]}",
        ".methods[0]",
        f"{METHOD}, found 'XYZ'; the HTTP parser refuses it; possible are ACL, BIND, CHECKOUT, COPY, DELETE, LINK, "
        "LOCK, M-SEARCH, MERGE, MKACTIVITY, MKCALENDAR, MKCOL, MOVE, NOTIFY, PATCH, POST, PROPFIND, PROPPATCH, PURGE, "
        "PUT, QUERY, REBIND, REPORT, SEARCH, SOURCE, SUBSCRIBE, UNBIND, UNLINK, UNLOCK, UNSUBSCRIBE",
    ),
    ("match", "match: {path: /a, methods: [PUT, ▸PUT]}", ".methods[1]", "this is listed already"),
    (
        "match",
        "match: {path: /a, host: ▸'a:80'}",
        ".host",
        "expected a host name such as api.example.com, without a port, found 'a:80'",
    ),
]


@pytest.mark.parametrize(("key", "line", "path", "message"), REPLACED, ids=[case[1] for case in REPLACED])
def test_mistake_in_a_required_key(key: str, line: str, path: str, message: str) -> None:
    """A required key of a route that is written wrongly, what is said about it, and where: at the mark."""
    text = with_route(line.replace(MARK, ""), without=key)
    assert report(text) == [f"{ROUTE_LINE - 1}:{column(line)}: routes[0].{key}{path}: {message}"]


REDACTABLE = "expected a JSON pointer such as /card/number, or header: and a name, such as header:X-Token"
REDACT_MISTAKES = [
    ("[card]", "[0]", f"{REDACTABLE}, found 'card'"),
    ("['header:']", "[0]", "expected the name of a header, found 'header:'"),
    ("['header:Connection']", "[0]", f"{CONNECTION}, found 'header:Connection'"),
    ("[/a, /a]", "[1]", "this is listed already"),
    ("['header:A', 'header: a']", "[1]", "this is listed already"),
    ("['header:A'], strip: [a]", "[0]", "this header is listed under strip, so it is not stored at all"),
    ("[/a], max_stored_bytes: 0", "", "no body is stored, because max_stored_bytes is 0"),
]


@pytest.mark.parametrize(("redact", "place", "message"), REDACT_MISTAKES, ids=[case[0] for case in REDACT_MISTAKES])
def test_mistake_in_what_is_redacted(redact: str, place: str, message: str) -> None:
    """What cannot be redacted, or would be in vain."""
    (found,) = report(with_route(f"response: {{redact: {redact}}}"))
    assert found.partition(": ")[2] == f"routes[0].response.redact{place}: {message}"


HEX, BASE64 = "ab" * 32, b64encode(b"\xab" * 32).decode()
GLOBAL_MISTAKES = [
    ("listen: 8080", "1:9: listen", f"{ADDRESS}, found '8080'; write 127.0.0.1:8080"),
    ("listen: ':8080'", "1:9: listen", f"{ADDRESS}, found ':8080'; write 0.0.0.0:8080 for every interface"),
    ("listen: ::1:80", "1:9: listen", f"{ADDRESS}, found '::1:80'"),
    ("listen: a:65536", "1:9: listen", f"{ADDRESS}, found 'a:65536'"),
    ("listen: {adress: a:80}", "1:10: listen.adress", f"{UNKNOWN}; did you mean address?"),
    (
        "listen: {address: a:80, tls: {cert: /a}}",
        "1:30: listen.tls.key",
        "required, but missing; the private key, as a PEM file",
    ),
    (
        "listen: {address: a:80, tls: {cert: a, key: /b}}",
        "1:37: listen.tls.cert",
        "expected an absolute path such as /etc/idempotency-gateway/tls.pem, found 'a'",
    ),
    (
        "status: {listen: 0.0.0.0:8080}",
        "1:18: status.listen",
        "listen and status.listen both use port 8080",
    ),
    ("listen: '[::]:8081'", "1:9: listen", "listen and status.listen both use port 8081"),
    ("shutdown: {delay: 5}", "1:19: shutdown.delay", f"{DURATION}, found '5'; write 5s"),
    (
        "limits: {max_in_flight: 0}",
        "1:25: limits.max_in_flight",
        "expected a whole number from 1 to 1000000, found '0'",
    ),
    (
        "log: {level: warn}",
        "1:14: log.level",
        "expected debug, info, warning or error, found 'warn'; did you mean warning?",
    ),
    ("trusted_proxies: any", "1:18: trusted_proxies", "expected a list, found 'any'; write [any]"),
    ("service: ''", "1:10: service", f"{NAME}, found ''"),
    (
        "state_dir: ./state",
        "1:12: state_dir",
        "expected an absolute path such as /var/lib/idempotency-gateway, found './state'",
    ),
    ("log: null", "1:6: log", "nothing is written here; indent its keys below it, or leave it out"),
    ("log: {level: info}\nlog: {level: info}", "2:1: log", "the key is written twice, first on line 1"),
    (
        "secrets: {fingerprint_key: hunter2}",
        "1:28: secrets.fingerprint_key",
        "expected {id: NAME, key: SECRET}, or a list of them with the current one first",
    ),
    (
        "secrets: {fingerprint_key: {id: a, key: hunter2}}",
        "1:41: secrets.fingerprint_key.key",
        "expected a secret of at least 32 bytes; make one with: openssl rand -hex 32",
    ),
    ("workers: 0", "1:10: workers", "expected a whole number from 1 to 64, or auto, found '0'"),
    ("workers: 65", "1:10: workers", "expected a whole number from 1 to 64, or auto, found '65'"),
    ("workers: all", "1:10: workers", "expected a whole number from 1 to 64, or auto, found 'all'"),
    (
        f"secrets: {{fingerprint_key: [{{id: a, key: {'s' * 32}}}, {{id: a, key: {'t' * 32}}}]}}",
        "1:82: secrets.fingerprint_key[1].id",
        "another key has this id already",
    ),
    (
        f"secrets: {{identity_key: {{id: a, key: {'s' * 32}}}}}",
        "1:38: secrets.identity_key.key",
        "expected 32 bytes as 64 hexadecimal digits, or as base64; make one with: openssl rand -hex 32",
    ),
    (
        f"secrets: {{identity_key: {{id: a, key: {HEX}}}, fingerprint_key: {{id: a, key: {HEX}}}}}",
        "1:38: secrets.identity_key.key",
        "fingerprint_key has this secret already; make one for each use",
    ),
    (
        f"secrets: {{identity_key: {{id: a, key: {HEX}}}, encryption: [{{id: b, key: '{BASE64}'}}]}}",
        "1:131: secrets.encryption[0].key",
        "identity_key has this secret already; make one for each use",
    ),
]


@pytest.mark.parametrize(("lines", "place", "message"), GLOBAL_MISTAKES, ids=[case[0] for case in GLOBAL_MISTAKES])
def test_mistake_in_a_global_key(lines: str, place: str, message: str) -> None:
    """A global key that is written wrongly, its place, and what is said about it."""
    assert report(with_global(lines)) == [f"{place}: {message}"]


LOOPS = [
    ("127.0.0.1:9000", "http://127.0.0.1:9000"),
    ("127.0.0.1:9000", "http://localhost:9000"),
    ("localhost:9000", "http://localhost:9000"),
    ("0.0.0.0:9000", "http://127.0.0.1:9000"),
    ("'[::]:9000'", "http://localhost:9000"),
    ("'[::1]:443'", "https://[::1]"),
    ("'[::]:9000'", "http://[::1]:9000"),
    ("0.0.0.0:9000", "http://[::1]:9000"),
    ("gateway.internal:80", "http://gateway.internal"),
]


@pytest.mark.parametrize(("listen", "url"), LOOPS)
def test_an_upstream_that_is_the_gateway_itself(listen: str, url: str) -> None:
    """An upstream at the address that the gateway listens on is refused."""
    text = with_global(f"listen: {listen}").replace("http://127.0.0.1:9000", f"'{url}'")
    assert report(text) == [f"2:17: upstream.url: {_loop(listen)}"]


def test_a_route_to_the_gateway_itself() -> None:
    """The same of the upstream of one route, also where nobody wrote down the address to listen on."""
    text = with_route("upstream: {url: 'http://localhost:8080'}")
    assert report(text) == [f"{ROUTE_LINE}:21: routes[0].upstream.url: {_loop('127.0.0.1:8080')}"]


def _loop(listen: str) -> str:
    listen = listen.strip("'")
    return (
        f"the gateway itself listens on {listen} and would forward to itself; "
        "write where the service listens, or let the gateway listen elsewhere"
    )


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0:9000", "http://10.0.0.5:9000"),
        ("0.0.0.0:9000", "http://service:9000"),
        ("127.0.0.1:9001", "http://127.0.0.1:9000"),
    ],
)
def test_an_upstream_elsewhere_on_the_same_port(listen: str, url: str) -> None:
    """A service on another host may have the port that the gateway has on its own."""
    read(with_global(f"listen: {listen}").replace("http://127.0.0.1:9000", url))


LATER = (
    "quotas: {}",
    "recover: {}",
)


@pytest.mark.parametrize("line", LATER)
def test_unknown_global_key(line: str) -> None:
    """What the program does not have is an unknown key, and those that it has are named."""
    key = line.partition(":")[0]
    known = (
        "service, listen, public_url, status, admin, state_dir, upstream, store, limits, shutdown, secrets, delivery, "
        "operations, errors, cors, events, egress, log, traces, workers, trusted_proxies, regions, mode, observe, "
        "routes, unprotected"
    )
    assert report(with_global(line)) == [f"1:1: {key}: {UNKNOWN}; known here: {known}"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        pytest.param("127.0.0.1:9000", f"{URL}, found '127.0.0.1:9000'", id="no-scheme"),
        pytest.param("ftp://a", f"{URL}, found 'ftp://a'", id="scheme"),
        pytest.param("http://", f"{URL}, found 'http://'", id="no-host"),
        pytest.param(
            "http://a/v1", f"{URL}, found 'http://a/v1'; without a path or query: paths are never rewritten", id="path"
        ),
        pytest.param(
            "http://a?x", f"{URL}, found 'http://a?x'; without a path or query: paths are never rewritten", id="query"
        ),
        pytest.param("http://u:hunter2@a", f"{URL}; credentials do not belong in this URL", id="credentials"),
        pytest.param("http://a:port", URL, id="port"),
        pytest.param("http://a_b c", f"{URL}, found 'http://a_b c'", id="host"),
    ],
)
def test_upstream_url(url: str, message: str) -> None:
    """The URL of the service is a scheme, a host and perhaps a port."""
    text = MINIMAL.replace("{url: http://127.0.0.1:9000}", f"{{url: '{url}'}}")
    assert report(text) == [f"1:17: upstream.url: {message}"]


@pytest.mark.parametrize(
    ("durable", "message"),
    [
        pytest.param(
            "redis://u:hun/ter2@h/0",
            f"expected redis://HOST:PORT/DATABASE or redis+sentinel://HOST,HOST/NAME/DATABASE; {ENCODE}",
            id="redis",
        ),
        pytest.param(
            "redis+cluster://u:hunter2@h,i",
            f"{SQLITE}; a Redis Cluster keeps no operations alone: name one server, or sentinels (redis+sentinel://), "
            "or use PostgreSQL, which a cluster may stand before as store.fast",
            id="redis-cluster",
        ),
        pytest.param("mysql://u:hunter2@h/d", SQLITE, id="other-database"),
        pytest.param(
            "sqlite://operations.db", f"{SQLITE}; the path is absolute and the store is a file", id="relative"
        ),
        pytest.param("sqlite:///./a.db", f"{SQLITE}; the path is absolute: write all of it", id="dot"),
        pytest.param("sqlite:///../a.db", f"{SQLITE}; the path is absolute: write all of it", id="parent"),
        pytest.param("sqlite:///~/a.db", f"{SQLITE}; the path is absolute: write all of it", id="tilde"),
        pytest.param("sqlite:///:memory:", f"{SQLITE}; the store is a file", id="memory"),
        pytest.param("sqlite:///var/", f"{SQLITE}; the store is a file", id="directory"),
        pytest.param("postgresql://u:hun/ter2@h/d", f"{SQLITE}; {ENCODE}", id="slash-in-password"),
        pytest.param("postgresql://u:h@n/ter2@h/d", f"{SQLITE}; {ENCODE}", id="at-and-slash-in-password"),
        pytest.param("postgresql://u:12/ter2@h/d", f"{SQLITE}; {ENCODE}", id="digits-and-slash-in-password"),
        pytest.param("postgresql://u:h@n?ter2@h/d", f"{SQLITE}; {ENCODE}", id="at-and-question-mark-in-password"),
        pytest.param("postgresql://u:hun#ter2@h/d", f"{SQLITE}; {ENCODE}", id="hash-in-password"),
        pytest.param("postgresql://u:hun@ter2@h/d", f"{SQLITE}; {ENCODE}", id="at-in-password"),
        pytest.param("postgresql:///d", f"{SQLITE}; {ENCODE}", id="no-host"),
        pytest.param(
            "postgresql://u@h/d?sslmode=verify",
            f"{SQLITE}; sslmode is disable, allow, prefer, require, verify-ca or verify-full",
            id="sslmode",
        ),
        pytest.param(
            f"postgresql://u@{','.join('abcdefghi')}/d",
            f"{SQLITE}; at most 8 hosts",
            id="too-many-hosts",
        ),
        pytest.param(
            "postgresql://u@a,b/d?target_session_attrs=prefer-standby",
            f"{SQLITE}; leave out target_session_attrs and load_balance_hosts: of several hosts, the primary is used",
            id="standby-preferred",
        ),
        pytest.param("postgresql://u:hunter2@[h/d", f"{SQLITE}; {ENCODE}", id="bracket"),
    ],
)
def test_durable_url(durable: str, message: str) -> None:
    """A URL of a store that cannot be used is refused, without a word of it."""
    text = with_global("service: a").replace("sqlite:///var/lib/gateway/operations.db", f"'{durable}'")
    assert report(text) == [f"3:18: store.durable: {message}"]


@pytest.mark.parametrize(
    ("fast", "message"),
    [
        pytest.param("redis+ring://h:6379", REDIS, id="unknown-kind"),
        pytest.param("redis+tls://h:6379", f"{REDIS}; rediss:// is redis:// with TLS", id="tls"),
        pytest.param("redis://h,i", f"{REDIS}; redis:// names one host", id="list-of-hosts"),
        pytest.param("redis+cluster://h,i/1", f"{REDIS}; a cluster has one database: write no number", id="database"),
        pytest.param("redis+cluster://h:0,i", f"{REDIS}; {ENCODE}", id="port"),
        pytest.param("redis+sentinel://h,i", f"{REDIS}; {MASTER}", id="no-master"),
        pytest.param("redis+sentinel://h,i/0/name", f"{REDIS}; {MASTER}", id="master-last"),
        pytest.param(
            "redis+cluster://h?sentinel_password=hunter2",
            f"{REDIS}; the only options are ssl_ca_certs, ssl_certfile, ssl_keyfile",
            id="options-of-sentinels",
        ),
        pytest.param("redis://:hun/ter2@h", f"{REDIS}; {ENCODE}", id="slash-in-password"),
        pytest.param("redis://:hun#ter2@h", f"{REDIS}; {ENCODE}", id="hash-in-password"),
        pytest.param("redis://:hunter2@h/name", f"{REDIS}; the path is the number of the database", id="path"),
        pytest.param(
            "redis://h?socket_timeout=9",
            f"{REDIS}; the only options are ssl_ca_certs, ssl_certfile, ssl_keyfile",
            id="options",
        ),
    ],
)
def test_fast_url(fast: str, message: str) -> None:
    """A URL of a fast tier that cannot be used is refused, without a word of it."""
    text = with_global("service: a").replace("operations.db}", f"operations.db, fast: '{fast}'}}")
    assert report(text) == [f"3:65: store.fast: {message}"]


@pytest.mark.parametrize("line", ["epoch: 7d", "pool: 2"])
def test_unknown_store_key(line: str) -> None:
    """What a store does not do yet is an unknown key; its name is not repeated beside passwords."""
    text = MINIMAL.replace("operations.db}", f"operations.db, {line}}}")
    known = (
        "durable, replicas, dialect, fast, lease, amnesia_window, journal_grace, connections, durability, promotion, "
        "promotion_wait, probation, synchronous, clear_keys, cache_max_age, cache_bytes"
    )
    assert report(text) == [f"2:59: store: {UNKNOWN}; known here: {known}"]


def test_lease_bounds() -> None:
    """A lease too short to be renewed in time is refused."""
    text = MINIMAL.replace("operations.db}", "operations.db, lease: 1s}")
    assert report(text) == ["2:66: store.lease: expected a duration from 3s to 10m, found '1s'"]


def test_the_longest_lease() -> None:
    """What may be configured is what every store takes for the longest that there is."""
    text = MINIMAL.replace("operations.db}", "operations.db, lease: 10m}")
    assert microseconds(read(text).store.lease) == LEASE_US_MAX
    assert report(text.replace("10m", "601s"))


@pytest.mark.parametrize(
    "store",
    [
        pytest.param("{durable: postgresql://gateway@db/gateway}", id="postgres"),
        pytest.param("{durable: sqlite:///a.db, fast: redis://h}", id="redis"),
    ],
)
def test_shared_store_needs_service(store: str) -> None:
    """A store that several services may share asks for the name of this one."""
    text = MINIMAL.replace("{durable: sqlite:///var/lib/gateway/operations.db}", store)
    message = "required, but missing; it distinguishes services that share a store"
    assert report(text) == [f"1:1: service: {message}"]


@pytest.mark.parametrize("name", ["webhook-id", "Svix-Id"])
def test_webhook_key_needs_a_choice(name: str) -> None:
    """A route for webhooks says what their senders get after the replay window, because 410 switches them off."""
    text = with_route("retention: {replay: 1h}").replace("Idempotency-Key", name)
    message = "required for keys of webhooks: 410 makes senders give up for good; write 410, 409 or 204"
    assert report(text) == [f"{ROUTE_LINE}:16: routes[0].retention.expired_status: {message}"]
    assert read(text.replace("replay: 1h", "expired_status: 410")).routes[0].retention.expired_status == 410


def test_names_of_routes() -> None:
    """Two routes of one name are a mistake; two of one operation are not."""
    again = MINIMAL + "\n".join(MINIMAL.splitlines()[3:])
    assert report(again) == ["9:11: routes[1].name: another route has this name already"]
    assert len(read(again.replace("name: pay", "name: other\n    operation: pay", 1)).routes) == 2


def test_tls_needs_https() -> None:
    """TLS settings for an upstream that is reached without TLS are a mistake, unless a route's is https."""
    text = MINIMAL.replace("9000}", "9000, tls: {ca: /ca.pem}}")
    assert report(text) == ["1:45: upstream.tls: tls needs an https URL"]
    assert read(text + "    upstream: {url: 'https://b'}\n").upstream.tls is not None


def test_missing_everything() -> None:
    """Each required key that is missing is named with what it is for."""
    assert report("routes: [{}]") == [
        "1:1: store: required, but missing; "
        "where operations are stored: {durable: sqlite:///PATH} or {durable: postgresql://...}",
        "1:1: upstream: required, but missing; the service behind the gateway: {url: http://127.0.0.1:9000}",
        f"1:10: routes[0].key: required, but missing; where the key is: {KEYS}",
        "1:10: routes[0].match: required, but missing; "
        "which requests the route protects: {path}, and optionally methods and host",
        "1:10: routes[0].name: required, but missing; the name of the route in logs and metrics",
        "1:10: routes[0].outcome: required, but missing; "
        "what the statuses of the service mean: {preset: standard}, payments or success_only",
        f"1:10: routes[0].scope: required, but missing; whose key it is: {SCOPES}",
    ]


def test_one_report() -> None:
    """Mistakes of every kind are reported together, in the order of the file."""
    text = (
        GLOBAL.replace("9000", "9000, anwser_within: 5s")
        + "log: {level: '${LEVEL}'}\nservice: a\nservice: b\n"
        + with_route("in_flight: {wait: 1m, max_wait: 30s}").removeprefix(GLOBAL).replace("standard", "payments")
    )
    assert [line.rpartition(": ")[0] for line in report(text)] == [
        "1:40: upstream.anwser_within",
        "3:14: log.level",
        "5:1: service",
        f"{ROUTE_LINE + 2}:23: routes[0].outcome.preset",
        f"{ROUTE_LINE + 3}:23: routes[0].in_flight.wait",
    ]


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A file that is missing or a directory is a mistake like any other."""
    with pytest.raises(ConfigError) as missing:
        load(tmp_path / "gateway.yaml", {})
    assert str(missing.value) == f"{tmp_path}/gateway.yaml: cannot be read: No such file or directory"
    with pytest.raises(ConfigError) as directory:
        load(tmp_path, {})
    assert str(directory.value) == f"{tmp_path}: cannot be read: Is a directory"


def test_long_report_is_cut() -> None:
    """A file with thousands of mistakes gives a report of bounded length."""
    lines = report("routes: [" + "x," * 1000 + "]")
    assert lines[-1].endswith("and 802 more")


@pytest.mark.parametrize(
    ("key", "value", "path", "instead"),
    [
        ("scope", "{cookie: sid}", "scope.cookie", "cookies change"),
        ("scope", "{query: tenant}", "scope.query", "the query ends up in logs"),
        ("scope", "{compose: [{cookie: sid}, {api_key: X-Key}]}", "scope.compose[0].cookie", "cookies change"),
        ("key", "{query: key}", "key.query", "the query ends up in logs"),
        ("key", "{cookie: key, required: true}", "key.cookie", "cookies change"),
        ("key", "{path: id}", "key.path", ""),
    ],
)
def test_a_form_that_is_not_supported_is_named(key: str, value: str, path: str, instead: str) -> None:
    """The key at fault, what is supported in its place, and what to do instead."""
    (line,) = report(with_route(f"{key}: {value}", without=key))
    assert line.partition(" ")[2].startswith(f"routes[0].{path}: this is not supported here; expected {{header: NAME")
    assert re.search(instead, line)


def test_what_may_be_a_secret_is_not_named() -> None:
    """A value that slipped into the place of a key is not shown."""
    (line,) = report(with_route('scope: {"s3cret value": 1}', without="scope"))
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (
            "durable: sqlite:///a/b, durability: external",
            "store.durability: only a postgresql:// store has a server",
        ),
        (
            "durable: sqlite:///a/b, connections: 2",
            "store.connections: only a postgresql:// store has connections",
        ),
        (
            "durable: sqlite:///a/b, promotion: refuse",
            "store.promotion: only a postgresql:// store has standbys that can be promoted",
        ),
        (
            "durable: sqlite:///a/b, dialect: portable",
            "store.dialect: only a postgresql:// store has a dialect",
        ),
        (
            "durable: 'postgresql://u@h/d?pgbouncer=true', dialect: portable",
            "store.dialect: portable needs sessions of its own: give the server's address without ?pgbouncer=true",
        ),
        (
            "durable: postgresql://u@h/d, dialect: portable, promotion: refuse",
            "store.promotion: the engine itself keeps a portable store through a promotion",
        ),
        (
            "durable: postgresql://u@h/d, durability: none",
            "store.durability: expected server or external, found 'none'",
        ),
        (
            "durable: sqlite:///a/b, replicas: 1",
            "store.replicas: only a durable redis:// store has replicas to be waited for",
        ),
        (
            "durable: redis+sentinel://s/name",
            "store.replicas: required, but missing: how many replicas of a master may be promoted, so that all are "
            "waited for",
        ),
        (
            "durable: redis://r, fast: redis://r",
            "store.fast: a durable Redis needs no fast one before it: leave this out",
        ),
        (
            "durable: redis://r, synchronous: require",
            "store.synchronous: only a postgresql:// store has standbys that can be promoted",
        ),
        (
            "durable: postgresql://u@h/d, dialect: portable, connections: 3",
            "store.connections: a worker with a portable store has five",
        ),
        (
            "durable: postgresql://u@h/d, connections: 1",
            "store.connections: expected a whole number from 2 to 4, found '1'",
        ),
    ],
    ids=[
        "sqlite",
        "sqlite-connections",
        "promotion",
        "sqlite-dialect",
        "pooled-dialect",
        "portable-promotion",
        "no-durability",
        "replicas",
        "no-replicas",
        "two-redis",
        "redis-synchronous",
        "portable-connections",
        "one-connection",
    ],
)
def test_settings_of_another_store(store: str, message: str) -> None:
    """What the configured store does not have cannot be set."""
    text = re.sub(r"store: \{.*\}", f"service: shop\nstore: {{{store}}}", MINIMAL)
    assert [line.partition(" ")[2] for line in report(text)] == [message]


NOT_ALONE = {
    "accept": ("accept: {identity: unverified}", "routes[0].accept"),
    "repeats": ("repeats: {action: refuse}", "routes[0].repeats.action"),
    "payments": ("outcome: {preset: payments}", "routes[0].outcome.preset"),
    "observe": ("mode: observe", "routes[0].mode"),
}


@pytest.mark.parametrize("name", NOT_ALONE)
def test_what_a_durable_redis_does_not_keep(name: str) -> None:
    """What is over several records, or must not be in a memory, is refused with what to use instead."""
    setting, path = NOT_ALONE[name]
    text = with_route(setting, without=setting.partition(":")[0])
    text = re.sub(r"store: \{.*\}", "service: shop\nstore: {durable: 'redis://u@h/0'}", text)
    found = [line.partition(" ")[2] for line in report(text)]
    assert [line for line in found if line.startswith(f"{path}: ") and "a durable Redis" in line], found


def test_events_of_a_durable_redis() -> None:
    """They are refused as well."""
    text = re.sub(r"store: \{.*\}", "service: shop\nstore: {durable: 'redis://u@h/0'}", MINIMAL)
    found = report(f"{text}\nevents: {{sinks: [{{name: out, kind: stdout}}]}}\n")
    assert any("a durable Redis changes one record at a time" in line for line in found), found


@pytest.mark.parametrize(
    ("secret", "hint"),
    [
        ("${EMPTY}", "the environment variable EMPTY is empty"),
        ("$TOKEN", "only ${NAME} is replaced, with its braces"),
    ],
)
def test_a_secret_that_is_no_value_of_a_variable(secret: str, hint: str) -> None:
    """What is wrong is the variable, or how it is written, and not the length of the secret."""
    (line,) = report(with_global(f'admin: {{token: "{secret}"}}'), {"EMPTY": "", "TOKEN": "t" * 20})
    assert line.endswith(f"visible ASCII characters; {hint}")


def test_a_value_of_a_variable_gets_no_hint_of_what_it_begins_with() -> None:
    """It is a secret, and braces are not what it lacks."""
    (line,) = report(with_global('admin: {token: "${TOKEN}"}'), {"TOKEN": "$short"})
    assert line.endswith("visible ASCII characters; make one with: openssl rand -hex 32")


def test_an_empty_secret_file_is_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("\n")
    (line,) = report(with_global(f'admin: {{token: "${{file:{secret}}}"}}'))
    assert line.endswith(f"; {secret} is empty")


def test_a_secret_that_looks_like_a_variable_is_remarked_on() -> None:
    """It is long enough to be one, and is taken to the letter."""
    (notice,) = notices(read(with_global("admin: {token: $GATEWAY_ADMIN_TOKEN}")))
    assert str(notice) == "admin.token: this is taken to the letter: only ${NAME} is replaced, with its braces"
    assert notices(read(with_global('admin: {token: "${TOKEN}"}'), {"TOKEN": "a$b" * 9})) == ()
