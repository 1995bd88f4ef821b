"""Verifies callers by what their request has: bearer tokens (`JwtScope`), and client certificates; or asks another
service about them (`ForwardAuth`).

*Keys.* The key set of an issuer is fetched at the start, when it gets old, and when a token names a key that is not in
it: one fetch at a time, and at most one in `FETCH_PAUSE_SECONDS`, however many requests ask. Other requests wait for
the fetch under way, or get what is known. While the issuer is away, the set is kept for as long as its settings say;
then there is none. A document that holds no usable key counts as no answer, and never takes the place of a set that is
known. PyJWT reads the keys and verifies the signatures. What a key is used for is decided here: a public key verifies
the algorithms of its type and nothing else, and a shared secret is never read from a document.

*Tokens.* One that was verified is remembered by its digest until it expires or the keys of its issuer are others, so
that a repeat costs a digest. Nothing else of a token is kept, and nothing of it gets into a log or a reply.

*Certificates.* They were verified by TLS when the connection was made. A proxy in front of the gateway has one of its
own, which says nothing about the caller. A connection may outlast the certificate that it was made with; then its
holder is nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, assert_never
from urllib.parse import urlsplit

import orjson
from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from jwt.algorithms import Algorithm, get_default_algorithms
from jwt.exceptions import PyJWTError

from gateway import __version__
from gateway.config.leaf import encoded, lowered
from gateway.config.route import ForwardAuth as Service
from gateway.config.route import JwtScope
from gateway.core import immutable
from gateway.core.identity.body import digest
from gateway.core.identity.caller import (
    Token,
    TokenFault,
    bearer_credential,
    certificate_name,
    read_token,
    verify_claims,
)
from gateway.core.identity.key import (
    ClientCertificateScope,
    ForwardAuthScope,
    IdentityUnavailable,
    Network,
    ScopeMissing,
    ScopeUnsuitable,
)
from gateway.core.message import RequestHead, ResponseHead, header_values
from gateway.core.verdict import Verdict
from gateway.core.webhook import is_loopback
from gateway.observe.facts import AuthorizationDecided, Decision, Events, FetchResult, KeysFetched
from gateway.protect.ambiguity import names_another, other_methods, other_targets
from gateway.protect.forwarding import authorization_request, response_headers
from gateway.protect.identification import Verification, Verified, Verifier
from gateway.protect.reply import Reply, Source
from gateway.protect.request import Request
from gateway.store.base import end_tasks
from gateway.upstream import Lost, NotSent, TooLong, Upstream, UpstreamResponse
from gateway.upstream.connect import Names

# -- the keys of an issuer ---------------------------------------------------------------------------------------------

_LOG = logging.getLogger("gateway")
_T = TypeVar("_T")

FETCH_PAUSE_SECONDS: Final = 30.0
DOCUMENT_BYTES_MAX: Final = 1 << 20
_MAX_AGE_SECONDS_MIN: Final = 300.0
_MAX_AGE_SECONDS_MAX: Final = 86400.0
# More keys than any issuer has. A token without a key id is tried with each of them.
_KEYS_MAX: Final = 64

_ALGORITHMS: Final[Mapping[str, Algorithm]] = get_default_algorithms()
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# By `kty` and `crv` (RFC 7518 section 6, RFC 8037 section 2). A symmetric key (`oct`) is none of a public set.
_OF_TYPE: Final[Mapping[tuple[str, str | None], tuple[str, ...]]] = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
_PUBLIC_MEMBERS: Final = frozenset(("kty", "crv", "n", "e", "x", "y"))
_PEM_LABEL: Final = re.compile(rb"-----BEGIN ([A-Z ]{1,64})-----")
# Ends at the next dash, so that a document of nothing but beginnings is read in one pass.
_PEM: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----[^-]*-----END PUBLIC KEY-----")


class KeySetInvalid(Exception):
    """A document that holds no usable key. The text says why, and repeats nothing of it."""


class Unfetched(Exception):
    """The document could not be had. The text is for the operator."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key that verifies signatures, by these algorithms. `key_id` is None where the set does not name it."""

    key_id: str | None
    algorithms: frozenset[str]
    material: Any

    def verifies(self, token: Token) -> bool:
        """Whether this key made the token's signature, by the algorithm that the token names."""
        if token.algorithm not in self.algorithms:
            return False
        try:
            return _ALGORITHMS[token.algorithm].verify(token.signed, self.material, token.signature)
        except (PyJWTError, ValueError, TypeError):
            return False


Document = tuple[bytes, float | None]
"""What a source returned, and for how many seconds it may be cached; None where nobody says so."""
KeySource = Callable[[], Awaitable[Document]]
"""Fetches a document with keys, in a limited time. Raises `Unfetched`."""


def read_keys(content: bytes) -> tuple[Key, ...]:
    """The usable keys of a document: a JSON Web Key Set, or public keys as PEM. Raises `KeySetInvalid`."""
    if len(content) > DOCUMENT_BYTES_MAX:
        raise KeySetInvalid(f"it is longer than {DOCUMENT_BYTES_MAX} bytes")
    keys = _pem_keys(content) if content.lstrip().startswith(b"-----BEGIN") else _set_keys(content)
    if not keys:
        raise KeySetInvalid("it holds no key that could verify a token")
    return keys


def read_key_file(path: Path) -> tuple[Key, ...]:
    """The usable keys in this file. Raises `KeySetInvalid`, or `OSError` where it cannot be read."""
    return read_keys(_read(path))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(DOCUMENT_BYTES_MAX + 1)


def _limited(keys: list[_T]) -> list[_T]:
    """The keys, if they are not too many to be read in a short time. Raises `KeySetInvalid`."""
    if len(keys) > _KEYS_MAX:
        raise KeySetInvalid(f"it holds more than {_KEYS_MAX} keys")
    return keys


def _set_keys(content: bytes) -> tuple[Key, ...]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise KeySetInvalid("it is neither JSON nor PEM") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeySetInvalid("it is no key set: there is no list of `keys`")
    found = [_set_key(each) for each in _limited(listed) if isinstance(each, dict)]
    return tuple(key for key in found if key is not None)


def _set_key(given: Mapping[str, Any]) -> Key | None:
    """A key of a set (RFC 7517 section 4); None for one of an unknown type, a weak one, and one for another use."""
    key_type, curve, operations = given.get("kty"), given.get("crv"), given.get("key_ops")
    if not isinstance(key_type, str) or not isinstance(curve, str | None) or given.get("use", "sig") != "sig":
        return None
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    possible = _OF_TYPE.get((key_type, curve), ())
    algorithms = [name for name in possible if given.get("alg", name) == name]
    key_id = given.get("kid")
    if not algorithms or not isinstance(key_id, str | None):
        return None
    return _key(key_id, algorithms, {name: value for name, value in given.items() if name in _PUBLIC_MEMBERS})


def _pem_keys(content: bytes) -> tuple[Key, ...]:
    for label in _PEM_LABEL.finditer(content):
        if label[1] != b"PUBLIC KEY":
            raise KeySetInvalid(f"it holds a {label[1].decode().lower()}; write public keys alone")
    blocks = _limited(_PEM.findall(content))
    kinds = dict.fromkeys(_OF_TYPE.values())
    found = [_key(None, algorithms, block) for block in blocks for algorithms in kinds]
    return tuple(key for key in found if key is not None)


def _key(key_id: str | None, algorithms: Sequence[str], given: dict[str, Any] | bytes) -> Key | None:
    """The key of a member of a set, or of a PEM block; None for one that is weak, or none of these algorithms'."""
    algorithm = _ALGORITHMS[algorithms[0]]
    try:
        material = algorithm.prepare_key(given if isinstance(given, bytes) else algorithm.from_jwk(given))
    except Exception:  # noqa: BLE001 - PyJWT lets errors of cryptography through, which have no base in common
        return None
    return None if algorithm.check_key_length(material) else Key(key_id, frozenset(algorithms), material)


class KeySet:
    """The keys of one issuer in one process. Lives on one event loop."""

    def __init__(
        self,
        name: str,
        keys: tuple[Key, ...] = (),
        source: KeySource | None = None,
        *,
        stale_seconds: float = 0.0,
        clock: Callable[[], float],
        publish: Callable[[KeysFetched], None] = lambda _: None,
    ) -> None:
        """`name` is for the log. Without a source, `keys` are all there ever are. `clock` counts seconds, also while
        the machine sleeps."""
        self._name, self._source, self._stale_seconds, self._clock = name, source, stale_seconds, clock
        self._publish, self._keys = publish, keys
        self._digest = b""
        self._fresh_until = self._usable_until = float("-inf") if source is not None else float("inf")
        self._may_fetch_from = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_failing = False
        self.version = 0
        """Another number once the keys are others."""

    def start(self) -> None:
        """Fetch the set, and fetch it anew whenever it gets old. Needs a running event loop; safe to repeat."""
        if self._source is not None and self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def follow(self, before: KeySet) -> None:
        """Begin with what another one of the same issuer knows: the issuer may be away."""
        self._keys, self._digest, self._is_failing = before._keys, before._digest, before._is_failing
        self._fresh_until, self._usable_until = before._fresh_until, before._usable_until
        self._may_fetch_from = before._may_fetch_from

    async def close(self) -> None:
        """Stop fetching."""
        await end_tasks((self._running, self._fetching))

    @property
    def is_known(self) -> bool:
        """Whether there are keys that may be used."""
        return self._clock() < self._usable_until

    @property
    def may_refresh(self) -> bool:
        """Whether `refresh` may change anything now."""
        return self._source is not None and (self._fetching is not None or self._clock() >= self._may_fetch_from)

    @property
    def retry_after_seconds(self) -> float:
        """When the next fetch may begin."""
        return max(0.0, self._may_fetch_from - self._clock())

    def keys_for(self, token: Token) -> tuple[tuple[Key, ...], bool]:
        """The keys that may have signed the token, and whether the token names them: one that is named is the only one.
        A set that has got old is fetched in the background."""
        if self._clock() >= self._fresh_until and self.may_refresh:
            self._begin()
        named = tuple(key for key in self._keys if key.key_id is not None and key.key_id == token.key_id)
        if named:
            return named, True
        return tuple(key for key in self._keys if key.key_id is None or token.key_id is None), False

    async def refresh(self) -> None:
        """Fetch the set, unless that was tried a short time ago. Cancelling it stops no fetch."""
        if self.may_refresh:
            await asyncio.wait((self._begin(),))

    def _begin(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._may_fetch_from = self._clock() + FETCH_PAUSE_SECONDS
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._ended)
        return self._fetching

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("fetching the keys of %s failed because of a bug", self._name, exc_info=error)

    async def _run(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(max(self._fresh_until - self._clock(), self.retry_after_seconds, 1.0))

    async def _fetch(self) -> None:
        if self._source is None:
            return
        try:
            content, max_age_seconds = await self._source()
            keys = read_keys(content)
        except (Unfetched, KeySetInvalid) as error:
            if not self._is_failing:
                kept = "those that are known are kept for now" if self.is_known else "none are known"
                _LOG.warning("the keys of %s cannot be fetched (%s); %s", self._name, error, kept)
            self._is_failing = True
            self._publish(KeysFetched(FetchResult.FAILED))
            return
        if self._is_failing:
            _LOG.info("the keys of %s were fetched", self._name)
        self._is_failing = False
        self._publish(KeysFetched(FetchResult.FETCHED))
        self._replace(keys, sha256(content).digest(), max_age_seconds)

    def _replace(self, keys: tuple[Key, ...], digest: bytes, max_age_seconds: float | None) -> None:
        age = min(max(max_age_seconds or 0.0, _MAX_AGE_SECONDS_MIN), _MAX_AGE_SECONDS_MAX)
        self._fresh_until = self._clock() + age
        self._usable_until = self._fresh_until + self._stale_seconds
        if digest != self._digest:
            self._keys, self._digest = keys, digest
            self.version += 1


# -- where keys come from ----------------------------------------------------------------------------------------------
#
# Nothing that a server sends is trusted but by TLS: redirects are not followed, since nobody checked where they lead, a
# document has a size limit, and a fetch a time limit. Plain HTTP is for this machine alone.

FETCH_SECONDS: Final = 5.0
_URL_CHARACTERS_MAX: Final = 2048
_MAX_AGE: Final = re.compile(r'(?:^|[,\s])max-age="?([0-9]{1,9})"?(?:[,\s]|$)', re.IGNORECASE)
_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": f"idempotency-gateway/{__version__}"}


async def fetch_file(path: Path) -> Document:
    """A file on this machine, which is read anew as if it were fetched. Raises `Unfetched`."""
    try:
        return await asyncio.to_thread(_read, path), None
    except OSError as error:
        raise Unfetched(f"{path}: {error.strerror}") from None


def url_source(url: str, tls: ssl.SSLContext) -> KeySource:
    """A document at a URL. `tls` says whom to trust where that is https."""
    names = Names()

    async def fetch() -> Document:
        async with _session(tls, names) as session:
            return await _get(session, url)

    return fetch


def discovered_source(issuer: str, tls: ssl.SSLContext) -> KeySource:
    """The key set that the issuer's configuration names."""
    url, names = f"{issuer.rstrip('/')}/.well-known/openid-configuration", Names()

    async def fetch() -> Document:
        async with _session(tls, names) as session:
            configuration, _ = await _get(session, url)
            return await _get(session, _key_set_url(issuer, configuration, url))

    return fetch


def _key_set_url(issuer: str, configuration: bytes, url: str) -> str:
    try:
        document = orjson.loads(configuration)
    except orjson.JSONDecodeError:
        raise Unfetched(f"{url}: it is not JSON") from None
    found = document.get("jwks_uri") if isinstance(document, dict) else None
    if not isinstance(found, str) or document.get("issuer") != issuer:
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
    return bytes(content), float(found[1]) if found else None


# -- verifiers ---------------------------------------------------------------------------------------------------------

_REMEMBERED_MAX: Final = 10_000


@immutable
class _Remembered:
    """A verified token. It counts until this Unix time, and while its issuer's keys have this version."""

    verified: Verified
    until_seconds: float
    keys: KeySet
    version: int


class TokenVerifier(Verifier):
    """Verifies the tokens of one scope. Lives on one event loop. The keys are their owner's to close."""

    def __init__(
        self, scope: JwtScope, keys: Mapping[str, KeySet], wall_seconds: Callable[[], float], *, waiting_max: int = 1000
    ) -> None:
        """`keys` by issuer; they may be shared with other verifiers. `wall_seconds` is Unix time. `waiting_max` bounds
        the requests that wait for keys."""
        self._issuers = {each.issuer: each for each in scope.issuers}
        self._keys, self._wall_seconds, self._waiting_max = keys, wall_seconds, waiting_max
        self._waiting = 0
        self._remembered: dict[bytes, _Remembered] = {}

    def start(self) -> None:
        for keys in self._keys.values():
            keys.start()

    def known(self, request: Request) -> Verification | None:
        credential = bearer_credential(request.head.headers)
        if credential is None:
            return _invalid("A bearer token is missing.")
        digest = sha256(credential).digest()
        known = self._remembered.get(digest)
        if known is not None:
            is_current = known.version == known.keys.version and known.keys.is_known
            if is_current and self._wall_seconds() < known.until_seconds:
                return known.verified
            del self._remembered[digest]
        found = self._verify(credential, digest)
        if not isinstance(found, KeySet):
            return found
        return None if found.may_refresh else _undecided(found)

    async def ask(self, request: Request) -> Verification:
        """Waits for the keys of the token's issuer."""
        return await self.whose(bearer_credential(request.head.headers) or b"")

    async def whose(self, credential: bytes) -> Verification:
        """Whose token this is. Otherwise as `ask`."""
        digest = sha256(credential).digest()
        found = self._verify(credential, digest)
        if isinstance(found, KeySet):
            if self._waiting >= self._waiting_max:
                return IdentityUnavailable("Too many requests wait for the keys of the token's issuer.")
            self._waiting += 1
            try:
                await found.refresh()
            finally:
                self._waiting -= 1
            found = self._verify(credential, digest)
        return _undecided(found) if isinstance(found, KeySet) else found

    def _verify(self, credential: bytes, digest: bytes) -> Verification | KeySet:
        """The token's caller; or the keys among which the one that signed it may be missing."""
        token = read_token(credential)
        if isinstance(token, TokenFault):
            return _invalid(token.detail)
        issuer = self._issuers.get(token.issuer)
        if issuer is None:
            return _invalid("The token is from another issuer.")
        if token.algorithm not in issuer.algorithms:
            return _invalid("The token is signed by an algorithm that is not accepted.")
        # Before the signature, because it is cheaper, and a token that has expired is worth no fetch.
        claims = verify_claims(issuer, token, self._wall_seconds())
        if isinstance(claims, TokenFault):
            return _invalid(claims.detail)
        keys = self._keys[issuer.issuer]
        candidates, is_named = keys.keys_for(token)
        if not keys.is_known:
            return keys
        if any(key.verifies(token) for key in candidates):
            verified = Verified(claims.value)
            if len(self._remembered) >= _REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[digest] = _Remembered(verified, claims.until_seconds, keys, keys.version)
            return verified
        return _invalid("The signature of the token is not its issuer's.") if is_named else keys


def _invalid(detail: str) -> ScopeMissing:
    return ScopeMissing(detail, is_credential=True, is_token=True)


def _undecided(keys: KeySet) -> Verification:
    """The reply where these keys did not sign the token, and cannot be fetched now."""
    if keys.is_known:
        return _invalid("The token is not signed by a key of its issuer.")
    return IdentityUnavailable(
        "The keys of the token's issuer are not known.", max(1, math.ceil(keys.retry_after_seconds))
    )


class ClientCertificates(Verifier):
    """Verifies one kind of name. `wall_seconds` is Unix time."""

    def __init__(
        self, scope: ClientCertificateScope, trusted_proxies: Sequence[Network], wall_seconds: Callable[[], float]
    ) -> None:
        self._scope = scope
        self._trusted_proxies = tuple(trusted_proxies)
        self._wall_seconds = wall_seconds

    def known(self, request: Request) -> Verification:
        """The caller, or why the certificate names none. Nothing has to be waited for."""
        peer, certificate = request.hop.peer, request.hop.certificate
        if peer is not None and any(peer in network for network in self._trusted_proxies):
            return _missing("The request came through a proxy, which cannot show the client's certificate.")
        if certificate is None:
            return _missing("A client certificate is missing.")
        if certificate.until <= self._wall_seconds():
            return _missing("The client certificate has expired since the connection was made.")
        name = certificate_name(certificate, self._scope.part)
        return Verified(self._scope.value_of(name)) if isinstance(name, bytes) else name

    async def ask(self, request: Request) -> Verification:
        """As `known`."""
        return self.known(request)


def _missing(detail: str) -> ScopeMissing:
    return ScopeMissing(detail, is_credential=True)


# -- forward auth ------------------------------------------------------------------------------------------------------
#
# Before anything is claimed, an authorising service gets a GET without body, as proxies send it to their authorisation
# servers: method, URI and origin of the request in `X-Forwarded-*` headers, and those headers of it that are
# configured. Only 2xx with exactly one principal is a permission. 300 to 499 is the service's own refusal, which the
# client gets as it is. Anything else is no decision, and says nothing about the caller. A request with a header that
# many services read as another method or path is refused: the decision would be about something else than what is
# executed.
#
# A decision is remembered only where that is configured, for the very same question; a refusal never is, so that a
# permission that was just given counts at once. Nothing of a question is kept but its digest, and nothing is logged.

REFUSAL_BYTES_MAX: Final = 1024 * 1024
# The body of a permission says nothing. It is read so that its connection can be used again.
_PERMISSION_BYTES_MAX: Final = 64 * 1024
CONNECTIONS_MAX: Final = 128
# Permissions that are remembered, and the bytes of each.
_PERMISSIONS_MAX: Final = 4096
_REMEMBERED_BYTES_MAX: Final = 4096
# A service that fails now and then is not reported more often.
_REPORT_SECONDS: Final = 10.0

_NO_DECISION: Final = "The service that decides about requests cannot be asked now."
_OTHER_READING: Final = "A header names another method or path than the one that permission is asked for."


class ForwardAuth(Verifier):
    """Asks one service, by a client of its own. Lives on one event loop."""

    def __init__(
        self,
        service: Service,
        scope: ForwardAuthScope | None,
        upstream: Upstream,
        events: Events,
        *,
        trusted_proxies: Sequence[Network],
        asked_max: int,
        clock: Callable[[], float],
    ) -> None:
        """Without a scope, any permission will do: its value is empty. `asked_max` bounds the requests that wait for a
        decision. `clock` counts seconds and never goes back."""
        self._scope, self._service, self._upstream, self._events = scope, service, upstream, events
        self._trusted_proxies = tuple(trusted_proxies)
        self._names = lowered(service.headers)
        self._copied = encoded(service.copy_)
        self._authority, self._target = service.url.service.authority.encode(), service.url.target.encode()
        self._asked_max = asked_max
        self._clock = clock
        self._asked = 0
        self._remembered: OrderedDict[bytes, tuple[float, Verified]] = OrderedDict()
        self._is_failing = False
        self._reported_seconds = -_REPORT_SECONDS

    async def close(self) -> None:
        await self._upstream.close()

    def known(self, request: Request) -> Verified | ScopeUnsuitable | None:
        """The permission that is remembered for this very question, or why there is no one question; None asks."""
        if _has_other_reading(request.head):
            return ScopeUnsuitable(_OTHER_READING)
        if not self._remembered:
            return None
        asked = _digest(self._question(request))
        until, permission = self._remembered.get(asked, (0.0, None))
        if permission is None:
            return None
        if self._clock() >= until:
            del self._remembered[asked]
            return None
        self._events.publish(AuthorizationDecided(Decision.REMEMBERED))
        return permission

    async def ask(self, request: Request) -> Verification:
        """Ask the service, within its timeout. Safe to cancel: the question has no effect."""
        question = self._question(request)
        asked_seconds = self._clock()
        found = await self._decision(question)
        if isinstance(found, str):
            self._events.publish(AuthorizationDecided(Decision.UNAVAILABLE))
            self._report(found)
            return IdentityUnavailable(_NO_DECISION)
        self._report(None)
        if isinstance(found, Verified):
            self._remember(question, found, asked_seconds)
        is_allowed = isinstance(found, Verified)
        self._events.publish(AuthorizationDecided(Decision.ALLOWED if is_allowed else Decision.REFUSED))
        return found

    # -- inside -------------------------------------------------------------------------------------------------------

    def _question(self, request: Request) -> RequestHead:
        return authorization_request(
            request.head,
            request.hop,
            self._trusted_proxies,
            authority=self._authority,
            target=self._target,
            names=self._names,
        )

    async def _decision(self, question: RequestHead) -> Verified | Reply | str:
        """The decision, or why there is none."""
        if self._asked >= self._asked_max:
            return "too many requests wait for it"
        self._asked += 1
        seconds = self._service.timeout
        try:
            async with asyncio.timeout(seconds):
                # As a protected one: it is never sent on a connection that the service may just be closing.
                response = await self._upstream.exchange(
                    question, protected=True, may_send=lambda: True, response_timeout_seconds=seconds
                )
                match response:
                    case NotSent(reason) | Lost(reason):
                        return f"no response ({reason})"
                    case UpstreamResponse():
                        with response:
                            return await self._read(response)
                    case _:
                        assert_never(response)
        except TimeoutError:
            return f"no response within {seconds:g} s"
        finally:
            self._asked -= 1

    async def _read(self, response: UpstreamResponse) -> Verified | Reply | str:
        head = response.head
        is_permission = 200 <= head.status < 300
        if not is_permission and not 300 <= head.status < 500:
            return f"it responded with {head.status}"
        body = await response.body.read_all(_PERMISSION_BYTES_MAX if is_permission else REFUSAL_BYTES_MAX)
        if isinstance(body, Lost):
            return f"its response broke off ({body.reason})"
        if is_permission:
            return self._permission(head)
        if isinstance(body, TooLong):
            return f"its refusal is longer than {REFUSAL_BYTES_MAX} bytes"
        headers = response_headers(head.headers)
        # It may be given to further callers with this credential.
        return Reply(head.status, head.reason, headers, body, Verdict.SCOPE_MISSING, source=Source.RECORD)

    def _permission(self, head: ResponseHead) -> Verified | str:
        value = b""
        if self._scope is not None:
            principals = header_values(head.headers, self._scope.principal.lower())
            if len(principals) > 1:
                return f"it named {len(principals)} principals"
            if not principals or not (principal := principals[0].strip(b" \t")):
                return "it named no principal"
            value = self._scope.value_of(principal)
        copied = ((name, each) for name in self._copied for each in header_values(head.headers, name.lower()))
        return Verified(value, tuple(copied))

    def _remember(self, question: RequestHead, permission: Verified, asked_seconds: float) -> None:
        """From when it was asked: the permission may have been withdrawn since."""
        seconds = self._service.cache
        size = len(permission.value) + sum(len(name) + len(value) for name, value in permission.headers)
        if seconds <= 0 or size > _REMEMBERED_BYTES_MAX:
            return
        asked = _digest(question)
        self._remembered.pop(asked, None)
        self._remembered[asked] = asked_seconds + seconds, permission
        if len(self._remembered) > _PERMISSIONS_MAX:
            self._remembered.popitem(last=False)

    def _report(self, fault: str | None) -> None:
        """Log the first failure, and when it is over."""
        now = self._clock()
        if fault is not None and now - self._reported_seconds >= _REPORT_SECONDS:
            self._reported_seconds, self._is_failing = now, True
            _LOG.warning("%s does not decide about requests, which are refused with 503: %s", self._service.url, fault)
        elif fault is None and self._is_failing:
            self._is_failing = False
            _LOG.info("%s decides about requests again", self._service.url)


def _has_other_reading(head: RequestHead) -> bool:
    return names_another(head) and bool(other_targets(head) or other_methods(head) - {head.method})


def _digest(question: RequestHead) -> bytes:
    return digest(b"question", *[part for header in question.headers for part in header])
