"""What consumers of webhooks see, and what their answers mean."""

from __future__ import annotations

import asyncio
import errno
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, tzinfo
from ipaddress import ip_network
from typing import Any, Self

import orjson
import pytest
from aiohttp import ClientOSError, ClientRequest
from cloudevents.v1.conversion import from_json
from cloudevents.v1.http import CloudEvent
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks import Webhook

from gateway.config.models import WebhookSink as WebhookSettings
from gateway.core.operation import microseconds
from gateway.core.webhook import STANDARD_WEBHOOKS, EgressPolicy, Secret, sign, signing_key
from gateway.events.relay import Publication
from gateway.events.webhook import RESPONSE_BYTES_MAX, WebhookSink
from gateway.observe.facts import PublicationResult as Result
from tests.events.support import new_event, opened, publish, webhook_at
from tests.support.ports import free_port
from tests.support.receiver import Answer, Receiver, hang, status
from tests.support.signing import SECRET, WHSEC

EGRESS = EgressPolicy(allow=(ip_network("127.0.0.1"),), https_only=False)
NOW = 1_800_000_000.0
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PRIVATE_SECRET = Secret("b", *signing_key("whsk_" + b64encode(bytes(range(32))).decode()))


def webhook(settings: WebhookSettings, now: float = NOW, **options: Any) -> AbstractAsyncContextManager[WebhookSink]:
    return opened(WebhookSink(settings, EGRESS, wall_seconds=lambda: now, **options))


async def answered(answer: Answer, *, timeout_seconds: float = 20.0) -> Publication:
    async with Receiver(answer) as receiver:
        async with webhook(webhook_at(receiver.url, SECRET), timeout_seconds=timeout_seconds) as sink:
            result = await publish(sink, new_event())
        assert len(receiver.received) == 1
    return result


async def test_a_consumer_verifies_what_it_gets_by_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard Webhooks' own; the event is a CloudEvent with the same id."""
    async with Receiver() as receiver, webhook(webhook_at(receiver.url, SECRET)) as sink:
        event = new_event()
        assert await publish(sink, event) == Publication(Result.DELIVERED, secret_ids=("a",))
    (got,) = receiver.received
    monkeypatch.setattr("standardwebhooks.webhooks.datetime", _Clock)
    document = Webhook(WHSEC).verify(got.body, got.headers)
    cloud_event = from_json(CloudEvent, got.body)
    assert cloud_event["id"] == got.id == document["id"] == event.id
    assert "." not in got.id
    assert got.headers["content-type"].startswith("application/cloudevents+json")
    assert cloud_event["type"] == "operation.completed"
    assert cloud_event["subject"] == cloud_event.data["operation_id"] == event.operation_id


class _Clock(datetime):
    """The library's clock, at the time of the test."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(NOW + 10, tz)


async def test_each_attempt_is_signed_anew_and_its_bytes_are_the_same() -> None:
    """By every secret that is alive, by HMAC and by Ed25519."""
    old = replace(SECRET, id="old", until=NOW + 50)
    event = new_event()
    async with Receiver(status(500)) as receiver:
        for now in (NOW, NOW + 100):
            async with webhook(webhook_at(receiver.url, old, SECRET, PRIVATE_SECRET, format="standard"), now) as sink:
                await publish(sink, event)
    first, second = receiver.received
    assert first.body == second.body == event.standard()
    assert (first.id, first.headers["webhook-timestamp"]) == (event.id, str(int(NOW)))
    assert second.headers["webhook-timestamp"] == str(int(NOW) + 100)
    assert set(orjson.loads(first.body)) == {"type", "timestamp", "data"}
    assert [len(got.headers["webhook-signature"].split(" ")) for got in (first, second)] == [3, 2]
    shared, private = second.headers["webhook-signature"].split(" ")
    signed = f"{event.id}.{int(NOW) + 100}.".encode() + second.body
    assert shared == "v1," + b64encode(hmac.digest(SECRET.key, signed, "sha256")).decode()
    PRIVATE.public_key().verify(b64decode(private.removeprefix("v1a,")), signed)


ANSWERS = {Result.DELIVERED: (200, 201, 202, 204, 299), Result.FAILED: (301, 302, 307, 308, 400, 401, 404, 409, 422,
           429, 500, 503), Result.SUSPENDED: (410,)}  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), [(code, result) for result, codes in ANSWERS.items() for code in codes])
async def test_what_a_response_means(code: int, expected: Result) -> None:
    """A failure is tried again no sooner than the consumer asks for, and 410 closes the sink; no redirect is followed,
    because nobody checked where it leads. The reason is for operators, and for their terminals harmless."""
    async with Receiver() as elsewhere:
        result = await answered(status(code, "no\x1b[31m\nway", Retry_After="77", Location=elsewhere.url))
        assert elsewhere.received == []
    assert result.result is expected
    if code in range(300, 400):
        assert result.why.startswith(f"HTTP {code}: redirects are not followed")
    elif expected is Result.FAILED:
        cause = f"HTTP {code}"
        assert (result.why, result.cause, result.retry_after_us) == (f"{cause} no?[31m?way", cause, microseconds(77))


async def test_silence_is_unknown() -> None:
    """The consumer may have taken it; it gets the same id again."""
    result = await answered(hang, timeout_seconds=0.2)
    assert result.result is Result.UNKNOWN


async def test_a_long_response_is_cut() -> None:
    """It is read to a limit, and shown to a shorter one."""
    result = await answered(status(500, "x" * (100 * RESPONSE_BYTES_MAX)))
    assert result.is_failed
    assert len(result.why) < RESPONSE_BYTES_MAX


def _garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(b"no HTTP at all\r\n\r\n")


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("answer", [_garbage, _reset])
async def test_a_failure_of_http_does_not_tell_the_url(answer: Callable[[asyncio.StreamWriter], None]) -> None:
    """It is a secret, and reasons are kept, logged and shown."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with webhook(webhook_at(f"http://127.0.0.1:{port}/hooks/T0KEN", SECRET)) as sink:
            result = await publish(sink, new_event())
    assert result.result is Result.UNKNOWN
    assert "Error" in result.why
    assert "T0KEN" not in result.why


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http:///hooks/T0KEN", Result.UNKNOWN),
        ("ftp://ledger.example.com/hooks/T0KEN", Result.UNKNOWN),
        # Nothing was sent.
        (f"http://127.0.0.1:{free_port()}/T0KEN", Result.FAILED),
    ],
    ids=["no-host", "no-http", "nobody-listens"],
)
async def test_a_url_where_nobody_can_be_reached_is_not_told(url: str, expected: Result) -> None:
    """Errors of the library have nothing but the URL."""
    async with webhook(webhook_at(url, SECRET)) as sink:
        result = await publish(sink, new_event())
    assert result.result is expected
    assert "T0KEN" not in result.why


async def test_a_response_that_repeats_the_url_does_not_tell_it() -> None:
    """Many services say what they do not find."""
    async with (
        Receiver(status(404, "Cannot POST /hooks/T0KEN?key=S3CRET")) as receiver,
        webhook(webhook_at(receiver.url + "/T0KEN?key=S3CRET", SECRET)) as sink,
    ):
        result = await publish(sink, new_event())
    assert result.why == "HTTP 404 Cannot POST ...?..."


async def test_a_body_that_could_not_be_sent_does_not_tell_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library writes the URL into the text of the system's error."""

    async def fails(*_: object, **__: object) -> None:
        raise ClientOSError(errno.EPIPE, "Can not write request body for http://127.0.0.1:9/hooks/T0KEN")

    monkeypatch.setattr(ClientRequest, "send", fails)
    async with Receiver() as receiver, webhook(webhook_at(receiver.url, SECRET)) as sink:
        result = await publish(sink, new_event())
    assert result == Publication(Result.UNKNOWN, "ClientOSError: Broken pipe")


async def test_without_a_living_secret_nothing_is_sent() -> None:
    """An unsigned event would be refused, or worse, not be."""
    async with Receiver() as receiver:
        ended = replace(SECRET, until=NOW - 1)
        async with webhook(webhook_at(receiver.url, ended)) as sink:
            assert (await publish(sink, new_event())).result is Result.SUSPENDED
        assert receiver.received == []


OF_ANOTHER_FORM = ("", "whsec_", "whsec_AAAA", "whsec_!", "whsk_AAAA", "whsec_" + b64encode(bytes(65)).decode(),
                   "whpk_" + b64encode(bytes(32)).decode())  # fmt: skip


@pytest.mark.parametrize("text", OF_ANOTHER_FORM)
def test_a_secret_of_another_form_is_refused(text: str) -> None:
    """Too short, too long, no base64, a public key; the error has none of it."""
    with pytest.raises(ValueError, match=r"expected|private one") as caught:
        signing_key(text)
    assert text == "" or text not in str(caught.value)


@pytest.mark.parametrize("event_id", [b"evt.1", b""], ids=["read as another one", "none"])
def test_an_id_that_consumers_could_not_trust_is_not_signed(event_id: bytes) -> None:
    """What is behind a dot would pass for the time."""
    with pytest.raises(ValueError, match=r"separates|signs an id"):
        sign(STANDARD_WEBHOOKS, [SECRET], b"{}", now=int(NOW), event_id=event_id)
