"""Messages as senders of webhooks make them: by the sender's own library where there is one, else as documented."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Final

import standardwebhooks
import stripe

SENDERS: Final = ("standard_webhooks", "stripe", "slack", "github", "shopify", "cloudevents")
NOW: Final = 1_700_000_000
WHSEC: Final = "whsec_" + base64.b64encode(b"k" * 32).decode()
TEXT: Final = "a secret of more than twenty-four bytes"
PAID: Final = b'{"id":"evt_1","type":"invoice.paid","amount":1000}'


def signed(
    preset: str, body: bytes = PAID, moment: int = NOW, event: str = "msg_1", secret: str = ""
) -> dict[str, str]:
    """A message as its sender makes it: by the sender's own library where there is one, else by the documentation."""
    match preset:
        case "standard_webhooks":
            hook = standardwebhooks.Webhook(secret or WHSEC)
            when = datetime.fromtimestamp(moment, UTC)
            made = hook.sign(event, when, body.decode())
            return {"webhook-id": event, "webhook-timestamp": str(moment), "webhook-signature": made}
        case "stripe":
            made = stripe.WebhookSignature.generate_signature_header(body.decode(), secret or TEXT, moment)
            return {"Stripe-Signature": made}
        case "slack":
            made = hex_hmac(secret or TEXT, b"v0:%d:%b" % (moment, body))
            return {"X-Slack-Request-Timestamp": str(moment), "X-Slack-Signature": f"v0={made}"}
        case "github":
            return {"X-GitHub-Delivery": event, "X-Hub-Signature-256": "sha256=" + hex_hmac(secret or TEXT, body)}
        case "shopify":
            digest = hmac.digest((secret or TEXT).encode(), body, "sha256")
            return {"X-Shopify-Webhook-Id": event, "X-Shopify-Hmac-SHA256": base64.b64encode(digest).decode()}
        case "cloudevents":
            attributes = {"ce-id": event, "ce-source": "/shop", "ce-type": "paid", "ce-specversion": "1.0"}
            return {"Authorization": f"Bearer {secret or TEXT}", **attributes}
    raise AssertionError(preset)


def hex_hmac(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


# Slack's id has another name.
BODIES: Final = {"slack": b'{"event_id":"Ev1","type":"event_callback"}'}


def body_of(preset: str) -> bytes:
    return BODIES.get(preset, PAID)
