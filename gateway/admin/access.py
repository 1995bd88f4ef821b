"""Who may do what on the admin port: people with tokens and roles, and their sessions in a browser. Pure.

`Action` is the one table of what each action needs, for the API and the pages.

A session is a signed value in a cookie and kept nowhere: it survives restarts and is good at every gateway that has the
same token, and it ends with the token that it was made with. It names the origin where it began, so that a change can
be required to come from there. `now` is Unix time in seconds.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final, Self

from gateway.admin.fault import Fault

SESSION_SECONDS: Final = 12 * 3600
# How far the clocks of gateways may be apart.
_CLOCKS_APART_SECONDS: Final = 300
_COOKIE_CHARACTERS_MAX: Final = 2048
_NONCE_BYTES: Final = 16


class Role(StrEnum):
    """What somebody may do; each role includes those before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_RANK: Final = {role: rank for rank, role in enumerate(Role)}


class Action(StrEnum):
    """What can be done on the admin port, and the least role for it; None: no token is needed."""

    role: Role | None

    def __new__(cls, name: str, role: Role | None) -> Self:
        action = str.__new__(cls, name)
        action._value_, action.role = name, role
        return action

    ENTER = "enter", None  # sign in, and what the page for that needs
    READ = "read", Role.VIEWER
    READ_RESPONSE = "read_response", Role.OPERATOR
    RESOLVE = "resolve", Role.OPERATOR
    FORCE = "force", Role.ADMIN  # overrule a refusal
    REQUEUE = "requeue", Role.OPERATOR
    WITHDRAW = "withdraw", Role.OPERATOR
    PAUSE = "pause", Role.OPERATOR
    SINK = "sink", Role.OPERATOR  # suspend and resume a sink
    REDELIVER = "redeliver", Role.OPERATOR
    PURGE = "purge", Role.ADMIN
    ERASE = "erase", Role.ADMIN
    ACKNOWLEDGE = "acknowledge", Role.OPERATOR  # a refused outcome of the journal
    ACCEPT_LOSS = "accept_loss", Role.ADMIN
    RELOAD = "reload", Role.ADMIN  # of the configuration


@dataclass(frozen=True, slots=True)
class Person:
    """A person or program with a token. `digest` is of the token, `session_key` derived from it."""

    name: str
    role: Role
    digest: bytes = field(repr=False)
    session_key: bytes = field(repr=False)

    def may(self, action: Action) -> bool:
        """Whether the role is enough."""
        return action.role is None or _RANK[self.role] >= _RANK[action.role]

    def require(self, action: Action) -> None:
        """Raises `Fault` where the role is not enough."""
        if not self.may(action):
            text = f"The role of {self.name} is {self.role}, which is not enough; nothing was changed."
            raise Fault(403, "forbidden", text)

    def acting_for(self, by: str | None) -> str:
        """Who acts, for the audit. `by` is what the request says, and nothing proves it."""
        return self.name if by is None or not by.strip() else f"{self.name} for {by.strip()}"


class People:
    """All who have a token, by (name, token, role)."""

    def __init__(self, tokens: Iterable[tuple[str, str, str]]) -> None:
        self._people = {
            name: Person(
                name,
                Role(role),
                sha256(token.encode()).digest(),
                hmac.digest(token.encode(), b"idempotency gateway console session", "sha256"),
            )
            for name, token, role in tokens
        }

    def with_token(self, token: bytes) -> Person | None:
        """Who has this token. Takes the same time for every wrong one."""
        digest, found = sha256(token).digest(), None
        for person in self._people.values():
            if hmac.compare_digest(digest, person.digest):
                found = person
        return found

    def named(self, name: str) -> Person | None:
        """Who has this name."""
        return self._people.get(name)


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

    def _signature(self, use: bytes) -> str:
        return hmac.digest(self.person.session_key, use + b"|" + self._content, "sha256").hex()

    @property
    def cookie(self) -> str:
        """The value of its cookie."""
        return f"{urlsafe_b64encode(self._content).decode().rstrip('=')}.{self._signature(b'session')}"

    def form_token(self, path: str) -> str:
        """What proves that a form for this path was made for this session."""
        return self._signature(b"form|" + path.encode())


def session_of(cookie: str, people: People, now: float) -> Session | None:
    """The session of a cookie; None where it is not valid any more, or never was."""
    content, dot, signature = cookie.partition(".")
    if not dot or len(cookie) > _COOKIE_CHARACTERS_MAX:
        return None
    try:
        # The padding that is missing; what is too much is ignored.
        name, begun, nonce, origin = urlsafe_b64decode(f"{content}==").decode().split("|")
        person = people.named(name)
        if person is None:
            return None
        session = Session(person, int(begun), bytes.fromhex(nonce), origin)
    except ValueError:
        return None
    if not hmac.compare_digest(signature.encode(), session.cookie.partition(".")[2].encode()):
        return None
    age = now - session.begun
    return session if -_CLOCKS_APART_SECONDS <= age < SESSION_SECONDS else None
