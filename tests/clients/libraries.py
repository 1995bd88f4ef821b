"""Client libraries as their users wire them, and routes as docs/client-libraries.md wires the gateway for them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import httpx2
import openai
import requests
import stripe
import yaml

from tests.support.reference import DOCS, README
from tests.support.upstream import Answer, Received

_TABLE: Final = (DOCS / "client-libraries.md").read_text("utf-8")
_JSON: Final = (("Content-Type", "application/json"),)


def route_for(library: str, path: str, **changes: Any) -> dict[str, Any]:
    """The route of the README's first configuration, on this path, with what its row for the library asks for."""
    rows = [row for row in _TABLE.splitlines() if row.startswith("| ") and library in row.split("|")[1]]
    assert len(rows) == 1, f"{library} has {len(rows)} rows in docs/client-libraries.md"
    (first,) = re.findall(r"^```yaml\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)[:1]
    route: dict[str, Any] = copy.deepcopy(yaml.safe_load(first)["routes"][0])
    route["match"]["path"] = path
    for setting in re.findall(r"`(\w+: [^`]+)`", rows[0].split("|")[3]):
        route.update(yaml.safe_load(setting))
    return route | changes


class Stripe:
    """Stripe's own library, with its default transport."""

    row = "Stripe"
    path = "/v1/charges"
    # It has an exception of its own for a 400 alone.
    errors: Mapping[str, type[Exception]] = {
        "key-reused": stripe.IdempotencyError,
        "in-flight": stripe.APIError,
        "in-doubt": stripe.APIError,
        "lost": stripe.APIError,
        "response-not-stored": stripe.APIError,
        "upstream-unreachable": stripe.APIError,
        "429": stripe.RateLimitError,
    }

    def create(
        self,
        port: int,
        key: str,
        amount: int = 1000,
        *,
        retries: int = 4,
        timeout: float = 30.0,
        account: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        with requests.Session() as session:
            client = stripe.StripeClient(
                "sk_test_1",
                base_addresses={"api": f"http://127.0.0.1:{port}"},
                max_network_retries=retries,
                stripe_account=account,
                http_client=stripe.RequestsClient(timeout=timeout, session=session),
            )
            charge = client.v1.charges.create(
                {"amount": amount, "currency": "eur", "source": "tok_visa", "metadata": dict(metadata or {})},
                {"idempotency_key": key},
            )
            return charge.id

    def answer(self, received: Received) -> Answer:
        charge = {"id": f"ch_{received.number}", "object": "charge", "status": "succeeded"}
        return Answer(headers=_JSON, body=json.dumps(charge).encode())


class OpenAI:
    """OpenAI's library, which Stainless generates, as it does those of the same row."""

    row = "OpenAI"
    path = "/v1/chat/completions"
    errors: Mapping[str, type[Exception]] = {
        "key-reused": openai.UnprocessableEntityError,
        "in-flight": openai.ConflictError,
        "in-doubt": openai.ConflictError,
        "lost": openai.InternalServerError,
        "response-not-stored": openai.ConflictError,
        "upstream-unreachable": openai.InternalServerError,
        "429": openai.RateLimitError,
    }

    def create(self, port: int, key: str | None, amount: int = 1000, *, retries: int = 4, timeout: float = 30.0) -> str:
        with openai.OpenAI(
            api_key="sk-test",
            base_url=f"http://127.0.0.1:{port}/v1",
            max_retries=retries,
            timeout=httpx2.Timeout(timeout),
        ) as client:
            completion = client.chat.completions.create(
                model="small",
                messages=[{"role": "user", "content": f"Charge {amount}."}],
                extra_headers={"Idempotency-Key": key} if key is not None else {},
            )
            return completion.id

    def answer(self, received: Received) -> Answer:
        message = {"role": "assistant", "content": "Charged."}
        completion = {
            "id": f"completion-{received.number}",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        return Answer(headers=_JSON, body=json.dumps(completion).encode())


# `row` names its row in docs/client-libraries.md, and `errors` are the exceptions that its users see, by verdict.
# `create` has one thing created and returns its id, after the library's own retries; `answer` is what the service says.
Library = Stripe | OpenAI
