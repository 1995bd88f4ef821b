"""Who sent a webhook, which event it is, and how it is signed again."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding as Serialization
from cryptography.hazmat.primitives.serialization import PublicFormat
from hypothesis import given
from hypothesis import strategies as st

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
)
from tests.core.rows import rows
from tests.support.senders import NOW, PAID, SENDERS, TEXT, WHSEC, body_of, hex_hmac, signed

SIGNING: Final = ("standard_webhooks", "stripe", "slack", "github", "shopify")
TIMED: Final = ("standard_webhooks", "stripe", "slack")
TOLERANCE: Final = 300
LATER: Final = NOW + TOLERANCE // 2 + 1

Heads = Mapping[str, str]


def in_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


OLD_WHSEC: Final = "whsec_" + in_base64(b"o" * 32)


def inbox_of(preset: str, secrets: Sequence[str | Secret] = (), **changes: object) -> Inbox:
    """The inbox of a preset, with its default settings."""
    known = PRESETS[preset]
    compiled = tuple(
        secret if isinstance(secret, Secret) else secret_of(preset, secret, f"s{number}")
        for number, secret in enumerate(secrets or (WHSEC if known.is_secret_base64 else TEXT,))
    )
    guards = any(not scheme.is_id_signed and not scheme.is_bearer for scheme in known.schemes)
    options = {"guards_content": guards, "answers_challenge": known.has_challenge}
    return replace(Inbox(known.schemes, compiled, TOLERANCE, known.acknowledgement, **options), **changes)  # type: ignore[arg-type]


def secret_of(preset: str, text: str, name: str = "s0", until: float | None = None) -> Secret:
    key, algorithm = secret_key(text, is_base64=PRESETS[preset].is_secret_base64)
    return Secret(name, key, Algorithm.BEARER if preset == "cloudevents" else algorithm, until)


def raw(heads: Heads) -> Headers:
    return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in heads.items())


def seen(inbox: Inbox, heads: Heads | Headers, body: bytes = PAID, now: float = NOW) -> object:
    headers = raw(heads) if isinstance(heads, Mapping) else heads
    return examine_message(inbox, headers, body, now=now)


def event_of(inbox: Inbox, heads: Heads | Headers, body: bytes = PAID, now: float = NOW) -> VerifiedEvent:
    """The event that this message is."""
    found = seen(inbox, heads, body, now)
    assert isinstance(found, VerifiedEvent)
    return found


# -- genuine messages --------------------------------------------------------------------------------------------------


PUBLISHED: Final[dict[str, tuple[str, Heads, bytes, int]]] = {

    "github": (
        "It's a Secret to Everybody",
        {
            "X-GitHub-Delivery": "1",
            "X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        },
        b"Hello, World!", NOW,
    ),
    "slack": (
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
    ),
}  # fmt: skip


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_signatures(preset: str) -> None:
    """The signatures that the senders publish as examples are right, and wrong for one other byte."""
    secret, heads, body, moment = PUBLISHED[preset]
    inbox = inbox_of(preset, [secret], guards_content=True)
    assert event_of(inbox, heads, body, moment)
    assert seen(inbox, heads, body + b" ", moment) == Refused(Fault.INVALID)


def svix_of() -> Heads:
    """The usual message under the header names of Svix."""
    return {name.replace("webhook", "svix"): value for name, value in signed("standard_webhooks").items()}


def test_both_spellings_of_standard_webhooks_are_one_event() -> None:
    """An event has the same key under the header names of Svix, and is signed again under each name that it has."""
    usual, svix, inbox = signed("standard_webhooks"), svix_of(), inbox_of("standard_webhooks")
    assert event_of(inbox, svix).key.digest == event_of(inbox, usual).key.digest
    later = renewed(inbox, raw(usual | svix), PAID, now=LATER)
    assert later is not None
    assert header_values(later, b"svix-timestamp") == header_values(later, b"webhook-timestamp") == [b"%d" % LATER]
    assert header_values(later, b"svix-signature") == header_values(later, b"webhook-signature")


PRIVATE: Final = Ed25519PrivateKey.from_private_bytes(b"p" * 32)
RAW_PUBLIC: Final = PRIVATE.public_key().public_bytes(Serialization.Raw, PublicFormat.Raw)
PUBLIC: Final = "whpk_" + in_base64(RAW_PUBLIC)
MADE: Final = in_base64(PRIVATE.sign(b"msg_1.%d.%b" % (NOW, PAID)))


def test_asymmetric_signatures() -> None:
    """An Ed25519 signature is verified by the sender's public key; another byte or another key does not fit."""
    heads = signed("standard_webhooks") | {"webhook-signature": f"v1,AAAA v1a,{MADE}"}
    inbox = inbox_of("standard_webhooks", [PUBLIC])
    assert event_of(inbox, heads)
    assert seen(inbox, heads, PAID + b" ") == Refused(Fault.INVALID)
    other = "whpk_" + in_base64(bytes(32))
    assert seen(inbox_of("standard_webhooks", [other]), heads) == Refused(Fault.INVALID)


def test_the_message_does_not_choose_the_algorithm() -> None:
    """An HMAC keyed with the public key, which everybody knows, is worth nothing."""
    forged = in_base64(hmac.digest(RAW_PUBLIC, b"msg_1.%d.%b" % (NOW, PAID), "sha256"))
    for member in (f"v1,{forged}", f"v1a,{forged}"):
        heads = signed("standard_webhooks") | {"webhook-signature": member}
        assert seen(inbox_of("standard_webhooks", [PUBLIC]), heads) == Refused(Fault.INVALID)


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", SENDERS)
def test_every_living_secret_is_tried(preset: str) -> None:
    """Whichever of the secrets signed, it is found; one that has ended, or is of another route, does not count."""
    old, new = (OLD_WHSEC, WHSEC) if preset == "standard_webhooks" else (TEXT + " of old", TEXT)
    body = body_of(preset)
    heads = signed(preset, body, secret=old)
    inbox = inbox_of(preset, [secret_of(preset, new, "new"), secret_of(preset, old, "old", until=NOW + 1.0)])
    assert event_of(inbox, heads, body).secret_ids == ("old",)
    assert seen(inbox, heads, body, NOW + 1.0) == Refused(Fault.INVALID)
    assert seen(inbox_of(preset, [new]), heads, body) == Refused(Fault.INVALID)


@pytest.mark.parametrize("preset", ["standard_webhooks", "stripe"])
def test_ten_signatures_are_looked_at(preset: str) -> None:
    """A sender may sign with several secrets. What comes after ten signatures is not looked at."""
    heads = signed(preset)
    (name,) = [name for name in heads if name.lower().endswith("signature")]
    first, separator, right = heads[name].rpartition("," if preset == "stripe" else " ")
    wrong = "v1,AAAA" if preset == "standard_webhooks" else "v1=00"
    for others, expected in ((9, True), (10, False)):
        heads[name] = (separator or " ").join([*([first] if first else []), *[wrong] * others, right])
        assert isinstance(seen(inbox_of(preset), heads), VerifiedEvent) is expected, others


@pytest.mark.parametrize("text", ["whsec_c2hvcnQ=", "whsec_not base64", "whsk_" + "A" * 44, "whpk_" + "A" * 32])
def test_secrets_that_cannot_be(text: str) -> None:
    """What is short, no base64, a private key, or a public one of another length is refused and never repeated."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the texts differ
        secret_key(text, is_base64=True)
    assert text not in str(refused.value)


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "time", ["1700000000.9", " 1700000000 ", "1_700_000_000", "-1", "", "１７", "1e9", "0x1", "9" * 13]
)
@pytest.mark.parametrize("preset", TIMED)
def test_a_time_is_a_plain_number(preset: str, time: str) -> None:
    """Other spellings of a number are refused, also where they were signed."""
    spelled, body = time.encode("utf-8").decode("latin-1"), body_of(preset)
    before = {"standard_webhooks": f"msg_1.{spelled}.", "stripe": f"{spelled}.", "slack": f"v0:{spelled}:"}[preset]
    content = before.encode("latin-1") + body
    made, in_hex = in_base64(hmac.digest(b"k" * 32, content, "sha256")), hex_hmac(TEXT, content)
    heads = {
        "standard_webhooks": {"webhook-timestamp": spelled, "webhook-signature": f"v1,{made}"},
        "stripe": {"Stripe-Signature": f"t={spelled},v1={in_hex}"},
        "slack": {"X-Slack-Request-Timestamp": spelled, "X-Slack-Signature": f"v0={in_hex}"},
    }[preset]
    assert isinstance(seen(inbox_of(preset), signed(preset, body) | heads, body), Refused)


# -- hostile messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", SENDERS)
def test_without_any_of_its_headers(preset: str) -> None:
    """A message without a header that is verified is not signed; one that gives it twice proves nothing."""
    inbox, body = inbox_of(preset), body_of(preset)
    heads = raw(signed(preset, body))
    verified = frozenset().union(*(scheme.headers for scheme in inbox.schemes))
    for index, (name, _) in enumerate(heads):
        if name.lower() in verified:
            assert seen(inbox, heads[:index] + heads[index + 1 :], body) == Refused(Fault.MISSING)
            assert seen(inbox, (*heads, heads[index]), body) == Refused(Fault.INVALID)


def test_a_further_id_of_another_scheme_changes_nothing() -> None:
    """A captured message with the headers of another scheme beside its own has the id that was signed."""
    inbox = inbox_of("standard_webhooks")
    again = event_of(inbox, {"webhook-id": "msg_new", **svix_of()})
    assert event_of(inbox, svix_of()).key.digest == again.key.digest


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
        # Further members of a list say nothing about the ones that are right.
        if preset == "stripe" and set(value.split(b",")) <= set(changed.split(b",")):
            return
        if preset == "standard_webhooks" and value in changed.split(b" "):
            return
    assert isinstance(seen(inbox, headers, body), Refused)
    assert renewed(replace(inbox, sign_again=SignAgain.ALWAYS), headers, body, now=NOW) is None


@st.composite
def mutations(draw: st.DrawFn, value: bytes) -> bytes:
    """The bytes with a piece replaced, or others altogether."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    start = draw(st.integers(0, len(value)))
    end = draw(st.integers(start, len(value)))
    return value[:start] + draw(st.binary(max_size=8)) + value[end:]


# -- which event it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["/shop", "/a%20b c", 'é "q" \\', "//host/x,y"])
@pytest.mark.parametrize("event", ["1", "order 42/é", '%41"'])
def test_a_cloud_event_has_one_key_in_both_modes(source: str, event: str) -> None:
    """Source and id are the key, however the library wrote them."""
    attributes = {"id": event, "source": source, "type": "paid", "specversion": "1.0"}
    messages = (to_binary_event(CloudEvent(attributes, {"a": 1})), to_structured_event(CloudEvent(attributes, {})))
    for message in messages:
        heads = {**message.headers, "authorization": f"bearer {TEXT}"}
        assert json.loads(event_of(inbox_of("cloudevents"), heads, message.body).key.text) == [source, event]


JSON_EVENT: Final = {"Content-Type": "application/cloudevents+json"}


@rows(
    "heads, body",
    other_format=({"Content-Type": "application/cloudevents+avro"}, b"x"),
    no_object=(JSON_EVENT, b"[]"),
    null=(JSON_EVENT, b'{"id":null,"source":"/"}'),
    no_source=({"ce-id": "1"}, b""),
    empty=({"ce-id": '""', "ce-source": "/"}, b""),
    long_escaped=({"ce-id": "%41" * 9999, "ce-source": "/"}, b""),
    two_ids_in_body=(JSON_EVENT, b'{"id":"1","id":"2","source":"/"}'),
    coded=(JSON_EVENT | {"Content-Encoding": "gzip"}, b'{"id":"1","source":"/"}'),
    escape_of_no_character=({"ce-id": "%ff", "ce-source": "/"}, b""),
    long=({"ce-id": "x" * 1025, "ce-source": "/"}, b""),
    two_ids=({"ce-id": "1", "ce-source": "/", "CE-ID": "2"}, b""),
)
def test_an_event_without_an_id_that_can_be_read(heads: Heads, body: bytes) -> None:
    """A genuine message that cannot be told from others is none that could be accepted; a batch is not supported."""
    inbox = inbox_of("cloudevents")
    assert isinstance(seen(inbox, {**heads, "Authorization": f"Bearer {TEXT}"}, body), Unidentified)
    batch = {**signed("cloudevents"), "Content-Type": "application/cloudevents-batch+json; charset=utf-8"}
    assert seen(inbox, batch, b"[]") == Refused(Fault.UNSUPPORTED)


# -- settings of a sender without a preset -----------------------------------------------------------------------------


@rows(
    "template, time_header, named",
    no_body=("{id}", None, "{body}"),
    two_bodies=("{body}{body}", None, "{body}"),
    time_without_header=("{timestamp}{body}", None, "{timestamp}"),
    header_without_time=("{body}", b"X-Time", "{timestamp}"),
    id_runs_into_body=("{id}{body}", None, "{id}"),
)
def test_templates_that_prove_nothing(template: str, time_header: bytes | None, named: str) -> None:
    """A template that leaves out what it needs is refused."""
    how: Any = {"digest": Digest.SHA256, "encoding": Encoding.HEX, "event_id": b"X-Event", "time_header": time_header}
    with pytest.raises(ValueError, match=named.replace("{", "[{]")):
        custom_scheme(signature=Place(b"x-sign"), signed=parse_template(template), **how)


# -- signed again ------------------------------------------------------------------------------------------------------


def test_the_secrets_that_signed_sign_again() -> None:
    """While secrets change, the service may know either: each signature is made anew by its own secret."""
    old, new = secret_of("stripe", TEXT, "old", until=NOW + 1.0), secret_of("stripe", TEXT + "!", "new")
    unused = secret_of("stripe", TEXT + "?", "unused")
    one, two = (hex_hmac(text, b"%d.%b" % (NOW, PAID)) for text in (TEXT, TEXT + "!"))
    heads = raw({"Stripe-Signature": f"t={NOW},v1={one},v1={two},v0=abc"})
    later = renewed(inbox_of("stripe", [unused, new, old]), heads, PAID, now=LATER)
    assert later is not None
    (value,) = header_values(later, b"stripe-signature")
    for text, expected in ((TEXT, True), (TEXT + "!", True), (TEXT + "?", False)):
        assert (hex_hmac(text, b"%d.%b" % (LATER, PAID)).encode() in value) is expected


def test_nothing_is_signed_that_was_not() -> None:
    """A message of an unknown secret, of a private key, or without a time goes as it came."""
    usual = signed("standard_webhooks")
    heads = usual | {"webhook-signature": f"v1a,{MADE}"}
    assert renewed(inbox_of("standard_webhooks", [PUBLIC, WHSEC]), raw(heads), PAID, now=LATER) is None
    assert renewed(inbox_of("standard_webhooks", [OLD_WHSEC]), raw(usual), PAID, now=LATER) is None
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
        expected = signed("standard_webhooks", body, now, event_id, in_base64(key))
        assert expected.items() <= received.items()
        names = {name.encode() for name in expected}
        kept = [each for each in heads if each[0].lower() not in names]
        assert [each for each in found if each[0] not in names] == kept


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


@rows(
    "origins, asked, granted",
    listed=((b"eventgrid.azure.net",), ["EventGrid.azure.net"], b"EventGrid.azure.net"),
    other=((b"eventgrid.azure.net",), ["evil.example"], None),
    two=((b"*",), ["a.example", "b.example"], None),
    long=((b"*",), ["x" * 257], None),
)
def test_which_origins_may_deliver(origins: tuple[bytes, ...], asked: list[str], granted: bytes | None) -> None:
    """The reply to a handshake names the origin that asked, and nothing where that is not granted."""
    headers = tuple((b"WebHook-Request-Origin", each.encode()) for each in asked)
    assert granted_origin(inbox_of("cloudevents", origins=origins), headers) == granted
