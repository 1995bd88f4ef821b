"""Several hosts in the URL of a Postgres: which one is used, and that none holds up the others."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.store.base import NotApplied
from gateway.store.postgres.dialer import Host, HostStatus, Refusal, choose, hosts_of
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import Hand, do, started
from tests.store.postgres_sessions import opened
from tests.support.eventually import eventually
from tests.support.ports import free_port
from tests.support.postgres import PostgresInstallation, PostgresServer, PostgresStandby

NAMES = ("a", "b", "c")


def status(name: str, written: str) -> HostStatus | None:
    """`-` silent, `s` a standby, a number for a primary of that timeline; `=` behind it: another name of host a's
    server, `!`: of another system."""
    if written == "-":
        return None
    timeline = None if written == "s" else int(written.rstrip("=!"))
    started = "a" if written.endswith("=") else name
    return HostStatus(Host(name, ""), "another" if written.endswith("!") else "system", started, timeline)


@pytest.mark.parametrize(
    ("written", "met", "expected"),
    [
        ("1 s s", 0, "a"),
        ("s 1 -", 0, "b"),
        ("1 2 s", 0, "b"),
        ("1 2 s", 2, "b"),
        ("3 2 1", 1, "a"),
        ("- s s", 0, "no host that responds is a primary"),
        ("- - -", 0, "no host that responds is a primary"),
        ("1 s -", 2, "a is a former primary: it has timeline 1, and 2 was met"),
        ("1 1 s", 2, "a is a former primary: it has timeline 1, and 2 was met"),
        ("2 2 s", 1, "a and b both accept writes"),
        ("2 2 1", 2, "a and b both accept writes"),
        ("2 2= s", 2, "a"),
        ("2 1! s", 1, "a and b both accept writes"),
        ("1 2! s", 2, "b"),
        ("1 3 3", 2, "b and c both accept writes"),
    ],
)
def test_the_primary_of_the_highest_timeline_is_used(written: str, met: int, expected: str) -> None:
    """Never a standby, never one that is older than one that was met, and none where two may each have what the other
    lacks."""
    statuses = [each for name, one in zip(NAMES, written.split(), strict=True) if (each := status(name, one))]
    chosen = choose(statuses, {"system": met})
    if isinstance(chosen, Refusal):
        assert chosen.why.startswith(expected)
        assert chosen.is_split == ("both" in expected)
    else:
        assert chosen.host.name == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p%40@h:5/d?sslmode=require", ["h:5 postgresql://u:p%40@h:5/d?sslmode=require"]),
        (
            "postgresql://u:p%40@a,b:5/d?sslmode=require&target_session_attrs=primary",
            ["a postgresql://u:p%40@a/d?sslmode=require", "b:5 postgresql://u:p%40@b:5/d?sslmode=require"],
        ),
        ("postgresql://u@[::1]:5,b/d", ["[::1]:5 postgresql://u@[::1]:5/d", "b postgresql://u@b/d"]),
        (
            "postgresql:///d?host=a,b&port=7,8",
            ["a:7 postgresql:///d?host=a&port=7", "b:8 postgresql:///d?host=b&port=8"],
        ),
        ("postgresql:///d?host=a,b", ["a postgresql:///d?host=a", "b postgresql:///d?host=b"]),
    ],
)
def test_each_host_of_a_url_is_dialled_by_itself(url: str, expected: list[str]) -> None:
    """With the credentials and options of all, and its own port."""
    found = [f"{host.name} {host.dsn}" for host in hosts_of(url)]
    # An empty authority may be left out.
    assert [each.replace("///", "/") for each in found] == [each.replace("///", "/") for each in expected]


def url_of(*ports: int) -> str:
    return f"postgresql://gateway@{','.join(f'127.0.0.1:{port}' for port in ports)}/postgres"


@pytest.fixture
def standbys(
    own_postgres: PostgresServer, postgres_installation: PostgresInstallation, server_workspace: Path
) -> Iterator[list[PostgresStandby]]:
    """Two that follow `own_postgres`, not yet started."""
    made = [
        PostgresStandby(postgres_installation, server_workspace / f"{own_postgres.directory.name}-{name}", own_postgres,
                        own_postgres.port)
        for name in NAMES[:2]
    ]  # fmt: skip
    try:
        yield made
    finally:
        for standby in made:
            standby.crash()


async def test_a_silent_host_holds_up_nobody(own_postgres: PostgresServer) -> None:
    """A first host that accepts and says nothing, and one that refuses, leave time for the primary behind them."""
    # The system accepts for it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = url_of(silent.getsockname()[1], free_port(), own_postgres.port)
        async with opened(url, connect_seconds=5.0) as store:
            await do(store, Hand(), Hand.claim, Hand.complete)


async def test_a_standby_is_passed_over_and_a_promotion_followed(
    own_postgres: PostgresServer, standbys: list[PostgresStandby]
) -> None:
    """The primary is found wherever it stands; once it was promoted, the former one is not gone back to."""
    (standby, _) = standbys
    standby.launch()
    await eventually(standby.is_ready, 30.0, "the standby follows")
    url = url_of(standby.port, own_postgres.port)
    async with started(PostgresStore(url)) as store:
        await do(store, Hand(), Hand.claim)
        before = await store.check_memory()
        await standby.promote()
        await store.close()
        await store.start()
        after = await store.check_memory()
        assert (before.identity.rpartition("/")[2], after.identity.rpartition("/")[2]) == ("00000001", "00000002")
        standby.crash()
        await store.close()
        with pytest.raises(NotApplied, match="is a former primary: it has timeline 1, and 2 was met"):
            await store.start()
    # Nor by a gateway that knows of the promotion by its note alone.
    store = PostgresStore(url, met=after.identity)
    with pytest.raises(NotApplied, match="is a former primary"):
        await store.start()


async def test_of_two_that_were_promoted_apart_none_is_used(
    own_postgres: PostgresServer, standbys: list[PostgresStandby], caplog: pytest.LogCaptureFixture
) -> None:
    """However often that is tried, one line of the log names both; once one is gone, the other is used."""
    for standby in standbys:
        standby.launch()
    for standby in standbys:
        await eventually(standby.is_ready, 30.0, "the standby follows")
        await standby.promote()
    caplog.set_level(logging.ERROR, "gateway")
    store = PostgresStore(url_of(own_postgres.port, *(standby.port for standby in standbys)))
    for _ in range(2):
        with pytest.raises(NotApplied, match="both accept writes"):
            await store.start()
    (line,) = [record.getMessage() for record in caplog.records if "both accept writes" in record.getMessage()]
    assert all(f"127.0.0.1:{standby.port}" in line for standby in standbys)
    standbys[0].crash()
    async with started(store):
        await do(store, Hand(), Hand.claim)
