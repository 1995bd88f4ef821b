"""The forms of the console, which may carry a file. They are read into memory, and nothing of them into a file.

aiohttp's own reading keeps each upload in a temporary file, where a response of the service would lie in the clear. The
admin port bounds how long a body is, and how many requests there are at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage

Form = Mapping[str, str | bytes]
"""The fields by name, the first of each: texts, and files as bytes. A file that was not chosen is empty."""

_FIELDS_MAX: Final = 50
_FORM: Final = web.RequestKey("form", dict[str, str | bytes])


async def form_of(request: web.Request) -> Form:
    """The form in the body of a request. May be asked for again. Raises `web.HTTPException`."""
    form = request.get(_FORM)
    if form is None:
        form = request[_FORM] = await _read(request)
    return form


def text_in(form: Form, name: str) -> str:
    """A field as text; empty where it is missing or a file."""
    value = form.get(name, "")
    return value if isinstance(value, str) else ""


def file_in(form: Form, name: str) -> bytes:
    """The content of a file; empty where none was chosen."""
    value = form.get(name, b"")
    return value if isinstance(value, bytes) else b""


async def _read(request: web.Request) -> dict[str, str | bytes]:
    found: dict[str, str | bytes] = {}
    if request.content_type != "multipart/form-data":
        for name, value in (await request.post()).items():
            if isinstance(value, str):
                found.setdefault(name, value)
        return found
    left, fields = request.client_max_size, 0
    try:
        parts = await request.multipart()
        while (part := await parts.next()) is not None:
            fields += 1
            if not isinstance(part, BodyPartReader) or part.name is None or fields > _FIELDS_MAX:
                raise web.HTTPBadRequest
            content = bytearray()
            while chunk := await part.read_chunk():
                content += chunk
                left -= len(chunk)
                if left < 0:
                    raise web.HTTPRequestEntityTooLarge(request.client_max_size, request.client_max_size - left)
            is_file = part.filename is not None
            found.setdefault(part.name, bytes(content) if is_file else content.decode("utf-8", "replace"))
    except (ValueError, RuntimeError, AssertionError, BadHttpMessage):
        raise web.HTTPBadRequest from None
    return found
