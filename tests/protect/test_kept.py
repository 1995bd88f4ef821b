"""Kept requests: what is sealed comes back byte for byte, and opens in no other place."""

from __future__ import annotations

import os
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.confidential import EncryptionKey, KeyRing, Unopenable
from gateway.core.identity.caller import hop_from
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.core.operation import SealedRequest
from gateway.protect.accepting import KeptRequest, open_sealed, seal

OLD, CURRENT = (EncryptionKey(name, bytes([number]) * 32) for number, name in enumerate(("old", "current")))
RING = KeyRing((CURRENT, OLD), os.urandom)
OPERATION, ACCEPTANCE = UUID(int=1), UUID(int=2)
SECRET = b"Bearer s3cr3t"
KEPT = KeptRequest(
    RequestHead(
        b"POST",
        b"/v1/payments?a=%ff",
        IndexedHeaders(((b"Host", b"api"), (b"Authorization", SECRET), (b"X-\xff", b""))),
    ),
    hop_from("10.0.0.7", is_secure=True),
    b'{"amount":10.00}',
    b'"order-1"',
)

addresses = st.none() | st.ip_addresses().map(str)
requests = st.builds(
    KeptRequest,
    st.builds(
        RequestHead, st.binary(), st.binary(), st.lists(st.tuples(st.binary(), st.binary()), max_size=5).map(tuple)
    ),
    st.builds(lambda address, is_secure: hop_from(address, is_secure=is_secure), addresses, st.booleans()),
    st.binary(),
    st.none() | st.binary(),
)


@given(kept=requests, operation_id=st.uuids(), acceptance_id=st.uuids())
def test_a_request_comes_back_as_it_was(kept: KeptRequest, operation_id: UUID, acceptance_id: UUID) -> None:
    """Every byte of the request, its headers in order, and where it came from."""
    sealed = seal(kept, RING, operation_id, acceptance_id)
    assert (sealed.acceptance_id, sealed.key_id) == (acceptance_id, "current")
    assert open_sealed(sealed, RING, operation_id) == kept


def test_nothing_of_a_request_is_readable_and_no_two_are_alike() -> None:
    """The sealed bytes show nothing of the request, not even that another one is equal; nor does a key show itself."""
    one, other = (seal(KEPT, RING, OPERATION, ACCEPTANCE).sealed for _ in range(2))
    assert one != other
    for part in (SECRET, KEPT.body, b"POST", b"10.0.0.7", b"order-1"):
        assert part not in one
    assert "key=" not in repr(OLD)
    for content in (b"", b"\x02" + one, b"\x01\x00\x00\x01"):
        key_id, data = RING.seal(content, OPERATION.bytes + ACCEPTANCE.bytes)
        with pytest.raises(Unopenable, match="format"):
            open_sealed(SealedRequest(ACCEPTANCE, key_id, data), RING, OPERATION)


def test_an_old_key_opens_and_does_not_seal() -> None:
    """A new first key seals; what the earlier one sealed stays readable until it is removed."""
    sealed = seal(KEPT, KeyRing((OLD,), os.urandom), OPERATION, ACCEPTANCE)
    assert open_sealed(sealed, RING, OPERATION) == KEPT
    with pytest.raises(Unopenable, match="key 'old', which is not configured"):
        open_sealed(sealed, KeyRing((CURRENT,), os.urandom), OPERATION)


@pytest.mark.parametrize(
    "moved",
    [
        lambda sealed: (replace(sealed, acceptance_id=uuid4()), OPERATION),
        lambda sealed: (sealed, uuid4()),
        lambda sealed: (replace(sealed, key_id="old"), OPERATION),
        lambda sealed: (replace(sealed, sealed=sealed.sealed[:-1]), OPERATION),
        lambda sealed: (replace(sealed, sealed=sealed.sealed[:7]), OPERATION),
        lambda sealed: (replace(sealed, sealed=b""), OPERATION),
        lambda sealed: (replace(sealed, sealed=bytes([sealed.sealed[0] ^ 1]) + sealed.sealed[1:]), OPERATION),
        lambda sealed: (replace(sealed, sealed=sealed.sealed[:-1] + bytes([sealed.sealed[-1] ^ 1])), OPERATION),
    ],
    ids=["acceptance", "operation", "key", "cut", "nonce cut", "empty", "nonce", "tag"],
)
def test_what_was_changed_or_moved_is_refused(moved) -> None:
    """Under another operation, acceptance or key, and with one bit changed, a request does not open; the reason shows
    nothing of it."""
    sealed, operation_id = moved(seal(KEPT, RING, OPERATION, ACCEPTANCE))
    with pytest.raises(Unopenable) as refused:
        open_sealed(sealed, RING, operation_id)
    assert "s3cr3t" not in str(refused.value)
