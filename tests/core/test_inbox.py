"""Who sent a webhook, which event it is, and how it is signed again."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest
import standardwebhooks
import stripe
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding as Serialization
from cryptography.hazmat.primitives.serialization import PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.key import CloudEventKey
from gateway.core.message import Headers, header_values
from gateway.core.webhook import (
    PRESETS,
    Algorithm,
    Challenge,
    Digest,
    Encoding,
    Fault,
    Inbox,
    Place,
    Refused,
    Secret,
    SignAgain,
    Unidentified,
    VerifiedEvent,
    custom_scheme,
    examine_message,
    granted_origin,
    parse_template,
    renewed,
    secret_key,
    sign,
)
from tests.support.senders import PAID, SENDERS, TEXT, WHSEC, body_of, hex_hmac, signed

NOW: Final = 1_700_000_000
SIGNING: Final = ("standard_webhooks", "stripe", "slack", "github", "shopify")
TIMED: Final = ("standard_webhooks", "stripe", "slack")
TOLERANCE: Final = 300
OLD_WHSEC: Final = "whsec_" + base64.b64encode(b"o" * 32).decode()

Heads = Mapping[str, str]


def inbox_of(preset: str, secrets: Sequence[str | Secret] = (), **changes: object) -> Inbox:
    """The inbox of a preset, with its default settings."""
    known = PRESETS[preset]
    default = WHSEC if known.is_secret_base64 else TEXT
    compiled = tuple(
        secret if isinstance(secret, Secret) else secret_of(preset, secret, f"s{number}")
        for number, secret in enumerate(secrets or (default,))
    )
    schemes = known.schemes
    guards = any(not scheme.is_id_signed and not scheme.is_bearer for scheme in schemes)
    inbox = Inbox(
        schemes,
        compiled,
        TOLERANCE,
        known.acknowledgement,
        guards_content=guards,
        answers_challenge=known.has_challenge,
    )
    return replace(inbox, **changes)  # type: ignore[arg-type]


def secret_of(preset: str, text: str, name: str = "s0", until: float | None = None) -> Secret:
    key, algorithm = secret_key(text, is_base64=PRESETS[preset].is_secret_base64)
    if preset == "cloudevents":
        algorithm = Algorithm.BEARER
    return Secret(name, key, algorithm, until)


def raw(heads: Heads) -> Headers:
    return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in heads.items())


def seen(inbox: Inbox, heads: Heads | Headers, body: bytes = PAID, now: float = NOW) -> object:
    headers = raw(heads) if isinstance(heads, Mapping) else heads
    return examine_message(inbox, headers, body, now=now)


# -- genuine messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", SENDERS)
def test_what_the_sender_signed_is_genuine(preset: str) -> None:
    """A message of the sender is an event, and says which secret signed it."""
    found = seen(inbox_of(preset), signed(preset, body_of(preset)), body_of(preset))
    assert isinstance(found, VerifiedEvent)
    assert found.secret_ids == ("s0",)
    assert found.signed_at == (NOW if preset in TIMED else None)


@pytest.mark.parametrize("preset", SIGNING)
def test_the_gateway_signs_as_the_sender_does(preset: str) -> None:
    """Time and signature are those that the sender's own library makes."""
    inbox, body = inbox_of(preset), body_of(preset)
    own = sign(inbox.schemes[0], inbox.secrets, body, now=NOW, event_id=b"msg_1")
    assert {(name.lower(), value) for name, value in raw(signed(preset, body))} >= set(own)


@pytest.mark.parametrize(
    ("preset", "secret", "heads", "body", "moment"),
    [
        pytest.param(
            "standard_webhooks",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            {
                "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
                "webhook-timestamp": "1614265330",
                "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            },
            b'{"test": 2432232314}',
            1614265330,
            id="standard_webhooks",
        ),
        pytest.param(
            "github",
            "It's a Secret to Everybody",
            {
                "X-GitHub-Delivery": "1",
                "X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
            },
            b"Hello, World!",
            NOW,
            id="github",
        ),
        pytest.param(
            "slack",
            "8f742231b10e8888abcd99yyyzzz85a5",
            {
                "X-Slack-Request-Timestamp": "1531420618",
                "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
            },
            b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
            b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
            b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F"
            b"96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
            1531420618,
            id="slack",
        ),
    ],
)
def test_published_signatures(preset: str, secret: str, heads: Heads, body: bytes, moment: int) -> None:
    """The signatures that the senders publish as examples are right, and wrong for one other byte."""
    inbox = inbox_of(preset, [secret], guards_content=True)
    assert isinstance(seen(inbox, heads, body, moment), VerifiedEvent)
    assert seen(inbox, heads, body + b" ", moment) == Refused(Fault.INVALID)


@pytest.mark.parametrize("family", ["webhook", "svix"])
def test_both_spellings_of_standard_webhooks_are_one_event(family: str) -> None:
    """An event has the same key under the header names of Svix."""
    heads = {name.replace("webhook", family): value for name, value in signed("standard_webhooks").items()}
    found = seen(inbox_of("standard_webhooks"), heads)
    usual = seen(inbox_of("standard_webhooks"), signed("standard_webhooks"))
    assert isinstance(found, VerifiedEvent)
    assert isinstance(usual, VerifiedEvent)
    assert found.key.digest == usual.key.digest


def _ed25519() -> tuple[Ed25519PrivateKey, str]:
    private = Ed25519PrivateKey.from_private_bytes(b"p" * 32)
    public = private.public_key().public_bytes(Serialization.Raw, PublicFormat.Raw)
    return private, "whpk_" + base64.b64encode(public).decode()


def test_asymmetric_signatures() -> None:
    """An Ed25519 signature is verified by the sender's public key; another byte or another key does not fit."""
    private, public = _ed25519()
    heads = signed("standard_webhooks")
    made = base64.b64encode(private.sign(b"msg_1.%d.%b" % (NOW, PAID))).decode()
    heads["webhook-signature"] = f"v1,AAAA v1a,{made}"
    inbox = inbox_of("standard_webhooks", [public])
    assert isinstance(seen(inbox, heads), VerifiedEvent)
    assert seen(inbox, heads, PAID + b" ") == Refused(Fault.INVALID)
    other = "whpk_" + base64.b64encode(bytes(32)).decode()
    assert seen(inbox_of("standard_webhooks", [other]), heads) == Refused(Fault.INVALID)


def test_the_message_does_not_choose_the_algorithm() -> None:
    """An HMAC keyed with the public key, which everybody knows, is worth nothing."""
    _, public = _ed25519()
    known = base64.b64decode(public.removeprefix("whpk_"))
    forged = base64.b64encode(hmac.digest(known, b"msg_1.%d.%b" % (NOW, PAID), "sha256")).decode()
    for member in (f"v1,{forged}", f"v1a,{forged}"):
        heads = {**signed("standard_webhooks"), "webhook-signature": member}
        assert seen(inbox_of("standard_webhooks", [public]), heads) == Refused(Fault.INVALID)


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", SENDERS)
def test_every_living_secret_is_tried(preset: str) -> None:
    """Whichever of the secrets signed, it is found; one that has ended, or is of another route, does not count."""
    old, new = (OLD_WHSEC, WHSEC) if preset == "standard_webhooks" else (TEXT + " of old", TEXT)
    body = body_of(preset)
    heads = signed(preset, body, secret=old)
    ending = secret_of(preset, old, "old", until=NOW + 1.0)
    inbox = inbox_of(preset, [secret_of(preset, new, "new"), ending])
    found = seen(inbox, heads, body)
    assert isinstance(found, VerifiedEvent)
    assert found.secret_ids == ("old",)
    assert seen(inbox, heads, body, NOW + 1.0) == Refused(Fault.INVALID)
    assert seen(inbox_of(preset, [new]), heads, body) == Refused(Fault.INVALID)


@pytest.mark.parametrize("preset", ["standard_webhooks", "stripe"])
def test_ten_signatures_are_looked_at(preset: str) -> None:
    """A sender may sign with several secrets. What comes after ten signatures is not looked at."""
    heads = signed(preset)
    (name,) = [name for name in heads if name.lower().endswith("signature")]
    first, separator, right = heads[name].rpartition("," if preset == "stripe" else " ")
    space, wrong = ("", "v1,AAAA") if preset == "standard_webhooks" else (separator, "v1=00")
    for others, expected in ((9, True), (10, False)):
        members = [*([first] if first else []), *[wrong] * others, right]
        heads[name] = (separator or " ").join(members)
        assert isinstance(seen(inbox_of(preset), heads), VerifiedEvent) is expected, (others, space)


@pytest.mark.parametrize(
    "text", ["whsec_c2hvcnQ=", "whsec_not base64", "whsk_" + "A" * 44, "whpk_" + "A" * 32, "", "whsec_" + "é" * 32]
)
def test_secrets_that_cannot_be(text: str) -> None:
    """A secret that is short, no base64 or the sender's own private key is refused, and never repeated."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the texts differ
        secret_key(text, is_base64=True)
    assert not text or text not in str(refused.value)


def test_a_short_secret() -> None:
    """Fewer than 24 bytes can be guessed."""
    with pytest.raises(ValueError, match="24 bytes"):
        secret_key("x" * 23, is_base64=False)


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", TIMED)
@pytest.mark.parametrize("skew", [-TOLERANCE - 1, -TOLERANCE, TOLERANCE, TOLERANCE + 1])
def test_the_tolerance_holds_on_both_sides(preset: str, skew: int) -> None:
    """A message from the past or from the future is stale beyond the tolerance."""
    body = body_of(preset)
    found = seen(inbox_of(preset), signed(preset, body, NOW + skew), body)
    assert isinstance(found, VerifiedEvent) if abs(skew) <= TOLERANCE else found == Refused(Fault.STALE)


@pytest.mark.parametrize(
    "time", ["1700000000.9", " 1700000000 ", "1_700_000_000", "-1", "", "１７", "1e9", "0x1", "9" * 13]
)
@pytest.mark.parametrize("preset", TIMED)
def test_a_time_is_a_plain_number(preset: str, time: str) -> None:
    """Other spellings of a number are refused, also where they were signed."""
    spelled = time.encode("utf-8").decode("latin-1")
    content = {"standard_webhooks": f"msg_1.{spelled}.", "stripe": f"{spelled}.", "slack": f"v0:{spelled}:"}[
        preset
    ].encode("latin-1") + body_of(preset)
    heads = dict(signed(preset, body_of(preset)))
    match preset:
        case "standard_webhooks":
            made = base64.b64encode(hmac.digest(b"k" * 32, content, "sha256")).decode()
            heads |= {"webhook-timestamp": spelled, "webhook-signature": f"v1,{made}"}
        case "stripe":
            heads["Stripe-Signature"] = f"t={spelled},v1={hex_hmac(TEXT, content)}"
        case _:
            heads |= {"X-Slack-Request-Timestamp": spelled, "X-Slack-Signature": f"v0={hex_hmac(TEXT, content)}"}
    assert isinstance(seen(inbox_of(preset), heads, body_of(preset)), Refused)


# -- hostile messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", SENDERS)
def test_without_any_of_its_headers(preset: str) -> None:
    """A message without a header that is verified is not signed; one that gives it twice proves nothing."""
    inbox, body = inbox_of(preset), body_of(preset)
    heads = raw(signed(preset, body))
    verified = frozenset().union(*(scheme.headers for scheme in inbox.schemes))
    for index, (name, _) in enumerate(heads):
        if name.lower() not in verified:
            continue
        assert seen(inbox, heads[:index] + heads[index + 1 :], body) == Refused(Fault.MISSING)
        assert seen(inbox, (*heads, heads[index]), body) == Refused(Fault.INVALID)


@pytest.mark.parametrize(
    "signature",
    [
        "",
        " ",
        ",",
        "v1",
        "v1,",
        "v1,,",
        "v1,!!!!",
        "v1,AAAA=AAAA",
        "v1a,!!!!",
        "v1a,AAAA",
        "v2,AAAA",
        "none",
        "\xff\x00",
        " ".join(["v1,AAAA"] * 5000),
        "v1," + "A" * 60_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_malformed_signatures(signature: str) -> None:
    """Lists that are empty, bad base64, other versions, ten thousand signatures: refused, and nothing else."""
    inbox = inbox_of("standard_webhooks", [WHSEC, _ed25519()[1]])
    heads = {**signed("standard_webhooks"), "webhook-signature": signature}
    assert isinstance(seen(inbox, heads), Refused)


def test_a_further_id_of_another_scheme_changes_nothing() -> None:
    """A captured message with the headers of another scheme beside its own has the id that was signed."""
    inbox = inbox_of("standard_webhooks")
    captured = {name.replace("webhook", "svix"): value for name, value in signed("standard_webhooks").items()}
    first = seen(inbox, captured)
    again = seen(inbox, {"webhook-id": "msg_new", **captured})
    assert isinstance(first, VerifiedEvent)
    assert isinstance(again, VerifiedEvent)
    assert first.key.digest == again.key.digest


def test_what_was_signed_is_not_divided_differently() -> None:
    """Of an id that contains a delimiter, a part could pass for the time, and the time for a part of the body."""
    ambiguous = signed("standard_webhooks", event=f"msg.{NOW}")
    assert seen(inbox_of("standard_webhooks"), ambiguous) == Refused(Fault.INVALID)
    divided = {**ambiguous, "webhook-id": "msg"}
    assert seen(inbox_of("standard_webhooks"), divided, b"%d.%b" % (NOW, PAID)) == Refused(Fault.INVALID)


@pytest.mark.parametrize("preset", SIGNING)
@given(data=st.data())
def test_no_change_of_a_message_is_genuine(preset: str, data: st.DataObject) -> None:
    """Whatever is changed in what was signed, or in the signature, the message is refused and nothing raises."""
    inbox, body = inbox_of(preset), body_of(preset)
    original = raw(signed(preset, body))
    verified = frozenset().union(*(scheme.headers for scheme in inbox.schemes))
    places = [index for index, (name, _) in enumerate(original) if name.lower() in verified]
    index = data.draw(st.sampled_from([*places, None]))
    value = body if index is None else original[index][1]
    changed = data.draw(mutations(value))
    if changed == value:
        return
    headers = original
    if index is None:
        body = changed
    else:
        headers = (*original[:index], (original[index][0], changed), *original[index + 1 :])
    found = seen(inbox, headers, body)
    if preset == "stripe" and index is not None:
        # Further members of the list say nothing about the ones that are right.
        right = header_values(original, b"stripe-signature")[0].split(b",")
        if set(right) <= set(changed.split(b",")):
            return
    if preset == "standard_webhooks" and index is not None and original[index][1] in changed.split(b" "):
        return
    assert isinstance(found, Refused)
    assert renewed(replace(inbox, sign_again=SignAgain.ALWAYS), headers, body, now=NOW) is None


NAMES: Final = (
    *(name.encode() for preset in SENDERS for name in signed(preset)),
    *(b"svix-id", b"svix-timestamp", b"svix-signature", b"Content-Type", b"Content-Encoding", b"ce-id", b"ce-source"),
)
PIECES: Final = st.lists(
    st.sampled_from(
        [b"v1,", b"v1a,", b"t=", b"v1=", b"v0=", b"sha256=", b" ", b",", b"%d" % NOW, b"%ff", b'"', b"A" * 44]
    )
    | st.sampled_from([b"application/cloudevents+json", b"application/cloudevents-batch", b"gzip", b"Bearer "])
    | st.binary(max_size=8),
    max_size=6,
).map(b"".join)
DOCUMENTS: Final = st.binary(max_size=60) | st.recursive(
    st.none() | st.text(max_size=4) | st.integers(),
    lambda inner: st.dictionaries(
        st.sampled_from(["id", "event_id", "source", "type", "challenge"]), inner, max_size=4
    ),
    max_leaves=6,
).map(lambda document: json.dumps(document).encode())


@given(
    headers=st.lists(st.tuples(st.sampled_from(NAMES), PIECES), max_size=8).map(tuple),
    body=DOCUMENTS,
    has_token=st.booleans(),
)
def test_whatever_comes_is_a_value(headers: Headers, body: bytes, has_token: bool) -> None:
    """No message raises anything, and without a secret of its sender none is genuine."""
    for preset in SENDERS:
        assert isinstance(seen(inbox_of(preset, guards_content=False), headers, body), Refused)
    if has_token:
        headers = (*headers, (b"Authorization", f"Bearer {TEXT}".encode()))
        found = seen(inbox_of("cloudevents"), headers, body)
        assert isinstance(found, VerifiedEvent | Unidentified | Refused)


@st.composite
def mutations(draw: st.DrawFn, value: bytes) -> bytes:
    """The bytes with a piece replaced, or others altogether."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    start = draw(st.integers(0, len(value)))
    end = draw(st.integers(start, len(value)))
    return value[:start] + draw(st.binary(max_size=8)) + value[end:]


# -- which event it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["github", "shopify"])
def test_an_unsigned_id_makes_no_other_event(preset: str) -> None:
    """The same bytes under another id are the same event, and other bytes under the same id another one."""
    keys = []
    for event, body in (("1", PAID), ("2", PAID), ("1", PAID + b" ")):
        found = seen(inbox_of(preset), signed(preset, body, event=event), body)
        assert isinstance(found, VerifiedEvent)
        keys.append(found.key.digest)
    assert keys[0] == keys[1] != keys[2]
    by_id = inbox_of(preset, guards_content=False)
    others = [seen(by_id, signed(preset, event=event)) for event in ("1", "2")]
    assert isinstance(others[0], VerifiedEvent)
    assert isinstance(others[1], VerifiedEvent)
    assert others[0].key.digest != others[1].key.digest


@pytest.mark.parametrize("source", ["/shop", "/a%20b c", 'é "q" \\', "//host/x,y"])
@pytest.mark.parametrize("event", ["1", "order 42/é", '%41"'])
def test_a_cloud_event_has_one_key_in_both_modes(source: str, event: str) -> None:
    """Source and id are the key, however the library wrote them."""
    attributes = {"id": event, "source": source, "type": "paid", "specversion": "1.0"}
    keys = []
    for message in (to_binary_event(CloudEvent(attributes, {"a": 1})), to_structured_event(CloudEvent(attributes, {}))):
        found = seen(inbox_of("cloudevents"), {**message.headers, "authorization": f"bearer {TEXT}"}, message.body)
        assert isinstance(found, VerifiedEvent)
        keys.append(found.key)
    assert keys[0] == keys[1]
    assert json.loads(keys[0].text) == [source, event]


def test_source_and_id_do_not_run_into_one_another() -> None:
    """The two are framed."""
    keys = set()
    for source, event in (("/a", "b/c"), ("/a/b", "c"), ("/ab", "/c")):
        found = seen(inbox_of("cloudevents"), {**signed("cloudevents", event=event), "ce-source": source})
        assert isinstance(found, VerifiedEvent)
        keys.add(found.key.digest)
    assert len(keys) == 3


def test_a_batch_of_events_is_unsupported() -> None:
    """Also where it could be read."""
    heads = {**signed("cloudevents"), "Content-Type": "application/cloudevents-batch+json; charset=utf-8"}
    assert seen(inbox_of("cloudevents"), heads, b"[]") == Refused(Fault.UNSUPPORTED)


@pytest.mark.parametrize(
    ("heads", "body"),
    [
        ({"Content-Type": "application/cloudevents+avro"}, b"x"),
        ({"Content-Type": "application/cloudevents+json"}, b"[]"),
        ({"Content-Type": "application/cloudevents+json"}, b"\xff"),
        ({"Content-Type": "application/cloudevents+json"}, b'{"id":"1","id":"2","source":"/"}'),
        ({"Content-Type": "application/cloudevents+json"}, b'{"id":1,"source":"/"}'),
        ({"Content-Type": "application/cloudevents+json"}, b'{"id":null,"source":"/"}'),
        ({"Content-Type": "application/cloudevents+json", "Content-Encoding": "gzip"}, b'{"id":"1","source":"/"}'),
        ({"ce-id": "1"}, b""),
        ({"ce-id": "%ff", "ce-source": "/"}, b""),
        ({"ce-id": '""', "ce-source": "/"}, b""),
        ({"ce-id": "x" * 1025, "ce-source": "/"}, b""),
        ({"ce-id": "%41" * 9999, "ce-source": "/"}, b""),
        ({"ce-id": "1", "ce-source": "/", "CE-ID": "2"}, b""),
    ],
)
def test_an_event_without_an_id_that_can_be_read(heads: Heads, body: bytes) -> None:
    """A genuine message that cannot be told from others is none that could be accepted."""
    found = seen(inbox_of("cloudevents"), {**heads, "Authorization": f"Bearer {TEXT}"}, body)
    assert isinstance(found, Unidentified)


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b"{}", b'{"id":""}', b'{"id":{}}', b'{"id":"1","id":"2"}'])
def test_an_id_in_the_body_that_cannot_be_read(body: bytes) -> None:
    """The same for ids in bodies."""
    assert isinstance(seen(inbox_of("stripe"), signed("stripe", body), body), Unidentified)


def test_cloud_events_under_another_signature() -> None:
    """Events may be signed by another scheme; the id is that of the event, and not covered by it."""
    schemes = tuple(replace(scheme, key=CloudEventKey()) for scheme in PRESETS["standard_webhooks"].schemes)
    assert not any(scheme.is_id_signed for scheme in schemes)
    inbox = inbox_of("standard_webhooks", schemes=schemes)
    found = seen(inbox, {**signed("standard_webhooks"), "ce-id": "1", "ce-source": "/shop"})
    assert isinstance(found, VerifiedEvent)
    assert json.loads(found.key.text) == ["/shop", "1"]


# -- settings of a sender without a preset -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "event_id", "time_header", "named"),
    [
        ("{id}", b"X-Event", None, "{body}"),
        ("{body}{body}", b"X-Event", None, "{body}"),
        ("{timestamp}{body}", b"X-Event", None, "{timestamp}"),
        ("{body}", b"X-Event", b"X-Time", "{timestamp}"),
        ("{id}.{body}", ("id",), None, "{id}"),
        ("{id}{body}", b"X-Event", None, "{id}"),
        ("{body}{id}", b"X-Event", None, "{id}"),
    ],
)
def test_templates_that_prove_nothing(
    template: str, event_id: bytes | tuple[str, ...], time_header: bytes | None, named: str
) -> None:
    """A template that leaves out what it needs is refused."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the texts differ
        custom_scheme(
            signature=Place(b"x-sign"),
            signed=parse_template(template),
            digest=Digest.SHA256,
            encoding=Encoding.HEX,
            event_id=event_id,
            time_header=time_header,
        )
    assert named in str(refused.value)


@pytest.mark.parametrize("template", ["{Body}", "{body", "{", "{url}{body}"])
def test_other_placeholders(template: str) -> None:
    """A brace opens a placeholder."""
    with pytest.raises(ValueError, match="brace"):
        parse_template(template)


# -- signed again ------------------------------------------------------------------------------------------------------

LATER: Final = NOW + TOLERANCE // 2 + 1


def _verified_by_the_receivers_library(preset: str, headers: Headers, body: bytes, now: int) -> bool:
    heads = {name.decode(): value.decode() for name, value in headers}
    if preset == "stripe":
        return stripe.WebhookSignature.verify_header(body.decode(), heads["Stripe-Signature"], TEXT)
    if preset == "standard_webhooks":
        # Its `verify` reads the clock, so sign as it does.
        made = standardwebhooks.Webhook(WHSEC).sign(
            heads["webhook-id"], datetime.fromtimestamp(now, UTC), body.decode()
        )
        return heads["webhook-signature"] == made and heads["webhook-timestamp"] == str(now)
    return heads["X-Slack-Signature"] == signed("slack", body, now)["X-Slack-Signature"]


@pytest.mark.parametrize("preset", TIMED)
def test_a_late_delivery_is_signed_again(preset: str) -> None:
    """It has a new time and a signature that the service accepts; all else is as it came, in its place."""
    inbox, body = inbox_of(preset), body_of(preset)
    heads = (*raw(signed(preset, body)), (b"X-Other", b"1"), (b"x-other", b"2"))
    assert renewed(inbox, heads, body, now=LATER - 1) is None
    later = renewed(inbox, heads, body, now=NOW + 90_000.7)
    assert later is not None
    assert _verified_by_the_receivers_library(preset, later, body, NOW + 90_000)
    assert isinstance(seen(inbox, later, body, NOW + 90_000), VerifiedEvent)
    assert [name for name, _ in later] == [name for name, _ in heads]
    changed = {name.lower() for (name, new), (_, old) in zip(later, heads, strict=True) if new != old}
    assert changed == inbox.schemes[0].headers - {b"webhook-id"}
    always = replace(inbox, sign_again=SignAgain.ALWAYS)
    assert renewed(always, heads, body, now=NOW + 1) is not None
    assert renewed(replace(inbox, sign_again=SignAgain.NEVER), heads, body, now=NOW + 90_000) is None


def test_the_secrets_that_signed_sign_again() -> None:
    """While secrets change, the service may know either: each signature is made anew by its own secret."""
    old, new = secret_of("stripe", TEXT, "old", until=NOW + 1.0), secret_of("stripe", TEXT + "!", "new")
    unused = secret_of("stripe", TEXT + "?", "unused")
    both = (
        f"t={NOW},v1={hex_hmac(TEXT, b'%d.%b' % (NOW, PAID))},v1={hex_hmac(TEXT + '!', b'%d.%b' % (NOW, PAID))},v0=abc"
    )
    inbox = inbox_of("stripe", [unused, new, old])
    later = renewed(inbox, raw({"Stripe-Signature": both}), PAID, now=LATER)
    assert later is not None
    (value,) = header_values(later, b"stripe-signature")
    for text, expected in ((TEXT, True), (TEXT + "!", True), (TEXT + "?", False)):
        assert (hex_hmac(text, b"%d.%b" % (LATER, PAID)).encode() in value) is expected


def test_nothing_is_signed_that_was_not() -> None:
    """A message of an unknown secret, of a private key, or without a time goes as it came."""
    private, public = _ed25519()
    heads = signed("standard_webhooks")
    heads["webhook-signature"] = "v1a," + base64.b64encode(private.sign(b"msg_1.%d.%b" % (NOW, PAID))).decode()
    assert renewed(inbox_of("standard_webhooks", [public, WHSEC]), raw(heads), PAID, now=LATER) is None
    assert (
        renewed(inbox_of("standard_webhooks", [OLD_WHSEC]), raw(signed("standard_webhooks")), PAID, now=LATER) is None
    )
    for preset in ("github", "shopify", "cloudevents"):
        always = inbox_of(preset, sign_again=SignAgain.ALWAYS)
        assert renewed(always, raw(signed(preset)), PAID, now=LATER) is None


@pytest.mark.parametrize("preset", SENDERS)
def test_the_gateway_signs_what_nobody_else_can(preset: str) -> None:
    """Each delivery by Standard Webhooks with a key of its own, under the signed id of the sender where there is one.

    Nothing else changes, and a secret that has ended is used only where all have.
    """
    own = (Secret("old", b"o" * 32, until=NOW), Secret("new", b"n" * 32, until=LATER))
    body, heads = body_of(preset), (*raw(signed(preset, body_of(preset))), (b"X-Other", b"1"))
    inbox = replace(inbox_of(preset), own_secrets=own)
    for now, key in ((NOW + 1, own[1].key), (LATER + 90_000, own[1].key)):
        found = renewed(inbox, heads, body, now=now, event_id=b"6f1c1b0e")
        assert found is not None
        received = {name.decode().lower(): value.decode() for name, value in found}
        event_id = "msg_1" if preset == "standard_webhooks" else "6f1c1b0e"
        made = standardwebhooks.Webhook(base64.b64encode(key).decode()).sign(
            event_id, datetime.fromtimestamp(now, UTC), body.decode()
        )
        expected = {"webhook-id": event_id, "webhook-timestamp": str(now), "webhook-signature": made}
        assert {name: received[name] for name in expected} == expected
        names = {b"webhook-id", b"webhook-timestamp", b"webhook-signature"}
        kept = [each for each in heads if each[0].lower() not in names]
        assert [each for each in found if each[0] not in names] == kept


def test_a_message_under_both_names_is_signed_again_under_both() -> None:
    """The service may read either."""
    heads = signed("standard_webhooks")
    heads |= {name.replace("webhook", "svix"): value for name, value in heads.items()}
    later = renewed(inbox_of("standard_webhooks"), raw(heads), PAID, now=LATER)
    assert later is not None
    assert header_values(later, b"svix-timestamp") == header_values(later, b"webhook-timestamp") == [b"%d" % LATER]
    assert header_values(later, b"svix-signature") == header_values(later, b"webhook-signature")


# -- questions of senders ----------------------------------------------------------------------------------------------


def test_slack_asks_whether_the_url_expects_it() -> None:
    """The signed question is answered, an unsigned one is not, and an event is never taken for one."""
    question = b'{"type":"url_verification","token":"t","challenge":"3eZbrw1a"}'
    found = seen(inbox_of("slack"), signed("slack", question), question)
    assert found == Challenge("3eZbrw1a", ("s0",))
    assert seen(inbox_of("slack"), signed("slack", question), question + b" ") == Refused(Fault.INVALID)
    assert isinstance(seen(inbox_of("stripe"), signed("stripe", question), question), Unidentified)
    for challenge in (b"1", b'"a\\nb"', b'"\\u00e9"', b'"%b"' % (b"x" * 1025), b"null"):
        body = b'{"type":"url_verification","challenge":%b}' % challenge
        assert isinstance(seen(inbox_of("slack"), signed("slack", body), body), Unidentified)


@pytest.mark.parametrize(
    ("origins", "asked", "granted"),
    [
        ((b"*",), ["eventgrid.azure.net"], b"eventgrid.azure.net"),
        ((b"eventgrid.azure.net",), ["EventGrid.azure.net"], b"EventGrid.azure.net"),
        ((b"eventgrid.azure.net",), ["evil.example"], None),
        ((b"*",), [], None),
        ((b"*",), ["a.example", "b.example"], None),
        ((b"*",), ["x" * 257], None),
        ((), ["a.example"], None),
    ],
)
def test_which_origins_may_deliver(origins: tuple[bytes, ...], asked: list[str], granted: bytes | None) -> None:
    """The reply to a handshake names the origin that asked, and nothing where that is not granted."""
    headers = tuple((b"WebHook-Request-Origin", each.encode()) for each in asked)
    assert granted_origin(inbox_of("cloudevents", origins=origins), headers) == granted
