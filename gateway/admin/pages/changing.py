"""The pages that change something: what it means, then the form, then what became of it.

A change is one POST, and may be sent again: the same one is recognised. A form carries the token of the record that was
shown, so that who was faster wins, and the other learns it (409).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from gateway.admin.access import Action
from gateway.admin.actions import CHANGES, Asked, Change, Page, Place, Result, operation_id_of, parsed
from gateway.admin.authentication import PERSON, Endpoint
from gateway.admin.fault import Fault, Malformed, NotDead, OutcomeRefused
from gateway.admin.form import Form, file_in, form_of, text_in
from gateway.admin.journal import acknowledge
from gateway.admin.operations import Operations, audit_by
from gateway.admin.pages.reading import token_of
from gateway.admin.pages.site import Site
from gateway.admin.process import Process, reloaded
from gateway.admin.provided_response import read_response
from gateway.admin.resolution import Changed, Happened, NothingHappened, Refusal, Refused, resolution
from gateway.core.message import Headers
from gateway.core.operation import Audit, Prove, Snapshot, State

WHY_CHARACTERS_MIN: Final = 3
WHY_CHARACTERS_MAX: Final = 500
_TYPED_CHARACTERS: Final = 8
_SHOWN_BYTES: Final = 400

_ACKNOWLEDGE: Final = Page(
    "Acknowledge the refused outcome",
    "It is taken out of the journal and kept in a file beside it, with its response. Do this when it was dealt with.",
    "Acknowledge it",
)
_RELOAD: Final = Page(
    "Reload the configuration",
    "The file is read again, and put in force whole or not at all. Requests under way keep what they began with.",
    "Reload it",
)


@dataclass(frozen=True, slots=True)
class Changing:
    """`note` logs who did what."""

    site: Site
    operations: Operations
    process: Process
    note: Callable[[str, str], None]

    def endpoints(self) -> list[Endpoint]:
        """Its paths. The page of a change has the same path and needs the same role."""
        return [
            Endpoint("GET", "/ui/operations/{id}/resolve", Action.RESOLVE, self._resolving),
            Endpoint("POST", "/ui/operations/{id}/resolve", Action.RESOLVE, self._resolve),
            *self._confirmed(Change(Action.RELOAD, "/configuration/reload", Asked, self._reload, _RELOAD)),
            *self._confirmed(
                Change(Action.ACKNOWLEDGE, "/journal/{id}/{token}/acknowledge", Asked, self._acknowledge, _ACKNOWLEDGE)
            ),
            *(endpoint for change in CHANGES for endpoint in self._confirmed(change)),
        ]

    # -- changes with a reason ----------------------------------------------------------------------------------------

    def _confirmed(self, change: Change[Any]) -> list[Endpoint]:
        """The page that explains a change and asks for its reason, and the change; nothing for one without a page."""
        page = change.page
        if page is None:
            return []
        path = f"/ui{page.path or change.path}"

        async def explain(request: web.Request) -> web.Response:
            return await self._explained(request, page)

        async def confirm(request: web.Request) -> web.Response:
            form = await form_of(request)
            try:
                audit = _audit(request, form)
                if page.typed and form.get("typed") != self._typed(request):
                    raise Malformed(f"to confirm, type {self._typed(request)}")
            except Malformed as error:
                return await self._explained(request, page, 400, str(error))
            # What is asked here was confirmed.
            given = {"token": _token_in(form), "route": request.match_info.get("name"), "yes": page.typed}
            known = {name: value for name, value in given.items() if name in change.asked.model_fields}
            asked = parsed(change.asked, {"why": audit.why, **known})
            about = f"{page.title}, {request.path}: {audit.why}"
            try:
                result = await change.carry_out(self.operations, request.match_info, asked, audit)
            except (Fault, NotDead):
                self.note(audit.who, f"was refused: {about}")
                raise
            self.note(audit.who, f"did: {about}")
            return self._done(request, page.title, result)

        return [Endpoint("GET", path, change.action, explain), Endpoint("POST", path, change.action, confirm)]

    def _typed(self, request: web.Request) -> str:
        """What has to be typed to confirm: the beginning of an operation's id, or the name of the service."""
        return _beginning(request) if "/operations/" in request.path else self.operations.policies.service

    async def _explained(self, request: web.Request, page: Page, status: int = 200, mistake: str = "") -> web.Response:
        record = (await self._snapshot(request)).record if "/operations/" in request.path else None
        form = await form_of(request) if status != 200 else {}
        return self.site.page(
            request,
            "confirm",
            status,
            change=page,
            typed=self._typed(request),
            mistake=mistake,
            why=text_in(form, "why"),
            subject=request.match_info.get("id", request.match_info.get("name", "")),
            record_token=text_in(form, "token") or ("" if record is None else record.token),
            state=None if record is None else record.state,
            back=_back(request),
        )

    async def _snapshot(self, request: web.Request) -> Snapshot:
        """The operation of the path. Raises `Fault` where it is not remembered."""
        snapshot = await self.operations.read(operation_id_of(request.match_info))
        if snapshot.record is None:
            raise Fault(404, Refusal.UNKNOWN, "Nothing is remembered under this id.")
        return snapshot

    async def _acknowledge(self, _: Operations, place: Place, asked: Asked, audit: Audit) -> Result:
        operation_id, token = operation_id_of(place), token_of(place["token"])
        try:
            return await acknowledge(self.process.journals, operation_id, token, audit, self.operations.read)
        except OutcomeRefused as error:
            raise Fault(409, "not-acknowledged", f"Nothing was changed: {error}.") from None

    async def _reload(self, _: Operations, place: Place, asked: Asked, audit: Audit) -> Result:
        report = await reloaded(self.process.reload, "Refused, and nothing was changed:\n")
        if report.result == "unchanged":
            return "The file says what is in force already."
        return "Applied. Changed:\n" + "\n".join(report.document["changed"])

    def _done(self, request: web.Request, title: str, result: Result) -> web.Response:
        return self.site.page(
            request,
            "done",
            result.status if isinstance(result, Refused) else 200,
            title=title,
            text=result if isinstance(result, str) else result.text,
            notes=result.notes if isinstance(result, Changed) else (),
            is_refused=isinstance(result, Refused),
            back=_back(request),
        )

    # -- resolving ----------------------------------------------------------------------------------------------------

    async def _resolving(
        self, request: web.Request, status: int = 200, mistake: str = "", why: str = "", way: str = ""
    ) -> web.Response:
        snapshot, policies = await self._snapshot(request), self.operations.policies
        record = snapshot.record
        if record is None or record.state is not State.IN_DOUBT or not policies.is_own(record):
            text = f"It is {snapshot.state}: there is nothing to resolve."
            return self._done(request, "Resolve", Refused(Refusal.STATE, text, snapshot))
        return self.site.page(
            request,
            "resolve",
            status,
            id=record.identity.operation_id,
            record=record,
            now_us=snapshot.now_us,
            settled_us=record.lease_until_us + policies.treatment_of(record).settle_us,
            mistake=mistake,
            why=why,
            way=way,
        )

    async def _resolve(self, request: web.Request) -> web.Response:
        form = await form_of(request)
        operation_id, way, why = operation_id_of(request.match_info), text_in(form, "way"), text_in(form, "why")
        try:
            audit, token, data = _audit(request, form), _token_in(form), _response_in(form)
            is_forced = form.get("force") == "yes"
            if is_forced:
                request[PERSON].require(Action.FORCE)
                if form.get("typed") != _beginning(request):
                    raise Malformed(f"to overrule the refusal, type {_beginning(request)}")
            if way == "never_happened":
                ruling: Happened | NothingHappened = NothingHappened(drops=form.get("drop") == "yes")
            else:
                ruling = Happened(*read_response(data))
        except Malformed as error:
            return await self._resolving(request, 400, str(error), why, way)
        is_confirmed = form.get("confirmed") == "yes"
        result = await self.operations.resolve(
            operation_id, ruling, audit, is_forced=is_forced, token=token, is_dry_run=not is_confirmed
        )
        may_be_forced = isinstance(result, Refused) and result.reason in (Refusal.EARLY, Refusal.RESPONSE)
        if not may_be_forced and (is_confirmed or isinstance(result, Refused) or result.is_repeat):
            if is_confirmed and isinstance(result, Changed):
                self.note(audit.who, f"resolved operation {operation_id}: {audit.why}")
            return self._done(request, "Resolve", result)
        return self.site.page(
            request,
            "preview",
            409 if may_be_forced else 200,
            id=operation_id,
            record=result.snapshot.record,
            now_us=result.snapshot.now_us,
            text=result.text,
            may_be_forced=may_be_forced,
            way=way,
            why=why,
            drop=form.get("drop") == "yes",
            record_token="" if token is None else token,
            response=urlsafe_b64encode(data).decode(),
            beginning=_beginning(request),
            replayed=self._replayed(ruling, result, audit),
        )

    def _replayed(
        self, ruling: Happened | NothingHappened, result: Changed | Refused, audit: Audit
    ) -> dict[str, Any] | None:
        """What repeats would get: the status, the headers that are kept and dropped, the size."""
        record = result.snapshot.record
        if not isinstance(ruling, Happened) or record is None:
            return None
        command = resolution(record, ruling, audit, self.operations.policies.treatment_of(record))
        if not isinstance(command, Prove):
            return None
        kept = command.response.headers
        names = {name.lower() for name, _ in kept}
        return {
            "status": command.response.status,
            "kept": _shown(kept),
            "dropped": [name for name, _ in _shown(ruling.head.headers) if name.lower().encode() not in names],
            "bytes": len(ruling.body),
            "beginning": _beginning_of(ruling.body),
            "is_body_kept": command.response.body is not None,
        }


def _shown(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _beginning_of(body: bytes) -> str:
    """What a person can recognise a body by; empty where it is no text."""
    try:
        text = body[:_SHOWN_BYTES].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < _SHOWN_BYTES - 4:
            return ""
        text = body[: error.start].decode("utf-8")
    return text if len(body) <= _SHOWN_BYTES else f"{text}…"


def _beginning(request: web.Request) -> str:
    """What has to be typed to confirm a change of an operation."""
    return str(operation_id_of(request.match_info))[:_TYPED_CHARACTERS]


def _audit(request: web.Request, form: Form) -> Audit:
    """Who acts, and why. Raises `Malformed`."""
    text = text_in(form, "why").strip()
    if not WHY_CHARACTERS_MIN <= len(text) <= WHY_CHARACTERS_MAX:
        raise Malformed(f"say why, in {WHY_CHARACTERS_MIN} to {WHY_CHARACTERS_MAX} characters; it is recorded")
    return audit_by(request[PERSON].acting_for(None), text)


def _token_in(form: Form) -> int | None:
    """The token of the record that the form was made for. Raises `Malformed`."""
    text = text_in(form, "token")
    return token_of(text) if text else None


def _response_in(form: Form) -> bytes:
    """The response of a form: a file, what was pasted, or what the preview carries on. Raises `Malformed`.

    Browsers end the lines of what was pasted in CRLF, whatever they were; a terminal shows LF.
    """
    if carried := text_in(form, "carried"):
        try:
            return urlsafe_b64decode(carried.encode())
        except ValueError:
            raise Malformed("the response did not come back whole; begin again") from None
    return file_in(form, "file") or text_in(form, "pasted").replace("\r\n", "\n").encode()


def _back(request: web.Request) -> str:
    """The page that leads to this change."""
    parts = request.path.split("/")
    if parts[2] == "operations":
        return "/".join(parts[:4])
    return {"events": "/ui/sinks"}.get(parts[2], f"/ui/{parts[2]}")
