"""Events to a webhook, signed by Standard Webhooks 1.0.

A response of 2xx within the timeout is the acknowledgement; 410 says that nobody wants these events any more. Redirects
are not followed, because nobody checked where they lead. The response is read to a limit and shown to operators only.

The URL is a secret: many consumers know a sender by it. No reason for a failure may contain it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
)
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway import __version__
from gateway.config.models import WebhookSink as WebhookSettings
from gateway.core.delivery import retry_after_us
from gateway.core.outbox import WEBHOOK_SCHEDULE_US, PublishedEvent
from gateway.core.webhook import STANDARD_WEBHOOKS, EgressPolicy, Secret, check_address, living, sign
from gateway.events.relay import Publication, Sink, reason
from gateway.observe.facts import PublicationResult as Result
from gateway.upstream.connect import Names

# -- egress ------------------------------------------------------------------------------------------------------------
# Guards where the gateway connects to, so that a URL or a DNS response cannot lead it into its own network (SSRF).
#
# `core.webhook` says which addresses are forbidden. A name is resolved once for each connection and refused if *any* of
# its addresses is forbidden; what is checked is what is connected to, because the same function sees each address right
# before the connection, in whatever form it was written. Name and certificate are checked by TLS as always, because the
# connection keeps the name for SNI and `Host`.


class GuardedResolver(AbstractResolver):
    """Resolves a name, and refuses all of its addresses if one is forbidden."""

    def __init__(self, policy: EgressPolicy, resolver: AbstractResolver) -> None:
        self._policy = policy
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for each in found:
            check_address(self._policy, each["host"])
        return found

    async def close(self) -> None:
        await self._resolver.close()


def guarded_connector(policy: EgressPolicy, resolver: AbstractResolver | None = None) -> TCPConnector:
    """A connector that connects to allowed addresses alone. With a proxy, to the proxy, which is not checked. Without a
    resolver, names are looked up in threads of its own: a name server that hangs delays no other sink. The resolver
    sees names only: literals never reach it. The factory of sockets sees every address."""
    resolver = Names() if resolver is None else resolver
    if policy.proxy is not None:
        return TCPConnector(limit=0, use_dns_cache=False, resolver=resolver)

    def checked_socket(address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, target = address
        check_address(policy, str(target[0]))
        return socket.socket(family, kind, protocol)

    return TCPConnector(
        limit=0, use_dns_cache=False, resolver=GuardedResolver(policy, resolver), socket_factory=checked_socket
    )


# -- webhook -----------------------------------------------------------------------------------------------------------

TIMEOUT_SECONDS: Final = 20.0
RESPONSE_BYTES_MAX: Final = 1024

_MEDIA_TYPES: Final = {"cloudevents": "application/cloudevents+json; charset=utf-8", "standard": "application/json"}


class WebhookSink(Sink):
    """Posts each event to the URL."""

    # A publication takes a connection.
    places = 16
    schedule_us = WEBHOOK_SCHEDULE_US

    def __init__(
        self,
        settings: WebhookSettings,
        egress: EgressPolicy,
        *,
        resolver: AbstractResolver | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        wall_seconds: Callable[[], float] = time.time,
    ) -> None:
        """`wall_seconds` is Unix time: consumers compare the timestamp of a signature with their clock."""
        self._url = settings.url.get_secret_value()
        self._secrets = [secret.compiled for secret in settings.secrets]
        self._format = settings.format
        self._timeout_seconds, self._egress, self._resolver = timeout_seconds, egress, resolver
        self._wall_seconds = wall_seconds
        self._session: ClientSession | None = None
        url = urlsplit(self._url)
        # Many a service repeats them in the text of a 404.
        self._told_by_responses = [part for part in (url.path, url.query) if part not in ("", "/")]

    async def open(self) -> None:
        # `trust_env` stays off: a proxy, or credentials from .netrc, would come from nowhere in the configuration.
        self._session = ClientSession(
            connector=guarded_connector(self._egress, self._resolver),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            timeout=ClientTimeout(total=self._timeout_seconds),
        )

    async def publish_one(self, event: PublishedEvent, redeliveries: int) -> Publication:
        if self._session is None:
            return Publication(Result.FAILED, "the sink is not open")
        now_seconds = self._wall_seconds()
        secrets = living(self._secrets, now_seconds)
        if not secrets:
            return Publication(Result.SUSPENDED, "no secret is alive; write one with a later `until`")
        body = event.cloudevent() if self._format == "cloudevents" else event.standard()
        signed = sign(STANDARD_WEBHOOKS, secrets, body, now=int(now_seconds), event_id=event.id.encode())
        headers = {
            "Content-Type": _MEDIA_TYPES[self._format],
            "User-Agent": f"idempotency-gateway/{__version__}",
            **{name.decode(): value.decode() for name, value in signed},
        }
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False, proxy=self._egress.proxy
            ) as response:
                return await self._read(response, secrets, now_seconds)
        except TimeoutError:
            return Publication(Result.UNKNOWN, f"no response within {self._timeout_seconds:g} s")
        except ClientConnectorError as error:
            return Publication(Result.FAILED, reason(f"no connection: {error.os_error}"))
        except (ClientError, OSError, ValueError) as error:
            # A response that cannot be read is quoted.
            cause = type(error).__name__ if isinstance(error, ClientResponseError) else ""
            return Publication(Result.UNKNOWN, reason(_described(error)), cause=cause)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _read(self, response: ClientResponse, secrets: Sequence[Secret], now_seconds: float) -> Publication:
        status = response.status
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return Publication(Result.DELIVERED, secret_ids=tuple(each.id for each in secrets))
        begin = (await response.content.read(RESPONSE_BYTES_MAX)).decode("utf-8", "replace")
        for secret in self._told_by_responses:
            begin = begin.replace(secret, "...")
        cause = f"HTTP {status}"
        why = reason(f"{cause} {begin}")
        if status == HTTPStatus.GONE:
            return Publication(Result.SUSPENDED, why, cause)
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            return Publication(Result.FAILED, f"{cause}: redirects are not followed; write the URL that it leads to")
        return Publication(
            Result.FAILED, why, retry_after_us=retry_after_us(tuple(response.raw_headers), now_seconds), cause=cause
        )


def _described(error: ClientError | OSError | ValueError) -> str:
    """The error without its own text, which often contains the URL."""
    name = type(error).__name__
    match error:
        case ClientResponseError():
            return f"{name}: HTTP {error.status} {error.message}"
        case OSError(errno=int(number)):
            return f"{name}: {os.strerror(number)}"
        case _:
            return name
