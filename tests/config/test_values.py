"""What a configuration means to the rest of the program."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gateway.config import notices, parse
from gateway.config.address import Address, PostgresUrl, SqliteUrl, UpstreamUrl
from gateway.config.effective import effective
from tests.config.support import MINIMAL, read, with_global, with_route


def test_route_upstream_goes_before_the_global_one() -> None:
    """A route changes single keys of the upstream; what it does not write stays as it is for all."""
    text = MINIMAL.replace("9000}", "9000, connect_timeout: 7s, host: upstream}")
    config = read(text + "    upstream: {answer_within: 1m, host: preserve}\n")
    merged = config.upstream_for(config.routes[0])
    assert (merged.connect_timeout, merged.answer_within, merged.host) == (7.0, 60.0, "preserve")
    assert merged.url == config.upstream.url
    assert (config.upstream.answer_within, config.upstream.host) == (30.0, "upstream")


@pytest.mark.parametrize(
    ("url", "value", "authority"),
    [
        ("http://a", UpstreamUrl("http", "a", 80), "a"),
        ("HTTPS://A.b:443/", UpstreamUrl("https", "a.b", 443), "a.b"),
        ("http://127.0.0.1:9000", UpstreamUrl("http", "127.0.0.1", 9000), "127.0.0.1:9000"),
        ("https://[::1]:80", UpstreamUrl("https", "::1", 80), "[::1]:80"),
    ],
)
def test_upstream_url(url: str, value: UpstreamUrl, authority: str) -> None:
    """A URL of the service is taken apart, and its authority is as it stands in Host."""
    found = read(MINIMAL.replace("http://127.0.0.1:9000", f"'{url}'")).upstream.url
    assert (found, found.authority) == (value, authority)


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("sqlite:////var//a.db", "/var/a.db"),
        ("sqlite:///var/a%20b.db", "/var/a b.db"),
    ],
)
def test_sqlite_path(url: str, store: str) -> None:
    """The path of an embedded store is absolute and may be escaped."""
    assert read(MINIMAL.replace("sqlite:///var/lib/gateway/operations.db", url)).store.durable == SqliteUrl(Path(store))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p%2Fw@h:5432/d?sslmode=require",
        "postgres://h",
        "postgresql://u@a:1,b:2/d",
        "postgresql://u@[::1]:5432/d",
        "postgresql:///d?host=/run/postgresql",
    ],
)
def test_postgres_dsn(dsn: str) -> None:
    """What Postgres drivers understand is passed on as it is."""
    durable = read(
        with_global("service: a").replace("sqlite:///var/lib/gateway/operations.db", f"'{dsn}'")
    ).store.durable
    assert isinstance(durable, PostgresUrl)
    assert durable.dsn.get_secret_value() == dsn


def test_addresses() -> None:
    """Addresses of both families are taken apart; port 0 collides with nothing."""
    config = read(with_global("listen: '[::]:0'", "status: {listen: localhost:0}"))
    assert (config.listen.address, config.status.listen) == (Address("::", 0), Address("localhost", 0))
    assert (str(config.listen.address), str(config.status.listen)) == ("[::]:0", "localhost:0")


def test_same_port_on_other_addresses() -> None:
    """One port on two addresses of the machine is no collision."""
    assert read(with_global("listen: 10.0.0.1:80", "status: {listen: '127.0.0.1:80'}")).status.listen.port == 80


def test_secrets_come_current_first() -> None:
    """One key or several, the first is the current one."""
    one, other = "s" * 32, "t" * 40
    single = read(with_global(f"secrets: {{fingerprint_key: {{id: a, key: {one}}}}}")).secrets
    several = read(
        with_global(f"secrets: {{fingerprint_key: [{{id: b, key: {other}}}, {{id: a, key: {one}}}]}}")
    ).secrets
    assert [(key.id, key.key.get_secret_value()) for key in single.fingerprint_keys] == [("a", one.encode())]
    assert [key.id for key in several.fingerprint_keys] == ["b", "a"]


def test_identity_key() -> None:
    """It is what the digits or the base64 encode, under a name for people."""
    found = read(with_global(f"secrets: {{identity_key: {{id: '2026', key: '{'0a' * 32}'}}}}")).secrets.identity_key
    assert found is not None
    assert (found.id, found.key.get_secret_value()) == ("2026", b"\n" * 32)


def test_an_embedded_store_beside_a_shared_tier_is_noticed() -> None:
    """Hosts that share a Redis could each have an SQLite: `check` says that only one of them may."""
    text = MINIMAL.replace("store: {", "service: shop\nstore: {fast: redis://cache:6379/0, ")
    assert [str(notice) for notice in notices(read(text))] == [
        "store.fast: SQLite serves one host: no other host may use this Redis for the same service"
    ]


def test_notices() -> None:
    """What is allowed and unwise is named for `check`."""
    text = (
        MINIMAL
        + "    store_unavailable: forward\n"
        + "".join(f"{line}\n" for line in MINIMAL.splitlines()[3:])
        .replace("name: pay", "name: again")
        .replace("{api_key: X-Api-Key}", "{header: X, from: any}")
        .replace("{path: /pay}", "{path: /pay/, methods: [POST]}")
        + "".join(f"{line}\n" for line in MINIMAL.splitlines()[3:])
        .replace("name: pay", "name: put")
        .replace("{path: /pay}", "{path: /pay, methods: [PUT, DELETE]}")
    )
    assert [str(notice) for notice in notices(read(text))] == [
        "routes[0].store_unavailable: while the durable store is down, requests run unprotected",
        "routes[1].scope: any client that reaches the gateway can claim to be any caller",
        "routes[2].match.methods: PUT is idempotent by definition; "
        "protect it only if a repeat would act again or get another response",
        "routes[2].match.methods: DELETE is idempotent by definition; "
        "protect it only if a repeat after a success would get 404",
        "routes[1].match: again never matches: all its requests go to pay before it",
    ]


@pytest.mark.parametrize(("path", "is_noticed"), [("/orders/:id", True), ("/orders/{id}:cancel", False)])
def test_a_variable_in_the_spelling_of_other_routers_is_noticed(path: str, is_noticed: bool) -> None:
    """A segment such as :id is text here, so that the route would protect nothing that was meant."""
    text = MINIMAL.replace("{path: /pay}", f'{{path: "{path}"}}')
    message = "routes[0].match.path: ':' is taken as it is; a segment that varies is written {name}"
    assert [str(notice) for notice in notices(read(text))] == [message] * is_noticed


@pytest.mark.parametrize(
    ("asked", "clear_keys", "is_noticed"),
    [("{key}", "false", True), ("{key}", "true", False), ("{operation_id}", "false", False)],
    ids=["by-key", "in-clear-anyway", "by-operation"],
)
def test_a_probe_that_asks_by_the_key_is_noticed(asked: str, clear_keys: str, is_noticed: bool) -> None:
    """The store holds what a probe asks, and so a key in clear that is a digest otherwise."""
    recovery = f"    recovery: {{probe: {{path: '/pay?of={asked}', done: [{{status: [200]}}]}}}}\n"
    text = MINIMAL.replace("store: {", f"store: {{clear_keys: {clear_keys}, ") + recovery
    message = "routes[0].recovery.probe.path: the store has keys of this route in clear, in the targets of its probes"
    assert [str(notice) for notice in notices(read(text))] == [message] * is_noticed


@pytest.mark.parametrize(
    ("trusted", "is_noticed"),
    [("[]", True), ("[10.0.0.0/16]", True), ("[10.0.0.0/8]", False), ('[0.0.0.0/0, "::/0"]', False)],
)
def test_a_scope_by_a_field_that_the_service_does_not_get_is_noticed(trusted: str, is_noticed: bool) -> None:
    """Who sets X-Forwarded-User for the scope has to be a trusted proxy too, or the service behind misses it."""
    scope = "{header: X-Forwarded-User, from: [10.0.0.0/8]}"
    text = f"trusted_proxies: {trusted}\n" + MINIMAL.replace("{api_key: X-Api-Key}", scope)
    message = (
        "routes[0].scope: the service does not get X-Forwarded-User, which only hops in trusted_proxies may send it"
    )
    assert [str(notice) for notice in notices(read(text))] == [message] * is_noticed


def test_repeats_that_are_unwise_are_noticed() -> None:
    """Callers that can refuse one another's requests, and contents that are all the same or never are."""
    shared = MINIMAL.replace("{api_key: X-Api-Key}", "shared")
    refused = shared + "    repeats: {action: refuse}\n    fingerprint: {body: none}\n"
    assert [str(notice) for notice in notices(read(refused)) if "repeats" in notice.path] == [
        "routes[0].repeats.action: all callers share one scope: the request of one may be refused as a repeat of "
        "another's",
        "routes[0].repeats.by: fingerprint.body is none: all requests of a caller to one URL are repeats of one "
        "another",
    ]
    in_body = MINIMAL.replace("{header: Idempotency-Key}", "{body: /id}") + "    repeats: {}\n"
    assert [str(notice) for notice in notices(read(in_body))] == [
        "routes[0].repeats.by: the key is a part of the body that is compared, so two keys never have the same content"
    ]
    for settings in ("fingerprint: {ignore: [/id]}", "fingerprint: {only: [/amount]}"):
        assert notices(read(f"{in_body}    {settings}\n")) == ()


@pytest.mark.parametrize(
    "url",
    [
        "redis://cache:6379/0",
        "rediss://user:p%40ss@[::1]:6380/3?ssl_ca_certs=/ca.pem",
        "redis+sentinel://s1:26379,s2,s3/mymaster",
        "rediss+sentinel://user:pass@s1,[fd00::1]:5000/my.master/2?sentinel_username=a&sentinel_password=b",
        "redis+cluster://c1,c2:7001,c3",
        "rediss+cluster://:pass@c1?ssl_ca_certs=/ca.pem",
    ],
)
def test_the_forms_of_a_fast_tier(url: str) -> None:
    """One server, a master behind sentinels, a cluster; with credentials and TLS. A stand-in has the same form."""
    config = read(MINIMAL.replace("store: {", f"service: shop\nstore: {{fast: '{url}', "))
    assert config.store.fast is not None
    assert config.store.fast.url.get_secret_value() == url
    again = parse(effective(config)).store.fast
    assert again is not None
    assert again.url.get_secret_value().partition("://")[0] == url.partition("://")[0]


def test_what_is_made_of_settings_stays_where_it_is() -> None:
    """A worker gets the settings, and so does a copy with other ones: each makes its own of them."""
    jwt = "scope: {jwt: {issuer: 'https://a.example', audience: api, keys: discover, claims: [sub]}}"
    config = read(with_route(jwt, "retention: {remember: 2d}", without="scope"))
    (route,) = config.routes
    made = route.key_spec, route.scope_spec, route.status_policy, route.keep_policy, route.retention.remember_us
    (sent,) = pickle.loads(pickle.dumps(config)).routes
    assert sent == route
    again = sent.key_spec, sent.scope_spec, sent.status_policy, sent.keep_policy, sent.retention.remember_us
    assert again == made
    longer = route.retention.model_copy(update={"remember": 1.0})
    assert longer.remember_us == 1_000_000
    assert route.model_copy(update={"retention": longer}).retention.remember_us == 1_000_000
