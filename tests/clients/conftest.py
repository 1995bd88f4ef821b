"""What the tests of client libraries share."""

from __future__ import annotations

import openai._base_client
import pytest
import stripe

from tests.clients.libraries import Library, OpenAI, Stripe
from tests.clients.programs import described


@pytest.fixture(params=[Stripe, OpenAI])
def library(request: pytest.FixtureRequest) -> Library:
    made: Library = request.param()
    return made


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries try again as often as ever and sooner, and reach loopback directly on every machine."""
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0.02)
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.02)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def pytest_report_collectionfinish() -> str:
    """Which of the programs for callers this machine runs: what it has no language for is not collected."""
    return described()
