"""What is done about operations in doubt, as the file says it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, Tag

from gateway.config.leaf import wrong
from gateway.config.message import HeaderName, JsonPointer, ProbeFollow, ProbePath, StatusSet
from gateway.config.section import Section, one_of, only
from gateway.config.unit import Duration

_PROBE_REFUSED = (
    ("host", "a probe names the host that the request named"),
    ("content-", "a probe has no body"),
)
_Value = Annotated[str, Field(min_length=1, max_length=256)]


def _field_value(value: object) -> object:
    # A line break ends the field, so it could never be sent; white space at the end is what an empty variable leaves.
    if isinstance(value, str) and (not value.isprintable() or value != value.strip()):
        raise wrong("expected one line, without white space at its ends", is_secret=True)
    return value


_FieldValue = Annotated[SecretStr, BeforeValidator(_field_value)]


class AnswerRule(Section):
    """An answer of a probe: its status and, where that does not tell, what stands in its JSON body."""

    status: Annotated[tuple[Annotated[int | str, StatusSet()], ...], Field(min_length=1, max_length=64)]
    """Codes and classes of which the answer's status is one."""
    where: Annotated[
        dict[Annotated[str, JsonPointer()], Annotated[tuple[_Value, ...], Field(min_length=1, max_length=64)]],
        Field(max_length=16),
    ] = {}  # noqa: RUF012  copied by the model
    """JSON pointers into the answer's body, and the values of which one has to stand there."""

    @property
    def statuses(self) -> frozenset[int]:
        """Every status that is meant."""
        selected = self.status
        return frozenset(code for code in range(200, 600) if code in selected or f"{code // 100}xx" in selected)


class Probe(Section):
    """A safe request that finds out what became of an operation."""

    path: Annotated[str, ProbePath()]
    """What to ask: a path with {operation_id}, {key} and the variables of the route's path."""
    method: Literal["GET", "HEAD"] = "GET"
    """The method."""
    headers: Annotated[dict[Annotated[str, HeaderName(refused=_PROBE_REFUSED)], _FieldValue], Field(max_length=32)] = {}  # noqa: RUF012  copied by the model
    """Fields to send, such as credentials. The caller's are never sent."""
    done: Annotated[tuple[AnswerRule, ...], Field(min_length=1, max_length=16)]
    """Answers that say that it happened; the answer is recorded as the response."""
    never_happened: Annotated[tuple[AnswerRule, ...], Field(max_length=16)] = ()
    """Answers that say that nothing happened, once `settle` is over. After any other answer it asks again."""
    settle: Annotated[float, Duration("31s", "7d")] | None = None
    """How long after the last lease a request may still arrive: response_timeout + 30s if left out, and no less.
    Where no response_timeout is written, its default becomes 30s less than this."""
    follow: Annotated[str, ProbeFollow()] | None = None
    """Where an answer that says it happened names the one to record: `location`, or a JSON pointer into its body."""


class ProbeRecovery(Section):
    """Ask the upstream what became of it."""

    probe: Probe
    """What to ask, and what its answers mean."""


RECOVERY_FORMS = "hold, resend or {probe: {path, done, ...}}"
Recovery = Annotated[
    Annotated[Literal["hold", "resend"], only("hold", "resend", expected=RECOVERY_FORMS), Tag("<word>")]
    | Annotated[ProbeRecovery, Tag("<probe>")],
    one_of("probe", expected=RECOVERY_FORMS, word=True),
]
