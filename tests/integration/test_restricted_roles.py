"""A Postgres that keeps functions of the server from the gateway's role, as managed services do: it is used all the
same, and the check says what that leaves open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.cli import main
from tests.store.postgres_sessions import roles, url_as
from tests.support.fleet import process, send
from tests.support.house import config_text, status_of
from tests.support.ports import free_port
from tests.support.upstream import RecordingUpstream

_NO_TIMELINE = "a promotion is not noticed as one"
# What is taken from everybody, the name in the check, and what follows.
REFUSALS = (
    ("EXECUTE ON FUNCTION pg_control_system()", "pg_control_system()", "a copy on another server"),
    ("EXECUTE ON FUNCTION pg_current_wal_lsn()", "pg_walfile_name()", _NO_TIMELINE),
    ("EXECUTE ON FUNCTION pg_walfile_name(pg_lsn)", "pg_walfile_name()", _NO_TIMELINE),
    ("EXECUTE ON FUNCTION pg_conf_load_time()", "pg_conf_load_time()", "waits for store.probation"),
    ("SELECT ON pg_stat_replication", "pg_stat_replication", "waits for store.probation"),
    ("EXECUTE ON FUNCTION pg_postmaster_start_time()", "pg_postmaster_start_time()", "two servers"),
)
QUICK = {"probation": "3s", "cache_max_age": "0s"}


@pytest.mark.parametrize("has_two_hosts", [False, True], ids=["one-host", "several-hosts"])
async def test_it_is_used_and_the_check_says_what_that_leaves_open(
    tmp_path: Path,
    postgres_url: str,
    upstream: RecordingUpstream,
    capsys: pytest.CaptureFixture[str],
    *,
    has_two_hosts: bool,
) -> None:
    """Keys run once, and are known after a restart; giving the right back later loses nothing."""
    async with roles(postgres_url) as (admin, owner, _):
        name = await admin.fetchval("SELECT current_database()")
        await admin.execute(f"GRANT CREATE ON DATABASE {name} TO {owner}")
        url = url_as(owner, postgres_url)
        if has_two_hosts:
            url = url.replace("@", f"@127.0.0.1:{free_port()},")
        for right, _, _ in REFUSALS:
            await admin.execute(f"REVOKE {right} FROM PUBLIC")
        async with process({"durable": url}, tmp_path, upstream, store=QUICK) as gateway:
            assert await asyncio.to_thread(main, ["check", "--store", "--config", str(gateway.config_file)]) == 0
            said = capsys.readouterr().out
            for _, shown, follows in REFUSALS:
                (line,) = [each for each in said.splitlines() if f" {shown}: refused" in each]
                assert follows in line
            for key, verdict in (("known", "stored"), ("known", "replayed"), ("new", "stored")):
                if verdict == "replayed":
                    gateway.terminate()
                    for right, _, _ in REFUSALS:
                        await admin.execute(f"GRANT {right} TO PUBLIC")
                    await gateway.start()
                assert status_of(await send(gateway.port, key)) == (201, verdict)
                assert (await gateway.status("/readyz?require=store")).json()["parts"]["memory"] == "whole"


async def test_the_rights_of_the_schemas_owner_count(
    tmp_path: Path, postgres_url: str, upstream: RecordingUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """A role that may not ask the server itself learns what the owner may: all roles see one memory."""
    async with roles(postgres_url) as (admin, owner, runner):
        name = await admin.fetchval("SELECT current_database()")
        await admin.execute(f"GRANT CREATE ON DATABASE {name} TO {owner}")
        for what, _, _ in REFUSALS:
            await admin.execute(f"REVOKE {what} FROM PUBLIC; GRANT {what} TO {owner}")
        file = tmp_path / "owner.yaml"
        file.write_text(config_text(upstream.url, {"durable": url_as(owner, postgres_url)}, tmp_path))
        assert await asyncio.to_thread(main, ["migrate", "--grant", runner, "--config", str(file)]) == 0
        capsys.readouterr()
        async with process({"durable": url_as(runner, postgres_url)}, tmp_path, upstream) as gateway:
            assert status_of(await send(gateway.port, "known")) == (201, "stored")
            assert await asyncio.to_thread(main, ["check", "--store", "--config", str(gateway.config_file)]) == 0
        refused = [each for each in capsys.readouterr().out.splitlines() if ": refused" in each]
        assert [each.split(": ")[1] for each in refused] == ["pg_postmaster_start_time()"]
        async with process({"durable": url_as(owner, postgres_url)}, tmp_path, upstream) as gateway:
            assert status_of(await send(gateway.port, "known")) == (201, "replayed")
            assert status_of(await send(gateway.port, "new")) == (201, "stored")


async def test_what_it_cannot_do_without_is_named(
    tmp_path: Path, postgres_url: str, upstream: RecordingUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rights in the schema would not help, so nothing is said of them."""
    async with roles(postgres_url) as (admin, owner, _):
        await admin.execute("REVOKE EXECUTE ON FUNCTION pg_advisory_xact_lock(int, int) FROM PUBLIC")
        file = tmp_path / "gateway.yaml"
        file.write_text(config_text(upstream.url, {"durable": url_as(owner, postgres_url)}, tmp_path))
        assert await asyncio.to_thread(main, ["migrate", "--config", str(file)]) != 0
    said = capsys.readouterr().err
    assert "permission denied for function pg_advisory_xact_lock" in said
    assert "GRANT EXECUTE ON FUNCTION" in said
    assert "migrate --grant" not in said
