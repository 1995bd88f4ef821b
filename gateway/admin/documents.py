"""What the admin port says: JSON, and problems as RFC 9457 has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from gateway.observe.side_port import Manner, terse

TYPE_PREFIX: Final = "urn:idempotency-gateway:admin:"


class Declined(Exception):
    """An answer that ends the request."""

    def __init__(self, response: web.Response) -> None:
        self.response = response


def said(status: int, document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer of JSON."""
    body = json.dumps(document, ensure_ascii=True).encode() + b"\n"
    return terse(status, body, "application/json" if status < 400 else "application/problem+json", headers)


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> web.Response:
    """A problem document (RFC 9457)."""
    title = HTTPStatus(status).phrase
    about = {"type": TYPE_PREFIX + code, "title": title, "status": status, "detail": detail, "code": code}
    return said(status, {**about, **members}, headers)


def _refuse(status: int) -> web.Response:
    return problem(status, "failed" if status >= 500 else "malformed", "This request cannot be answered.")


MANNER: Final = Manner("admin", _refuse, line_bytes_max=8 * 1024, stop_seconds=5.0)
