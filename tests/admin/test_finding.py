"""Whatever a support person has leads to the operation: on the page, over the API and on the command line."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.core.operation import State
from tests.admin.shell import doubt, shell_for
from tests.admin.test_pages import TOKENS, Port, port
from tests.support import http
from tests.support.house import house
from tests.support.http import Response

__all__ = ["port"]

OTHER = "6f1c1b0e-5f2a-8a3c-9d1e-2b7f0c4d5e6a"
KEY = "0b9f1de2-7f0c-4c3f-8f0e-0d6a2b1c9e55"
EXPECTED = "expected the id of an operation, as its problem document or inspect --list shows it"

# `ID` is that of the operation.
TEXTS = {
    "id": "  ID\n",
    "upper case": "{ID}",
    "urn": "urn:uuid:ID",
    "location": "Location: /.idempotency/operations/ID",
    "reference": "/.idempotency/operations/ID/result",
    "address": "https://api.example.com/.idempotency/operations/ID?a=b#c",
    "problem": json.dumps(
        {"code": "in-doubt", "operation_id": "ID", "first_operation": OTHER, "error": {"message": "See ID."}}, indent=2
    ),
    "stripe": json.dumps({"error": {"code": "idempotency_error", "operation_id": "ID", "first_operation": OTHER}}),
    "status": json.dumps({"id": "ID", "state": "accepted", "links": {"self": "/operations/ID"}}),
    "problem in a log": json.dumps({"body": json.dumps({"first_operation": OTHER, "operation_id": "ID"})}),
    "headers of the service": f"POST /v1 HTTP/1.1\r\nX-Request-Id: {OTHER}\r\nidempotency-operation: ID\r\n\r\n",
    "headers of a response": f"HTTP/2 202\r\nx-request-id: {KEY}\r\nlocation: /.idempotency/operations/ID\r\n\r\n",
    "command": f"curl -X POST 'https://a.example/' -H 'Idempotency-Key: {KEY}' -H 'Idempotency-Operation: ID' -d x",
    "command for a status": "curl -H 'Authorization: Bearer secret' https://a.example/operations/ID",
    "log line": f"INFO POST charge 409 route=charge operation_id=ID request_id={OTHER} first_operation={OTHER}",
    "JSON log line": json.dumps({"message": "claimed", "trace_id": "4b" * 16, "operation_id": "ID", "request_id": KEY}),
    "span": json.dumps({"idempotency.operation.id": "ID", "links": OTHER}),
    "mail": "> Hello,\n> we got this for order ID.\n> <b>ID</b> again",
}
GARBAGE = {
    "number": ("4711", "or a text with it, such as the Location of a status"),
    "resource": ("Location: /v1/charges/ch_1", "or a text with it, such as the Location of a status"),
    "cut": (OTHER[:-1], "or a text with it"),
    "in a longer one": (f"0{OTHER}", "or a text with it"),
    "surrogates and controls": ("\x00\x1b[31m\u202e\ufffd", "or a text with it"),
    "other UUID": (KEY, "request ids, trace ids and keys are not searched"),
    "request id": (f"X-Request-Id: {KEY}", "request ids, trace ids and keys are not searched"),
    "trace id": ("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "are not searched"),
    "bare trace id": ("4bf92f3577b34da6a3ce929d0e0e4736", "are not searched"),
    "key": (
        f"curl -H 'Idempotency-Key: {KEY}' https://a.example/v1",
        "a key alone is not enough. Find it by its request",
    ),
    "two": (f"operation_id={OTHER} operation_id={OTHER[:-1]}b", "this has 2 of them. Give the part that has one"),
    "markup": ("<script>alert('x')</script>", "or a text with it"),
    "a mebibyte": ("secret" * 174_762 + "<i>", "this is longer than 65536 characters. Give the part that has the id"),
    "a mebibyte with it": (f"operation_id={OTHER} ".ljust(1_048_576, "x"), "this is longer than 65536 characters"),
    "nearly names": ("operation_id" + " " * 9 + '"' * 60_000, "or a text with it"),
}


async def asked(port: Port, body: object, name: str = "vera") -> Response:
    headers = [("Authorization", f"Bearer {TOKENS[name]}"), ("Content-Type", "application/json")]
    return await http.request(port.port, "POST", "/find", headers, json.dumps(body).encode())


@pytest.mark.parametrize("form", TEXTS)
async def test_what_has_the_id(port: Port, form: str) -> None:
    """One step leads from it to the history of the operation."""
    record = await port.desk.in_state(State.COMPLETED)
    operation_id = str(record.identity.operation_id)
    text = TEXTS[form].replace("ID", operation_id.upper() if form == "upper case" else operation_id)
    browser = await port.signed_in("vera")
    found = await browser.submit("/ui/find", {"id": text})
    assert (found.status, found.header("Location")) == (303, f"/ui/operations/{operation_id}")
    over_api = await asked(port, {"text": text})
    headers = [("Authorization", f"Bearer {TOKENS['vera']}")]
    shown = await http.request(port.port, "GET", f"/operations/{operation_id}", headers)
    assert (over_api.status, over_api.json()["operation_id"]) == (200, operation_id)
    assert over_api.json().keys() == shown.json().keys()


@pytest.mark.parametrize("form", GARBAGE)
async def test_what_has_none(port: Port, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is refused with what to give instead; a long text, which may have a credential in it, is shown nowhere."""
    caplog.set_level(logging.DEBUG)
    text, instead = GARBAGE[form]
    refused = await asked(port, {"text": text})
    assert (refused.status, refused.json()["code"]) == (400, "malformed")
    detail = refused.json()["detail"]
    assert detail.startswith(EXPECTED)
    assert instead in detail
    browser = await port.signed_in("vera")
    page = await browser.submit("/ui/find", {"id": text})
    assert page.status == 400
    assert instead in page.words
    assert len(page.body) < 16_384
    assert b"<script>alert" not in page.body
    assert b"secretsecret" not in page.body
    assert text not in caplog.text


async def test_a_short_one_is_shown_again(port: Port) -> None:
    """It was mistyped, perhaps; what is markup in it is none on the page. A credential is longer."""
    browser = await port.signed_in("vera")
    page = await browser.submit("/ui/find", {"id": "</textarea><script>x</script>"})
    assert b"&lt;/textarea&gt;&lt;script&gt;x&lt;/script&gt;</textarea>" in page.body
    page = await browser.submit("/ui/find", {"id": "Authorization: Bearer " + "s" * 20})
    assert b"sss" not in page.body


async def test_one_that_no_store_has(port: Port) -> None:
    """It is said that nothing is remembered, as for its own address."""
    response = await asked(port, {"text": f"operation_id={OTHER}"})
    assert (response.status, response.json()["code"]) == (404, "unknown")
    assert response.json()["operation"]["operation_id"] == OTHER
    browser = await port.signed_in("vera")
    found = await browser.submit("/ui/find", {"id": f"operation_id={OTHER}"})
    assert (await browser.get(found.header("Location") or "")).status == 404


@pytest.mark.parametrize("body", [{}, {"text": 1}, {"text": "x", "other": 1}, []], ids=str)
async def test_a_wrong_body(port: Port, body: object) -> None:
    """It is refused, and nothing of it is repeated."""
    assert (await asked(port, body)).status == 400


async def test_on_the_command_line(sqlite: dict[str, Any], tmp_path: Path) -> None:
    """`inspect` takes it as an argument or, which keeps it out of the shell's history, from standard input."""
    async with house(sqlite, tmp_path) as running:
        operation_id = await doubt(running)
        shell = shell_for(running, sqlite, tmp_path)
        problem = (await running.send()).body
        for shown in (
            await shell("inspect", problem.decode()),
            await shell("inspect", "-", stdin=b"\xff\xfe" + problem),
        ):
            assert (shown.code, shown.err) == (0, "")
            assert f"operation         {operation_id}\n" in shown.out
        for text in (b"", b"4711", b"x" * 300_000):
            refused = await shell("inspect", "-", stdin=text)
            assert (refused.code, refused.out) == (2, "")
            assert "4711" not in refused.err
