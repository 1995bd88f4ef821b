"""Secrets that events are signed with in tests."""

from __future__ import annotations

from gateway.core.webhook import Secret, signing_key

WHSEC = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRET = Secret("a", *signing_key(WHSEC))
