"""What a configuration means to the rest of the program, and what `check` remarks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.app.life import StartError
from gateway.app.parts import callers_of
from gateway.app.stores import outbox_of, relay_of, sink_of
from gateway.config import Config, ConfigError, Placeholders, notices, parse
from gateway.config.effective import effective
from gateway.config.leaf import (
    Address,
    Leaf,
    PostgresUrl,
    SqliteUrl,
    UpstreamUrl,
    duration_seconds,
    duration_text,
    size_bytes,
    size_text,
)
from gateway.core.confidential import NO_SEALING
from gateway.core.delivery import DeliveryPolicy
from gateway.core.identity.key import CloudEventKey, ContentKey, EventKey, HeaderKey
from gateway.core.operation import microseconds
from gateway.core.outbox import DEFAULT_TYPES, EventType
from gateway.core.outbox import Part as EventPart
from gateway.core.outcome import Meaning, VersionHeader
from gateway.core.webhook import PRESETS, Algorithm, EgressPolicy, Inbox, Part, SignAgain
from gateway.events.brokers import KafkaSink, NatsSink
from gateway.events.redis_stream import RedisStreamSink
from gateway.events.webhook import WebhookSink
from gateway.observe.facts import Events
from gateway.protect.accepting import AcceptPolicy
from gateway.protect.route import accept_policy, route_of
from gateway.store.base import boot_seconds
from tests.config.support import (
    ACCEPTING,
    INBOX,
    MINIMAL,
    is_said,
    read,
    report,
    rows,
    written,
)
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
key: {header: X-Request-Key} =>
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
recovery: {probe: {path: '/pay?of={operation_id}', done: [{status: [200]}]}} =>
^trusted_proxies: [] + <FORWARDED> => scope: <UNSEEN>
^trusted_proxies: [10.0.0.0/16] + <FORWARDED> => scope: <UNSEEN>
^trusted_proxies: [10.0.0.0/8] + <FORWARDED> =>
^trusted_proxies: [0.0.0.0/0, "::/0"] + <FORWARDED> =>
scope: shared + repeats: {action: refuse} + fingerprint: {body: none} => repeats.action: all callers share one scope:
    the request of one may be refused as a repeat of another's | repeats.by: fingerprint.body is none: all requests of a
    caller to one URL are repeats of one another
key: {body: /id} + repeats: {} => repeats.by: the key is a part of the body that is compared, so two keys never have the
    same content
key: {body: /id} + repeats: {} + fingerprint: {ignore: [/id]} =>
key: {body: /id} + repeats: {} + fingerprint: {only: [/amount]} =>
scope: {jwt: {issuer: me, audience: api, keys: /k, claims: [tenant, sub]}} =>
scope: {jwt: {issuer: me, audience: api, keys: /k, claims: [tenant, email]}} => scope: email may change…
scope: {jwt: {issuer: me, audience: api, keys: /k, claims: [tenant, sid]}} => scope: sid may change…
scope: {forward_auth: {<ASK>, principal: X-User}} =>
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


def test_route_upstream_goes_before_the_global_one() -> None:
    """A route changes single keys of the upstream; what it does not write stays as it is for all."""
    everywhere = "^upstream: {url: 'http://a', connect_timeout: 7s, host: upstream}"
    config = read(written("upstream: {answer_within: 1m, host: preserve}", everywhere))
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
    found = read(written(f"^upstream: {{url: '{url}'}}")).upstream.url
    assert (found, found.authority) == (value, authority)


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite:////var//a.db", "/var/a.db"), ("sqlite:///var/a%20b.db", "/var/a b.db")]
)
def test_sqlite_path(url: str, path: str) -> None:
    """The path of an embedded store is absolute and may be escaped."""
    assert read(written(f"^store: {{durable: {url}}}")).store.durable == SqliteUrl(Path(path))


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
    durable = read(written("^service: a", f"^store: {{durable: '{dsn}'}}")).store.durable
    assert isinstance(durable, PostgresUrl)
    assert durable.dsn.get_secret_value() == dsn


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
    config = read(written("^service: shop", f"^store: {{durable: sqlite:///a, fast: '{url}'}}"))
    assert config.store.fast is not None
    assert config.store.fast.url.get_secret_value() == url
    again = parse(effective(config)).store.fast
    assert again is not None
    assert again.url.get_secret_value().partition("://")[0] == url.partition("://")[0]


def test_addresses() -> None:
    """Addresses of both families are taken apart; port 0 collides with nothing, nor one port on two addresses."""
    config = read(written("^listen: '[::]:0'", "^status: {listen: localhost:0}"))
    assert (config.listen.address, config.status.listen) == (Address("::", 0), Address("localhost", 0))
    assert (str(config.listen.address), str(config.status.listen)) == ("[::]:0", "localhost:0")
    assert read(written("^listen: 10.0.0.1:80", "^status: {listen: '127.0.0.1:80'}")).status.listen.port == 80


def test_secrets_come_current_first() -> None:
    """One key or several, the first is the current one; an identity key is what its digits encode."""
    one, other = "s" * 32, "t" * 40
    single = read(written(f"^secrets: {{fingerprint_key: {{id: a, key: {one}}}}}")).secrets
    keys = f"[{{id: b, key: {other}}}, {{id: a, key: {one}}}]"
    several = read(written(f"^secrets: {{fingerprint_key: {keys}}}")).secrets
    assert [(key.id, key.key.get_secret_value()) for key in single.fingerprint_keys] == [("a", one.encode())]
    assert [key.id for key in several.fingerprint_keys] == ["b", "a"]
    found = read(written(f"^secrets: {{identity_key: {{id: '2026', key: '{'0a' * 32}'}}}}")).secrets.identity_key
    assert found is not None
    assert (found.id, found.key.get_secret_value()) == ("2026", b"\n" * 32)


@pytest.mark.parametrize(
    ("setting", "secret"),
    [
        ("admin: {token: '${T}'}", TOKEN),
        (f"admin: {{tokens: [{{name: vera, token: {TOKEN}, role: viewer}}]}}", TOKEN),
        (f"admin: {{sign_in: {{secret: {TOKEN}, proxy: {{from: [10.0.0.1], name: U, roles: {{admin: [a]}}}}}}}}",
         TOKEN),
        (f"admin: {{sign_in: {{secret: {TOKEN}, jwt: {{{JWT}, keys: discover, header: Authorization, groups: groups, "
         "roles: {admin: [a]}}}}", TOKEN),
    ],
    ids=["token", "tokens", "proxy", "jwt"],
)  # fmt: skip
def test_what_opens_the_admin_port(setting: str, secret: str) -> None:
    """A token of 16 characters, or a way to sign in; no representation shows a secret."""
    config = read(written(f"^{setting}"), {"T": "a$b" + TOKEN})
    assert config.admin.is_on
    assert secret not in repr(config)
    assert notices(config) == ()


def test_what_is_made_of_settings_stays_where_it_is() -> None:
    """A worker gets the settings, and so does a copy with other ones: each makes its own of them."""
    config = read(written(f"scope: {{jwt: {{{JWT}, keys: discover}}}}", "retention: {remember: 2d}"))
    (route,) = config.routes
    made = route.key_spec, route.scope_spec, route.status_policy, route.keep_policy, route.retention.remember_us
    (sent,) = pickle.loads(pickle.dumps(config)).routes
    assert sent == route
    again = sent.key_spec, sent.scope_spec, sent.status_policy, sent.keep_policy, sent.retention.remember_us
    assert again == made
    longer = route.retention.model_copy(update={"remember": 1.0})
    assert longer.remember_us == 1_000_000
    assert route.model_copy(update={"retention": longer}).retention.remember_us == 1_000_000


# -- responses ---------------------------------------------------------------------------------------------------------


def test_what_the_settings_come_to() -> None:
    """Bodies are read where something in them counts; what is stripped or redacted is not kept as made either."""
    plain = read(MINIMAL).routes[0].keep_policy
    assert (plain.reference, plain.reads_bodies, plain.version, plain.is_fetched) == ("location", False, None, False)
    found = read(written("response: {reference: /data/id, version: {header: API-Version}}")).routes[0].keep_policy
    assert (found.reference, found.reads_bodies) == (("data", "id"), True)
    assert found.version == VersionHeader(b"api-version")
    for line in ("response: {strip: [Location]}", "response: {redact: ['header:location']}"):
        assert read(written(line)).routes[0].keep_policy.reference is None
    fetched = read(written("response: {replay: fetch}")).routes[0].keep_policy
    assert (fetched.is_fetched, fetched.body_bytes_max, fetched.fetch_path) == (True, 0, None)
    rules = "outcome: {preset: standard, when: [{status: [2xx], where: {/a: [b]}, is: in_doubt}]}"
    route = read(written(rules)).routes[0]
    ((rule, meaning),) = route.status_policy.when
    assert (meaning, len(rule.statuses), rule.where) == (Meaning.IN_DOUBT, 100, ((("a",), frozenset(("b",))),))
    assert route.keep_policy.reads_bodies


DEFAULTS = """
web => "web"
10.00 => 10.00
'"10"' => "10"
true => true
'null' => null
é => "\\u00e9"
'' => ""
"""


@pytest.mark.parametrize(("given", "text"), rows(DEFAULTS, {}))
def test_a_default_is_written_as_in_json(given: str, text: str) -> None:
    """A word is a string, and a number keeps its digits."""
    assert read(written(f"fingerprint: {{defaults: {{/a: {given}}}}}")).routes[0].fingerprint.defaults == {"/a": text}


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
    """A duration to the millisecond, a size to the byte."""
    if len(duration_text(milliseconds / 1000)) <= 12:
        assert round((duration_seconds(duration_text(milliseconds / 1000)) or 0) * 1000) == milliseconds
    assert size_bytes(size_text(size)) == size


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is written is a value of the grammar or none; nothing is guessed."""
    for value in (duration_seconds(text), size_bytes(text)):
        assert value is None or (text.isascii() and text[0].isdigit() and value >= 0)


# -- what is accepted --------------------------------------------------------------------------------------------------


def accepts(config: Config) -> AcceptPolicy:
    """What the first route accepts."""
    policy = accept_policy(config, config.routes[0])
    assert policy is not None
    return policy


def test_a_route_overrides_the_delivery_of_all() -> None:
    """Key by key; what it leaves out is as for all routes."""
    own = "delivery: {schedule: [2s], unauthorized: retry}"
    policy = accepts(parse(written(own, "^delivery: {max_answers: 3}", base=ACCEPTING)))
    assert policy.delivery == DeliveryPolicy(schedule_us=(microseconds(2),), answers_max=3, buries_unauthorized=False)


def test_a_short_body_limit_narrows_what_is_accepted() -> None:
    """What cannot come in cannot be accepted: the default follows."""
    assert accepts(parse(written("body: {max_bytes: 1KiB}", base=ACCEPTING))).request_bytes_max == 1024


def test_order_is_for_what_is_all_accepted() -> None:
    """Whatever runs at once, or without the store, would pass those that wait."""
    keys = "accept: {mode: always}", "order: {by: /account}", "key: {header: Idempotency-Key, required: true}"
    order = accepts(parse(written(*keys, base=ACCEPTING))).order
    assert order is not None
    assert (order.on_stop, order.missing) == ("stop", "refuse")


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
    """The rest follows from the preset: key, acknowledgement, what is accepted, how long events are remembered."""
    config, found = inboxed(of(preset)), compiled(of(preset))
    (route,) = config.routes
    assert found.acknowledgement == (202 if preset in ("standard_webhooks", "cloudevents") else 200)
    assert found.guards_content is (preset in ("github", "shopify"))
    assert (found.tolerance_seconds, found.sign_again, found.refuses_changed) == (300, SignAgain.LATE, False)
    assert found.answers_challenge is (preset == "slack")
    assert accepts(config).is_always
    assert accepts(config).pending_per_scope_max == accepts(config).settings.max_pending
    assert route.retention.remember == 35 * 86400
    assert route.retention.remember >= PRESETS[preset].horizon_seconds
    assert notices(config) == ()


def test_keys_of_presets() -> None:
    """What identifies an event is part of the recipe of the route."""
    about = (b"x-github-event", b"x-github-hook-id")
    specs = {
        of("standard_webhooks"): HeaderKey((b"webhook-id", b"svix-id")),
        of("github"): EventKey(ContentKey(), about),
        of("cloudevents"): CloudEventKey(),
        of("github", "replay_guard: none"): EventKey(HeaderKey((b"X-GitHub-Delivery",)), about),
    }
    for key, spec in specs.items():
        assert inboxed(key).routes[0].key_spec == spec


def test_secrets_while_they_change() -> None:
    """Several secrets, some of which end."""
    secrets = f"[{{id: new, key: {WHSEC}}}, {{id: old, key: {'whpk_' + KEY!r}, until: 2026-12-01T01:00:00+01:00}}]"
    inbox = f"inbox: {{preset: standard_webhooks, secrets: {secrets}}}"
    new, old = compiled(inbox).secrets
    assert (new.id, new.algorithm, new.until) == ("new", Algorithm.HMAC, None)
    assert (old.id, old.algorithm, old.until) == ("old", Algorithm.ED25519, 1796083200.0)
    (notice,) = notices(inboxed(inbox))
    assert notice.path == "routes[0].inbox.sign_again"
    assert "as: standard_webhooks" in notice.message
    own = f"as: standard_webhooks, signing_secrets: [{{id: own, key: {KEY}, until: 2027-01-01T00:00:00Z}}]"
    (notice,) = notices(inboxed(f"{inbox[:-1]}, {own}}}"))
    assert notice.path == "routes[0].inbox.signing_secrets"


def test_a_sender_without_a_preset() -> None:
    """How it signs is written in the file."""
    sign = "hmac: {header: X-Sign, prefix: 'v1=', signed: 'v1:{timestamp}:{body}', digest: sha512, id: /event/id, "
    found = compiled(of("hmac", sign + "timestamp: X-Time}"))
    (scheme,) = found.schemes
    assert scheme.signed == (b"v1:", Part.TIME, b":", Part.BODY)
    assert scheme.is_id_signed
    assert not found.guards_content
    assert compiled(of("hmac", "hmac: {header: X-Sign, id: X-Event}")).guards_content


def test_cloud_events_under_another_signature() -> None:
    """The scheme is that of another preset, and so are the secrets; the id is not covered by it."""
    settings = "cloudevents: {signature: standard_webhooks, origins: [EventGrid.azure.net]}"
    found = compiled(of("cloudevents", settings, key=WHSEC))
    assert [scheme.key for scheme in found.schemes] == [CloudEventKey()] * 2
    assert found.guards_content
    assert found.origins == (b"eventgrid.azure.net",)
    assert compiled(of("cloudevents", "cloudevents: {origins: any}")).origins == (b"*",)


@pytest.mark.parametrize(("retention", "days"), [("replay: 60d", 60), ("remember: 34d", 34), ("replay: 1d", 35)])
def test_how_long_events_are_remembered(retention: str, days: int) -> None:
    """A longer replay window lengthens the default; what is written counts."""
    assert inboxed(of(), f"retention: {{{retention}}}").routes[0].retention.remember == days * 86400


@pytest.mark.parametrize(
    ("keys", "differs"),
    [
        ([], False),
        (["fingerprint: {ignore: [/livemode]}"], False),
        (["fingerprint: {only: [/id]}"], True),
        (["fingerprint: {body: raw}"], True),
    ],
)
def test_what_differs_between_deliveries_is_ignored(keys: list[str], differs: bool) -> None:
    """Stripe counts down in the event itself; the route's own settings win."""
    config = inboxed(of(), *keys)
    route = route_of(config, config.routes[0], Mock())
    assert (("pending_webhooks",) not in route.fingerprinter.spec.ignore) is differs


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_secret_of_an_issuer_is_not_shown() -> None:
    """Not in what a defect prints."""
    text = written(f"scope: {{jwt: {{{JWT}, keys: {{secret: {'s' * 32}}}, algorithms: [HS256]}}}}")
    assert "s" * 32 not in repr(parse(text))
    assert report(text.replace("[HS256]", "[HS512]"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("keys: {}/none.json", "cannot be used: .*No such file"),
        ("keys: {}/bad.json", "cannot be used: it is neither JSON nor PEM"),
        ("keys: discover, ca: {}/bad.json", "cannot be used: .*holds no certificate"),
    ],
    ids=["no-file", "no-keys", "no-authority"],
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
    ledger, feed = outbox.subscriptions
    assert (ledger.types, ledger.routes, ledger.include) == (DEFAULT_TYPES, None, frozenset((EventPart.LOCATION,)))
    assert (feed.types, feed.routes) == (frozenset((EventType.ACCEPTED,)), frozenset(("pay",)))
    assert feed.include == frozenset((EventPart.KEY,))
    assert outbox.source == "urn:idempotency-gateway:default"


def test_what_check_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which library is missing, what the proxy has to do, that standard output acknowledges nothing."""
    nats = '{name: bus, kind: nats, servers: ["nats://bus:4222"], stream: OPERATIONS}'
    monkeypatch.setattr("gateway.config.checks.find_spec", lambda _: None)
    config = read(
        with_sinks(
            LEDGER,
            nats,
            "{name: lines, kind: stdout}",
            LOG,
            top='egress: {proxy: "http://proxy:3128"}\ntraces: {endpoint: "http://collector:4318/v1/traces"}',
        )
    )
    found = {notice.path: notice.message for notice in notices(config)}
    assert "idempotency-gateway[nats]" in found["events.sinks[1]"]
    assert "idempotency-gateway[kafka]" in found["events.sinks[3]"]
    assert "idempotency-gateway[otel]" in found["traces"]
    assert "not acknowledged" in found["events.sinks[2]"]
    assert "proxy has to check" in found["egress.proxy"]
    assert "events.sinks[0]" not in found


def test_each_setting_reaches_its_sink() -> None:
    """As the parts of a gateway are built from the file."""
    ledger = LEDGER.replace("}]", ", until: 2030-01-01T00:00:00Z}], format: standard").replace("https", "http")
    feed = FEED.replace(" stream:", " fsync: true, window: 2h, max_length: 9, stream:")
    old = FEED.replace("feed,", "old,").replace(" stream:", " max_age: 3h, stream:")
    nats = '{name: bus, kind: nats, servers: ["nats://b:1"], stream: S, subject: "s.{type}", user: u, password: p'
    nats += ", ordered: true}"
    egress = "egress: {allow: [10.0.0.0/8], deny: [10.1.0.0/16], ports: [80], https_only: false}"
    text = with_sinks(ledger, feed, old, nats, LOG, keep="2h", max_event_bytes="2KiB", source="'urn:me'", top=egress)
    config = read(text)
    webhook, stream, aged, bus, log = (sink_of(config, sink) for sink in config.events.sinks)
    assert isinstance(webhook, WebhookSink)
    (secret,) = webhook._secrets
    assert (secret.id, len(secret.key), secret.until) == ("a", 48, 1893456000.0)
    assert (webhook._url, webhook._format) == ("http://ledger.test/hooks", "standard")
    networks = ((ip_network("10.0.0.0/8"),), (ip_network("10.1.0.0/16"),))
    assert webhook._egress == EgressPolicy(*networks, frozenset((80,)), https_only=False)
    assert isinstance(stream, RedisStreamSink)
    assert stream._settings == config.events.sinks[1]
    assert isinstance(aged, RedisStreamSink)
    assert aged._settings.max_age == 10_800
    assert isinstance(bus, NatsSink)
    assert bus._settings == config.events.sinks[3]
    assert isinstance(log, KafkaSink)
    assert log._settings == config.events.sinks[4]
    relay = relay_of(config, MemoryStore().cold, Events(), boot_seconds)
    assert relay is not None
    assert relay.keep_us == microseconds(7200)
    # Those that take a connection for each event take fewer at a time.
    assert [sink.places for sink in (webhook, stream, aged, bus, log)] == [16, 16, 16, 100, 100]
    outbox = outbox_of(config, NO_SEALING)
    assert (outbox.source, outbox.event_bytes_max) == ("urn:me", 2048)
    assert [each.is_ordered for each in outbox.subscriptions] == [False, False, False, True, False]


# -- every setting alone ---------------------------------------------------------------------------------------------

Keys = tuple[str, ...]
ENCRYPTED = f"secrets: {{encryption: [{{id: a, key: '{'A' * 43}='}}]}}\n"
_ASKED = "url: 'http://127.0.0.1:4180/'"
# What the forms of a scope require, and `authorize` does.
_TOKENS = "issuer: a, audience: b, keys: /k, claims: [sub]"
CALLERS = {
    "jwt": {"scope": _TOKENS, "admin": f"{_TOKENS}, header: X-Token, groups: groups, roles: {{viewer: [staff]}}"},
    "forward_auth": {"scope": f"{_ASKED}, principal: X-User", "authorize": _ASKED},
}
PROBE = "path: /a, done: [{status: [200]}]"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not None:
        for inner in get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation):
            yield from _models(inner)


def _bounded(model: type[BaseModel], path: Keys) -> Iterator[tuple[Keys, str]]:
    """Every setting that has bounds, each with its least value and its greatest."""
    for name, field in model.model_fields.items():
        yield from (((*path, name), value) for value in _ends(field))
        for inner in _models(field.annotation):
            yield from _bounded(inner, (*path, name))


def _ends(field: FieldInfo) -> Iterator[str]:
    # Where nothing is a value too, the bounds stand inside of the annotation.
    inner = [leaf for kind in get_args(field.annotation) for leaf in getattr(kind, "__metadata__", ())]
    for leaf in (*field.metadata, *inner):
        if isinstance(leaf, Leaf) and leaf.bounds is not None:
            yield from map(str, leaf.bounds)


def _of_caller(form: str, keys: Keys, value: str) -> str:
    """The same for a setting of who verifies callers, or who signs in to the console."""
    section = f"{{{form}: {{{CALLERS[form][keys[0]]}, {keys[-1]}: {value}}}}}"
    if keys[0] == "admin":
        return written(f"^admin: {{sign_in: {{secret: {'s' * 16}, {section[1:]}}}")
    whole = f"{{compose: [{section}, {{api_key: X-Key}}]}}" if "compose" in keys else section
    return written(f"{keys[0]}: {whole}")


def _alone(path: Keys, value: str) -> str:
    """A minimal file with this setting beside what is required."""
    keys = path[1:] if path[0] == "routes" else path
    if keys[-1] in ("schedule", "ports"):
        value = f"[{value}]"
    if keys[:2] == ("events", "sinks"):
        sink = "name: feed, kind: redis_stream, url: 'redis://feed:6379', stream: operations"
        return written(f"^events: {{sinks: [{{{sink}, {keys[-1]}: {value}}}]}}")
    if path[:2] == ("routes", "accept"):
        return ENCRYPTED + written(f"accept: {{identity: unverified, {keys[-1]}: {value}}}")
    if path[:2] == ("routes", "inbox"):
        inbox = f"inbox: {{preset: stripe, secrets: [{{id: a, key: {'k' * 24}}}], {keys[-1]}: {value}}}"
        return written(inbox, base=INBOX)
    if (form := next((form for form in CALLERS if form in keys), None)) is not None:
        return _of_caller(form, keys, value)
    if keys[:2] == ("recovery", "probe"):
        return written(f"recovery: {{probe: {{{PROBE}, {keys[-1]}: {value}}}}}")
    line = ("".join(f"{{{key}: " for key in keys) + value + "}" * len(keys))[1:-1]
    if path[0] == "routes":
        return written(line)
    durable = "postgresql://u@h/d" if keys[-1] in ("promotion_wait", "probation", "connections") else "sqlite:///a/b"
    durable = "redis://u@h/0" if keys[-1] == "replicas" else durable
    required = {"upstream": "url: http://127.0.0.1:9000", "store": f"durable: {durable}"}
    if keys[0] in required:
        line = f"{keys[0]}: {{{required[keys[0]]}, {keys[-1]}: {value}}}"
    return written(f"^{line}", "^service: shop")


ALONE = list(dict.fromkeys(_bounded(Config, ())))


def test_the_pairs_that_are_ordered_are_among_them() -> None:
    """What follows is generated from the models, and misses none of the settings that bound another."""
    keys = {".".join(path) for path, _ in ALONE}
    assert {
        "upstream.answer_within",
        "upstream.response_timeout",
        "routes.upstream.answer_within",
        "routes.upstream.response_timeout",
        "routes.in_flight.wait",
        "routes.in_flight.max_wait",
        "routes.retention.replay",
        "routes.retention.remember",
        "routes.recovery.probe.settle",
        "routes.body.spool_over",
        "shutdown.delay",
        "store.lease",
        "store.journal_grace",
        "workers",
    } <= keys


@pytest.mark.parametrize(("path", "value"), ALONE, ids=[f"{'.'.join(path)}={value}" for path, value in ALONE])
def test_a_setting_alone_is_never_refused(path: Keys, value: str) -> None:
    """At either end of its range, whatever else has its default; and what is ordered is in order."""
    config = read(_alone(path, value))
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
        (", response_timeout: 2s", "", "2s", "2s"),
        (", answer_within: 20m", "", "20m", "20m"),
        ("", "upstream: {response_timeout: 2s}", "2s", "2s"),
        ("", "upstream: {answer_within: 20m}", "20m", "20m"),
        (", response_timeout: 2s", "upstream: {response_timeout: 1m}", "30s", "1m"),
        (", response_timeout: 2s", "upstream: {answer_within: 1s}", "1s", "2s"),
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
