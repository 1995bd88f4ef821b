"""What is allowed in a configuration and still worth a second look; `check` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.config.address import SqliteUrl
from gateway.config.identity import ComposedScope, HeaderScope
from gateway.config.model import Admin, Config, Store
from gateway.config.recovery import ProbeRecovery
from gateway.config.route import Route
from gateway.core.identity.scope import Network
from gateway.core.message import is_forwarding_field
from gateway.core.recovery import probe_placeholders
from gateway.core.routing import unreachable

_LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
_STORAGE = {
    "fsync": "itself keeps every acknowledged commit",
    "full_page_writes": "never leaves a page half written",
}
_OWN_SEMANTICS = {
    "PUT": "PUT is idempotent by definition; protecting it pays where a repeat would act again or answer differently",
    "DELETE": "DELETE is idempotent by definition; protecting it pays where a repeat would answer 404 to a success",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark about the value at `path`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def notices(config: Config) -> tuple[Notice, ...]:
    """Every remark, those about routes in their order."""
    found = [*_of_admin(config.admin), *_of_store(config.store)]
    for index, route in enumerate(config.routes):
        found += _of_route(f"routes[{index}]", route, config.trusted_proxies)
        found += _of_probe(f"routes[{index}].recovery.probe", route, config.store)
    for shadowed in unreachable([route.rule for route in config.routes]):
        names = ", ".join(config.routes[index].name for index in shadowed.behind)
        message = f"{config.routes[shadowed.order].name} never matches: all its requests go to {names} before it"
        found.append(Notice(f"routes[{shadowed.order}].match", message))
    return tuple(found)


def _of_admin(admin: Admin) -> Iterator[Notice]:
    if admin.token is None and "listen" in admin.model_fields_set:
        yield Notice("admin.listen", "nothing listens here without admin.token")
    if admin.token is not None and admin.listen.host not in _LOOPBACK:
        yield Notice("admin.listen", "the admin API speaks plain HTTP: whoever sees its traffic learns the token")


def _of_store(store: Store) -> Iterator[Notice]:
    for setting in store.accept_server_settings:
        yield Notice(
            "store.accept_server_settings",
            f"{setting} = off is accepted: unless the storage of the server {_STORAGE[setting]}, a crash of it forgets "
            "acknowledged responses, and their keys run again",
        )
    # Nothing in Redis says whether another host uses it, unless their files are of the same name.
    if isinstance(store.durable, SqliteUrl) and store.fast is not None:
        yield Notice("store.fast", "SQLite serves one host: no other host may use this Redis for the same service")


def _of_route(path: str, route: Route, trusted: Sequence[Network]) -> Iterator[Notice]:
    if "/:" in route.match.path.text:
        yield Notice(f"{path}.match.path", "':' is taken as it is; a segment that varies is written {name}")
    for method in route.match.methods:
        if method in _OWN_SEMANTICS:
            yield Notice(f"{path}.match.methods", _OWN_SEMANTICS[method])
    parts = route.scope.compose if isinstance(route.scope, ComposedScope) else (route.scope,)
    headers = [part for part in parts if isinstance(part, HeaderScope)]
    if any(part.from_ == "any" for part in headers):
        yield Notice(f"{path}.scope", "whoever reaches the gateway can claim to be any caller")
    for part in headers:
        if is_forwarding_field(part.header.encode()) and not _all_within(part.from_, trusted):
            yield Notice(
                f"{path}.scope",
                f"the service does not get {part.header}, which only hops in trusted_proxies may send it",
            )
    if route.store_unavailable == "forward":
        yield Notice(f"{path}.store_unavailable", "while the durable store is down, requests run unprotected")


def _of_probe(path: str, route: Route, store: Store) -> Iterator[Notice]:
    # What a probe asks is rendered when its operation is claimed, and kept with it.
    is_by_key = isinstance(route.recovery, ProbeRecovery) and "key" in probe_placeholders(route.recovery.probe.path)
    if is_by_key and not store.clear_keys:
        yield Notice(f"{path}.path", "the store has keys of this route in clear, for what its probes ask")


def _all_within(sources: Sequence[Network] | Literal["any"], trusted: Sequence[Network]) -> bool:
    if sources == "any":
        return False
    return all(
        any(source.network_address in network and source.broadcast_address in network for network in trusted)
        for source in sources
    )
