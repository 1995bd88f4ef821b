"""Makes pages of values, and serves the stylesheet and the script.

What is named in a template is escaped, and no template contains code. The names of the static files have a digest of
their content, so browsers may keep them for ever. A page is never kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from time import time_ns
from typing import Any, Final

import aiohttp_jinja2
import jinja2
from aiohttp import web
from markupsafe import Markup, escape

from gateway import __version__
from gateway.admin import listing
from gateway.admin.access import ENTER, PERSON, SESSION, Endpoint
from gateway.admin.actions import ACTIONS
from gateway.admin.reports import events_text
from gateway.admin.view import ago, doubt_text, moment, since_us, span
from gateway.core.operation import State
from gateway.observe.status import terse

NAVIGATION: Final[Mapping[str, Sequence[str]]] = {
    "Overview": ("",),
    "Operations": ("operations", "find"),
    "Deliveries": ("dead-letters", "pauses"),
    "Sinks": ("sinks",),
    "Routes": ("routes", "observe", "explain"),
    "System": ("configuration", "memory", "journal", "audit"),
}
"""The six entries that every page leads to, and the pages below each; the first one is the entry's own. A new page is
one word here and one endpoint."""

# Pages of an entry that none leads to.
_INSIDE: Final = {"events": "Sinks"}
_NAMES: Final = {"operations": "Work list"}
_CELL: Final = re.compile(r"<(tr|td|th scope=\"row\")(?=[ >])")
_TYPES: Final = {"console.css": "text/css", "console.js": "text/javascript", "console.svg": "image/svg+xml"}
_FOR_EVER: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
# In the order of the states.
_SHAPES: Final = dict(zip(State, "–○◆▶▲■●□", strict=True))


def _shape(state: str) -> str:
    return _SHAPES[State(state)]


def _prose(text: str) -> Markup:
    """A sentence, in which what stands in backticks is code."""
    parts = [escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _back(path: str) -> str:
    """The page that leads to a change."""
    parts = path.split("/")
    if parts[2] == "operations":
        return "/".join(parts[:4])
    return {"events": "/ui/sinks"}.get(parts[2], f"/ui/{parts[2]}")


def _labelled(rows: Markup, heads: Sequence[str]) -> Markup:
    """The rows of a table, each cell with the name of its column: on a narrow window a row is a card, whose cells are
    no columns. What is no table to a browser any more stays one to a reader of the screen by its roles."""
    names = iter(heads)

    def label(found: re.Match[str]) -> str:
        nonlocal names
        if found[1] == "tr":
            names = iter(heads)
            return '<tr role="row"'
        role = "cell" if found[1] == "td" else "rowheader"
        return f'<{found[1]} role="{role}" data-label="{escape(next(names, ""))}"'

    return Markup(_CELL.sub(label, rows))  # noqa: S704 -- the rows are markup, in which all values are escaped


def entry_of(path: str) -> str:
    """The entry of the navigation that a page is below."""
    first = [*path.removeprefix("/ui/").split("/"), ""][0]
    return next((entry for entry, pages in NAVIGATION.items() if first in pages), _INSIDE.get(first, ""))


_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "moment": moment,
    "ago": ago,
    "span": span,
    "shape": _shape,
    "prose": _prose,
    "doubt": doubt_text,
    "since": since_us,
    "unreceived": events_text,
    "back": _back,
    "labelled": _labelled,
    "subject": listing.subject,
    "caller": listing.caller,
    "did": listing.did,
    "then": listing.then,
    "as_request": listing.as_request,
    "repeat": listing.repeat,
    "page_name": lambda page: _NAMES.get(page, page.replace("-", " ").capitalize()),
}


class Site:
    """`values` are for all templates."""

    def __init__(self, **values: Any) -> None:
        self._values = values
        self._static = {}
        self._urls = {}
        for name, media_type in _TYPES.items():
            content = files(__package__).joinpath("static", name).read_bytes()
            stem, _, ending = name.partition(".")
            url = f"/ui/static/{stem}.{sha256(content).hexdigest()[:16]}.{ending}"
            self._urls[ending] = url
            self._static[url] = (content, f"{media_type}; charset=utf-8")

    def endpoints(self, app: web.Application) -> list[Endpoint]:
        """The static files. Prepares the application to make pages."""
        aiohttp_jinja2.setup(
            app,
            loader=jinja2.PackageLoader(__package__),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            filters=_FILTERS,
        )
        return [Endpoint("GET", url, ENTER, self._file) for url in self._static]

    async def _file(self, request: web.Request) -> web.Response:
        content, media_type = self._static[request.path]
        return terse(200, content, media_type, _FOR_EVER)

    def page(self, request: web.Request, template: str, status: int = 200, **values: Any) -> web.Response:
        """A page of a template. `values` are escaped where they stand."""
        session = request.get(SESSION)
        form_token: Callable[[str], str] = (lambda path: "") if session is None else session.form_token
        always = {
            **self._values,
            "mistake": None,
            "version": __version__,
            "navigation": NAVIGATION,
            "entry": entry_of(request.path),
            "path": request.path,
            "static": self._urls,
            "person": request.get(PERSON),
            "form_token": form_token,
            "Action": ACTIONS,
            "asked_at": moment(time_ns() // 1000),
        }
        text = aiohttp_jinja2.render_string(f"{template}.html", request, {**always, **values})
        return terse(status, text.encode(), "text/html; charset=utf-8")


def see_other(target: str) -> web.Response:
    return terse(303, b"", "text/plain", {"Location": target})
