"""Opening a connection: names to addresses, addresses to sockets, TLS, and the files of certificates.

All of this happens before a byte of any request is sent, so every failure is definite and the next address may be
tried. Owns the socket until the connection takes it over; after a failure or a cancellation nothing is left open.

A name server that does not respond holds a thread for many seconds, and no lookup can be cancelled. In threads that
others use, too, it would stall what has nothing to do with it: bodies, kept requests, or connections to the store. So
whoever owns a `Names` waits for its own lookups alone: an upstream, a client of aiohttp's, a driver of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.upstream.connection import NotSent, SentNothing, Unknown, UpstreamConnection

if TYPE_CHECKING:
    from gateway.upstream.client import UpstreamPool
from pathlib import Path

_Address = tuple[socket.AddressFamily, tuple[Any, ...]]
_Found = list[tuple[socket.AddressFamily, int, tuple[Any, ...]]]

_LOCAL_FAULTS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
# How long a TLS shutdown may wait for the peer's close_notify.
_TLS_CLOSE_SECONDS = 1.0
# Keepalive probes detect a dead silent peer within a minute.
_SILENT_SECONDS: Final = 30
_PROBE_INTERVAL_SECONDS: Final = 10
_PROBES: Final = 3
_LOOKUPS_MAX: Final = 2
_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


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


async def open_connection(settings: UpstreamSettings, pool: UpstreamPool, names: Names) -> UpstreamConnection | NotSent:
    """Try the upstream's addresses in order until one connects; each gets its share of the remaining time."""
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
        result = await _open_at(address, settings, pool, loop.time() + share)
        if isinstance(result, UpstreamConnection):
            return result
        failure = result
    return failure


async def _resolve(settings: UpstreamSettings, names: Names) -> list[_Address]:
    for literal in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(literal, settings.host)
            return [(literal, (settings.host, settings.port))]
    found = await names.look_up(settings.host, settings.port)
    return [(family, address) for family, _, address in found]


async def _open_at(
    address: _Address, settings: UpstreamSettings, pool: UpstreamPool, until: float
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
            made = UpstreamConnection(pool, sock)
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
    pool.connection_made(connection)
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


class Names(AbstractResolver):
    """The lookups of one client, `_LOOKUPS_MAX` at a time. Used on one event loop.

    The invariant: no more threads than places, cancelled or not.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_LOOKUPS_MAX)

    async def look_up(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC, flags: int = 0
    ) -> _Found:
        """Family, protocol and address, as `getaddrinfo` orders them. Raises `OSError`, or what it raises else."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[_Found] = loop.create_future()
        # A daemon, so that a program that ends does not wait for it.
        thread = threading.Thread(
            target=self._run, args=(loop, result, host, port, family, flags), name="names", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._places.release()
            raise OSError(str(error)) from None
        return await result

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """As aiohttp's client asks. Raises `OSError`."""
        return [
            ResolveResult(hostname=host, host=name, port=number, family=found, proto=protocol, flags=_NUMERIC)
            for found, protocol, address in await self.look_up(host, port, family, socket.AI_ADDRCONFIG)
            for name, number in (_numeric(address),)
        ]

    async def close(self) -> None:
        """Lookups that still run end by themselves, and nobody waits for them."""

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        result: asyncio.Future[_Found],
        host: str,
        port: int,
        family: socket.AddressFamily,
        flags: int,
    ) -> None:
        found: _Found = []
        error: Exception | None = None
        try:
            infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, flags)
            found = [(kind, protocol, address) for kind, _, protocol, _, address in infos]
        except Exception as raised:  # noqa: BLE001 -- raised to the caller
            error = raised
        # Raised by a closed loop, where no caller waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._end, result, found, error)

    def _end(self, result: asyncio.Future[_Found], found: _Found, error: Exception | None) -> None:
        self._places.release()
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(found)


def _numeric(address: tuple[Any, ...]) -> tuple[Any, ...]:
    """The address and port. A link-local address of IPv6 has its interface in it."""
    if len(address) == 4 and address[3]:
        host, port = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
        return host, int(port)
    return address[:2]


# -- certificates ------------------------------------------------------------------------------------------------------
#
# Certificates, keys and authorities from PEM files.
#
# Owns the error messages for files that cannot be used: which file it is, and what is wrong with it.

_CERTIFICATE: Final = b"CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
_REVOCATIONS: Final = b"X509 CRL-----"
# X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
_OUT_OF_DATE: Final = frozenset((9, 10))


class PemError(OSError):
    """A file that cannot be used. The message names it."""


def load_chain(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Load this certificate and its key into `context`. Raises `PemError`."""
    _expect(cert, _CERTIFICATE, "certificate")
    _expect(key, _KEY, "private key")

    def refuse_passphrase() -> str:
        # Without this, OpenSSL prompts on the terminal and waits.
        raise PemError(f"{key} is encrypted; a key without a passphrase is needed")

    try:
        context.load_cert_chain(cert, key, refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise PemError(f"{key} is the key of another certificate than {cert}") from None
        raise PemError(f"{cert} with {key}: {_reason(error)}") from None


def check_dates(cert: Path, key: Path) -> None:
    """Raises `PemError` where a peer would refuse this certificate today for its dates, or where `load_chain` does.

    It makes an in-memory handshake with a peer that trusts just this certificate.
    """
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_chain(serving, cert, key)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(to_client, to_server), serving.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in _OUT_OF_DATE:
                raise PemError(f"{cert}: {error.verify_message}") from None
            return


def client_context(ca: Path | None) -> ssl.SSLContext:
    """A client's context that trusts these authorities, or the system's. Raises `PemError`."""
    if ca is not None:
        _expect(ca, _CERTIFICATE, "certificate")
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
    except ssl.SSLError as error:
        raise PemError(f"{ca}: {_reason(error)}") from None


def tls_context(ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """A context that verifies the upstream, against `ca` or else the system's roots, and presents `cert` if given.

    Raises OSError when a file cannot be read or used.
    """
    context = client_context(ca)
    context.set_alpn_protocols(["http/1.1"])
    if cert is not None and key is not None:
        load_chain(context, cert, key)
    return context


def ask_for_certificates(context: ssl.SSLContext, ca: Path, *, is_required: bool) -> None:
    """Ask the clients of a server for certificates of these authorities. Raises `PemError`.

    One that is not valid ends the handshake. There are no tickets to resume a session by, so that each connection shows
    its certificate anew.
    """
    _expect(ca, _CERTIFICATE, "certificate")
    if _REVOCATIONS in ca.read_bytes():
        # OpenSSL would load it and not look into it; with the flag to do so, one that is out of date refuses everybody.
        raise PemError(
            f"{ca} holds a revocation list, and those are not checked: remove it, issue certificates that expire soon, "
            "and have an authorising service refuse callers at once (authorize)"
        )
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise PemError(f"{ca}: {_reason(error)}") from None
    context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def _expect(path: Path, mark: bytes, what: str) -> None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PemError(f"{path}: {error.strerror}") from None
    if mark not in content:
        raise PemError(f"{path} holds no {what} in PEM")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
