"""Where the keys of an issuer come from: a URL, the issuer's own configuration, or a file.

Nothing that a server sends is trusted but by TLS: redirects are not followed, since nobody checked where they lead, a
document has a size limit, and a fetch a time limit. Plain HTTP is for this machine alone.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson
from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from gateway import __version__
from gateway.callers.key_set import DOCUMENT_BYTES_MAX, Document, Unfetched
from gateway.core.egress import is_loopback
from gateway.upstream.connect import Names

FETCH_SECONDS: Final = 5.0
_URL_CHARACTERS_MAX: Final = 2048
_MAX_AGE: Final = re.compile(r'(?:^|[,\s])max-age="?([0-9]{1,9})"?(?:[,\s]|$)', re.IGNORECASE)
_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": f"idempotency-gateway/{__version__}"}


class FileSource:
    """A file on this machine, which is read anew as if it were fetched."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def fetch(self) -> Document:
        try:
            return Document(await asyncio.to_thread(self._read))
        except OSError as error:
            raise Unfetched(f"{self._path}: {error.strerror}") from None

    async def close(self) -> None:
        """There is nothing to release."""

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX + 1)


class UrlSource:
    """A document at a URL. Lives on one event loop."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        """`tls` says whom to trust where the URL is https."""
        self._url = url
        self._tls = tls
        self._names = Names()

    async def fetch(self) -> Document:
        async with _session(self._tls, self._names) as session:
            return await _get(session, self._url)

    async def close(self) -> None:
        """A connection is closed after each fetch."""


class DiscoveredSource:
    """The key set that the issuer's configuration names."""

    def __init__(self, issuer: str, tls: ssl.SSLContext) -> None:
        self._issuer = issuer
        self._tls = tls
        self._names = Names()

    async def fetch(self) -> Document:
        url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        async with _session(self._tls, self._names) as session:
            configuration = await _get(session, url)
            return await _get(session, self._key_set_url(configuration.content, url))

    async def close(self) -> None:
        """As with `UrlSource`."""

    def _key_set_url(self, configuration: bytes, url: str) -> str:
        try:
            document = orjson.loads(configuration)
        except orjson.JSONDecodeError:
            raise Unfetched(f"{url}: it is not JSON") from None
        found = document.get("jwks_uri") if isinstance(document, dict) else None
        if not isinstance(found, str) or document.get("issuer") != self._issuer:
            raise Unfetched(f"{url}: it is not the configuration of this issuer")
        # It is shown to operators where it cannot be fetched.
        if len(found) > _URL_CHARACTERS_MAX or not found.isprintable() or "@" in found:
            raise Unfetched(f"{url}: its jwks_uri is no URL of a key set")
        return found


def _session(tls: ssl.SSLContext, names: Names) -> ClientSession:
    # `trust_env` stays off: a proxy, or credentials from .netrc, would come from nowhere in the configuration.
    return ClientSession(
        connector=TCPConnector(ssl=tls, force_close=True, resolver=names),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        timeout=ClientTimeout(total=FETCH_SECONDS),
        headers=_HEADERS,
    )


async def _get(session: ClientSession, url: str) -> Document:
    """Raises `Unfetched`, whose text names the URL."""
    try:
        parts = urlsplit(url)
        is_allowed = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        if not is_allowed:
            raise Unfetched("a key set is fetched by https alone")
        async with session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise Unfetched(f"{url}: HTTP {response.status}")
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise Unfetched(f"{url}: it has a content coding")
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > DOCUMENT_BYTES_MAX:
                    raise Unfetched(f"{url}: it is longer than {DOCUMENT_BYTES_MAX} bytes")
            found = _MAX_AGE.search(", ".join(response.headers.getall("Cache-Control", [])))
    except TimeoutError:
        raise Unfetched(f"{url}: no response within {FETCH_SECONDS:g} s") from None
    except ClientConnectorError as error:
        raise Unfetched(f"{url}: {error.strerror or error}") from None
    except (ClientError, OSError, ValueError) as error:
        # Its text may repeat what the server sent.
        raise Unfetched(f"{url}: {type(error).__name__}") from None
    return Document(bytes(content), float(found[1]) if found else None)
