"""What `check` says of a configuration, of the files that it names and without its secrets; what `migrate` says."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.app.worker import Generations
from gateway.config import load
from tests.admin.shell import Shell, lone_shell
from tests.store.postgres_sessions import roles, url_as
from tests.support.house import ROUTE, config_text
from tests.support.postgres import PostgresServer
from tests.support.tls import Authority


def written(tmp_path: Path, **changes: Any) -> Shell:
    """A shell with a valid configuration with these changes."""
    store = {"durable": f"sqlite://{tmp_path}/operations.db"}
    return Shell(tmp_path, config_text("https://127.0.0.1:9", store, tmp_path, **changes))


@pytest.mark.parametrize("path", ["/:id", "/charges"], ids=["colon", "unreachable"])
async def test_what_is_noted_fails_a_strict_check(tmp_path: Path, path: str) -> None:
    """A route that protects nothing of what was meant is a note, and with --strict a failure."""
    again = {**ROUTE, "name": "again", "match": {"path": path}}
    shell = written(tmp_path, routes=[ROUTE, again])
    for options, code in (((), 0), (("--strict",), 2)):
        said = await shell("check", *options)
        assert (said.code, "note: routes[1].match" in said.out) == (code, True)
        assert ("--strict" in said.err) is (said.err != "") is bool(options)


async def test_a_file_without_notes_passes_a_strict_check(tmp_path: Path) -> None:
    """And it is said how paths are compared."""
    said = await written(tmp_path, route={"scope": {"api_key": "X-Api-Key"}})("check", "--strict")
    assert (said.code, "in other spellings are refused" in said.out) == (0, True)


SECRETS = {
    "upstream": {"url": "${UPSTREAM}"},
    "store": {"durable": "${DATABASE_URL}", "fast": "redis://:${REDIS_PASSWORD}@cache:6379/0"},
    "admin": {"token": "${ADMIN_TOKEN}"},
    "secrets": {"fingerprint_key": {"id": "one", "key": "${file:/run/secrets/no-such-file}"}},
    "listen": {"address": "0.0.0.0:8443", "tls": {"cert": "${CERT}", "key": "${KEY}"}},
}


async def test_a_check_needs_no_secret(tmp_path: Path) -> None:
    """With --without-secrets placeholders stand for what is not there, and it is said for what. A start takes none."""
    shell = written(tmp_path, **SECRETS)
    for command in ("check", "migrate"):
        said = await shell(command)
        assert (said.code, "the environment variable DATABASE_URL is not set" in said.err) == (2, True)
    said = await shell("check", "--without-secrets")
    assert (said.code, said.err) == (0, "")
    (line,) = [line for line in said.out.splitlines() if line.startswith("not checked")]
    names = "UPSTREAM, DATABASE_URL, REDIS_PASSWORD, ADMIN_TOKEN, file:/run/secrets/no-such-file, CERT, KEY"
    assert set(line.partition(": ")[2].split(", ")) == set(names.split(", "))


async def test_without_secrets_what_is_there_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set is used, and every mistake that is none of a missing secret is found."""
    monkeypatch.setenv("ADMIN_TOKEN", "short")
    said = await written(tmp_path, **SECRETS, log={"level": "loud"})("check", "--without-secrets")
    assert said.code == 2
    assert {line.split(": ")[1] for line in said.err.splitlines()} == {"log.level", "admin.token"}


def tls_files(directory: Path, fault: str) -> dict[str, str]:
    """A certificate and its key in one file, with this fault."""
    days = {"expired": (-9, -1), "not-yet": (1, 9)}.get(fault, (-1, 1))
    begins, ends = (dt.datetime.now(dt.UTC) + dt.timedelta(each) for each in days)
    files = directory / "cert.pem", directory / "other.pem"
    for file in files:
        issued = trustme.CA().issue_cert("localhost", not_before=begins, not_after=ends)
        issued.private_key_and_cert_chain_pem.write_to_path(str(file))
    if fault == "missing":
        return {"cert": "/nowhere/c.pem", "key": "/nowhere/k.pem"}
    return {"cert": str(files[0]), "key": str(files[fault == "other-key"])}


# What is wrong with a pair of files, or with another file that a start opens: where, and what is said of it.
TLS_FAULTS = {
    "missing": "/nowhere/c.pem: No such file",
    "other-key": "is the key of another certificate",
    "expired": "cert.pem: certificate has expired",
    "not-yet": "cert.pem: certificate is not yet valid",
}
ISSUER = {"issuer": "https://a.example", "audience": "b", "keys": "discover", "claims": ["sub"]}
OTHER_FAULTS = {
    "authority": ({"ca": "/nowhere/c"}, "routes[0].scope.jwt.ca: /nowhere/c: No such file"),
    "no-keys": ({"keys": "DIR/none.json"}, "routes[0].scope.jwt.keys: DIR/none.json: No such file"),
    "no-key-set": ({"keys": "DIR/page.json"}, "routes[0].scope.jwt.keys: DIR/page.json: it is neither JSON nor PEM"),
    "empty": ({"keys": "DIR/empty.json"}, "routes[0].scope.jwt.keys: DIR/empty.json: it holds no key"),
    "state": ({"state_dir": "DIR/page.json"}, "state_dir: DIR/page.json is not a directory"),
}


@pytest.mark.parametrize(("side", "fault"), [(side, each) for side in ("listen", "upstream") for each in TLS_FAULTS])
async def test_tls_files_are_opened(tmp_path: Path, fault: str, side: str) -> None:
    """What would fail a start or every handshake is said, with the file; --without-files opens none."""
    section = {"tls": tls_files(tmp_path, fault)} | ({"address": "127.0.0.1:0"} if side == "listen" else {})
    shell = written(tmp_path, **{side: section})
    said = await shell("check")
    assert said.code == 2
    assert f"{side}.tls: " in said.err
    assert TLS_FAULTS[fault] in said.err
    assert (await shell("check", "--without-files")).code == 0


@pytest.mark.parametrize("fault", OTHER_FAULTS)
async def test_other_files_are_opened(tmp_path: Path, fault: str) -> None:
    """As a start would: what none would take is named."""
    (tmp_path / "page.json").write_text("<html>")
    (tmp_path / "empty.json").write_text('{"keys": []}')
    wrong, text = OTHER_FAULTS[fault]
    given = {name: value.replace("DIR", str(tmp_path)) for name, value in wrong.items()}
    changes = given if "state_dir" in given else {"route": {"scope": {"jwt": ISSUER | given}}}
    shell = written(tmp_path, **changes)
    said = await shell("check")
    assert (said.code, text.replace("DIR", str(tmp_path)) in said.err) == (2, True)
    assert (await shell("check", "--without-files")).code == 0


async def test_good_tls_files_pass(tmp_path: Path) -> None:
    """A chain of an authority, its key, and the authority itself."""
    authority = Authority(tmp_path)
    issued = authority.issue("localhost")
    files = {"cert": str(issued.cert), "key": str(issued.key)}
    upstream = {"tls": {**files, "ca": str(authority.ca_file)}}
    said = await written(tmp_path, listen={"address": "127.0.0.1:0", "tls": files}, upstream=upstream)("check")
    assert (said.code, said.err) == (0, "")


async def test_what_is_effective_is_a_file_that_passes(tmp_path: Path) -> None:
    """Without secrets, and with nothing else on standard output."""
    said = await written(tmp_path, admin={"token": "a-token-of-this-test"})("check", "--effective")
    assert said.code == 0
    assert "a-token-of-this-test" not in said.out + said.err
    again = await Shell(tmp_path, said.out)("check", "--effective")
    assert (again.code, again.out) == (0, said.out)


async def test_what_differs_from_what_is_in_force(tmp_path: Path) -> None:
    """Nothing at first; then what was changed, and with whom nobody serves."""
    shell = written(tmp_path, shutdown={"delay": "0s"}, upstream={"url": "http://127.0.0.1:9"})
    file = shell.config
    alone = await shell("check", "--diff")
    assert (alone.code, "no gateway could be reached" in alone.err) == (1, True)
    gateway = Generations(load(file, {}), read=lambda: load(file, {}))
    await gateway.start()
    try:
        same = await shell("check", "--diff")
        file.write_text(file.read_text().replace("127.0.0.1:9", "127.0.0.1:10") + "workers: 4\n")
        edited = await shell("check", "--diff")
    finally:
        await gateway.stop()
    assert (same.code, same.out, "no differences" in same.err) == (0, "", True)
    assert (edited.code, "no differences" in edited.err) == (0, False)
    assert edited.out.splitlines() == [
        "upstream.url: http://127.0.0.1:9 -> http://127.0.0.1:10",
        "routes[charge].upstream.url: http://127.0.0.1:9 -> http://127.0.0.1:10",
        "workers: 1 -> 4",
    ]


async def test_migrate_grants_what_check_misses(postgres_url: str, tmp_path: Path) -> None:
    """The owner's URL migrates and grants; whoever runs the gateway is told before what it lacks, and then serves."""
    async with roles(postgres_url) as (admin, owner, runner):
        await admin.execute(f"CREATE SCHEMA idempotency_gateway AUTHORIZATION {owner}")
        shells = []
        for role in (owner, runner):
            (tmp_path / role).mkdir()
            shells.append(lone_shell(tmp_path / role, {"durable": url_as(role, postgres_url)}))
        by_owner, by_runner = shells
        granted = await by_owner("migrate", "--grant", runner)
        assert (granted.code, f"The role {runner} has the rights that a gateway needs." in granted.out) == (0, True)
        await admin.execute(f"REVOKE DELETE ON idempotency_gateway.audit FROM {runner}")
        lacking = await by_runner("check", "--store")
        told = f"{runner} lacks rights in the schema idempotency_gateway (DELETE on audit): run"
        assert (lacking.code, told in lacking.err) == (1, True)
        assert (await by_owner("migrate", "--grant", runner)).code == 0
        said = await by_runner("check", "--store")
        assert said.code == 0
        assert "the store's server: pg_control_system(): ok\n" in said.out
        assert "the store's server: synchronous standby: none, " in said.out


async def test_a_store_that_takes_no_change(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """A check of the store does not say that all is well where it can only be read."""
    shell = lone_shell(tmp_path, {"durable": own_postgres.url})
    assert (await shell("migrate")).code == 0
    said = await shell("check", "--store")
    assert (said.code, "a start would not be refused" in said.out) == (0, True)
    await own_postgres.fetch("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    await own_postgres.fetch("SELECT pg_reload_conf()")
    said = await shell("check", "--store")
    assert (said.code, "takes no change" in said.err, "would not be refused" in said.out) == (1, True, False)


# -- what a command loads ----------------------------------------------------------------------------------------------

_RUN = """
import atexit, sys
atexit.register(lambda: print(*{name.partition(".")[0] for name in sys.modules}))
from gateway.cli import main
sys.exit(main(sys.argv[1:]))
"""


def packages_of(*arguments: str) -> set[str]:
    """Others' packages that a successful command loads."""
    done = subprocess.run([sys.executable, "-c", _RUN, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()) & set(packages_distributions()) - {"gateway"}


def test_a_command_loads_what_it_needs(tmp_path: Path) -> None:
    """Whoever asks for help waits for nothing but the command line; a check of a file without certificates loads no
    server and no client of anything."""
    assert packages_of("inspect", "--help") <= {"_distutils_hack"}
    store = {"durable": "postgres://gateway@127.0.0.1/gateway", "fast": "redis://127.0.0.1"}
    loaded = packages_of("check", "--config", str(lone_shell(tmp_path, store).config))
    assert "pydantic" in loaded
    unneeded = {"aiohttp", "aiokafka", "apsw", "asyncpg", "hiredis", "httptools", "jinja2", "jwt", "redis", "uvloop"}
    assert not loaded & unneeded
