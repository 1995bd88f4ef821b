"""Commands as an operator gives them, about operations and kept requests, while gateways serve and afterwards."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway import options
from gateway.cli import main
from gateway.store.postgres import store as postgres
from tests.admin.shell import CUT, ROOT, Shell, doubt, lone_shell, shell_for, shelled
from tests.admin.test_api import COMPLETED, Admin, served
from tests.config.support import rows
from tests.observe.scrape import Scrape, scrape
from tests.support.eventually import eventually
from tests.support.house import House, house, status_of
from tests.support.redis import RedisServer
from tests.support.upstream import Answer

Store = dict[str, Any]
NO_SUCH = "00000000-0000-8000-8000-000000000000"


async def test_completed(store: Store, tmp_path: Path) -> None:
    """An operation in doubt is listed and looked at, which shows no key, and resolved over the API, which wakes who
    waits; the client's retry gets the operator's response."""
    async with served(store, tmp_path) as (running, admin):
        shell, operation_id = shell_for(running, store, tmp_path), await doubt(running)
        path = f"/operations/{operation_id}"
        assert status_of(await running.send()) == (409, "in-doubt")
        listed = await shell.spawned("inspect", "--list")
        head, row = listed.out.splitlines()
        assert head.split() == ["OPERATION", "STATE", "SINCE", "AGE", "TOKEN", "TRIES", "STATUS", "WHY", "ROUTE"]
        assert (row.split()[:2], row.split()[-1]) == ([operation_id, "in_doubt"], "charge")
        found = (await admin("GET", "/operations?state=in_doubt&route=charge&older_than=0s")).json()
        assert ([each["operation_id"] for each in found["operations"]], found["next"]) == ([operation_id], None)
        about = (await admin("GET", path)).json()
        shown = (await shell("inspect", operation_id)).out
        assert f"resolve {operation_id} --completed FILE --why TEXT" in shown
        assert "k1" not in json.dumps(about) + shown

        asked = {"completed": COMPLETED, "why": "seen in the ledger", "by": "alice", "token": about["token"]}
        async with running.gateway._store.watch(UUID(operation_id)) as watch:
            done = await admin("POST", f"{path}/resolve", asked)
            assert await watch.wait_changed(10.0), "who waits is woken"
        assert done.json()["detail"].startswith("Resolved: it completed with status 201. Repeats get this response ")
        again = await admin("POST", f"{path}/resolve", asked)
        assert again.json()["detail"].startswith("The same command has resolved it already,")
        scraped = await scrape(running.gateway.metrics)
        assert scraped.value("idempotency_admin_actions_total", action="resolve", result="done") == 2

        replayed = await running.send()
        assert (status_of(replayed), replayed.body) == ((201, "recovered"), b'{"id":1}')
        assert (replayed.header("Idempotent-Replayed"), replayed.header("Location")) == ("true", "/charges/1")
        assert len(running.upstream.requests) == 1
        (about,) = (await shell("inspect", operation_id, "--format", "jsonl")).rows()
        assert about["response"] == {"status": 201, "body": "kept", "body_bytes": 8}
        (audit,) = about["audits"]
        assert (audit["event"], audit["who"], audit["why"]) == ("prove", "token for alice", "seen in the ledger")
        assert (await shell("inspect", "--list")).out == "No matching operation is in doubt.\n"


async def test_by_request(sqlite: Store, tmp_path: Path) -> None:
    """An operation is found by what its request said, credentials read from a file; another caller's is not. Its key is
    shown where the store keeps it in clear."""
    async with house(sqlite, tmp_path, store={"clear_keys": True}) as running:
        operation_id = await doubt(running, "visible-key")
        changes = {"route": {"scope": {"header": "X-Tenant", "from": ["10.0.0.0/8"]}}, "store": {"clear_keys": True}}
        shell = shell_for(running, sqlite, tmp_path, **changes)
        fields = shell.file("fields", b"X-Tenant: t1\r\nIdempotency-Key: visible-key\r\n")
        shown = await shell("inspect", "--route", "charge", "--header", f"@{fields}")
        assert f"operation         {operation_id}" in shown.out
        assert "key               visible-key" in shown.out
        other = ("--header", "X-Tenant: t2", "--header", "Idempotency-Key: visible-key")
        absent = await shell("inspect", "--route", "charge", *other)
        assert absent.code == 0
        assert "state             absent" in absent.out
        missing = await shell("inspect", "--route", "charge", *other[:2])
        assert (missing.code, missing.err) == (1, "idempotency-gateway: these headers have no key for route charge\n")


async def test_lists(sqlite: Store, tmp_path: Path) -> None:
    """Lists are by state, route and age, in the order of ids, as long as asked for, and have no key and no response."""
    async with shelled(sqlite, tmp_path) as (running, shell):
        doubtful = sorted([await doubt(running, f"d{number}") for number in range(3)])
        assert (await running.send("c1")).status == 201

        async def ids(*arguments: str) -> list[str]:
            said = await shell("inspect", "--list", "--format", "jsonl", *arguments)
            assert said.code == 0
            assert all({"key", "response"}.isdisjoint(row) for row in said.rows() if row["state"] == "in_doubt")
            return [row["operation_id"] for row in said.rows()]

        assert await ids() == doubtful
        assert await ids("--limit", "2") == doubtful[:2]
        everything = await ids("--state", "all")
        assert everything == sorted({*doubtful, *everything})
        assert len(everything) == 4
        assert await ids("--state", "completed", "--state", "in_doubt") == everything
        assert await ids("--older-than", "1h") == []
        assert await ids("--route", "charge", "--older-than", "0s") == doubtful
        other = await shell("inspect", "--list", "--route", "refund", "--format", "jsonl")
        note = "note: there is no route refund in the configuration\n"
        assert (other.code, other.out, other.err) == (0, "", note)


async def test_list_is_streamed_into_a_closed_pipe(sqlite: Store, tmp_path: Path) -> None:
    """Whoever reads only the first line ends the command quietly."""
    async with shelled(sqlite, tmp_path) as (running, shell):
        await asyncio.gather(*[running.send(f"c{number}") for number in range(20)])
        program = f"{sys.executable} -m gateway inspect --list --state all --config {shell.config}"
        process = await asyncio.create_subprocess_shell(
            f"({program}; echo $? >&2) | head -c 1",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        out, err = await process.communicate()
        assert (out, err) == (b"O", b"0\n")


async def test_purge_and_erase(store: Store, tmp_path: Path) -> None:
    """A purged response is gone at once in the gateway that was asked; the key is forgotten only where that is asked
    for and confirmed, over the API or by command."""
    async with served(store, tmp_path) as (running, admin):
        shell = shell_for(running, store, tmp_path)
        running.upstream.on("/charges", Answer(201, body=b"secret"))
        for verdict in ("stored", "replayed"):
            assert status_of(await running.send()) == (201, verdict)
        (about,) = (await admin("GET", "/operations?state=completed")).json()["operations"]
        path, asked = f"/operations/{about['operation_id']}", {"why": "asked to", "by": "bob"}
        early = await admin("POST", f"{path}/erase", {**asked, "yes": True})
        assert (early.status, early.json()["detail"]) == (409, "It still has a response: purge it first.")
        purged = await admin("POST", f"{path}/purge", asked)
        assert (purged.status, purged.json()["purges_pending"]) == (200, 0)
        assert status_of(await running.send()) == (410, "key-expired")

        words = ("purge", about["operation_id"], "--erase", "--why", "asked to", "--by", "bob")
        unsure = (await admin("POST", f"{path}/erase", asked)).json()["detail"], (await shell(*words)).err
        assert all("runs again, and may have its effect a second time" in text for text in unsure)
        assert status_of(await running.send()) == (410, "key-expired")
        done = await shell(*words, "--yes")
        assert (done.code, done.out) == (0, "The key is forgotten: the next request with it runs.\n")
        assert status_of(await running.send()) == (201, "stored")
        assert len(running.upstream.requests) == 2
        (about,) = (await shell("inspect", about["operation_id"], "--format", "jsonl")).rows()
        audits = [(audit["event"], audit["who"]) for audit in about["audits"]]
        assert audits == [("purge", "token for bob"), ("erase", "bob")]


async def test_purge_without_redis(postgres_url: str, own_redis: RedisServer, tmp_path: Path) -> None:
    """A purge of which Redis could not be told is done, says what is owed, and can be given again."""
    store = {"durable": postgres_url, "fast": own_redis.url}
    async with shelled(store, tmp_path) as (running, shell):
        assert (await running.send()).status == 200
        (about,) = (await shell("inspect", "--list", "--state", "all", "--format", "jsonl")).rows()
        own_redis.kill()
        done = await shell("purge", about["operation_id"], "--why", "asked to")
        assert done.code == 3
        assert "The fast tier could not be purged" in done.err
        own_redis.start()
        again = await shell("purge", about["operation_id"], "--why", "asked to")
        assert (again.code, again.err) == (0, "")


WRONG = """
inspect => say which operation: its id; or --route and the headers of its request
inspect ID --header 'A: b' => --header is not needed beside the id of an operation
inspect ID --state all => --state is for --list
inspect --list --body x => --body finds one operation by its request; leave out --list
inspect --list --reason deadline --state accepted => --reason is for dead letters
inspect --route charge --header secret => expected a header such as 'Idempotency-Key: a
inspect --route charge --header @/nowhere => /nowhere cannot be read: No such file or directory
inspect abc => expected the id of an operation, as its problem document or inspect --list shows it
inspect --list --older-than 5 => expected a duration such as 30s, 5m, 12h or 7d
inspect --list --limit 0 => expected a whole number above 0
inspect --list --reason unautorized => invalid choice: 'unautorized' (choose from
requeue ID --limit 3 --why x => --limit chooses many; leave out OPERATION_ID
requeue --route a --token 3 --why x => --token is for one operation
requeue --why x => say which dead letters
requeue --reason unauthorized --why x => give --limit (at most 10000) and --rate
withdraw ID --reason deadline --why x => --reason chooses many
pause --why x => --why is for a ROUTE
resolve --why x => one of the arguments --completed --never-happened --from is required
resolve --never-happened --why x => say which operation: its id
resolve ID --never-happened --why '' => say why; it is recorded
resolve ID --never-happened --why 'a␤b' => why must be one line of at most 1000 printable characters
resolve ID --completed /nowhere --why x => /nowhere cannot be read
resolve ID --completed - --why x => -: no empty line ends the headers
resolve ID --completed - --drop --why x => --drop is for --never-happened
resolve ID --from list --why x => an OPERATION_ID belongs in the file of --from
resolve --from list --token 3 --why x => --token belongs in the file of --from
purge ID --yes --why x => --yes confirms --erase, and is not needed to purge
journal --acknowledge --why x => say which operation
journal ID --acknowledge => --acknowledge needs --why
journal ID --export f --why x => --why is for --acknowledge
journal ID --token 1 => --token is for
journal ID --export f --state refused => --state is for the list
sinks --suspend ledger => --suspend and --resume need --why
"""


@pytest.mark.parametrize(("line", "text"), rows(WRONG, {}))
async def test_wrong_command_line(tmp_path: Path, line: str, text: str) -> None:
    """What is wrong with a command line is said before any store is opened, with exit code 2."""
    said = await lone_shell(tmp_path)(*shlex.split(line.replace("ID", NO_SUCH).replace("␤", "\n")))
    assert (said.code, said.out) == (2, "")
    assert text in said.err
    assert "secret" not in said.err
    assert not (tmp_path / "store").exists()


def test_no_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names no configuration, where none lies at the usual place, is told how to name one."""
    usual = tmp_path / "gateway.yaml"
    monkeypatch.setattr(options, "CONFIG_PATH", usual)
    assert main(["inspect", "--list"]) == 2
    expected = f"idempotency-gateway: there is no {usual}; name the gateway's configuration with --config FILE\n"
    assert capsys.readouterr() == ("", expected)


async def test_no_store(tmp_path: Path) -> None:
    """A store that is not there is not made."""
    said = await lone_shell(tmp_path)("inspect", "--list")
    assert said.code == 1
    assert "the store does not exist, or its schema is older than this program" in said.err
    assert not (tmp_path / "store").exists()


async def test_no_schema(postgres_url: str, tmp_path: Path) -> None:
    """A schema that is missing is not made by looking; `migrate` makes it."""
    shell = lone_shell(tmp_path, {"durable": postgres_url})
    for command in (("inspect", NO_SUCH), ("resolve", NO_SUCH, "--never-happened", "--why", "x")):
        said = await shell(*command)
        assert (said.code, "idempotency-gateway migrate" in said.err) == (1, True)
    assert not await postgres.is_migrated(postgres_url)
    assert (await shell("migrate")).code == 0
    said = await shell("resolve", NO_SUCH, "--never-happened", "--why", "x")
    assert (said.code, said.out) == (1, "")
    assert f"Nothing is remembered of operation {NO_SUCH}" in said.err


async def test_store_that_is_away(tmp_path: Path) -> None:
    """A store that cannot be reached is said to be, within bounds, and what that means for the command."""
    shell = lone_shell(tmp_path, {"durable": f"postgresql://u:hunter2@/d?host={tmp_path}"})
    for command, what in (
        (("purge", NO_SUCH, "--why", "x"), "nothing was changed"),
        (("inspect", NO_SUCH), "the store could not be read"),
        (("memory",), "the store could not be read"),
    ):
        said = await shell(*command)
        assert said.code == 1
        assert said.err.startswith(f"idempotency-gateway: {what}: ")
        assert "hunter2" not in said.err


# -- requests that are kept --------------------------------------------------------------------------------------------

ACCEPTING: dict[str, Any] = {
    "route": {"accept": {"identity": "unverified"}, "outcome": {"preset": "standard"}},
    "secrets": {"encryption": [{"id": "a", "key": "00" * 32}]},
}
ASYNC = [("Prefer", "respond-async")]
# At one a second, so many that an interrupt comes before the last one.
_MANY = 8
REFUSED = Answer(401, body=b"who are you?")
DONE = Answer(201, body=b"done")


@asynccontextmanager
async def accepting(store: Store, directory: Path) -> AsyncIterator[tuple[House, Admin, Shell]]:
    async with served(store, directory, **ACCEPTING) as (running, admin):
        yield running, admin, shell_for(running, store, directory, **ACCEPTING)


async def accept(running: House, key: str = "k1") -> str:
    """Have a request accepted; returns the id of its operation."""
    response = await running.send(key, headers=ASYNC)
    assert status_of(response) == (202, "accepted")
    operation_id = response.json()["id"]
    assert isinstance(operation_id, str)
    return operation_id


async def reach(running: House, admin: Admin, operation_id: str, state: str) -> dict[str, Any]:
    """Wait until the operation is in this state, with polls of the worker in between."""

    async def reached() -> dict[str, Any] | None:
        await running.gateway.parts.delivery.run_once()
        about: dict[str, Any] = (await admin("GET", f"/operations/{operation_id}")).json()
        return about if about["state"] == state else None

    found = await eventually(reached, 20.0, f"the operation is {state}")
    assert found is not None
    return found


async def test_doubt_that_came_to_nothing(sqlite: Store, tmp_path: Path) -> None:
    """Resolved as never happened, an accepted request is delivered again; with --drop its key is free instead."""
    async with accepting(sqlite, tmp_path) as (running, admin, shell):
        ids = []
        for key in ("k1", "k2"):
            running.upstream.on("/charges", CUT)
            ids.append(await accept(running, key))
            await reach(running, admin, ids[-1], "in_doubt")
        running.upstream.on("/charges", DONE)
        told = "That delivers its kept request again; with --drop, it is dropped instead."
        assert told in (await shell("inspect", ids[0])).out
        arguments = ("--never-happened", "--why", "not in the ledger", "--force")
        early = await shell("resolve", ids[0], *arguments[:-1])
        assert (early.code, early.err.endswith("If you know more than the gateway, add --force.\n")) == (1, True)
        tried = await shell("resolve", ids[0], *arguments, "--dry-run")
        assert "Its kept request would be delivered again" in tried.out
        done = await shell("resolve", ids[0], *arguments)
        assert done.code == 0
        assert done.out.startswith("Resolved: nothing happened. Its kept request is delivered again, until ")
        dropped = await shell("resolve", ids[1], *arguments, "--drop")
        assert dropped.out.startswith("Resolved: nothing happened. Its kept request is dropped, and not delivered.")
        await reach(running, admin, ids[0], "completed")
        await reach(running, admin, ids[1], "released")
        assert len(running.upstream.requests) == 3


async def test_a_planned_outage(sqlite: Store, tmp_path: Path) -> None:
    """While a route is paused its requests are accepted, wait and are counted; one is called off, and the other is
    delivered afterwards, as its caller is told."""
    async with accepting(sqlite, tmp_path) as (running, admin, shell):
        unknown = await shell("pause", "refund", "--why", "x")
        said = "idempotency-gateway: there is no route 'refund'; the configuration has charge\n"
        assert (unknown.code, unknown.err) == (1, said)
        assert (await shell("pause")).out == "Nothing is paused.\n"
        assert (await shell("pause", "charge", "--why", "maintenance")).out.startswith("Paused: charge.")
        assert (await shell("pause")).out.startswith("charge, since ")
        await running.gateway.parts.delivery.run_once()
        running.upstream.on("/charges", DONE)
        ids = [await accept(running, key) for key in ("k1", "k2")]
        await running.gateway.parts.delivery.run_once()
        about = (await admin("GET", f"/operations/{ids[0]}")).json()
        assert (about["state"], about["attempts"]) == ("accepted", 0)
        assert about["next"].startswith("Its delivery is paused: charge, since ")
        await running.gateway.parts._tally_taker.run_once()
        scraped = Scrape((await running.status("/metrics")).body.decode())
        assert scraped.value("idempotency_accepted_total", route="charge") == 2
        assert scraped.value("idempotency_paused", route="charge") == 1
        assert scraped.value("idempotency_backlog", route="charge") == 2
        assert (await shell("withdraw", ids[0], "--why", "paid in cash")).out.startswith("Withdrawn: ")
        assert running.upstream.requests == []
        resumed = await shell("resume", "charge", "--why", "it is over")
        assert resumed.out == "Resumed: charge is delivered again within seconds.\n"
        await reach(running, admin, ids[1], "completed")
        repeat = await running.send("k2")
        assert (repeat.status, repeat.body) == (201, b"done")
        assert len(running.upstream.requests) == 1
        assert status_of(await running.send("k1")) == (201, "stored")


async def test_many_interrupted(sqlite: Store, tmp_path: Path) -> None:
    """A bulk requeue that is interrupted says how far it came, and given again it goes on with the rest."""
    async with accepting(sqlite, tmp_path) as (running, admin, shell):
        running.upstream.on("/charges", REFUSED)
        ids = [await accept(running, f"k{number}") for number in range(_MANY)]
        for operation_id in ids:
            await reach(running, admin, operation_id, "dead_letter")
        nowhere = await shell("requeue", "--route", "nope", "--limit", "10", "--rate", "1", "--why", "rotated")
        assert (nowhere.code, "there is no route 'nope'; the configuration has charge" in nowhere.err) == (1, True)

        running.upstream.on("/charges", DONE)
        words = ("requeue", "--route", "charge", "--reason", "unauthorized", "--limit", "10", "--why", "rotated")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *words, "--rate", "1", "--config", str(shell.config),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
            # Where the tests run in the background they ignore it, and so would their children.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert process.stdout is not None
        line = await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        assert line.split()[1:] == [b"requeued"]
        # A process that is slow to be interrupted may have come further than to the first one.
        done = int(out.decode().splitlines()[-1].split()[0])
        assert 1 <= done < _MANY
        assert out.decode().splitlines()[-1] == f"{done} requeued, 0 skipped, {_MANY - done} left"
        assert err == b"idempotency-gateway: interrupted; run the same command again to see what was done\n"
        rest = await shell(*words, "--rate", "1000")
        assert (rest.code, rest.out.splitlines()[-1]) == (0, f"{_MANY - done} requeued, 0 skipped, 0 left")
