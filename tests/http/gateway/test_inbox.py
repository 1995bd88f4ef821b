"""Webhooks through a whole gateway: acknowledged once stored, delivered once, and every repeat acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
import standardwebhooks
import stripe

from gateway.app.parts import Environment
from gateway.core.operation import Audit, Claim, Command, Disprove, Erase, Purge, Record, Release, State, Withdraw
from gateway.store.operations import Query
from tests.http.gateway.asking import metric
from tests.support import http
from tests.support.eventually import eventually
from tests.support.faulty_store import FaultyStore, refused
from tests.support.house import House, Surround, house, neighbour, sqlite_store, status_of
from tests.support.http import Response
from tests.support.senders import PAID, SENDERS, TEXT, WHSEC, body_of, hex_hmac, signed
from tests.support.upstream import Answer, Ending

PATH: Final = "/hooks"
ENCRYPTION: Final = {"encryption": [{"id": "a", "key": "0f" * 32}]}
STORED: Final = frozenset(State) - {State.ABSENT}
AUDIT: Final = Audit("me", "because")
UNREACHED: Final = Answer(503, headers=(("Retry-After", "3600"),), effect=False)
DAY_US: Final = 86_400_000_000


def acknowledged(preset: str) -> int:
    """The status that the sender expects."""
    return 202 if preset in ("standard_webhooks", "cloudevents") else 200


@dataclass
class Post:
    """A gateway with an inbox, as its sender sees it."""

    home: House
    preset: str

    async def send(self, body: bytes | None = None, *, age: int = 0, event: str = "msg_1", **changes: Any) -> Response:
        """Deliver an event that was signed `age` seconds ago. `changes` are headers, with `_` for `-`."""
        body = body_of(self.preset) if body is None else body
        return await self.deliver(signed(self.preset, body, int(time.time()) - age, event), body, **changes)

    async def deliver(
        self, headers: Mapping[str, str], body: bytes, *, method: str = "POST", **changes: str | None
    ) -> Response:
        """Send this message; without the headers that are changed to None."""
        changed = {name.replace("_", "-").lower(): value for name, value in changes.items()}
        sent = {name.lower(): value for name, value in headers.items()} | {"content-type": "application/json"} | changed
        fields = [(name, value) for name, value in sent.items() if value is not None]
        return await http.request(self.home.port, method, PATH, fields, body)

    @property
    def received(self) -> list[bytes]:
        return [request.body for request in self.home.upstream.requests]

    @property
    def store(self) -> Any:
        return self.home.gateway.parts.store

    async def records(self) -> list[Record]:
        return [
            snapshot.record for snapshot in await self.store.cold.find(Query(STORED)) if snapshot.record is not None
        ]

    async def becomes(self, state: State) -> Record:
        """Wait until the one operation has this state."""

        async def found() -> Record | None:
            records = await self.records()
            return records[0] if [record.state for record in records] == [state] else None

        record = await eventually(found, what=f"one operation is {state}")
        assert record is not None
        return record

    async def apply(self, make: Callable[[UUID, int], Command]) -> None:
        (record,) = await self.records()
        await self.store.apply(make(record.identity.operation_id, record.token))


@asynccontextmanager
async def post(
    directory: Path,
    preset: str = "stripe",
    *,
    inbox: Mapping[str, Any] | None = None,
    surround: Surround | None = None,
    top: Mapping[str, Any] | None = None,
    **route: Any,
) -> AsyncIterator[Post]:
    changes = inbox_of(preset, inbox, route) | dict(top or {}) | ({} if surround is None else {"surround": surround})
    async with house(sqlite_store(directory), directory, **changes) as home:
        yield Post(home, preset)


def inbox_of(preset: str, inbox: Mapping[str, Any] | None = None, route: Mapping[str, Any] | None = None) -> Any:
    secret = WHSEC if preset == "standard_webhooks" else TEXT
    whole = {
        "name": "hooks",
        "match": {"path": PATH, "methods": ["POST"]},
        "inbox": {"preset": preset, "secrets": [{"id": "a", "key": secret}], **(inbox or {})},
        "scope": "shared",
        "outcome": {"preset": "success_only"},
        "delivery": {"schedule": ["100ms"]},
        **(route or {}),
    }
    return {"routes": [whole], "secrets": ENCRYPTION}


# -- each sender -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", SENDERS)
async def test_accepted_and_delivered_once(tmp_path: Path, preset: str) -> None:
    """The sender gets its acknowledgement, also for repeats, and the service the message as it came, once."""
    async with post(tmp_path, preset) as it:
        it.home.upstream.on(PATH, Answer(503, effect=False), Answer(200))
        assert status_of(await it.send(x_other="1")) == (acknowledged(preset), "accepted")
        await it.home.upstream.wait_for_requests(2)
        await it.becomes(State.COMPLETED)
        for _ in range(2):
            assert status_of(await it.send()) == (acknowledged(preset), "event-duplicate")
        first, second = it.home.upstream.requests
        assert first.body == second.body == body_of(preset)
        assert {len(second.values(name)) for name in signed(preset, body_of(preset))} == {1}
        assert second.values("x-other") == [b"1"]
        assert second.values("idempotency-attempt") == [b"2"]


async def test_a_sender_without_a_preset(tmp_path: Path) -> None:
    settings = {"header": "X-Sign", "signed": "{id}.{timestamp}.{body}", "id": "X-Event", "timestamp": "X-Time"}
    async with post(tmp_path, "hmac", inbox={"hmac": settings}) as it:
        now = str(int(time.time()))
        made = hex_hmac(TEXT, f"e1.{now}.".encode() + PAID)
        headers = {"X-Sign": made, "X-Event": "e1", "X-Time": now}
        assert status_of(await it.deliver(headers, PAID)) == (202, "accepted")
        assert status_of(await it.deliver(headers, PAID)) == (202, "event-duplicate")
        assert status_of(await it.deliver(headers, PAID, X_Event="e2")) == (401, "signature-invalid")
        await it.home.upstream.wait_for_requests(1)


async def test_a_long_message(tmp_path: Path) -> None:
    """One that is held in a file is verified and delivered to the byte, also its headers where it is prompt."""
    body = b'{"id":"evt_1","data":"%b"}' % (b"x" * 600_000)
    async with post(tmp_path) as it:
        assert status_of(await it.send(body[:-1] + b" ", stripe_signature="t=1,v1=00"))[0] == 401
        message = signed("stripe", body, int(time.time()) - 20)
        assert status_of(await it.deliver(message, body)) == (200, "accepted")
        await it.home.upstream.wait_for_requests(1)
        assert it.received == [body]
        for name, value in message.items():
            assert it.home.upstream.requests[0].values(name) == [value.encode()]


async def test_of_many_at_once_one_is_delivered(tmp_path: Path, postgres_url: str) -> None:
    """At two gateways, also where the id is not signed, and each has another one."""
    store, changes = {"durable": postgres_url}, inbox_of("github")
    async with (
        house(store, tmp_path / "a", **changes) as home,
        neighbour(store, tmp_path / "b", home.upstream, **changes) as other,
    ):
        posts = [Post(each, "github") for each in (home, other)]
        replies = await asyncio.gather(*[posts[number % 2].send(event=f"m{number}") for number in range(12)])
        verdicts = sorted(reply.header("Idempotency-Status") or "" for reply in replies)
        assert verdicts == ["accepted", *["event-duplicate"] * 11]
        assert {reply.status for reply in replies} == {200}
        await posts[0].becomes(State.COMPLETED)
        assert len(posts[0].received) == 1


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", SENDERS)
async def test_what_is_not_genuine_leaves_a_counter(tmp_path: Path, preset: str) -> None:
    """Nothing is stored or sent of it, and all refusals read the same but for their code."""
    names = {name.lower() for name in signed(preset) if "sign" in name.lower() or "hmac" in name.lower()}
    (name,) = {"authorization"} if preset == "cloudevents" else names
    async with post(tmp_path, preset) as it:
        changes = (None, "v1,AAAA t=1,v1=00 Bearer x" * 9, f"{name}=0")
        replies = [await it.send(**{name: change}) for change in changes]
        assert status_of(replies[0])[1] == "signature-missing"
        for reply in replies:
            assert (reply.status, bool(reply.header("WWW-Authenticate"))) == (401, True)
            assert b"The message is not signed by its sender" in reply.body
        assert (await it.records(), it.received) == ([], [])
        assert await metric(it.home, "inbox_rejected_total") == 3
        # The genuine one is not hindered.
        assert status_of(await it.send())[1] == "accepted"
        assert await metric(it.home, "secret_used_total", id="a") == 1


async def test_what_cannot_be_an_event(tmp_path: Path) -> None:
    """What is stale, has no id, is too long or a batch is refused, and not acknowledged; a question is answered, and
    the service hears nothing of it."""
    async with post(tmp_path, body={"max_bytes": "1KiB"}) as it:
        # Too old, and too far in the future.
        for age in (400, -400):
            assert status_of(await it.send(age=age)) == (401, "signature-stale")
        assert status_of(await it.send(b"{}")) == (400, "key-invalid")
        assert status_of(await it.send(b'{"id":"%b"}' % (b"x" * 2000))) == (413, "body-too-large")
        assert (await it.records(), it.received) == ([], [])
    async with post(tmp_path / "patient", inbox={"tolerance": "10m"}) as it:
        assert status_of(await it.send(age=400)) == (200, "accepted")
    async with post(tmp_path / "batches", "cloudevents") as it:
        batch = await it.send(b"[]", content_type="application/cloudevents-batch+json")
        assert status_of(batch) == (415, "event-unsupported")
        assert (await it.records(), it.received) == ([], [])
    async with post(tmp_path / "slack", "slack") as it:
        reply = await it.send(b'{"type":"url_verification","challenge":"3eZbrw1a"}')
        assert (reply.status, reply.body) == (200, b"3eZbrw1a")
        assert reply.header("Content-Type") == "text/plain; charset=utf-8"
        assert (await it.records(), it.received) == ([], [])


async def test_an_address_that_fails_often(tmp_path: Path) -> None:
    """It is refused for a while; the sender is not, even where both come through one proxy."""
    proxies = {"trusted_proxies": ["127.0.0.1/32"]}
    async with post(tmp_path, top=proxies) as it:
        for _ in range(20):
            assert (await it.send(stripe_signature="t=1,v1=00", x_forwarded_for="203.0.113.9")).status == 401
        throttled = await it.send(x_forwarded_for="198.51.100.1, 203.0.113.9")
        assert throttled.status == 429
        assert throttled.header("Retry-After") == "60"
        assert (await it.send(x_forwarded_for="203.0.113.9, 198.51.100.1")).status == 200
        # A genuine message came from there, so failures of its neighbours no longer count.
        for _ in range(25):
            assert (await it.send(stripe_signature="t=1,v1=00", x_forwarded_for="198.51.100.1")).status == 401
        assert (await it.send(x_forwarded_for="198.51.100.1")).status == 200
        assert await metric(it.home, "inbox_rejected_total", reason="throttled") == 1


async def test_the_store_is_down(tmp_path: Path) -> None:
    """The sender keeps its event and comes again: nothing is acknowledged before it is stored, be it for want of the
    store or of room. Repeats are acknowledged all the same."""
    made: list[FaultyStore] = []

    def surround(environment: Environment) -> Environment:
        made.append(FaultyStore(environment.durable))
        return replace(environment, durable=made[0])

    async with post(tmp_path, surround=surround, accept={"max_pending": 1}) as it:
        it.home.upstream.on(PATH, UNREACHED)
        made[0].break_("accept", fault=refused())
        reply = await it.send()
        assert (status_of(reply), reply.header("Retry-After") is None) == ((503, "store-unavailable"), False)
        made[0].mend()
        assert status_of(await it.send()) == (200, "accepted")
        await it.home.upstream.wait_for_requests(1)
        await it.becomes(State.ACCEPTED)
        other = await it.send(b'{"id":"evt_2"}')
        assert (status_of(other), other.header("Retry-After") is None) == ((503, "backlog-full"), False)
        assert status_of(await it.send()) == (200, "event-duplicate")


async def test_nobody_is_shown_what_became_of_an_event(tmp_path: Path) -> None:
    """Its sender has no credentials to ask with, and the scope is everybody's: the path belongs to the service."""
    async with post(tmp_path) as it:
        await it.send()
        record = await it.becomes(State.COMPLETED)
        before = len(it.received)
        for suffix in ("", "/result"):
            target = f"/_operations/{record.identity.operation_id}{suffix}"
            reply = await http.request(it.home.port, "GET", target, [], b"")
            assert reply.header("Idempotency-Status") is None
        assert len(it.received) == before + 2


# -- repeats -----------------------------------------------------------------------------------------------------------

LOST: Final = Answer(bytes_max=0, ending=Ending.CLOSE)
COMMANDS: Final[dict[str, Callable[[UUID, int], Command]]] = {
    "withdraw": lambda operation_id, token: Withdraw(operation_id, token, uuid4(), DAY_US, AUDIT),
    "disprove": lambda operation_id, token: Disprove(operation_id, token, uuid4(), DAY_US, AUDIT),
    "purge": lambda operation_id, _: Purge(operation_id, AUDIT),
    "erase": lambda operation_id, _: Erase(operation_id, AUDIT),
}


@pytest.mark.parametrize(
    ("answer", "state", "command", "then"),
    [
        (UNREACHED, State.ACCEPTED, None, State.ACCEPTED),
        (None, State.CLAIMED, None, State.CLAIMED),
        (LOST, State.IN_DOUBT, None, State.IN_DOUBT),
        (Answer(401), State.DEAD_LETTER, None, State.DEAD_LETTER),
        (Answer(200), State.COMPLETED, None, State.COMPLETED),
        (Answer(200), State.COMPLETED, "purge", State.TOMBSTONE),
        (UNREACHED, State.ACCEPTED, "withdraw", State.RELEASED),
        (Answer(401), State.DEAD_LETTER, "withdraw", State.RELEASED),
    ],
    ids=["accepted", "claimed", "in_doubt", "dead_letter", "completed", "tombstone", "withdrawn", "dead-withdrawn"],
)
@pytest.mark.parametrize("changed", [False, True], ids=["same", "changed"])
async def test_a_repeat_is_acknowledged_in_every_state(
    tmp_path: Path, answer: Answer | None, state: State, command: str | None, then: State, changed: bool
) -> None:
    """Whatever became of the event, the sender is done with it; nothing is delivered again, also with other bytes."""
    async with post(tmp_path) as it:
        hold = asyncio.Event()
        it.home.upstream.on(PATH, Answer(200, hold=hold) if answer is None else answer)
        assert status_of(await it.send()) == (200, "accepted")
        await it.home.upstream.wait_for_requests(1)
        await it.becomes(state)
        if command is not None:
            await it.apply(COMMANDS[command])
            await it.becomes(then)
        before = await it.records()
        body = PAID.replace(b"1000", b"9999") if changed else None
        for _ in range(2):
            reply = await it.send(body, age=-1)
            assert (status_of(reply), reply.body) == ((200, "event-duplicate"), b"")
        assert (await it.records(), it.received) == (before, [PAID])
        assert await metric(it.home, "inbox_duplicates_total") == 2
        assert await metric(it.home, "inbox_changed_total") == (2 if changed else 0)
        hold.set()


async def test_an_event_that_the_route_executed_before_it_was_an_inbox(tmp_path: Path) -> None:
    """Its sender still waits for the outcome: it comes again while that is open, and is not told that all is well. One
    that was found not to have happened is accepted again."""
    async with post(tmp_path) as it:
        it.home.upstream.on(PATH, UNREACHED, LOST, Answer(200))
        await it.send()
        await it.home.upstream.wait_for_requests(1)
        record = await it.becomes(State.ACCEPTED)
        for command in ("withdraw", "erase"):
            await it.apply(COMMANDS[command])
        assert record.fingerprint is not None
        claim = Claim(record.identity, uuid4(), "another", record.fingerprint, 60_000_000)
        claimed = (await it.store.apply(claim)).snapshot.record
        reply = await it.send()
        assert status_of(reply) == (503, "in-flight")
        assert reply.header("Retry-After")
        await it.store.apply(Release(record.identity.operation_id, claimed.token, claim.attempt_id, DAY_US))
        assert status_of(await it.send()) == (200, "accepted")
        await it.becomes(State.IN_DOUBT)
        await it.apply(COMMANDS["disprove"])
        assert status_of(await it.send()) == (200, "accepted")
        await it.becomes(State.COMPLETED)


async def test_what_a_repeat_does_where_the_route_says_so(tmp_path: Path) -> None:
    """A change is refused, and what its sender counts down itself is no change; a dead letter is delivered again."""
    dead_letter = {"on_repeat": "requeue", "requeue_after": "1s"}
    async with post(tmp_path, inbox={"on_change": "refuse"}, dead_letter=dead_letter) as it:
        it.home.upstream.on(PATH, Answer(401, effect=False), Answer(200))
        body = b'{"id":"evt_1","pending_webhooks":2}'
        assert status_of(await it.send(body)) == (200, "accepted")
        await it.becomes(State.DEAD_LETTER)
        assert status_of(await it.send(b'{"id":"evt_1","amount":1}')) == (409, "key-reused")

        async def is_delivered() -> bool:
            assert status_of(await it.send(body.replace(b"2", b"1"))) == (200, "event-duplicate")
            return len(it.received) == 2

        await eventually(is_delivered, what="the dead letter is delivered")
        await it.becomes(State.COMPLETED)
        assert it.received == [body] * 2


async def test_ids_that_are_not_signed(tmp_path: Path) -> None:
    """Another id does not make an old message new; two messages under one id are two events, each delivered."""
    async with post(tmp_path, "github") as it:
        assert status_of(await it.send(event="1")) == (200, "accepted")
        assert status_of(await it.send(event="2")) == (200, "event-duplicate")
        assert status_of(await it.send(b'{"other":1}', event="1")) == (200, "accepted")
        await it.home.upstream.wait_for_requests(2)
    async with post(tmp_path / "by-id", "github", inbox={"replay_guard": "none"}) as it:
        verdicts = [status_of(await it.send(event=event))[1] for event in ("1", "2", "1")]
        assert verdicts == ["accepted", "accepted", "event-duplicate"]
        await it.home.upstream.wait_for_requests(2)


SHOPIFY: Final = {
    "X-Shopify-Topic": "orders/create", "X-Shopify-Shop-Domain": "one.myshopify.com",
    "X-Shopify-API-Version": "2026-10", "X-Shopify-Triggered-At": "2026-11-27T03:10:00.000000000Z",
}  # fmt: skip
GITHUB: Final = {
    "User-Agent": "GitHub-Hookshot/044aadd", "X-GitHub-Event": "issues", "X-GitHub-Hook-ID": "292430182",
    "X-GitHub-Hook-Installation-Target-ID": "79929171", "X-GitHub-Hook-Installation-Target-Type": "repository",
}  # fmt: skip
CLOUD: Final = {"ce-type": "order.paid", "ce-source": "/shop/1", "ce-id": "1", "ce-time": "2026-11-27T03:10:00Z"}
CLOUD_REFUND: Final = {"ce-type": "order.refunded"}
BY_ID: Final = {"replay_guard": "none"}
ANOTHER, THE_SAME = "accepted", "event-duplicate"
# What comes with the first delivery, what differs in the next one, and whether that is the same event for its sender.
Beside = tuple[str, dict[str, Any], dict[str, str], dict[str, str], str]
BESIDE: Final[list[Beside]] = [
    ("shopify", {}, SHOPIFY, {}, THE_SAME),
    ("shopify", {}, SHOPIFY, {"X-Shopify-Topic": "orders/paid"}, ANOTHER),
    ("shopify", {}, SHOPIFY, {"X-Shopify-Shop-Domain": "two.myshopify.com"}, ANOTHER),
    ("shopify", {}, SHOPIFY, {"X-Shopify-Webhook-Id": "other"}, THE_SAME),
    ("shopify", BY_ID, SHOPIFY, {"X-Shopify-Topic": "orders/paid"}, ANOTHER),
    ("shopify", BY_ID, SHOPIFY, {"X-Shopify-Webhook-Id": "other"}, ANOTHER),
    ("github", {}, GITHUB, {"X-GitHub-Event": "issue_comment"}, ANOTHER),
    ("github", {}, GITHUB, {"X-GitHub-Hook-ID": "292430183"}, ANOTHER),
    ("github", {}, GITHUB, {"X-GitHub-Delivery": "other"}, THE_SAME),
    ("github", BY_ID, GITHUB, {"X-GitHub-Event": "issue_comment"}, ANOTHER),
    ("slack", {}, {}, {"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_timeout"}, THE_SAME),
    ("standard_webhooks", {}, {}, {"svix-retry-count": "1", "webhook-type": "other"}, THE_SAME),
    ("stripe", {}, {}, {"User-Agent": "Stripe/1.0", "Stripe-Version": "other"}, THE_SAME),
    # Of CloudEvents, source and id are all, unless another scheme signs the body.
    ("cloudevents", {}, CLOUD, {"ce-type": "order.refunded"}, THE_SAME),
    ("cloudevents", {}, CLOUD, {"ce-source": "/shop/2"}, ANOTHER),
    ("cloudevents", {}, CLOUD, {"ce-id": "2"}, ANOTHER),
    ("cloudevents-github", {}, CLOUD, {"ce-id": "2", "ce-time": "2026-11-27T04:10:00Z"}, THE_SAME),
    ("cloudevents-github", {}, CLOUD, {"ce-type": "order.refunded"}, ANOTHER),
    ("cloudevents-github", {}, CLOUD, {"ce-source": "/shop/2"}, ANOTHER),
    ("cloudevents-github", {}, CLOUD, {"ce-subject": "order/2"}, ANOTHER),
    ("cloudevents-github", {}, {"Content-Type": "application/cloudevents+json"}, CLOUD_REFUND, THE_SAME),
]


def _named_row(row: Beside) -> str:
    sender, inbox, _, changes, _ = row
    return "-".join([sender, *inbox.values(), *changes] if changes else [sender, *inbox.values(), "again"])


@pytest.mark.parametrize("row", BESIDE, ids=_named_row)
async def test_what_the_sender_says_beside_the_body(tmp_path: Path, row: Beside) -> None:
    """One body, or one id, may be several events, by what the sender says of them in headers; and what differs when it
    sends one again makes no other event, in whatever order they come."""
    sender, inbox, first, changes, expected = row
    preset, _, signature = sender.partition("-")
    if signature:
        inbox = inbox | {"cloudevents": {"signature": signature}}
    body = b'{"id":"1","source":"/shop","type":"order.paid"}' if signature else body_of(preset)
    deliveries = [(first, ANOTHER), (first | changes, expected), (first, THE_SAME), (first | changes, THE_SAME)]
    async with post(tmp_path, preset, inbox=inbox) as it:
        for number, (said, verdict) in enumerate(deliveries):
            headers = signed(signature or preset, body, int(time.time()) - 4 + number)
            fields = {name.replace("-", "_"): value for name, value in said.items()}
            assert status_of(await it.deliver(headers, body, **fields)) == (acknowledged(preset), verdict)
        count = 2 if expected == ANOTHER else 1
        await it.home.upstream.wait_for_requests(count)
        assert it.received == [body] * count


@pytest.mark.parametrize("event_id", ["X-Event", "/id"])
async def test_what_a_sender_without_a_preset_says_beside_the_body(tmp_path: Path, event_id: str) -> None:
    """The file names the headers that say what an event is: an order's number, or its body, may come with many."""
    settings = {"header": "X-Sign", "id": event_id, "about": ["X-Topic"]}
    async with post(tmp_path, "hmac", inbox={"hmac": settings}) as it:
        headers = {"X-Sign": hex_hmac(TEXT, PAID), "X-Event": "e1"}
        for topic, verdict in (("a", "accepted"), ("b", "accepted"), ("a", "event-duplicate"), (None, "accepted")):
            assert status_of(await it.deliver(headers, PAID, X_Topic=topic)) == (202, verdict)
        twice = [("X-Topic", "a"), ("x-topic", "b"), *headers.items()]
        assert status_of(await http.request(it.home.port, "POST", PATH, twice, PAID)) == (400, "request-invalid")
        await it.home.upstream.wait_for_requests(3)


# -- late deliveries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign_again", ["late", "never"])
async def test_a_late_delivery_is_signed_again(tmp_path: Path, sign_again: str) -> None:
    """The service gets a signature of now; where the route says never, it gets what came."""
    async with post(tmp_path, inbox={"sign_again": sign_again}) as it:
        await it.send(age=200)
        await it.home.upstream.wait_for_requests(1)
        (received,) = it.home.upstream.requests
        (value,) = received.values("Stripe-Signature")
        verify = partial(stripe.WebhookSignature.verify_header, received.body, value.decode(), TEXT)
        assert verify()
        try:
            is_accepted = verify(tolerance=100)
        except stripe.SignatureVerificationError:
            is_accepted = False
        assert is_accepted is (sign_again == "late")


async def test_the_gateway_signs_deliveries_by_itself(tmp_path: Path) -> None:
    """Where a sender's token proves nothing to the service, by Standard Webhooks, under the operation as its id."""
    own = {"as": "standard_webhooks", "signing_secrets": [{"id": "own", "key": WHSEC}]}
    async with post(tmp_path, "cloudevents", inbox=own) as it:
        await it.send()
        await it.home.upstream.wait_for_requests(1)
        (received,) = it.home.upstream.requests
        (record,) = await it.records()
    heads = {
        f"webhook-{name}": received.values(f"webhook-{name}")[0].decode() for name in ("id", "timestamp", "signature")
    }
    standardwebhooks.Webhook(WHSEC).verify(received.body, heads)
    assert heads["webhook-id"] == str(record.identity.operation_id)


# -- questions of senders ----------------------------------------------------------------------------------------------


async def test_the_handshake_of_cloud_events(tmp_path: Path) -> None:
    """Granted origins are named; any other OPTIONS request goes to the service."""
    inbox = {"cloudevents": {"origins": ["eventgrid.azure.net"]}}
    async with post(tmp_path, "cloudevents", inbox=inbox) as it:

        async def ask(**changes: str) -> Response:
            return await it.deliver({}, b"", method="OPTIONS", **changes)

        granted = await ask(webhook_request_origin="eventgrid.azure.net", webhook_request_rate="120")
        names = ("WebHook-Allowed-Origin", "WebHook-Allowed-Rate", "Allow")
        assert (granted.status, *map(granted.header, names)) == (200, "eventgrid.azure.net", "*", "OPTIONS, POST")
        denied = await ask(webhook_request_origin="evil.example")
        assert (denied.status, denied.header("WebHook-Allowed-Origin")) == (405, None)
        assert it.received == []
        assert (await ask()).status == 200
        assert [request.method for request in it.home.upstream.requests] == ["OPTIONS"]
        assert await it.records() == []
