"""Opening a connection: names to addresses, addresses to sockets, TLS.

All of this happens before a byte of any request is sent, so every failure is definite and the next address may be
tried. Owns the socket until the connection takes it over; after a failure or a cancellation nothing is left open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from gateway.upstream.certificates import client_context, load_chain
from gateway.upstream.connection import ConnectionOwner, UpstreamConnection
from gateway.upstream.result import NotSent, SentNothing, Unknown

Address: TypeAlias = tuple[socket.AddressFamily, tuple[str | int | bytes, ...]]

_LOCAL_FAULTS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
# How long a TLS shutdown may wait for the peer's close_notify.
_TLS_CLOSE_SECONDS = 1.0
# Keepalive probes detect a dead silent peer within a minute.
_SILENT_SECONDS: Final = 30
_PROBE_INTERVAL_SECONDS: Final = 10
_PROBES: Final = 3


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Where the upstream is, and the limits of its connections.

    `tls` None means plain TCP; `server_name` is the name that its certificate must have (default: `host`).
    `connect_timeout_seconds` bounds two waits, each on its own: for a free place among `connections_max`, and for a
    connection (name, TCP and TLS, over all addresses). `response_timeout_seconds` counts from the first byte of a
    request; see `Upstream.exchange`. `tcp_user_timeout_seconds` is how long sent bytes may stay unacknowledged.
    Protected requests may open `connections_reserved` more, so that streams and WebSockets of unprotected ones, which
    may last for ever, do not block them. Responses that outlast their operation count as unprotected; if there are too
    many, protected requests open more than both numbers together. After `unread_seconds` without a read, a response may
    be aborted to make room for others.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    connect_timeout_seconds: float = 2.0
    response_timeout_seconds: float = 600.0
    keepalive_seconds: float = 2.0
    tcp_user_timeout_seconds: float = 30.0
    header_bytes_max: int = 64 * 1024
    connections_max: int = 1024
    connections_reserved: int = 0
    unread_seconds: float = 30.0


def tls_context(ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """A context that verifies the upstream, against `ca` or else the system's roots, and presents `cert` if given.

    Raises OSError when a file cannot be read or used.
    """
    context = client_context(ca)
    context.set_alpn_protocols(["http/1.1"])
    if cert is not None and key is not None:
        load_chain(context, cert, key)
    return context


async def open_connection(
    settings: UpstreamSettings, owner: ConnectionOwner, names: Executor, files: Executor
) -> UpstreamConnection | NotSent:
    """Try the upstream's addresses in order until one connects; each gets its share of the remaining time.

    `names` runs the resolver, which may hang; `files` is for the connection.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + settings.connect_timeout_seconds
    try:
        async with asyncio.timeout_at(until):
            addresses = await _resolve(settings, names)
    except TimeoutError:
        return NotSent(SentNothing.DNS, f"the name {settings.host} was not resolved in time")
    except (OSError, UnicodeError) as error:
        return NotSent(SentNothing.DNS, f"the name {settings.host}: {error}")
    failure = NotSent(SentNothing.DNS, f"the name {settings.host} has no address")
    for index, address in enumerate(addresses):
        share = (until - loop.time()) / (len(addresses) - index)
        result = await _open_at(address, settings, owner, files, loop.time() + share)
        if isinstance(result, UpstreamConnection):
            return result
        failure = result
    return failure


async def _resolve(settings: UpstreamSettings, names: Executor) -> list[Address]:
    for literal in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(literal, settings.host)
            return [(literal, (settings.host, settings.port))]
    found = await asyncio.get_running_loop().run_in_executor(
        names, socket.getaddrinfo, settings.host, settings.port, socket.AF_UNSPEC, socket.SOCK_STREAM
    )
    return [(family, address) for family, _, _, _, address in found]


async def _open_at(
    address: Address, settings: UpstreamSettings, owner: ConnectionOwner, files: Executor, until: float
) -> UpstreamConnection | NotSent:
    loop = asyncio.get_running_loop()
    where = str(address[1][0])
    sock: socket.socket | None = None
    made: UpstreamConnection | None = None
    connection: UpstreamConnection | None = None
    phase = "connecting to"
    try:
        async with asyncio.timeout_at(until):
            sock = _socket(address[0], settings)
            await loop.sock_connect(sock, address[1])
            made = UpstreamConnection(loop, owner, sock, settings.header_bytes_max, files)
            if settings.tls is None:
                await loop.create_connection(lambda: made, sock=sock)
            else:
                phase = "TLS with"
                await loop.create_connection(
                    lambda: made,
                    sock=sock,
                    ssl=settings.tls,
                    server_hostname=settings.server_name or settings.host,
                    ssl_handshake_timeout=settings.connect_timeout_seconds,
                    ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
                )
            connection = made
    except TimeoutError:
        return NotSent(SentNothing.CONNECT_TIMEOUT, f"{phase} {where} took too long")
    except (OSError, ssl.CertificateError) as error:
        # An end in the middle of a handshake is an error without a message.
        return NotSent(_connect_fault(error, phase), f"{phase} {where}: {str(error) or type(error).__name__}")
    finally:
        if connection is None and made is not None and not made.is_closed:
            # asyncio would send close_notify first, by a descriptor that may be another connection's by then.
            made.abort(Unknown.ABORTED, "cancelled just as it was made")
        if connection is None and sock is not None:
            sock.close()
    # Not earlier: uvloop never calls `connection_lost` if the connect is cancelled.
    owner.connection_made(connection)
    if not connection.is_quiet():
        connection.discard()
        return NotSent(SentNothing.UNREACHABLE, f"{where} closed the connection, or sent bytes, before a request")
    return connection


def _socket(family: socket.AddressFamily, settings: UpstreamSettings) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(sock)
    # Not every platform has it; others use their own, slower, clock.
    if (user_timeout := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        sock.setsockopt(socket.IPPROTO_TCP, user_timeout, int(settings.tcp_user_timeout_seconds * 1000))
    return sock


def _connect_fault(error: Exception, phase: str) -> SentNothing:
    """The reason for a failure before the first byte."""
    if isinstance(error, (ssl.SSLError, ssl.CertificateError)) or phase.startswith("TLS"):
        return SentNothing.TLS
    if isinstance(error, ConnectionRefusedError):
        return SentNothing.REFUSED
    if isinstance(error, OSError) and error.errno in _LOCAL_FAULTS:
        return SentNothing.LOCAL
    return SentNothing.UNREACHABLE


def keep_alive(sock: socket.socket) -> None:
    """Enable TCP keepalive. Raises OSError where this is not a TCP connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every platform has these; others use their own, slower, clocks.
    for option, value in (
        ("TCP_KEEPIDLE", _SILENT_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
    ):
        if (number := getattr(socket, option, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
