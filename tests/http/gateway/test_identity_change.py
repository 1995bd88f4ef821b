"""A changed configuration and the keys that are still remembered, as whole gateways and `check --store` see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.admin.operations import Operations
from gateway.app.life import StartError
from gateway.app.operating import policies_of
from gateway.config import parse
from gateway.core.identity.key import HeaderKey, HeaderScope, Key, Scope
from gateway.core.message import IndexedHeaders
from gateway.store.memory import guard
from gateway.store.postgres import store as postgres
from tests.admin.shell import Shell
from tests.support.house import NO_JOURNALS, config_text, house, sqlite_store, status_of

Store = dict[str, Any]

TENANT = HeaderScope(b"X-Tenant", None)
RENAMED = {"name": "create_charge"}
ACCEPT = {"identity_change": "accept"}
REFUSED = "the durable store must not be used: requests of operation charge "


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops says so to the store, however busy the machine is: else it counts as running for a minute."""
    monkeypatch.setattr(guard, "_STOP_NOTE_SECONDS", 30.0)


async def refusal(store: Store, directory: Path, **changes: Any) -> str:
    with pytest.raises(StartError) as refused:
        async with house(store, directory, **changes):
            pass
    return str(refused.value)


async def charged(store: Store, directory: Path) -> None:
    async with house(store, directory) as home:
        assert status_of(await home.send()) == (200, "stored")


async def test_a_renamed_route_is_refused(store: Store, tmp_path: Path) -> None:
    """A start that would run a repeat again does not come about, and says what would be lost and both ways out. What is
    accepted happens: the repeat runs, and the next start asks no more."""
    await charged(store, tmp_path)
    why = await refusal(store, tmp_path, route=RENAMED)
    assert why.startswith(REFUSED + "(1 living key, until 2")
    for way in ("now lead to operation create_charge:", "`operation: charge`", "`identity_change: accept`"):
        assert way in why
    for route, verdict in (({}, "replayed"), (RENAMED | ACCEPT, "stored"), (RENAMED, "replayed")):
        async with house(store, tmp_path, route=route) as home:
            assert status_of(await home.send()) == (200, verdict)


IDENTITY_KEY = {"secrets": {"identity_key": {"id": "one", "key": "1" * 64}}}
OTHER_IDENTITY_KEY = {"secrets": {"identity_key": {"id": "two", "key": "2" * 64}}}


async def test_another_identity_key(store: Store, tmp_path: Path) -> None:
    """To switch it on, change it or leave it out is another identity: refused while there are keys, by the start and by
    the check. Its name counts for nothing."""
    await charged(store, tmp_path)
    changed = "operation {} changed, or secrets.identity_key or regions did (1 living key, until 2"
    assert changed.format("charge") in await refusal(store, tmp_path, **IDENTITY_KEY)
    keyed = {"route": {"name": "refund", "match": {"path": "/refunds"}, "identity_change": "accept"}}
    async with house(store, tmp_path, **keyed, **IDENTITY_KEY) as home:
        assert status_of(await home.send(target="/refunds")) == (200, "stored")
    keyed["route"]["identity_change"] = "refuse"
    for changes in ({}, OTHER_IDENTITY_KEY):
        assert changed.format("refund") in await refusal(store, tmp_path, **keyed, **changes)
        said = await shell_of(store, tmp_path, **keyed, **changes)("check", "--store")
        assert (said.code, changed.format("refund") in said.err) == (1, True)
    renamed = {"secrets": {"identity_key": {"id": "another", "key": "1" * 64}}}
    async with house(store, tmp_path, **keyed, **renamed) as home:
        assert status_of(await home.send(target="/refunds")) == (200, "replayed")


def fingerprint_keys(*named: tuple[str, str]) -> dict[str, Any]:
    """These keys by name and secret, the current one first."""
    keys = [{"id": name, "key": secret * 32} for name, secret in named]
    return {"secrets": {"fingerprint_key": keys} if keys else {}}


@pytest.mark.parametrize(
    ("store", "without"),
    [
        ("sqlite", (("two", "2"),)), ("sqlite", (("one", "2"),)), ("sqlite", ()),
        ("postgres", (("two", "2"),)), ("postgres-redis", (("two", "2"),)),
    ],
    ids=["sqlite-another", "sqlite-another-secret", "sqlite-none", "postgres-another", "postgres-redis-another"],
    indirect=["store"],
)  # fmt: skip
async def test_a_fingerprint_key_that_is_lost(
    store: Store, tmp_path: Path, without: tuple[tuple[str, str], ...]
) -> None:
    """Repeats of what was recorded under it could not be compared: a start without it is refused, by the check as well,
    and says how many keys that concerns, and what becomes of them. None is missed that nothing was recorded under."""
    one = ("one", "1")
    async with house(store, tmp_path, **fingerprint_keys(one, ("spare", "9"))) as home:
        for key in ("k1", "k2"):
            assert status_of(await home.send(key)) == (200, "stored")
    why = await refusal(store, tmp_path, **fingerprint_keys(*without))
    for part in (
        "secrets.fingerprint_key has lost one", "charge (2 living keys, until 2",
        "refused as key-reused although they are the same",
    ):  # fmt: skip
        assert part in why
    said = await shell_of(store, tmp_path, **fingerprint_keys(*without))("check", "--store")
    assert (said.code, "secrets.fingerprint_key has lost one" in said.err) == (1, True)
    # Nothing is lost where the records can be compared, or a repeat is replayed without that.
    async with house(store, tmp_path, **fingerprint_keys(("new", "3"), one)) as home:
        assert status_of(await home.send("k1")) == (200, "replayed")
        assert status_of(await home.send("k1", b"other")) == (422, "key-reused")
        assert status_of(await home.send("k3")) == (200, "stored")
    why = await refusal(store, tmp_path, **fingerprint_keys(("new", "3"), *without))
    assert "charge (2 living keys, until 2" in why
    accepting = fingerprint_keys(*without, ("new", "3"))
    async with house(store, tmp_path, **accepting | {"route": {"fingerprint": {"on_recipe_change": "accept"}}}) as home:
        assert status_of(await home.send("k1")) == (200, "replayed")
    # Where the loss is accepted the keys are used up, and the next start asks no more. What cannot be compared, for
    # want of the key or for other settings, may be the recorded request.
    for key, route in (("k1", ACCEPT), ("k1", {}), ("k3", {"fingerprint": {"headers": ["X-Tenant"]}})):
        async with house(store, tmp_path, **accepting | {"route": route}) as home:
            refused = await home.send(key, b'{"currency":"eur","amount":1000}')
            assert (status_of(refused), home.upstream.requests) == ((422, "key-reused"), [])
            problem = refused.json()
            assert problem["retryable"] is False
            assert "cannot tell" in problem["detail"]
            assert "Nothing was executed now. Do not send it again under a new key." in problem["detail"]
            assert f"Ask the operator about operation {problem['operation_id']}." in problem["detail"]


async def test_guesses_cannot_be_tested(sqlite: Store, tmp_path: Path) -> None:
    """With an identity key nothing in the record follows from service, caller and key, though all of them are known;
    whoever has the configuration finds the operation by them."""
    async with house(sqlite, tmp_path, **IDENTITY_KEY) as home:
        await home.send("k1")
        guesses = [Operations(home.gateway._store, policies_of(parse(text)), NO_JOURNALS) for text in (
            config_text("http://127.0.0.1:9", sqlite, tmp_path),
            config_text("http://127.0.0.1:9", sqlite, tmp_path, **OTHER_IDENTITY_KEY),
            config_text("http://127.0.0.1:9", sqlite, tmp_path, **IDENTITY_KEY),
        )]  # fmt: skip
        headers = ((b"Idempotency-Key", b"k1"), (b"X-Tenant", b"t1"))
        found = [await each.read(each.identify("charge", headers, None)) for each in guesses]
        assert [snapshot.record is not None for snapshot in found] == [False, False, True]
        record = found[-1].record
        assert record is not None
        by_name = IndexedHeaders(headers).by_name
        scope, key = TENANT.find_scope(by_name, None), HeaderKey().find_key(by_name)
        assert isinstance(scope, Scope)
        assert isinstance(key, Key)
        assert not {scope.digest, key.digest} & {record.identity.scope_digest, record.identity.key_digest}


async def test_a_renamed_service(postgres_url: str, tmp_path: Path) -> None:
    """A service that is gone, and one that has its requests: its keys would be lost, until somebody says otherwise. One
    that runs counts as another one; the check names it, because it might be this one under its old name."""
    store = {"durable": postgres_url}
    async with house(store, tmp_path) as shop:
        assert status_of(await shop.send()) == (200, "stored")
        said = await shell_of(store, tmp_path, service="books")("check", "--store")
        assert said.code == 0
        assert "note: service shop runs, and its operation charge has the same requests" in said.out
    why = await refusal(store, tmp_path, service="books")
    assert why.startswith(REFUSED + "of service shop, which does not run or no longer serves it (1 living key, until")
    assert "`service: shop`" in why
    for route in (ACCEPT, {}):
        async with house(store, tmp_path, service="books", route=route) as books:
            assert status_of(await books.send())[0] == 200


# -- check --store ----------------------------------------------------------------------------------------------------


def shell_of(store: Store, directory: Path, **changes: Any) -> Shell:
    return Shell(directory, config_text("http://127.0.0.1:9", store, directory, **changes))


async def test_check_says_what_a_start_would_say(store: Store, tmp_path: Path) -> None:
    """In the same words, with an exit code of its own, and without a change in the store; offline it is not asked."""
    await charged(store, tmp_path)
    shell = shell_of(store, tmp_path, route=RENAMED)
    assert (await shell("check")).code == 0
    for _ in range(2):
        said = await shell("check", "--store")
        assert (said.code, said.err.strip()) == (
            1,
            "idempotency-gateway: " + await refusal(store, tmp_path, route=RENAMED),
        )
    for route in (RENAMED | ACCEPT, {**RENAMED, "operation": "charge"}, {}):
        said = await shell_of(store, tmp_path, route=route)("check", "--store")
        assert (said.code, said.err) == (0, "")
        assert said.out.endswith("the store: a start would not be refused\n")
    # Accepted in a check is not accepted.
    assert (await refusal(store, tmp_path, route=RENAMED)).startswith(REFUSED)


async def test_check_of_a_store_that_was_never_used(postgres_url: str, tmp_path: Path) -> None:
    """That is fine, and it is not prepared by looking; of one that is away it cannot be said what a start would find:
    an error, and no secret in it."""
    for store in (sqlite_store(tmp_path), {"durable": postgres_url}):
        said = await shell_of(store, tmp_path)("check", "--store")
        assert (said.code, said.err) == (0, "")
        assert "note: the store has nothing to compare yet" in said.out
    assert not (tmp_path / "store").exists()
    assert not await postgres.is_migrated(postgres_url)
    said = await shell_of({"durable": f"postgresql://u:hunter2@/d?host={tmp_path}"}, tmp_path)("check", "--store")
    assert said.code == 1
    assert said.err.startswith("idempotency-gateway: the store could not be read: ")
    assert "hunter2" not in said.err
