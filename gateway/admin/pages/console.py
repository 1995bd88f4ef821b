"""The console as a whole: signing in and out, pages for what fails, and the parts."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode

from aiohttp import web

from gateway.admin.access import Action
from gateway.admin.authentication import COOKIE, SIGN_IN_PATH, Authentication, Endpoint, is_page, session_cookie
from gateway.admin.fault import Fault
from gateway.admin.form import form_of, text_in
from gateway.admin.operations import Operations
from gateway.admin.pages.changing import Changing
from gateway.admin.pages.reading import Reading
from gateway.admin.pages.site import Site, see_other
from gateway.admin.process import Process

# A page of this console, whoever made the link.
_PAGE: Final = re.compile(r"/ui/[!-\[\]-~]{0,2000}")
_WRONG: Final = "This token is not known here."
_SIGN_IN_BYTES_MAX: Final = 64 * 1024


class Console:
    """On this admin port, about these operations, of this process."""

    def __init__(self, operations: Operations, authentication: Authentication, process: Process) -> None:
        self._authentication = authentication
        self._site = Site(operations.policies.service)
        self._reading = Reading(self._site, operations, process, authentication.notes, authentication.note)
        self._changing = Changing(self._site, operations, process, authentication.note)

    def endpoints(self, app: web.Application) -> list[Endpoint]:
        """See `api.Pages`."""
        return [
            Endpoint("GET", "/", Action.READ, self._root),
            Endpoint("GET", "/ui", Action.READ, self._root),
            Endpoint("GET", SIGN_IN_PATH, Action.ENTER, self._sign_in_page),
            Endpoint("POST", SIGN_IN_PATH, Action.ENTER, self._sign_in),
            Endpoint("POST", "/ui/sign-out", Action.READ, self._sign_out),
            *self._site.endpoints(app),
            *self._reading.endpoints(),
            *self._changing.endpoints(),
        ]

    def fault(self, request: web.Request, fault: Fault) -> web.Response:
        """See `api.Pages`."""
        if fault.code == "signed-out" and request.method == "GET":
            asked = "" if request.path_qs == "/ui/" else "?" + urlencode({"next": request.path_qs})
            return see_other(SIGN_IN_PATH + asked)
        if request.path == SIGN_IN_PATH and fault.status == 429:
            return self._asking(request, fault.status, f"{fault.detail} {fault.headers['Retry-After']} seconds.")
        detail = "There is nothing here." if fault.code == "no-such-path" else fault.detail
        response = self._site.page(request, "fault", fault.status, fault=fault, detail=detail)
        response.headers.update(fault.headers)
        return response

    async def _root(self, request: web.Request) -> web.Response:
        if not is_page(request):
            raise Fault(404, "no-such-path", "There is nothing here; see /operations.")
        return see_other("/ui/")

    async def _sign_in_page(self, request: web.Request) -> web.Response:
        self._authentication.check_host(request)
        return self._asking(request)

    def _asking(
        self, request: web.Request, status: int = 200, mistake: str | None = None, asked: str | None = None
    ) -> web.Response:
        """`asked` is the page that was asked for; None takes that of the query."""
        host = request.headers.get("Host", "")
        target = _page_of(request.query.get("next", "") if asked is None else asked)
        return self._site.page(request, "sign_in", status, mistake=mistake, host=host, next=target)

    async def _sign_in(self, request: web.Request) -> web.Response:
        # Before the body is read: only our own pages may send one.
        self._authentication.check_host(request)
        self._authentication.own_origin(request)
        if request.content_length is None or request.content_length > _SIGN_IN_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(_SIGN_IN_BYTES_MAX, request.content_length or 0)
        form = await form_of(request)
        session = self._authentication.sign_in(request, text_in(form, "token"))
        if session is None:
            return self._asking(request, 401, _WRONG, text_in(form, "next"))
        response = see_other(_page_of(text_in(form, "next")))
        response.set_cookie(COOKIE, **session_cookie(session))
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        response = see_other(SIGN_IN_PATH)
        response.del_cookie(COOKIE, path="/")
        return response


def _page_of(text: str) -> str:
    """The page to go to after the sign-in."""
    is_page_to_see = _PAGE.fullmatch(text) and not text.startswith(SIGN_IN_PATH)
    return text if is_page_to_see else "/ui/"
