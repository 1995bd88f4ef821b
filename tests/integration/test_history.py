"""What happened to an operation is told in order and whole, whoever of several gateways lived to see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.integration.hand import begin
from tests.support.eventually import eventually
from tests.support.fleet import NOW, process, send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of, stores
from tests.support.upstream import Answer, Ending, RecordingUpstream

_PROBE: Final = {"path": "/probes?o={operation_id}", "done": [{"status": [200]}]}
_STORE: Final = {"lease": "3s", "journal_grace": "1s"}
_SAVED: Final = "HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\n\r\nonce"


store = stores("postgres-redis", full=["sqlite"])


async def history(gateway: GatewayProcess, operation_id: str) -> list[str]:
    """What `inspect` tells of it, without the times."""
    code, text = await gateway.command("inspect", operation_id)
    assert code == 0, text
    return [line.partition("Z ")[2] for line in text.splitlines() if line.startswith("history ")]


async def test_claimed_doubted_probed_taken_over_and_resolved(
    store: dict[str, Any], tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """Through two gateways, one of them killed: each attempt, each probe and the resolution, by whom, and what came."""
    upstream.on(None, Answer(500))
    probing: Any = {"recovery": {"probe": _PROBE}}
    async with process(store, tmp_path / "a", upstream, route=probing, store=_STORE) as one:
        request, _ = await begin(one, upstream)
        upstream.on("/charges", Answer(bytes_max=0, ending=Ending.CLOSE))
        one.kill()
        assert await request is None
    async with process(store, tmp_path / "b", upstream, route=probing, store=_STORE) as two:

        async def operation_in_doubt() -> str | None:
            response = await send(two.port, "k1", headers=NOW)
            return response.json()["operation_id"] if status_of(response) == (409, "in-doubt") else None

        operation_id = await eventually(operation_in_doubt, deadline_seconds=30)

        async def probed() -> bool:
            return any(each.startswith("asked the service") for each in await history(two, operation_id))

        await eventually(probed, deadline_seconds=30)
    async with process(store, tmp_path / "b", upstream, route={"recovery": "resend"}, store=_STORE) as two:

        async def taken_over() -> bool:
            assert status_of(await send(two.port, "k1"))[1] == "in-doubt"
            return [each.method for each in upstream.requests].count("POST") == 2

        await eventually(taken_over, deadline_seconds=30)
        saved = tmp_path / "saved.http"
        saved.write_text(_SAVED)
        resolve = ("resolve", operation_id, "--completed", str(saved), "--why", "found in the ledger")
        code, text = await two.command(*resolve, "--by", "alice")
        assert code == 0, text
        assert status_of(await send(two.port, "k1")) == (201, "recovered")
        told = await history(two, operation_id)
    lapsed, *probes, again, resolved = told
    assert lapsed.startswith("sent: POST, token ")
    assert "; its lease ended, in doubt after 3.0 s" in lapsed
    assert set(probes) == {"asked the service: the status is 500, which no rule matches"}
    assert again.startswith("sent again in doubt: POST, token ")
    assert again.endswith(": the service closed the connection before it responded")
    assert resolved.startswith("found out: it happened, status 201: alice")
    assert resolved.endswith(": found in the ledger")
    holders = [each.partition(";")[0].rpartition(", ")[2] for each in (lapsed, again)]
    assert len(set(holders)) == 2
