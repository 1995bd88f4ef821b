"""The service behind the gateway, as the file says it: once for all, what a route changes of it, and what it is asked.

What is done about operations in doubt is here, because the service alone knows what became of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, Tag

from gateway.config.address import AbsolutePath, HostName, ServiceUrl, UpstreamUrl
from gateway.config.leaf import Count, Duration, HeaderName, JsonPointer, ProbeFollow, ProbePath, StatusSet, wrong
from gateway.config.section import Disagreement, Section, follow, one_of, only, written

# How long bytes that were sent may stay unacknowledged: after it, nothing of a request is still on its way.
TCP_USER_TIMEOUT_SECONDS = 30.0


class UpstreamTls(Section):
    """TLS to the service. Used where the URL is https; all of it may be left out."""

    ca: Annotated[Path, AbsolutePath()] | None = None
    """The certificates that are trusted; the system's if left out."""
    cert: Annotated[Path, AbsolutePath()] | None = None
    """The gateway's own certificate, if the service asks for one."""
    key: Annotated[Path, AbsolutePath()] | None = None
    """The private key of that certificate."""
    server_name: Annotated[str, HostName()] | None = None
    """The name that the service's certificate must hold, if it is not the host of the URL."""

    def disagreements(self) -> Iterator[Disagreement]:
        if (self.cert is None) != (self.key is None):
            yield Disagreement((), "cert and key must be given together")


class _UpstreamSettings(Section):
    ORDERED = (("answer_within", "response_timeout"),)

    host: Annotated[str, HostName(may_have_port=True)] = "preserve"
    """What the service gets as Host: `preserve` what the caller sent, `upstream` for the host of the URL, or a name."""
    connect_timeout: Annotated[float, Duration("1ms", "5m")] = written("2s")
    """How long a connection may take to be made."""
    answer_within: Annotated[float, Duration("1ms", "1h")] = written("30s")
    """How long a caller is kept waiting for the service. At most response_timeout."""
    response_timeout: Annotated[float, Duration("1ms", "24h")] = written("10m")
    """How long an attempt may take before it is given up and in doubt."""
    keepalive: Annotated[float, Duration("0s", "10m")] = written("2s")
    """How long a connection may have been idle and still be used. A shorter time that the service announces counts."""
    max_connections: Annotated[int, Count(1, 1_000_000)] = 1024
    """How many connections there may be at once for requests that are not protected, streams and sockets included;
    operations in flight have their own besides. Workers share them out evenly."""
    key: Literal["original", "operation_id", "none"] = "original"
    """What the service gets as key: the caller's, one derived from the operation, or none."""
    tls: UpstreamTls | None = None
    """TLS to the service."""


class Upstream(_UpstreamSettings):
    """The service behind the gateway."""

    url: Annotated[UpstreamUrl, ServiceUrl()]
    """Where the service is, such as http://127.0.0.1:9000. Targets are forwarded as they came, so it has no path."""

    @property
    def default_host(self) -> bytes:
        """What the service gets as Host from a caller that names none."""
        return (self.url.authority if self.host in ("preserve", "upstream") else self.host).encode()


class RouteUpstream(_UpstreamSettings):
    """What a route changes of the upstream. Only what is written counts; `Config.upstream_for` puts both together."""

    url: Annotated[UpstreamUrl, ServiceUrl()] | None = None
    """Where the service of this route is."""

    def over(self, upstream: Upstream, settle: float | None = None) -> Upstream:
        """The upstream with what is written here in place of its own, key by key; `tls` counts as one.

        `settle` is that of the route's probe, which no attempt may outlast: the default of `response_timeout` follows
        it too. All in seconds.
        """
        whole = upstream.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
        follow(whole, {} if settle is None else {"response_timeout": settle - TCP_USER_TIMEOUT_SECONDS})
        return whole


# -- what is done about operations in doubt ----------------------------------------------------------------------------

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
