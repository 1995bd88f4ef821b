"""Inboxes: what the file must say of a sender, and what follows where it says nothing."""

from __future__ import annotations

from typing import Final
from unittest.mock import Mock

import pytest

from gateway.config import Config, ConfigError, Placeholders, notices, parse
from gateway.core.identity.key import CloudEventKey, ContentKey, EventKey, HeaderKey
from gateway.core.webhook import PRESETS, Algorithm, Inbox, Part, SignAgain
from gateway.protect.route import accept_policy, route_of
from tests.config.support import report

KEY: Final = "A" * 43 + "="
SECRET: Final = "k" * 24
WHSEC: Final = "whsec_" + "k" * 32
TOP: Final = f"""\
upstream: {{url: http://127.0.0.1:9000}}
store: {{durable: sqlite:///var/lib/gateway/operations.db}}
secrets: {{encryption: [{{id: a, key: '{KEY}'}}]}}
"""
ROUTE: Final = """\
routes:
  - name: events
    match: {path: /events}
    scope: shared
    outcome: {preset: success_only}
"""
OWN: Final = f"signing_secrets: [{{id: own, key: {KEY}}}]"
HMAC: Final = "hmac: {header: X-Sign, id: X-Event}"


def inbox(preset: str = "stripe", *settings: str, key: str | None = None) -> str:
    """An inbox on one line, with one secret."""
    secret = key or (WHSEC if PRESETS[preset].is_secret_base64 else SECRET)
    return f"inbox: {{{', '.join((f'preset: {preset}', f'secrets: [{{id: a, key: {secret!r}}}]', *settings))}}}"


def written(*lines: str, top: str = TOP) -> str:
    """A file with one route that has these lines."""
    return top + ROUTE + "".join(f"    {line}\n" for line in lines)


def mistakes(text: str) -> list[str]:
    """The mistakes of a file without their places in the text."""
    return [line.partition(": ")[2] for line in report(text)]


def compiled(config: Config) -> Inbox:
    """The inbox of the first route, as messages are examined."""
    inbox = config.routes[0].inbox
    assert inbox is not None
    return inbox.compiled


@pytest.mark.parametrize("preset", ["standard_webhooks", "stripe", "slack", "github", "shopify", "cloudevents"])
def test_preset_and_secret_are_enough(preset: str) -> None:
    """The rest follows from the preset: key, acknowledgement, what is accepted, how long events are remembered."""
    config = parse(written(inbox(preset)))
    (route,) = config.routes
    assert route.inbox is not None
    found, policy = route.inbox.compiled, accept_policy(config, route)
    assert policy is not None
    assert found.acknowledgement == (202 if preset in ("standard_webhooks", "cloudevents") else 200)
    assert found.guards_content is (preset in ("github", "shopify"))
    assert (found.tolerance_seconds, found.sign_again, found.refuses_changed) == (300, SignAgain.LATE, False)
    assert found.answers_challenge is (preset == "slack")
    assert policy.is_always
    assert policy.pending_per_scope_max == policy.settings.max_pending
    assert route.retention.remember == 35 * 86400
    assert route.retention.remember >= PRESETS[preset].horizon_seconds
    assert notices(config) == ()


ABOUT = (b"x-github-event", b"x-github-hook-id")


def test_keys_of_presets() -> None:
    """What identifies an event is part of the recipe of the route."""
    specs = {
        "standard_webhooks": HeaderKey((b"webhook-id", b"svix-id")),
        "github": EventKey(ContentKey(), ABOUT),
        "cloudevents": CloudEventKey(),
    }
    for preset, spec in specs.items():
        assert parse(written(inbox(preset))).routes[0].key_spec == spec
    by_id = parse(written(inbox("github", "replay_guard: none"))).routes[0]
    assert by_id.key_spec == EventKey(HeaderKey((b"X-GitHub-Delivery",)), ABOUT)


def test_secrets_while_they_change() -> None:
    """Several secrets, some of which end."""
    secrets = f"[{{id: new, key: {WHSEC}}}, {{id: old, key: {'whpk_' + KEY!r}, until: 2026-12-01T01:00:00+01:00}}]"
    config = parse(written(f"inbox: {{preset: standard_webhooks, secrets: {secrets}}}"))
    found = compiled(config)
    new, old = found.secrets
    assert (new.id, new.algorithm, new.until) == ("new", Algorithm.HMAC, None)
    assert (old.id, old.algorithm, old.until) == ("old", Algorithm.ED25519, 1796083200.0)
    (notice,) = notices(config)
    assert notice.path == "routes[0].inbox.sign_again"
    assert "as: standard_webhooks" in notice.message
    own = f"as: standard_webhooks, {OWN.replace('}]', ', until: 2027-01-01T00:00:00Z}]')}"
    config = parse(written(f"inbox: {{preset: standard_webhooks, secrets: {secrets}, {own}}}"))
    (notice,) = notices(config)
    assert notice.path == "routes[0].inbox.signing_secrets"


def test_a_sender_without_a_preset() -> None:
    """How it signs is written in the file."""
    sign = "hmac: {header: X-Sign, prefix: 'v1=', signed: 'v1:{timestamp}:{body}', digest: sha512, id: /event/id, "
    config = parse(written(inbox("hmac", sign + "timestamp: X-Time}")))
    found = compiled(config)
    (scheme,) = found.schemes
    assert scheme.signed == (b"v1:", Part.TIME, b":", Part.BODY)
    assert scheme.is_id_signed
    assert not found.guards_content
    assert compiled(parse(written(inbox("hmac", HMAC)))).guards_content


def test_cloud_events_under_another_signature() -> None:
    """The scheme is that of another preset, and so are the secrets; the id is not covered by it."""
    settings = "cloudevents: {signature: standard_webhooks, origins: [EventGrid.azure.net]}"
    found = compiled(parse(written(inbox("cloudevents", settings, key=WHSEC))))
    assert [scheme.key for scheme in found.schemes] == [CloudEventKey()] * 2
    assert found.guards_content
    assert found.origins == (b"eventgrid.azure.net",)
    assert compiled(parse(written(inbox("cloudevents", "cloudevents: {origins: any}")))).origins == (b"*",)


def test_how_long_events_are_remembered() -> None:
    """A longer replay window lengthens the default; what is written counts."""
    for retention, days in (("{replay: 60d}", 60), ("{remember: 34d}", 34), ("{replay: 1d}", 35)):
        (route,) = parse(written(inbox(), f"retention: {retention}")).routes
        assert route.retention.remember == days * 86400


def test_what_differs_between_deliveries_is_ignored() -> None:
    """Stripe counts down in the event itself; the route's own settings win."""

    def differs(*lines: str) -> bool:
        config = parse(written(inbox(), *lines))
        route = route_of(config, config.routes[0], Mock())
        return ("pending_webhooks",) not in route.fingerprinter.spec.ignore

    assert not differs()
    assert not differs("fingerprint: {ignore: [/livemode]}")
    assert differs("fingerprint: {only: [/id]}")
    assert differs("fingerprint: {body: raw}")


TIMED: Final = "hmac: {header: X-S, signed: '{timestamp}{body}', id: X-E, timestamp: X-T}"
TIMELESS: Final = "this sender signs no time, so its signatures do not grow old"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            written(inbox(), top=TOP.replace("secrets:", "#")),
            "routes[0].inbox: inbox requires secrets.encryption, because the requests that it keeps hold credentials; "
            'write secrets: {encryption: [{id: NAME, key: "${NAME}"}]}, with a key from: openssl rand -hex 32',
        ),
        (
            written(inbox(), "key: {header: X-Event}"),
            "routes[0].key: the preset of an inbox says where the key is; leave this out",
        ),
        (
            written(inbox(), "retention: {remember: 32d}"),
            "routes[0].retention.remember: remember must be at least 33d: the sender may send events again for so "
            "long; 32d is shorter",
        ),
        (
            written(inbox("hmac", TIMED, "tolerance: 24h"), "retention: {remember: 47h}"),
            "routes[0].retention.remember: remember must be at least twice inbox.tolerance: for so long a captured "
            "message passes for a new one; 47h is shorter",
        ),
        (
            written(inbox(), "delivery: {deliver_within: 36d}"),
            "routes[0].delivery.deliver_within: delivery.deliver_within must be at most retention.remember; 36d is "
            "longer than 35d; write retention: {remember: 36d}, or deliver earlier",
        ),
        (
            written(inbox("stripe", "sign_again: never"), "recovery: resend"),
            "routes[0].inbox.sign_again: with resend, a service that checks the time would refuse what it may have "
            "done before; let the gateway sign again, or accept older signatures here and there: tolerance: 1h",
        ),
        (
            written(inbox(), "store_unavailable: forward"),
            "routes[0].store_unavailable: an inbox acknowledges nothing that is not stored, so it cannot forward "
            "without the store",
        ),
        (
            written(inbox(), "accept: {mode: prefer}"),
            "routes[0].accept.mode: an inbox accepts every event that its sender signed; leave this out",
        ),
        (written(inbox("stripe", key="k" * 23)), "routes[0].inbox.secrets[0].key: a secret has at least 24 bytes"),
        (
            written(inbox("standard_webhooks", key="whsk_" + KEY)),
            "routes[0].inbox.secrets[0].key: this is the sender's private key; a receiver needs the public one, "
            "whpk_...",
        ),
        (
            written(f"inbox: {{preset: stripe, secrets: [{{id: a, key: {SECRET}}}, {{id: a, key: {SECRET}}}]}}"),
            "routes[0].inbox.secrets[1].id: another secret has this id already",
        ),
        (
            written(inbox().replace("}]", ", until: 2026-12-01}]")),
            "routes[0].inbox.secrets[0].until: expected a time such as 2026-12-01T00:00:00Z, found '2026-12-01'; "
            "with its offset from UTC, which is Z for none",
        ),
        (
            written(inbox("github", "as: standard_webhooks")),
            "routes[0].inbox: as: standard_webhooks needs signing_secrets: [{id: NAME, key: whsec_...}]",
        ),
        (
            written(inbox("github", OWN)),
            "routes[0].inbox.signing_secrets: these secrets are for as: standard_webhooks",
        ),
        (
            written(inbox("stripe", "as: standard_webhooks", OWN, "sign_again: late")),
            "routes[0].inbox.sign_again: the gateway signs every delivery; leave this out",
        ),
        (
            written(inbox("stripe", "as: standard_webhooks", OWN.replace("}]", f"}}, {{id: own, key: {KEY}}}]"))),
            "routes[0].inbox.signing_secrets[1].id: another secret has this id already",
        ),
        (written(inbox("github", "tolerance: 1m")), f"routes[0].inbox.tolerance: {TIMELESS}"),
        (written(inbox("cloudevents", "sign_again: late")), f"routes[0].inbox.sign_again: {TIMELESS}"),
        (
            written(inbox("hmac")),
            "routes[0].inbox: hmac is required: {header: NAME, id: NAME} and how the sender signs",
        ),
        (
            written(inbox("hmac", "hmac: {header: X-S}")),
            "routes[0].inbox.hmac: id is required: the header or the value in the body that names an event",
        ),
        (
            written(inbox("hmac", "hmac: {header: X-S, id: /id, signed: '{id}.{body}'}")),
            "routes[0].inbox.hmac.signed: {id} stands for a header; an id in the body is signed with {body}",
        ),
        (
            written(inbox("hmac", TIMED[:-1] + ", about: [X-Topic, x-t]}")),
            "routes[0].inbox.hmac.about[1]: this header differs when the sender sends the event again",
        ),
        (
            written(inbox("hmac", "hmac: {header: X-S, id: /id, signed: '{url}{body}'}")),
            "routes[0].inbox.hmac.signed: expected what is signed, such as {body} or {timestamp}.{body}, found "
            "'{url}{body}'; a brace opens {id}, {timestamp} or {body}",
        ),
        (
            written(inbox("stripe", HMAC)),
            "routes[0].inbox.hmac: the preset knows how its sender signs; leave this out",
        ),
        (
            written(inbox("stripe", "cloudevents: {}")),
            "routes[0].inbox.cloudevents: these settings are for the preset cloudevents, not stripe",
        ),
    ],
)  # fmt: skip
def test_mistakes(text: str, mistake: str) -> None:
    """Each is reported alone, and says what to write; no secret is shown."""
    assert mistakes(text) == [mistake]
    assert SECRET[:-1] not in mistake


@pytest.mark.parametrize(
    "text",
    [
        written(inbox("stripe", "sign_again: never", "tolerance: 1h"), "recovery: resend"),
        written(inbox("github"), "recovery: resend"),
        written(inbox("hmac", HMAC), "retention: {remember: 24h}"),
        written(inbox(), "accept: {max_bytes: 2MiB, max_pending: 5, headers: {Authorization: x}}"),
        written(inbox("stripe", "replay_guard: content", "on_change: refuse")),
        written(inbox(), "match: {path: /_operations/1}").replace("    match: {path: /events}\n", ""),
    ],
)
def test_what_is_right(text: str) -> None:
    """None of this is a mistake."""
    assert parse(text).routes


def test_a_route_without_key_and_inbox() -> None:
    """One of the two is needed."""
    (mistake,) = mistakes(written())
    assert mistake.startswith("routes[0].key: required, but missing; where the key is: ")


def test_a_file_is_checked_without_its_secrets() -> None:
    """A secret that is not there counts as one, for every preset."""
    for preset in ("standard_webhooks", "stripe"):
        text = written(inbox(preset, key="${HOOK}"))
        with pytest.raises(ConfigError):
            parse(text)
        names = Placeholders()
        assert parse(text, stand_in=names).routes
        assert names.names == ["HOOK"]


def test_an_inbox_has_no_repeats() -> None:
    """Its sender would give up the endpoint at a 409, and its events have ids."""
    (mistake,) = mistakes(written(inbox(), "repeats: {action: refuse}"))
    assert mistake.startswith("routes[0].repeats: an event has an id of its own")
