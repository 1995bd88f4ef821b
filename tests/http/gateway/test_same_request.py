"""Which requests are the same, through a whole gateway: what senders write for one intent, and for another one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_plus, urlencode

import pytest

from tests.support import http
from tests.support.house import house, sqlite_store, status_of
from tests.support.upstream import Answer

FORM: Final = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Sender:
    """What a sender writes for one object, for the same with its members in another order, and for another object."""

    name: str
    once: str
    again: str
    other: str
    media_type: str = FORM


def written(name: str, once: str, one: str, two: str) -> Sender:
    """A form; again with its members in another order, and those of each list as they were; and with two values, or
    the places of two, exchanged."""
    members = once.split("&")
    parts = [re.fullmatch(r"(.*?)(?:\[(\d*)\].*)?", unquote_plus(each.partition("=")[0])) for each in members]
    names = [part[1] for part in parts]

    def place(at: int) -> tuple[int, str, int]:
        index = parts[at][2] or ""
        return -names.index(names[at]), index, -at if index else at

    swapped = once.replace(one, "\0").replace(two, one).replace("\0", two)
    return Sender(name, once, "&".join(members[at] for at in sorted(range(len(members)), key=place)), swapped)


def _multipart(boundary: str, *parts: tuple[str, str]) -> str:
    whole = [
        f"--{boundary}\r\nContent-Disposition: form-data; {about}\r\n\r\n{content}\r\n" for about, content in parts
    ]
    return "".join(whole) + f"--{boundary}--\r\n"


FLAT: Final = {"amount": 1000, "metadata[order]": "6735", "metadata[part]": "a b&c", "expand": ["customer", "invoice"]}
META: Final = "metadata%5Border%5D=6735&metadata%5Bpart%5D=a"
PURPOSE, FILE = ('name="purpose"', "dispute_evidence"), ('name="file"; filename="a.txt"', "x")
AMOUNT, TAG_A, TAG_B = ('name="amount"', "1"), ('name="tags[]"', "a"), ('name="tags[]"', "b")

# What the libraries wrote, stripe-python as stripe-node but for its escapes.
SENDERS: Final = [
    # stripe 23.1.0
    written(
        "stripe-node",
        "amount=1000&currency=eur&metadata[order]=6735&metadata[part]=a%20b%26c&expand[0]=customer&expand[1]=invoice"
        "&items[0][price]=p_1&items[0][quantity]=2&items[1][price]=p_2&items[1][quantity]=1",
        "customer", "invoice",
    ),
    written(
        "rails-to_query",
        "amount=1000&items%5B%5D%5Bprice%5D=p_1&items%5B%5D%5Bquantity%5D=2&items%5B%5D%5Bprice%5D=p_2"
        f"&items%5B%5D%5Bquantity%5D=1&{META}+b%26c",
        "p_1", "p_2",
    ),
    # qs 6.17.1, by its `arrayFormat`, and with `allowDots`
    written(
        "qs-brackets", f"amount=1000&{META}%20b%26c&expand%5B%5D=customer&expand%5B%5D=invoice", "customer", "invoice"
    ),
    written(
        "qs-dots",
        "amount=1000&metadata.order=6735&metadata.part=a%20b%26c&items%5B0%5D.price=p_1&items%5B0%5D.quantity=2",
        "6735", "a%20b%26c",
    ),
    written("python-urlencode", urlencode(FLAT, doseq=True), "customer", "invoice"),
    # stripe 23.1.0
    Sender(
        "stripe-node-file",
        _multipart("b5fca587-2469-4481-8a68-75d5d8bf1184", PURPOSE, FILE),
        _multipart("b5fca587-2469-4481-8a68-75d5d8bf1184", FILE, PURPOSE),
        _multipart("b5fca587-2469-4481-8a68-75d5d8bf1184", (PURPOSE[0], "identity_document"), FILE),
        "multipart/form-data; boundary=b5fca587-2469-4481-8a68-75d5d8bf1184",
    ),
    Sender(
        "multipart-lists",
        _multipart("X", AMOUNT, TAG_A, TAG_B),
        _multipart("X", TAG_A, TAG_B, AMOUNT),
        _multipart("X", AMOUNT, TAG_B, TAG_A),
        "multipart/form-data; boundary=X",
    ),
]  # fmt: skip


@pytest.mark.parametrize("sender", [pytest.param(each, id=each.name) for each in SENDERS])
async def test_forms(tmp_path: Path, sender: Sender) -> None:
    """A form with its members in another order is the same request; one that means something else is another."""
    async with house(sqlite_store(tmp_path), tmp_path) as home:

        async def send(body: str) -> tuple[int, str | None]:
            fields = [("Content-Type", sender.media_type), ("X-Tenant", "t1"), ("Idempotency-Key", "k1")]
            return status_of(await http.request(home.port, "POST", "/charges", fields, body.encode()))

        assert await send(sender.once) == (200, "stored")
        assert await send(sender.again) == (200, "replayed")
        assert await send(sender.other) == (422, "key-reused")
        assert len(home.upstream.effects) == 1


CONDITIONS: Final = [
    ("If-Match", '"v1"', '"v2"'),
    ("If-None-Match", "*", '"v2"'),
    ("If-Modified-Since", "Sat, 29 Oct 2022 19:43:31 GMT", "Sun, 30 Oct 2022 19:43:31 GMT"),
    ("If-Unmodified-Since", "Sat, 29 Oct 2022 19:43:31 GMT", "Sun, 30 Oct 2022 19:43:31 GMT"),
    ("If-Range", '"v1"', '"v2"'),
    ("Range", "bytes=0-9", "bytes=10-19"),
    ("Content-Range", "bytes 0-9/20", "bytes 10-19/20"),
    ("If", "(<urn:uuid:1>)", "(<urn:uuid:2>)"),
    ("Destination", "/charges/a", "/charges/b"),
    ("Upload-Offset", "0", "10"),
    ("X-Goog-If-Generation-Match", "1", "2"),
    ("X-Amz-Copy-Source", "/a/b", "/a/c"),
    ("X-Amz-Target", "Orders.Create", "Orders.Delete"),
    ("SOAPAction", '"charge"', '"refund"'),
]


@pytest.mark.parametrize(("name", "one", "other"), CONDITIONS, ids=[name for name, _, _ in CONDITIONS])
async def test_conditions(tmp_path: Path, name: str, one: str, other: str) -> None:
    """A condition, or what else makes the same body mean something else, belongs to the request."""
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        home.upstream.on("/charges", Answer(412, effect=False))
        assert status_of(await home.send(headers=[(name, one)])) == (412, "stored")
        assert status_of(await home.send(headers=[(name, one)])) == (412, "replayed")
        refused = await home.send(headers=[(name, other)])
        assert status_of(refused) == (422, "key-reused")
        assert refused.json()["differs"] == [f"header:{name.lower()}"]
        refused = await home.send()
        assert status_of(refused) == (422, "key-reused")
        assert refused.json()["differs"] == ["conditions"]
        if "-" in name:
            misspelt = await home.send("k2", headers=[(name.replace("-", "_"), one)])
            assert status_of(misspelt) == (400, "request-invalid")
        assert status_of(await home.send("k3", headers=[(name, one), ("Connection", name)])) == (400, "request-invalid")


async def test_what_a_retry_may_change(tmp_path: Path) -> None:
    """Preferences, and what tells one try from the next, belong to the try."""
    names = ("Prefer", "Accept", "Accept-Language", "User-Agent", "X-Request-Id", "X-Retry-Count")
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        assert status_of(await home.send(headers=[(name, "wait=5") for name in names])) == (200, "stored")
        for name in names:
            assert status_of(await home.send(headers=[(name, "wait=6")])) == (200, "replayed"), name
        assert status_of(await home.send()) == (200, "replayed")


@pytest.mark.parametrize(
    "key", [{"body": "/id"}, {"compose": [{"header": "X-Shop"}, {"body": "/id"}]}], ids=["body", "composed"]
)
async def test_numbers_as_keys(tmp_path: Path, key: dict[str, Any]) -> None:
    """A whole number is one key in plain digits and as a string, and in any other spelling it is none."""
    async with house(sqlite_store(tmp_path), tmp_path, route={"key": key | {"required": True}}) as home:

        async def send(value: str) -> http.Response:
            return await home.send(None, b'{"id":%b}' % value.encode(), headers=[("X-Shop", "1")])

        assert status_of(await send("1001")) == (200, "stored")
        assert status_of(await send("1001")) == (200, "replayed")
        assert status_of(await send('"1001"')) == (422, "key-reused")
        for value in ("1001.0", "1.001e3", "1e3", "-0", "true", "false", "null", "[1001]", '{"id":1001}', '""'):
            refused = await send(value)
            assert status_of(refused) == (400, "key-invalid"), value
            assert "/id of the body is" in refused.json()["detail"]
        assert status_of(await send("1002")) == (200, "stored")
        assert len(home.upstream.effects) == 2


MIB = 1 << 20
BODY = bytes(range(256)) * (64 * MIB // 256)
DEADLINE_SECONDS = 60.0


@pytest.mark.parametrize("media_type", ["application/octet-stream", "application/json"])
async def test_a_large_body_is_as_safe_as_a_small_one(tmp_path: Path, media_type: str) -> None:
    """Sixty-four MiB arrive unchanged and once; their repeat is replayed, and one other byte in them is noticed."""
    fields = [("Content-Type", media_type), ("X-Tenant", "t1"), ("Idempotency-Key", "k1")]
    store = {"durable": f"sqlite://{tmp_path}/operations.db"}
    async with house(store, tmp_path, route={"body": {"max_bytes": "64MiB"}}) as home:

        async def send(body: bytes) -> tuple[int, str | None]:
            sent = http.request(home.port, "POST", "/charges", fields, body, deadline_seconds=DEADLINE_SECONDS)
            return status_of(await sent)

        assert await send(BODY) == (200, "stored")
        (received,) = home.upstream.requests
        assert sha256(received.body).digest() == sha256(BODY).digest()
        assert await send(BODY) == (200, "replayed")
        assert await send(BODY[:-1] + b"!") == (422, "key-reused")
        assert len(home.upstream.requests) == 1
    assert list((tmp_path / "state" / "spool").iterdir()) == []
