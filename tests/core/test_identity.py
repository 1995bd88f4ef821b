"""Operation ids and identity recipes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.body import digest, framed
from gateway.core.identity.key import (
    ApiKeyScope,
    HeaderKey,
    HeaderScope,
    Key,
    KeyFormat,
    SharedScope,
    derive_operation_id,
    identity_of,
    identity_recipe,
    is_of,
)
from gateway.core.operation import Identity

parts = st.lists(st.binary(max_size=12), max_size=5)
names = st.text(max_size=8)
identities = st.tuples(names, names, st.binary(max_size=8), st.binary(max_size=8))


def key(value: bytes) -> Key:
    found = HeaderKey().find_key({b"idempotency-key": [value]})
    assert isinstance(found, Key)
    return found


@given(one=parts, other=parts)
def test_framing_is_injective(one: list[bytes], other: list[bytes]) -> None:
    """Two sequences of parts have the same frame only when they are the same; a frame inside a frame is one part."""
    assert (framed(*one) == framed(*other)) == (one == other)
    assert framed(framed(*one)) != framed(*one) or one == []
    assert digest(b"a", b"b") != digest(b"ab")


@given(sequence=parts, cut=st.integers(0, 60))
def test_boundaries_count(sequence: list[bytes], cut: int) -> None:
    """The same bytes cut into parts elsewhere are another frame."""
    whole = b"".join(sequence)
    cut = min(cut, len(whole))
    assert (framed(whole[:cut], whole[cut:]) == framed(*sequence)) == ([whole[:cut], whole[cut:]] == sequence)


@given(one=identities, other=identities)
def test_operation_ids_differ(one: tuple[str, str, bytes, bytes], other: tuple[str, str, bytes, bytes]) -> None:
    """Two operations share an id only when service, name, scope and key are all the same."""
    assert (derive_operation_id(*one) == derive_operation_id(*other)) == (one == other)


def identity(**changes: Any) -> Identity:
    """The identity of a request of everybody's."""
    usual = {"service": "s", "route": "r", "operation": "o", "scope": SharedScope().find_scope({}, None)}
    return identity_of(**{**usual, "key": key(b"k"), **changes})


def test_stable_for_ever() -> None:
    """The derivation is what it was: a record made by an older program is found by this one."""
    older = identity(service="billing", route="charges", operation="create-charge", key=key(b"order-1"))
    assert str(older.operation_id) == "16563646-e0b1-8fd4-80e8-fb0f2cfbc1f8"
    assert older.key_digest.hex() == "8d9af8732e3ecf79bff9f62bc7c9b7a3a66bbef5b749fafd6a3df9acf5534977"
    assert older.scope_digest.hex() == "111b0112347f1882eeacdfe34d1ef293d5c9d30a6e5adcc75ce9c7b6f7a651f1"


def test_route_identifies_nothing() -> None:
    """Two routes of one operation share its keys; the route is kept for people."""
    one, other = (identity(route=route) for route in ("a", "b"))
    assert (one.route, other.route) == ("a", "b")
    assert one.operation_id == other.operation_id


def test_clear_key_by_request_only() -> None:
    """The key is kept in clear only where that was asked for."""
    hidden = identity(key=key(b"s3cret"))
    assert hidden.key is None
    assert "s3cret" not in repr(hidden)
    assert identity(keeps_clear_key=True).key == "k"


def test_with_a_secret_the_digests_cannot_be_computed() -> None:
    """A secret keys both digests, and the id through them; the derivations never change."""
    plain, keyed, other = (identity(secret=secret) for secret in (None, b"1" * 32, b"2" * 32))
    for name in ("operation_id", "scope_digest", "key_digest"):
        assert len({getattr(each, name) for each in (plain, keyed, other)}) == 3
    assert str(keyed.operation_id) == "5c846f5b-2717-83c5-b9d2-0bbc467a0d32"
    assert is_of(keyed, "s", "o")
    assert not is_of(keyed, "t", "o")
    assert b"1" * 8 not in repr(keyed).encode()


def test_recipe() -> None:
    """A recipe changes with everything that moves requests to other identities, and with nothing else."""
    tenant = HeaderScope(b"X-Tenant", None)
    base = identity_recipe("s", "o", tenant, HeaderKey())
    assert base == identity_recipe("s", "o", HeaderScope(b"x-tenant", ()), HeaderKey(format=KeyFormat.UUID))
    others = [
        identity_recipe("t", "o", tenant, HeaderKey()),
        identity_recipe("s", "p", tenant, HeaderKey()),
        identity_recipe("s", "o", ApiKeyScope(), HeaderKey()),
        identity_recipe("s", "o", tenant, HeaderKey((b"webhook-id",))),
        identity_recipe("so", "", tenant, HeaderKey()),
        *(identity_recipe("s", "o", tenant, HeaderKey(names)) for names in ((b"a", b"b"), (b"b", b"a"))),
        identity_recipe("s", "o", tenant, HeaderKey(), b"1" * 32),
        identity_recipe("s", "o", tenant, HeaderKey(), b"2" * 32),
    ]
    assert len({base, *others}) == 10
