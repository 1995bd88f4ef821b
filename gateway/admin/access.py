"""Who may do what on the admin port: people with tokens and roles, and their sessions in a browser.

An `Action` is what is asked for; `actions` has those that change something. A program sends its token with each
request, as `Authorization: Bearer`.

A browser signs in once and has a session in a cookie, which only pages accept. A session is a signed value and kept
nowhere: it survives restarts and is good at every gateway that has the same token, and it ends with the token that it
was made with. Somebody whom a proxy or an issuer vouches for signs in without a token, and has a session for as long as
each request says the same of them: such headers come with whatever a browser sends, and are believed of pages alone.

Of browsers more is asked, because any web page can make them send requests:

- The `Host` is one that the gateway knows: a name that somebody else made resolve to this address is not (DNS
  rebinding).
- A change comes by POST from a page of the origin where the session began (`Origin`, and `Sec-Fetch-Site` where it is
  sent, which browsers leave out on plain HTTP), with the token of a form that was made for this session and path. A
  `SameSite` cookie does not replace this: it is sent from other ports of the same host.
"""

from __future__ import annotations

import hmac
import logging
import math
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.typedefs import Handler
from multidict import CIMultiDictProxy

from gateway.admin.resolution import Fault
from gateway.config.models import JwtSignIn, ProxySignIn
from gateway.core.identity.caller import TokenFault, read_token
from gateway.core.identity.key import IdentityUnavailable, ScopeMissing

SESSION_SECONDS: Final = 12 * 3600
# How far the clocks of gateways may be apart.
_CLOCKS_APART_SECONDS: Final = 300
_COOKIE_CHARACTERS_MAX: Final = 2048
_NONCE_BYTES: Final = 16
# In a signed token (RFC 7515 section 3.1).
_DOTS: Final = 2
_SESSION: Final = b"idempotency gateway console session"


class Role(StrEnum):
    """What somebody may do; each role includes those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Action:
    """What can be done on the admin port, and the least role for it; None: no token is needed."""

    value: str
    role: Role | None


ENTER: Final = Action("enter", None)  # sign in, and what the page for that needs
READ: Final = Action("read", Role.VIEWER)
READ_RESPONSE: Final = Action("read_response", Role.OPERATOR)
FORCE: Final = Action("force", Role.ADMIN)  # overrule a refusal
ACKNOWLEDGE: Final = Action("acknowledge", Role.OPERATOR)  # a refused outcome of the journal
RELOAD: Final = Action("reload", Role.ADMIN)  # of the configuration


@dataclass(frozen=True, slots=True)
class Person:
    """A person or program. `digest` is of the token, empty without one; sessions are signed with `session_key`."""

    name: str
    role: Role
    digest: bytes = field(repr=False)
    session_key: bytes = field(repr=False)

    def may(self, action: Action) -> bool:
        roles = list(Role)
        return action.role is None or roles.index(self.role) >= roles.index(action.role)

    def require(self, action: Action) -> None:
        if not self.may(action):
            text = f"The role of {self.name} is {self.role}, which is not enough; nothing was changed."
            raise Fault(403, "forbidden", text)

    def acting_for(self, by: str | None) -> str:
        """Who acts, for the audit. `by` is what the request says, and nothing proves it."""
        return self.name if by is None or not by.strip() else f"{self.name} for {by.strip()}"


def people_of(tokens: Iterable[tuple[str, str, str]]) -> list[Person]:
    """All who have a token, by (name, token, role)."""
    return [
        Person(name, Role(role), sha256(token).digest(), hmac.digest(token, _SESSION, "sha256"))
        for name, token, role in ((name, token.encode(), role) for name, token, role in tokens)
    ]


@dataclass(frozen=True, slots=True)
class Session:
    """A session in a browser, from `begun` on (Unix time), of pages of `origin`."""

    person: Person
    begun: int
    nonce: bytes
    origin: str

    @property
    def _content(self) -> bytes:
        return "|".join((self.person.name, str(self.begun), self.nonce.hex(), self.origin)).encode()

    def _signature(self, use: str) -> str:
        return hmac.digest(self.person.session_key, use.encode() + b"|" + self._content, "sha256").hex()

    @property
    def cookie(self) -> str:
        return f"{urlsafe_b64encode(self._content).decode().rstrip('=')}.{self._signature('session')}"

    def form_token(self, path: str) -> str:
        """What proves that a form for this path was made for this session."""
        return self._signature(f"form|{path}")


def session_of(cookie: str, people: Iterable[Person], now: float) -> Session | None:
    """The session that one of these people has by a cookie; None where it is not valid any more, or never was."""
    content, dot, signature = cookie.partition(".")
    if not dot or len(cookie) > _COOKIE_CHARACTERS_MAX:
        return None
    try:
        # The padding that is missing; what is too much is ignored.
        name, begun, nonce, origin = urlsafe_b64decode(f"{content}==").decode().rsplit("|", 3)
        sessions = [Session(each, int(begun), bytes.fromhex(nonce), origin) for each in people if each.name == name]
    except ValueError:
        return None
    for session in sessions:
        is_signed = compare_digest(signature.encode(), session.cookie.partition(".")[2].encode())
        if is_signed and -_CLOCKS_APART_SECONDS <= now - session.begun < SESSION_SECONDS:
            return session
    return None


_LOG = logging.getLogger("gateway")

COOKIE: Final = "idempotency_gateway_session"
SIGN_IN_PATH: Final = "/ui/sign-in"
FORM_TOKEN: Final = "form_token"

FAILURES_MAX: Final = 10
WINDOW_SECONDS: Final = 60.0
_ADDRESSES_MAX: Final = 1_000
_NOTES_MAX: Final = 200
_HOST_CHARACTERS_MAX: Final = 260


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of the admin port, and what it needs."""

    method: str
    path: str
    action: Action
    handler: Handler


PERSON: Final = web.RequestKey("person", Person)
"""Who sends the request."""
SESSION: Final = web.RequestKey("session", Session)
"""Of a browser; a program with its token has none."""
FORGED: Final = web.RequestKey("forged", bool)
"""Somebody is named in it by one who may not do that."""


@dataclass(frozen=True, slots=True)
class Note:
    """What somebody did that changes no operation. `at` is Unix time in seconds."""

    at: float
    who: str
    what: str


@dataclass(frozen=True, slots=True)
class Disbelieved:
    """Why nobody is vouched for, although the request says so. `is_forged`: by one who may not say it."""

    why: str
    is_forged: bool = False


Headers = CIMultiDictProxy[str]
Voucher = Callable[[Headers, str | None], Awaitable[Person | Disbelieved | None]]
"""Says who sends a request, by its headers and the address of its peer; None where they name nobody."""


def is_page(request: web.BaseRequest) -> bool:
    if request.path == "/":
        return "text/html" in request.headers.get("Accept", "")
    return request.path == "/ui" or request.path.startswith("/ui/")


class Authentication:
    """`hosts`: the names that browsers may use besides localhost and addresses. `clock` gives seconds that never go
    back, `wall_clock` Unix time. `vouchers` are asked of pages alone."""

    def __init__(
        self,
        people: Sequence[Person],
        hosts: Collection[str],
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        vouchers: Sequence[Voucher] = (),
        before: Authentication | None = None,
    ) -> None:
        self._people = people
        self._vouchers = vouchers
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self.throttle: Throttle = Throttle(clock) if before is None else before.throttle
        self.refusals: Throttle = Throttle(clock) if before is None else before.refusals
        self._wall_clock = wall_clock
        self.notes: deque[Note] = deque(maxlen=_NOTES_MAX) if before is None else before.notes
        """The latest of this process."""

    def note(self, who: str, what: str) -> None:
        self.notes.append(Note(self._wall_clock(), who, what))
        _LOG.info("the console: %s %s", who, what)

    async def person_of(self, request: web.Request) -> Person:
        """Who sends this. Raises `Fault`: the response to one without the right token."""
        values = request.headers.getall("Authorization", [])
        if values and not (self._vouchers and is_page(request) and _is_of_a_proxy(values)):
            return self._with_token(values, request.remote)
        if not is_page(request):
            # Neither counted nor logged: any web page can make an operator's browser send such requests.
            raise _unauthorized('Bearer realm="admin"')
        self.check_host(request)
        vouched = await self.vouched(request)
        people = [*self._people, *([vouched] if isinstance(vouched, Person) else [])]
        session = session_of(request.cookies.get(COOKIE, ""), people, self._wall_clock())
        if session is None:
            raise Fault(401, "signed-out", "You are not signed in, or your session has ended. Nothing was changed.")
        if request.method == "POST":
            given = text_in(await form_of(request), FORM_TOKEN).encode("utf-8", "surrogateescape")
            is_ours = compare_digest(given, session.form_token(request.path).encode())
            if not is_ours or self.own_origin(request) != session.origin:
                raise _forged()
        elif request.method != "GET":
            raise _forged()
        request[SESSION] = session
        return session.person

    def _with_token(self, values: list[str], remote: str | None) -> Person:
        scheme, _, given = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        person = self._known(given.strip(" ") if scheme.lower() == "bearer" else "", remote)
        if person is None:
            raise _unauthorized('Bearer realm="admin", error="invalid_token"')
        return person

    def _known(self, token: str, remote: str | None) -> Person | None:
        """Who has this token. Raises `Fault` where one was wrong too often."""
        if wait_seconds := self.throttle.wait_seconds(remote):
            after = {"Retry-After": str(math.ceil(wait_seconds))}
            raise Fault(429, "throttled", "The token was wrong too often; wait.", after)
        digest = sha256(token.encode("utf-8", "surrogateescape")).digest()
        # It takes the same time for every wrong one.
        found = [person for person in self._people if compare_digest(digest, person.digest)]
        if not found:
            more = " too often: it is throttled now" if self.throttle.failed(remote) >= FAILURES_MAX else ""
            _LOG.warning("the admin port refused %s, whose token is wrong%s", remote, more)
        return found[-1] if found else None

    # -- browsers -----------------------------------------------------------------------------------------------------

    async def vouched(self, request: web.Request) -> Person | Disbelieved | None:
        """Whom somebody vouches for with this request; else why not, or None where it says nothing of anybody."""
        found: Disbelieved | None = None
        for voucher in self._vouchers:
            said = await voucher(request.headers, request.remote)
            if isinstance(said, Person):
                return said
            if said is not None and said.is_forged and not request.get(FORGED):
                request[FORGED] = True
                self._note_refused(request, said.why)
            found = said or found
        return found

    def _note_refused(self, request: web.Request, why: str) -> None:
        # Anybody may send any number of them.
        if self.refusals.failed(request.remote) <= FAILURES_MAX:
            self.note(f"somebody at {request.remote}", f"was refused: {why}")

    async def sign_in(self, request: web.Request, origin: str, token: str | None) -> Session | None:
        """Begin a session, on pages of this origin, of whoever has this token or, without one, whom somebody vouches
        for; None where that is nobody. Raises `Fault` if it is throttled."""
        how = ""
        if token is not None:
            person = self._known(token.strip(), request.remote)
        else:
            said, how = await self.vouched(request) or Disbelieved("this request names nobody"), ", vouched for"
            person = said if isinstance(said, Person) else None
            if isinstance(said, Disbelieved) and not said.is_forged:
                self._note_refused(request, said.why)
        if person is None:
            return None
        self.note(person.name, f"signed in as {person.role} from {request.remote}{how}")
        return Session(person, int(self._wall_clock()), secrets.token_bytes(_NONCE_BYTES), origin)

    def check_host(self, request: web.BaseRequest) -> None:
        """Raises `Fault` where a browser was led here by a name that is not known."""
        name = _host_name(request.headers.getall("Host", []))
        if name is None or not (name == "localhost" or name in self._hosts or _address(name)):
            raise Fault(421, "host", "This host name is not known here: add it to admin.hosts.")

    def own_origin(self, request: web.BaseRequest) -> str:
        """The origin of the page that sent this, which is one of ours. Raises `Fault`."""
        origins, sites = request.headers.getall("Origin", []), request.headers.getall("Sec-Fetch-Site", [])
        scheme, _, authority = "".join(origins).partition("://")
        # A proxy may have written its own `Host`; then the name has to be in the configuration.
        is_ours = authority.lower() == request.headers["Host"].lower() or _host_name([authority]) in self._hosts
        is_same = len(origins) == 1 and sites in ([], ["same-origin"]) and scheme in ("http", "https")
        if not (is_same and is_ours):
            raise _forged()
        return origins[0]


def _is_of_a_proxy(values: list[str]) -> bool:
    """Whether a proxy adds such a header: with a signed token, or one of another scheme. It is never compared with the
    tokens of people, and is no wrong one."""
    scheme, _, credential = values[0].partition(" ")
    return len(values) != 1 or scheme.lower() != "bearer" or credential.count(".") == _DOTS


def _host_name(values: list[str]) -> str | None:
    """The host of an authority, without its port and without the brackets of IPv6."""
    if len(values) != 1 or len(values[0]) > _HOST_CHARACTERS_MAX or not values[0].isascii():
        return None
    try:
        parts = urlsplit(f"//{values[0]}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != values[0] or "@" in values[0]:
        return None
    return None if parts.hostname is None else parts.hostname.rstrip(".")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address; that of IPv4 which is mapped to one of IPv6. None where it is none."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def _peer(address: str | None) -> IPv4Address | IPv6Address | None:
    return _address((address or "").partition("%")[0])


def _forged() -> Fault:
    text = "This did not come from a page of this console, or the page is too old. Nothing was changed."
    return Fault(403, "forged", text)


def _unauthorized(challenge: str) -> Fault:
    text = "Send the admin token as Authorization: Bearer TOKEN."
    return Fault(401, "unauthorized", text, {"WWW-Authenticate": challenge})


# -- forms ---------------------------------------------------------------------------------------------------------
# They may carry a file, and are read into memory. aiohttp's own reading keeps each upload in a temporary file, where a
# response of the service would lie in the clear. The port bounds how long a body is, and how many requests there are.

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


# -- the throttle -----------------------------------------------------------------------------------------------------


class Throttle:
    """Limits how often an address may send a wrong token. `clock` gives seconds that never go back. Failures are
    counted by address, in windows that begin with the first one. An address with too many is refused before its token
    is compared, so that guessing is slow and the log stays short. For IPv6 the /64 network counts, because one host has
    all of it. The table is bounded: the address whose last failure is the oldest is dropped first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_seconds(self, address: str | None) -> float:
        """How long this address has to wait before its token is compared; 0 when it need not."""
        until, failures = self._windows.get(_place(address), (0.0, 0))
        return max(0.0, until - self._clock()) if failures >= FAILURES_MAX else 0.0

    def failed(self, address: str | None) -> int:
        """Count a failure; returns how many there were in this window."""
        place, now = _place(address), self._clock()
        until, failures = self._windows.pop(place, (0.0, 0))
        if until <= now:
            until, failures = now + WINDOW_SECONDS, 0
        self._windows[place] = (until, failures + 1)
        while len(self._windows) > _ADDRESSES_MAX:
            self._windows.popitem(last=False)
        return failures + 1


def _place(address: str | None) -> str:
    peer = _peer(address)
    return str(ip_network((peer, 64), strict=False)) if isinstance(peer, IPv6Address) else str(peer or "")


# -- by the word of another --------------------------------------------------------------------------------------------
#
# Of a proxy that names people in its headers, or of an issuer of tokens. A voucher says who sends a request, or why
# what the request says is not believed. It keeps nothing: a role is that of this request, so it ends with the group,
# the token or the setting that it comes from. What is ambiguous names nobody.

_NAME_CHARACTERS_MAX: Final = 128


def by_proxy(proxy: ProxySignIn, secret: bytes) -> Voucher:
    name, groups = proxy.name, proxy.groups

    async def vouch(headers: Headers, peer: str | None) -> Person | Disbelieved | None:
        if name not in headers:
            return None
        address = _peer(peer)
        if address is None or not any(address in network for network in proxy.from_):
            return Disbelieved(f"{name} is not believed from {peer}: it is in no network of admin.sign_in.proxy", True)
        who, listed = _only(headers, name), "" if groups is None else _only(headers, groups)
        if who is None or listed is None:
            return Disbelieved(f"{name if who is None else groups} is given more than once")
        found = [who] if groups is None else [each.strip() for each in listed.split(",")]
        return _person(who, found, proxy.roles.by_text, secret, "proxy")

    return vouch


def by_token(jwt: JwtSignIn, secret: bytes, verify: Callable[[bytes], Awaitable[object]]) -> Voucher:
    """Believes a token that `verify` finds nothing against."""
    header = jwt.header

    async def vouch(headers: Headers, peer: str | None) -> Person | Disbelieved | None:
        if header not in headers:
            return None
        given = _only(headers, header)
        if given is None:
            return Disbelieved(f"{header} is given more than once")
        scheme, _, credential = given.partition(" ") if header.lower() == "authorization" else ("bearer", "", given)
        if scheme.lower() != "bearer":
            return None
        token = read_token(credential.strip().encode("utf-8", "surrogateescape"))
        if isinstance(token, TokenFault):
            return Disbelieved(token.detail.rstrip("."))
        found = await verify(credential.strip().encode())
        if isinstance(found, ScopeMissing | IdentityUnavailable):
            return Disbelieved(found.detail.rstrip("."))
        listed = token.payload.get(jwt.groups)
        who = " ".join(str(token.payload[each]) for each in jwt.claims)
        return _person(who, listed if isinstance(listed, list) else [listed], jwt.roles.by_text, secret, "jwt")

    return vouch


def _person(
    who: str, groups: Iterable[object], roles: Mapping[str, str], secret: bytes, how: str
) -> Person | Disbelieved:
    if not who or len(who) > _NAME_CHARACTERS_MAX or not who.isprintable():
        return Disbelieved("nobody is named, or by no name that an audit can show")
    found = [Role(roles[each]) for each in groups if isinstance(each, str) and each in roles]
    if not found:
        return Disbelieved(f"{who} has no role here")
    key = hmac.digest(secret, _SESSION + f"|{how}|{who}".encode(), "sha256")
    return Person(who, max(found, key=list(Role).index), b"", key)


def _only(headers: Headers, name: str) -> str | None:
    """The value of this header; empty where it is missing, None where it is given more than once."""
    values = headers.getall(name, [""])
    return values[0].strip() if len(values) == 1 else None
