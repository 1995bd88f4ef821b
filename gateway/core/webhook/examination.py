"""What a request to an inbox is: an event of its sender, a question of it, or nothing that concerns the service.

Order: the signature with its time, then the id. So a message that its sender did not sign is refused before anything
of it is read, and all such refusals can look the same.

Which event it is
-----------------
Where the id is signed, or is part of the signed body, it is the key: nobody can give the event another one. Where it
is not, anybody who has seen one delivery could send it again under another id, as often as he likes; and could spend
the id of an event that is still to come on an old one. So there the body is the key by default (`guards_content`): one
record for each body that was signed, whatever the id says. The record is inserted by the same statement that accepts
the request, so of any number of deliveries at once, under equal or different ids, exactly one is accepted, and no
crash can leave an id without its request. An unsigned id that comes with two bodies names two events, each of which
the sender signed; each is delivered once. A route whose events may be equal to the byte turns this off, and relies on
the id.

What the sender's scheme says of an event outside its body (`Scheme.about`: the topic, the shop, the hook) belongs to
its identity in both cases, because senders send one body, or one id, for several events. Where the signature does not
cover these headers, who has seen a delivery can have its body delivered again under other values. That is the price:
without them a genuine event would be acknowledged and never delivered.

The key of one message comes from the scheme that verified it: a further id, under the header names of another scheme
of the preset, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from gateway.core.identity.canonical import Body, parse_json
from gateway.core.identity.key import (
    CloudEventKey,
    Key,
    KeyFault,
    KeySpec,
    is_event_batch,
    is_structured_event,
)
from gateway.core.immutable import immutable
from gateway.core.message import Headers, header_values, values_by_name
from gateway.core.webhook.scheme import STANDARD_WEBHOOKS, Scheme, Secret, combined_key, event_key, living
from gateway.core.webhook.signature import Fault, Refused, sign, sign_again, signed_at, verify

_CHALLENGE_CHARACTERS_MAX: Final = 1024
_ORIGIN_BYTES_MAX: Final = 256


class SignAgain(StrEnum):
    """When an attempt gets a new time and signature: once half of the tolerance has passed, always, or never."""

    LATE = "late"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Inbox:
    """The inbox of a route.

    `acknowledgement` is the status for an event that is stored. `refuses_changed`: the same id with another content is
    a conflict, and not acknowledged. `answers_challenge`: the sender verifies the URL by a signed question. `origins`
    are the senders of CloudEvents that may deliver here (`*`: all). With `own_secrets` the gateway signs each delivery
    itself, by Standard Webhooks, because nobody else can make the sender's signatures.
    """

    schemes: tuple[Scheme, ...]
    secrets: tuple[Secret, ...]
    tolerance_seconds: float
    acknowledgement: int
    guards_content: bool = False
    sign_again: SignAgain = SignAgain.LATE
    refuses_changed: bool = False
    answers_challenge: bool = False
    origins: tuple[bytes, ...] = ()
    own_secrets: tuple[Secret, ...] = ()

    @property
    def key(self) -> KeySpec:
        """Where the keys of this inbox come from, over all its schemes."""
        return combined_key(self.schemes, guards_content=self.guards_content)

    @property
    def headers(self) -> frozenset[bytes]:
        """The headers, in lower case, that a request may have once at most."""
        names: frozenset[bytes] = frozenset()
        for scheme in self.schemes:
            names |= scheme.headers | scheme.key.headers | frozenset(scheme.about)
        return names


@immutable
class VerifiedEvent:
    """An event of the sender. `key` identifies it; `secret_ids` are the secrets that signed it."""

    key: Key
    secret_ids: tuple[str, ...]
    signed_at: int | None = None


@immutable
class Challenge:
    """Not an event: the sender wants to see that this URL expects it. The reply is `text`."""

    text: str
    secret_ids: tuple[str, ...]


@immutable
class Unidentified:
    """A message of the sender without an id that can be read; `detail` says why, None where there is none."""

    key: KeySpec
    detail: str | None
    secret_ids: tuple[str, ...]


def examine_message(
    inbox: Inbox, headers: Headers, body: Body, *, now: float
) -> VerifiedEvent | Challenge | Unidentified | Refused:
    """What this message is, at `now` in Unix time."""
    verified = verify(inbox.schemes, inbox.secrets, headers, body, now=now, tolerance_seconds=inbox.tolerance_seconds)
    if isinstance(verified, Refused):
        return verified
    signers = verified.secret_ids
    if inbox.answers_challenge and (challenge := _challenge(body)) is not None:
        return Challenge(challenge, signers)
    scheme, by_name = verified.scheme, values_by_name(headers)
    if isinstance(scheme.key, CloudEventKey):
        if is_event_batch(by_name):
            return Refused(Fault.UNSUPPORTED)
        if is_structured_event(by_name):
            # All that is said of it is in its body.
            scheme = replace(scheme, about=())
    spec = event_key(scheme, guards_content=inbox.guards_content)
    key = spec.find_key(by_name, body)
    if isinstance(key, Key):
        return VerifiedEvent(key, signers, verified.signed_at)
    return Unidentified(spec, key.detail if isinstance(key, KeyFault) else None, signers)


def renewed(inbox: Inbox, headers: Headers, body: Body, *, now: float, event_id: bytes = b"") -> Headers | None:
    """The headers of an attempt that starts at `now`, signed again; None where they go as they came.

    `event_id` names the event where the gateway signs by itself and the sender's scheme signs no id.
    """
    if inbox.own_secrets:
        return _signed_by_gateway(inbox, headers, body, now, event_id)
    if inbox.sign_again is SignAgain.NEVER:
        return None
    if inbox.sign_again is SignAgain.LATE:
        made_at = signed_at(inbox.schemes, headers)
        if made_at is None or abs(now - made_at) <= inbox.tolerance_seconds / 2:
            return None
    return sign_again(inbox.schemes, inbox.secrets, headers, body, now=int(now))


def _signed_by_gateway(inbox: Inbox, headers: Headers, body: Body, now: float, event_id: bytes) -> Headers:
    """The headers as they came, but those of Standard Webhooks are the gateway's. The id is the one that is signed."""
    signed_ids = [
        ids[0]
        for scheme in inbox.schemes
        if scheme.id_header is not None and (ids := header_values(headers, scheme.id_header)) and b"." not in ids[0]
    ]
    # Where all have ended, the service knows the last one best.
    secrets = living(inbox.own_secrets, now) or [max(inbox.own_secrets, key=lambda secret: secret.until or 0)]
    own = sign(STANDARD_WEBHOOKS, secrets, body, now=int(now), event_id=next(iter(signed_ids), event_id))
    names = {name for name, _ in own}
    return (*((name, value) for name, value in headers if name.lower() not in names), *own)


def granted_origin(inbox: Inbox, headers: Headers) -> bytes | None:
    """The origin that may deliver here, of a request that asks for it (CloudEvents web hooks, section 4).

    The reply names the origin that was asked for, because senders compare it, even where all may deliver.
    """
    asked = header_values(headers, b"webhook-request-origin")
    if len(asked) != 1 or not 0 < len(asked[0]) <= _ORIGIN_BYTES_MAX:
        return None
    is_granted = b"*" in inbox.origins or asked[0].lower() in inbox.origins
    return asked[0] if is_granted else None


def _challenge(body: Body) -> str | None:
    """The question that Slack asks once for each URL; events have another type."""
    document = parse_json(body)
    if not isinstance(document, dict) or document.get("type") != "url_verification":
        return None
    text = document.get("challenge")
    if not isinstance(text, str) or len(text) > _CHALLENGE_CHARACTERS_MAX:
        return None
    return text if text.isascii() and text.isprintable() else None
