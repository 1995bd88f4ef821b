"""Who somebody is by the word of another: of a proxy that names people in its headers, or of an issuer of tokens.

A voucher says who sends a request, or why what the request says is not believed. It keeps nothing: a role is that of
this request, so it ends with the group, the token or the setting that it comes from. What is ambiguous names nobody.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from multidict import CIMultiDictProxy

from gateway.admin.access import Disbelieved, Person, Role, Voucher
from gateway.core.identity.scope import IdentityUnavailable, ScopeMissing
from gateway.core.identity.token import TokenFault, read_token

Headers = CIMultiDictProxy[str]
_NAME_CHARACTERS_MAX: Final = 128


def by_proxy(
    networks: Sequence[IPv4Network | IPv6Network],
    name: str,
    groups: str | None,
    roles: Mapping[str, str],
    secret: bytes,
) -> Voucher:
    """Believes these headers of a proxy in these networks. `roles` by group or, without `groups`, by name."""

    async def vouch(headers: Headers, peer: str | None) -> Person | Disbelieved | None:
        if name not in headers:
            return None
        if not _is_within(peer, networks):
            return Disbelieved(f"{name} is not believed from {peer}: it is in no network of admin.sign_in.proxy", True)
        who, listed = _only(headers, name), "" if groups is None else _only(headers, groups)
        if who is None or listed is None:
            return Disbelieved(f"{name if who is None else groups} is given more than once")
        found = [who] if groups is None else [each.strip() for each in listed.split(",")]
        return _person(who, found, roles, secret, "proxy")

    return vouch


def by_token(
    header: str,
    claims: Sequence[str],
    groups: str,
    roles: Mapping[str, str],
    secret: bytes,
    verify: Callable[[bytes], Awaitable[object]],
) -> Voucher:
    """Believes a token in this header that `verify` finds nothing against. `claims` are the name, `groups` is the claim
    that lists what `roles` are by."""

    async def vouch(headers: Headers, peer: str | None) -> Person | Disbelieved | None:
        if header not in headers:
            return None
        given = _only(headers, header)
        if given is None:
            return Disbelieved(f"{header} is given more than once")
        scheme, _, credential = given.partition(" ") if header.lower() == "authorization" else ("bearer", "", given)
        if scheme.lower() != "bearer":
            return None
        token = read_token(credential.strip().encode("utf-8", "surrogateescape"))
        if isinstance(token, TokenFault):
            return Disbelieved(token.detail.rstrip("."))
        found = await verify(credential.strip().encode())
        if isinstance(found, ScopeMissing | IdentityUnavailable):
            return Disbelieved(found.detail.rstrip("."))
        listed = token.payload.get(groups)
        who = " ".join(str(token.payload[each]) for each in claims)
        return _person(who, listed if isinstance(listed, list) else [listed], roles, secret, "jwt")

    return vouch


def _person(
    who: str, groups: Iterable[object], roles: Mapping[str, str], secret: bytes, how: str
) -> Person | Disbelieved:
    if not who or len(who) > _NAME_CHARACTERS_MAX or not who.isprintable():
        return Disbelieved("nobody is named, or by no name that an audit can show")
    found = [Role(roles[each]) for each in groups if isinstance(each, str) and each in roles]
    if not found:
        return Disbelieved(f"{who} has no role here")
    key = hmac.digest(secret, f"idempotency gateway console session|{how}|{who}".encode(), "sha256")
    return Person(who, max(found, key=list(Role).index), b"", key)


def _only(headers: Headers, name: str) -> str | None:
    """The value of this header; empty where it is missing, None where it is given more than once."""
    values = headers.getall(name, [""])
    return values[0].strip() if len(values) == 1 else None


def _is_within(peer: str | None, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        address = ip_address((peer or "").partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return any(address in network for network in networks)
