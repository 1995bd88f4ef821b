"""What goes in comes out: every byte of an answer and of an identity, however odd."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID, uuid4

import pytest

from gateway.core.message import StoredResponse
from gateway.core.operation import Applied, Claim, Complete, Fingerprint, Identity, ProbeTarget
from gateway.store.base import Store
from tests.conformance.hand import LEASE_US, REMEMBER_US, REPLAY_US, Hand, do, new_identity

MIB = 1024 * 1024

RESPONSES = {
    "every-byte": StoredResponse(200, b"OK", (), bytes(range(256)) * 3),
    "empty-body": StoredResponse(204, b"No Content", (), b""),
    "body-not-kept": StoredResponse(200, b"OK", ((b"Content-Length", b"4000000"),), None),
    "one-mebibyte": StoredResponse(200, b"OK", (), random.Random(1).randbytes(MIB)),
    "repeated-fields-in-order": StoredResponse(
        200, b"OK", ((b"Set-Cookie", b"a=1"), (b"X", b"0"), (b"set-cookie", b"b=2"), (b"Set-Cookie", b"a=1")), b"x"
    ),
    "field-bytes-beyond-ascii": StoredResponse(200, b"\xff\xfe", ((b"X-\xe9", b"\xff\x80\xc3\xa9"), (b"Y", b"")), b"x"),
    "long-reason-and-fields": StoredResponse(200, b"r" * 5_000, ((b"N" * 300, b"v" * 70_000),) * 3, b"x"),
    "highest-status": StoredResponse(999, b"", (), b""),
}


async def test_an_answer_comes_back_byte_for_byte(store: Store, other_store: Store) -> None:
    """The recorded response is the one that was given first, in the result, in a read, and in another gateway's read,
    whatever its holder says afterwards."""
    for name, response in RESPONSES.items():
        await do(store, hand := Hand(), Hand.claim, lambda hand, response=response: hand.complete(response))
        await do(store, hand, Hand.complete)
        for snapshot in (hand.snapshot, await store.read(hand.operation_id), await other_store.read(hand.operation_id)):
            assert snapshot.record.response == response, name


IDENTITIES = {
    "key-in-clear": new_identity(key="a key"),
    "no-key": new_identity(key=None),
    "beyond-ascii": new_identity("zahlung-größe-€", "支払い", "🔑"),
    "long": new_identity("r" * 2_000, "o" * 2_000, "k" * 5_000),
    "empty-digests": Identity(uuid4(), "r", "o", b"", b""),
    "highest-id": Identity(UUID(int=2**128 - 1), "r", "o", b"s", b"k"),
}


async def test_an_identity_comes_back_as_given(store: Store) -> None:
    """Names, digests, holder and fingerprint are kept as they are, whatever they contain."""
    for name, identity in IDENTITIES.items():
        fingerprint = Fingerprint(bytes(range(64)), b"\x00" * 32, b"\xff" * 32, "ключ-1" if name == "long" else "")
        claim = Claim(identity, uuid4(), "höst:" + "h" * 500, fingerprint, LEASE_US)
        result = await store.apply(claim)
        assert isinstance(result, Applied)
        for record in (result.snapshot.record, (await store.read(identity.operation_id)).record):
            kept = record.identity, record.fingerprint, record.holder, record.attempt_id
            assert kept == (identity, fingerprint, claim.holder, claim.attempt_id), name


def _claim_of(number: int) -> Claim:
    """Claims of one number say the same, but for what is an operation's own; those of 0 leave out what they can."""
    own = uuid4()
    identity = Identity(
        own, f"route-{number}", f"op-{number}", b"scope-%d" % number, own.bytes, f"key-{number}" if number else None
    )
    fingerprint = Fingerprint(b"recipe-%d" % number, own.bytes, own.bytes, f"secret-{number}")
    probe = ProbeTarget(b"/charges/%d" % number, b"api.test") if number else None
    return Claim(identity, uuid4(), f"holder-{number}", fingerprint, LEASE_US + number, probe=probe)


def _answer_of(number: int) -> StoredResponse:
    location = ((b"Location", b"/charges/%d" % number),) if number else ()
    return StoredResponse(200 + number, b"Reason %d" % number, location, b"%d" % number if number else None)


SAID_AT_ONCE = {
    "alike": [3] * 6,
    "alike and bare": [0] * 6,
    "some bare": [0, 3, 0, 3, 3, 0],
    "one full": [3, 0, 0, 0, 0, 0],
    "one other": [3, 3, 3, 3, 3, 4],
}


@pytest.mark.parametrize("is_at_hand", [True, False], ids=["granted", "forgotten"])
async def test_what_is_said_at_once_is_kept_for_each(is_at_hand: bool, store: Store) -> None:
    """Operations that are claimed and completed together keep what was said of each, be it alike or not."""
    for how, numbers in SAID_AT_ONCE.items():
        claims = [_claim_of(number) for number in numbers]
        granted = [found.snapshot.record for found in await asyncio.gather(*map(store.apply, claims))]
        assert [each.lease_until_us - each.claimed_us for each in granted] == [each.lease_us for each in claims], how
        answers = [
            Complete(
                record.identity.operation_id, record.token, record.attempt_id, _answer_of(number),
                REPLAY_US + number, REMEMBER_US + number, granted=record if is_at_hand else None,
            )
            for record, number in zip(granted, numbers, strict=True)
        ]  # fmt: skip
        await asyncio.gather(*map(store.apply, answers))
        for claim, answer in zip(claims, answers, strict=True):
            record = (await store.read(answer.operation_id)).record
            assert (record.identity, record.attempt_id) == (claim.identity, claim.attempt_id), how
            said = record.holder, record.fingerprint, record.probe, record.response
            assert said == (claim.holder, claim.fingerprint, claim.probe, answer.response), how
            ends = record.replay_until_us - record.completed_us, record.remember_until_us - record.completed_us
            assert ends == (answer.replay_us, answer.remember_us), how
