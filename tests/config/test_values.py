"""What a configuration means to the rest of the program, and what `check` remarks."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from gateway.app.life import StartError
from gateway.app.parts import callers_of
from gateway.app.stores import outbox_of, relay_of, sink_of
from gateway.config import Config, ConfigError, Placeholders, notices, parse
from gateway.config.effective import effective
from gateway.config.leaf import Address, SqliteUrl, UpstreamUrl, duration_seconds, duration_text, size_bytes, size_text
from gateway.core.confidential import NO_SEALING
from gateway.core.delivery import DeliveryPolicy
from gateway.core.identity.key import CloudEventKey
from gateway.core.operation import microseconds
from gateway.core.outbox import DEFAULT_TYPES, EventType
from gateway.core.outbox import Part as EventPart
from gateway.core.webhook import PRESETS, Algorithm, Digest, EgressPolicy, Encoding, Inbox, Place
from gateway.events.brokers import KafkaSink, NatsSink
from gateway.events.redis_stream import RedisStreamSink
from gateway.events.webhook import WebhookSink
from gateway.observe.facts import Events
from gateway.protect.accepting import AcceptPolicy
from gateway.protect.route import accept_policy
from gateway.store.base import boot_seconds
from tests.config.support import ACCEPTING, INBOX, MINIMAL, is_said, read, rows, written
from tests.support.memory_store import MemoryStore

TOKEN = "0123456789abcdef"
KEY = "A" * 43 + "="
WHSEC = "whsec_" + "k" * 32
JWT = "issuer: https://login.example/, audience: api, claims: [sub]"
ASK = "url: 'http://127.0.0.1:4180/oauth2/auth?app=shop'"

# -- remarks -----------------------------------------------------------------------------------------------------------

REMARKS = """
key: {header: Idempotancy-Key} => key: Idempotancy-Key is nearly Idempotency-Key; is it misspelt?
key: {header: X-Idempotency-Key} =>
^secrets: {unreadable: accept} => secrets.unreadable: …
^admin: {listen: 127.0.0.1:1} => admin.listen: nothing listens here without admin.token or admin.tokens
^admin: {listen: 0.0.0.0:1, token: <TOKEN>} => admin.listen: the admin API speaks plain HTTP: its traffic shows the
    token
^admin: {token: $GATEWAY_ADMIN_TOKEN} => admin.token: this is taken to the letter: only ${NAME} is replaced, with its
    braces
^service: shop + ^store: {durable: sqlite:///a, fast: redis://cache} => store.fast: SQLite serves one host: no other
    host may use this Redis for the same service
store_unavailable: forward => store_unavailable: while the durable store is down, requests run unprotected
scope: {header: X, from: any} => scope: any client that reaches the gateway can claim to be any caller
match: {path: /pay, methods: [PUT, DELETE]} => match.methods: PUT is idempotent by definition; protect it only if a
    repeat would act again or get another response | match.methods: DELETE is idempotent by definition; protect it only
    if a repeat after a success would get 404
match: {path: "/orders/:id"} => match.path: ':' is taken as it is; a segment that varies is written {name}
match: {path: "/orders/{id}:cancel"} =>
recovery: {probe: {path: '/pay?of={key}', done: [{status: [200]}]}} => recovery.probe.path: the store has keys of this
    route in clear, in the targets of its probes
recovery: {probe: {path: '/pay?of={key}', done: [{status: [200]}]}} + ^store: {durable: sqlite:///a,
    clear_keys: true} =>
^trusted_proxies: [10.0.0.0/16] + <FORWARDED> => scope: <UNSEEN>
^trusted_proxies: [10.0.0.0/8] + <FORWARDED> =>
scope: shared + repeats: {action: refuse} + fingerprint: {body: none} => repeats.action: all callers share one scope:
    the request of one may be refused as a repeat of another's | repeats.by: fingerprint.body is none: all requests of a
    caller to one URL are repeats of one another
key: {body: /id} + repeats: {} => repeats.by: the key is a part of the body that is compared, so two keys never have the
    same content
key: {body: /id} + repeats: {} + fingerprint: {ignore: [/id]} =>
scope: {jwt: {issuer: me, audience: api, keys: /k, claims: [tenant, sub]}} =>
scope: {jwt: {issuer: me, audience: api, keys: /k, claims: [tenant, email]}} => scope: email may change…
scope: {jwt: {issuer: me, audience: api, keys: /k, claims: [tenant, sid]}} => scope: sid may change…
scope: {forward_auth: {url: 'https://auth.example/', principal: X-User}} =>
scope: {forward_auth: {url: 'http://auth:4180/', principal: X-User}} => …http://auth:4180/ is asked without TLS…
authorize: {forward_auth: {url: 'http://auth/?secret=s3cret'}} => …http://auth/ is asked without TLS…
scope: {forward_auth: {<ASK>, principal: X-User, cache: 10s}} => …for 10s a permission of
    http://127.0.0.1:4180/oauth2/auth cannot be withdrawn
scope: {client_certificate: sha256} + ^listen: {address: '127.0.0.1:1', tls: {cert: /c, key: /k, client_ca: /a}} => …a
    renewed certificate is another caller…
dead_letter: {on_repeat: requeue} => dead_letter: has no effect: this route accepts nothing
"""
WORDS = {
    "TOKEN": TOKEN,
    "ASK": ASK,
    "FORWARDED": "scope: {header: X-Forwarded-User, from: [10.0.0.0/8]}",
    "UNSEEN": "the service does not get X-Forwarded-User, which only hops in trusted_proxies may send it",
}


@pytest.mark.parametrize(("keys", "said"), rows(REMARKS, WORDS))
def test_a_remark(keys: str, said: str) -> None:
    """What is allowed and questionable is remarked on, without what may be secret in a URL."""
    found = [str(each).replace("routes[0].", "") for each in notices(read(written(*keys.split(" + "))))]
    assert is_said(" | ".join(found), said), found
    assert "s3cret" not in str(found)
    assert "app=shop" not in str(found)


def test_remarks_on_what_is_accepted() -> None:
    text = written(
        "accept: {identity: unverified}",
        "outcome: {preset: payments}",
        f"^secrets: {{fingerprint_key: {{id: a, key: {'k' * 32}}}, encryption: [{{id: a, key: {KEY}}}]}}",
        "^delivery: {workers: 0}",
        base=ACCEPTING,
    )
    assert [str(notice) for notice in notices(parse(text))] == [
        "delivery.workers: what is accepted waits until `idempotency-gateway deliver` runs elsewhere",
        "routes[0].accept.identity: any client that reaches the gateway can store requests, to the limits",
        "routes[0].recovery: every 5xx of a delivery is in doubt, and waits for an operator: let a probe find out what "
        "happened",
    ]


def test_a_route_behind_another_is_remarked_on() -> None:
    again = "".join(f"{line}\n" for line in MINIMAL.splitlines()[3:]).replace("name: pay", "name: again")
    text = MINIMAL + again.replace("{path: /pay}", "{path: /pay/, methods: [POST]}")
    assert [str(notice) for notice in notices(read(text))] == [
        "routes[1].match: again never matches: all its requests go to pay before it"
    ]


# -- single values -----------------------------------------------------------------------------------------------------


READ: list[tuple[str, str, object]] = [
    ("^upstream: {url: http://a}", "upstream.url", UpstreamUrl("http", "a", 80)),
    ("^upstream: {url: 'HTTPS://A.b:443/'}", "upstream.url", UpstreamUrl("https", "a.b", 443)),
    ("^upstream: {url: http://127.0.0.1:9000}", "upstream.url.authority", "127.0.0.1:9000"),
    ("^upstream: {url: 'https://[::1]:80'}", "upstream.url.authority", "[::1]:80"),
    # Port 0 collides with nothing, nor does one port on two addresses.
    ("^listen: '[::]:0'", "listen.address", Address("::", 0)),
    ("^status: {listen: '10.0.0.1:8080'}", "status.listen", Address("10.0.0.1", 8080)),
    # The path of an embedded store is absolute and may be escaped.
    ("^store: {durable: sqlite:////var//a.db}", "store.durable", SqliteUrl(Path("/var/a.db"))),
    ("^store: {durable: sqlite:///var/a%20b.db}", "store.durable", SqliteUrl(Path("/var/a b.db"))),
    # What Postgres drivers understand is passed on as it is.
    *(
        (f"^store: {{durable: '{dsn}'}}", "store.durable.dsn", SecretStr(dsn))
        for dsn in (
            "postgresql://u:p%2Fw@h:5432/d?sslmode=require",
            "postgresql://u@a:1,b:2/d",
            "postgresql:///d?host=/run/postgresql",
        )
    ),
    # One server, a master behind sentinels, a cluster; with credentials and TLS.
    *(
        (f"^store: {{durable: sqlite:///a, fast: '{url}'}}", "store.fast.url", SecretStr(url))
        for url in (
            "rediss://user:p%40ss@[::1]:6380/3?ssl_ca_certs=/ca.pem",
            "rediss+sentinel://user:pass@s1,[fd00::1]:5000/my.master/2?sentinel_username=a&sentinel_password=b",
            "rediss+cluster://:pass@c1?ssl_ca_certs=/ca.pem",
        )
    ),
    # A default of a member is JSON: a word is a string, and a number keeps its digits.
    *(
        (f"fingerprint: {{defaults: {{/a: {given}}}}}", "routes.fingerprint.defaults", {"/a": text})
        for given, text in (
            ("web", '"web"'), ("10.00", "10.00"), ("""'"10"'""", '"10"'), ("true", "true"), ("'null'", "null"),
            ("é", r'"\u00e9"'), ("''", '""'),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "path", "value"), READ, ids=[f"{line} {path}" for line, path, _ in READ])
def test_a_value_is_read_as_what_it_means(line: str, path: str, value: object) -> None:
    """And so it is from the text of the effective configuration; a stand-in for a secret has the same form."""
    whole = read(written("^service: shop", line))
    found, again = (
        reduce(getattr, path.removeprefix("routes.").split("."), each.routes[0] if "routes." in path else each)
        for each in (whole, parse(effective(whole)))
    )
    assert found == value
    if isinstance(value, SecretStr):
        found, again = (each.get_secret_value().partition("://")[0] for each in (found, again))
    assert again == found


# -- durations and sizes -----------------------------------------------------------------------------------------------


DURATIONS: dict[str, float] = {"300ms": 0.3, "5s": 5, "2m": 120, "24h": 86400, "7d": 604800, "0s": 0}
NO_DURATIONS = ("", "5", "s", "-5s", "5 s", "5S", "1.5s", "05s", "5sec", "1h30m", "5s\n", "\u0665s", "1w")
SIZES: dict[str, float] = {"0": 0, "4096": 4096, "64KiB": 65536, "1MiB": 2**20, "2GiB": 2**31}
NO_SIZES = ("", "KiB", "-1", "1.5MiB", "64KB", "64k", "1 MiB", "010", "0x10", "1_000", "1MiB\n")


@pytest.mark.parametrize(
    ("reads", "values"),
    [
        (duration_seconds, DURATIONS | dict.fromkeys(NO_DURATIONS, None)),
        (size_bytes, SIZES | dict.fromkeys(NO_SIZES, None)),
    ],
)
def test_durations_and_sizes(reads: Callable[[str], float | None], values: dict[str, float | None]) -> None:
    """A whole number and a known unit, which a size may lack, and nothing else."""
    assert {text: reads(text) for text in values} == pytest.approx(values)


@given(st.integers(min_value=0, max_value=10**11), st.integers(min_value=0, max_value=10**12))
def test_what_is_written_is_read_as_itself(milliseconds: int, size: int) -> None:
    if len(duration_text(milliseconds / 1000)) <= 12:
        assert round((duration_seconds(duration_text(milliseconds / 1000)) or 0) * 1000) == milliseconds
    assert size_bytes(size_text(size)) == size


# -- what is accepted --------------------------------------------------------------------------------------------------


def accepts(*keys: str, base: str = ACCEPTING) -> AcceptPolicy:
    config = parse(written(*keys, base=base))
    policy = accept_policy(config, config.routes[0])
    assert policy is not None
    return policy


def test_a_route_overrides_the_delivery_of_all() -> None:
    """Key by key; what it leaves out is as for all routes."""
    own = accepts("delivery: {schedule: [2s], unauthorized: retry}", "^delivery: {max_answers: 3}").delivery
    assert own == DeliveryPolicy(schedule_us=(microseconds(2),), answers_max=3, buries_unauthorized=False)


@pytest.mark.parametrize(
    "text",
    [
        ACCEPTING.replace(KEY, "${X}"),
        *(written(f"scope: {{jwt: {{{JWT}, keys: /k, ca: /ca}}}}".replace(each, '"${X}"', 1)).replace(", ca: /ca", "")
          for each in ("https://login.example/", "api", "/k")),
        written(f"scope: {{jwt: {{{JWT}, keys: https://k.example, ca: '${{X}}'}}}}"),
        written(f'scope: {{jwt: {{{JWT}, keys: {{secret: "${{X}}"}}, algorithms: [HS256]}}}}'),
        written("scope: {forward_auth: {url: '${X}', principal: X-User, ca: '${X}'}}"),
        written("authorize: {forward_auth: {url: '${X}'}}"),
        *(written(f"inbox: {{preset: {each}, secrets: [{{id: a, key: '${{X}}'}}]}}", base=INBOX)
          for each in ("standard_webhooks", "stripe")),
    ],
)  # fmt: skip
def test_a_file_is_checked_without_its_environment(text: str) -> None:
    """A secret, a URL or a file that is not there counts as one."""
    with pytest.raises(ConfigError):
        parse(text)
    names = Placeholders()
    assert parse(text, stand_in=names).routes
    assert names.names == ["X"]


# -- inboxes -----------------------------------------------------------------------------------------------------------


def of(preset: str = "stripe", *settings: str, key: str | None = None) -> str:
    """An inbox on one line, with one secret."""
    secret = key or (WHSEC if PRESETS[preset].is_secret_base64 else "k" * 24)
    return f"inbox: {{{', '.join((f'preset: {preset}', f'secrets: [{{id: a, key: {secret!r}}}]', *settings))}}}"


def inboxed(*keys: str) -> Config:
    return parse(written(*keys, base=INBOX))


def compiled(*keys: str) -> Inbox:
    """The inbox of the route, as messages are examined."""
    inbox = inboxed(*keys).routes[0].inbox
    assert inbox is not None
    return inbox.compiled


@pytest.mark.parametrize("preset", ["standard_webhooks", "stripe", "slack", "github", "shopify", "cloudevents"])
def test_preset_and_secret_are_enough(preset: str) -> None:
    """An event is remembered for as long as its sender may send it again."""
    config = inboxed(of(preset))
    assert PRESETS[preset].horizon_seconds <= config.routes[0].retention.remember == 35 * 86400
    assert notices(config) == ()


def test_secrets_while_they_change() -> None:
    secrets = f"[{{id: new, key: {WHSEC}}}, {{id: old, key: {'whpk_' + KEY!r}, until: 2026-12-01T01:00:00+01:00}}]"
    inbox = f"inbox: {{preset: standard_webhooks, secrets: {secrets}}}"
    assert [(each.id, each.algorithm, each.until) for each in compiled(inbox).secrets] == [
        ("new", Algorithm.HMAC, None),
        ("old", Algorithm.ED25519, 1796083200.0),
    ]
    (notice,) = notices(inboxed(inbox))
    assert notice.path == "routes[0].inbox.sign_again"
    assert "as: standard_webhooks" in notice.message
    own = f"as: standard_webhooks, signing_secrets: [{{id: own, key: {KEY}, until: 2027-01-01T00:00:00Z}}]"
    (notice,) = notices(inboxed(f"{inbox[:-1]}, {own}}}"))
    assert notice.path == "routes[0].inbox.signing_secrets"


def test_cloud_events_under_another_signature() -> None:
    """The scheme is that of another preset, and so are the secrets; the id is not covered by it."""
    settings = "cloudevents: {signature: standard_webhooks, origins: [EventGrid.azure.net]}"
    found = compiled(of("cloudevents", settings, key=WHSEC))
    assert [scheme.key for scheme in found.schemes] == [CloudEventKey()] * 2
    assert (found.guards_content, found.origins) == (True, (b"eventgrid.azure.net",))
    assert compiled(of("cloudevents", "cloudevents: {origins: any}")).origins == (b"*",)


def test_how_a_sender_without_a_preset_signs() -> None:
    hmac = "hmac: {header: X-Sign, id: X-Event, prefix: v1=, digest: sha512, encoding: base64}"
    (scheme,) = compiled(of("hmac", hmac)).schemes
    assert scheme.signature == Place(b"x-sign", b"v1=")
    assert (scheme.digest, scheme.encoding) == (Digest.SHA512, Encoding.BASE64)


@pytest.mark.parametrize(("retention", "days"), [("replay: 60d", 60), ("remember: 34d", 34), ("replay: 1d", 35)])
def test_how_long_events_are_remembered(retention: str, days: int) -> None:
    """A longer replay window lengthens the default; what is written counts."""
    assert inboxed(of(), f"retention: {{{retention}}}").routes[0].retention.remember == days * 86400


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param("keys: {}/none.json", "cannot be used: .*No such file", id="no-file"),
        pytest.param("keys: {}/bad.json", "cannot be used: it is neither JSON nor PEM", id="no-keys"),
        pytest.param("keys: discover, ca: {}/bad.json", "cannot be used: .*holds no certificate", id="no-authority"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, keys: str, message: str) -> None:
    """What is wrong with this machine ends a start; what is wrong with an issuer does not."""
    (tmp_path / "bad.json").write_text("<html>")
    text = written(f"scope: {{jwt: {{{JWT}, {keys.format(tmp_path)}}}}}")
    with pytest.raises(StartError, match=message):
        callers_of(parse(text), Events(), lambda: 0.0, lambda: 0.0)


# -- events ------------------------------------------------------------------------------------------------------------

SECRET = "whsec_" + "0f" * 32
LEDGER = f'{{name: ledger, kind: webhook, url: "https://ledger.test/hooks", secrets: [{{id: a, key: "{SECRET}"}}]}}'
FEED = '{name: feed, kind: redis_stream, url: "redis://feed:6379/1", stream: operations}'

BUS = (
    '{name: bus, kind: nats, servers: ["nats://b:1"], stream: S, subject: "s.{type}", user: u, password: p, '
    "ordered: true}"
)
LOG = (
    '{name: log, kind: kafka, servers: ["b:9093"], topic: "o.{type}", tls: true, ca: /ca.pem, mechanism: PLAIN, '
    "idempotence: false, user: u, password: p}"
)


def with_sinks(*sinks: str, top: str = "", **changes: str) -> str:
    more = "".join(f", {name}: {value}" for name, value in changes.items())
    return written(*(f"^{line}" for line in (*top.splitlines(), f"events: {{sinks: [{', '.join(sinks)}]{more}}}")))


def test_what_a_sink_receives() -> None:
    """What the section says, unless the sink says something else; the source is the service's by default."""
    own = FEED.replace("}", ", types: [operation.accepted], include: [key], routes: [pay]}")
    outbox = outbox_of(read(with_sinks(LEDGER, own, include="[location]")), NO_SEALING)
    assert [(each.types, each.routes, each.include) for each in outbox.subscriptions] == [
        (DEFAULT_TYPES, None, frozenset((EventPart.LOCATION,))),
        (frozenset((EventType.ACCEPTED,)), frozenset(("pay",)), frozenset((EventPart.KEY,))),
    ]
    assert outbox.source == "urn:idempotency-gateway:default"


def test_what_check_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which library is missing, what the proxy has to do, that standard output acknowledges nothing."""
    monkeypatch.setattr("gateway.config.checks.find_spec", lambda _: None)
    top = 'egress: {proxy: "http://proxy:3128"}\ntraces: {endpoint: "http://collector:4318/v1/traces"}'
    config = read(with_sinks(LEDGER, BUS, "{name: lines, kind: stdout}", LOG, top=top))
    found = {notice.path: notice.message for notice in notices(config)}
    said = {
        "events.sinks[1]": "idempotency-gateway[nats]",
        "events.sinks[3]": "idempotency-gateway[kafka]",
        "traces": "idempotency-gateway[otel]",
        "events.sinks[2]": "not acknowledged",
        "egress.proxy": "proxy has to check",
    }
    assert {path for path, text in said.items() if text in found[path]} == said.keys()
    assert "events.sinks[0]" not in found


def test_each_setting_reaches_its_sink() -> None:
    ledger = LEDGER.replace("}]", ", until: 2030-01-01T00:00:00Z}], format: standard").replace("https", "http")
    feed = FEED.replace(" stream:", " fsync: true, window: 2h, max_length: 9, stream:")
    old = FEED.replace("feed,", "old,").replace(" stream:", " max_age: 3h, stream:")
    egress = "egress: {allow: [10.0.0.0/8], deny: [10.1.0.0/16], ports: [80], https_only: false}"
    text = with_sinks(ledger, feed, old, BUS, LOG, keep="2h", max_event_bytes="2KiB", source="'urn:me'", top=egress)
    config = read(text)
    webhook, *others = (sink_of(config, sink) for sink in config.events.sinks)
    assert isinstance(webhook, WebhookSink)
    (secret,) = webhook._secrets
    assert (secret.id, len(secret.key), secret.until) == ("a", 48, 1893456000.0)
    assert (webhook._url, webhook._format) == ("http://ledger.test/hooks", "standard")
    networks = ((ip_network("10.0.0.0/8"),), (ip_network("10.1.0.0/16"),))
    assert webhook._egress == EgressPolicy(*networks, frozenset((80,)), https_only=False)
    for sink, settings, kind in zip(
        others, config.events.sinks[1:], (RedisStreamSink, RedisStreamSink, NatsSink, KafkaSink), strict=True
    ):
        assert isinstance(sink, kind)
        assert sink._settings == settings
    assert others[1]._settings.max_age == 10_800
    relay = relay_of(config, MemoryStore().cold, Events(), boot_seconds)
    assert relay is not None
    assert relay.keep_us == microseconds(7200)
    # Those that take a connection for each event take fewer at a time.
    assert [sink.places for sink in (webhook, *others)] == [16, 16, 16, 100, 100]
    outbox = outbox_of(config, NO_SEALING)
    assert (outbox.source, outbox.event_bytes_max) == ("urn:me", 2048)
    assert [each.is_ordered for each in outbox.subscriptions] == [False, False, False, True, False]


# -- every setting alone ---------------------------------------------------------------------------------------------

PROBE = "path: /a, done: [{status: [200]}]"
ALONE = f"""
^upstream: {{url: http://a, answer_within: 1ms}}
^upstream: {{url: http://a, answer_within: 1h}}
^upstream: {{url: http://a, response_timeout: 1ms}}
^upstream: {{url: http://a, response_timeout: 24h}}
upstream: {{answer_within: 1h}}
upstream: {{response_timeout: 1ms}}
in_flight: {{wait: 10m}}
in_flight: {{max_wait: 0s}}
retention: {{replay: 3650d}}
retention: {{remember: 1s}}
repeats: {{within: 3650d}}
recovery: {{probe: {{{PROBE}, settle: 31s}}}}
recovery: {{probe: {{{PROBE}, settle: 7d}}}}
body: {{max_bytes: 0}}
body: {{spool_over: 16GiB}}
^shutdown: {{delay: 10m}}
^store: {{durable: sqlite:///a, lease: 3s}}
^store: {{durable: sqlite:///a, lease: 10m}}
^store: {{durable: sqlite:///a, journal_grace: 1h}}
^delivery: {{deliver_within: 365d}}
^delivery: {{breaker: {{open: 1h}}}}
^delivery: {{breaker: {{max_open: 100ms}}}}
^workers: 64
"""


@pytest.mark.parametrize("key", ALONE.strip().split("\n"))
def test_a_setting_alone_is_never_refused(key: str) -> None:
    """One that bounds another, at an end of its range, whatever else has its default; and what is ordered is in
    order."""
    config = read(written(key))
    (route,) = config.routes
    for upstream in (config.upstream, config.upstream_for(route)):
        assert upstream.answer_within <= upstream.response_timeout
    assert route.in_flight.wait <= route.in_flight.max_wait
    assert route.retention.replay <= route.retention.remember
    if route.settle is not None:
        assert config.upstream_for(route).response_timeout + 30.0 <= route.settle


@pytest.mark.parametrize(
    ("everywhere", "route", "answer_within", "response_timeout"),
    [
        ("", "", "30s", "10m"),
        ("", "upstream: {response_timeout: 2s}", "2s", "2s"),
        ("", "upstream: {answer_within: 20m}", "20m", "20m"),
        (", response_timeout: 2s", "upstream: {response_timeout: 1m}", "30s", "1m"),
        (", answer_within: 20m", "upstream: {answer_within: 5s}", "5s", "10m"),
        ("", f"recovery: {{probe: {{{PROBE}, settle: 45s}}}}", "15s", "15s"),
        ("", f"recovery: {{probe: {{{PROBE}, settle: 2h}}}}", "30s", "10m"),
        (", response_timeout: 5m", f"recovery: {{probe: {{{PROBE}, settle: 330s}}}}", "30s", "5m"),
    ],
)
def test_the_times_of_an_attempt_follow_what_is_written(
    everywhere: str, route: str, answer_within: str, response_timeout: str
) -> None:
    """For all routes or for one, and what is written for all counts where the route writes nothing."""
    config = read(written(route).replace("9000}", f"9000{everywhere}}}"))
    upstream = config.upstream_for(config.routes[0])
    assert duration_text(upstream.answer_within) == answer_within
    assert duration_text(upstream.response_timeout) == response_timeout
