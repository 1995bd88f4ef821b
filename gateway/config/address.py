"""How hosts, listening addresses, networks, files and URLs are written.

A URL that may hold a password is kept in a SecretStr, and none of its text appears in a report.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import SecretStr
from pydantic_core import PydanticCustomError

from gateway.config.document import alternatives
from gateway.config.leaf import SUBSTITUTED, Leaf, Text, shaped
from gateway.core.message import bracketed

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\.?\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")
_TARGET = re.compile(r"/[!\"$-~]{0,2047}")
_PATH = r"(/[A-Za-z0-9_~-]+)+"
_RESERVED_CHARS_MAX = 128
_NO_CLUSTER_HINT = (
    "a Redis Cluster keeps no operations alone: name one server, or sentinels (redis+sentinel://), or use PostgreSQL, "
    "which a cluster may stand before as store.fast"
)
_TLS_HINT = "rediss:// is redis:// with TLS"
_MEANT_TLS = frozenset(("tls", "ssl"))
_PASSWORD_HINT = "percent-encode /, ?, # and @ in a password"
_MEANT_RELATIVE = frozenset((".", "..", "~"))
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
# More would not all be dialled in the time of a connection.
_HOSTS_MAX = 8
# Which server of a list is used is decided here.
_PRIMARY = ("any", "primary", "read-write")
_REDIS_OPTIONS = frozenset(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
_SENTINEL_OPTIONS = frozenset(("sentinel_username", "sentinel_password"))

PLACEHOLDER_URL = "https://placeholder"
PLACEHOLDER_DIRECTORY = Path("/placeholder")
"""The directory of files whose path is not known."""


@dataclass(frozen=True)
class HostName(Leaf):
    """A host name or address, with or without a port."""

    may_have_port: bool = False

    schema = shaped(minLength=1)

    @property
    def expected(self) -> str:
        return "a host name such as api.example.com" + ("" if self.may_have_port else ", without a port")

    def read(self, text: str) -> str:
        has_port = re.search(r":[0-9]{1,5}\Z", text)
        name, colon, port = text.rpartition(":") if has_port else (text, "", "")
        is_name = bool(HOST_NAME.match(name)) or is_bracketed_ipv6(name)
        if not is_name or (colon and (not self.may_have_port or not 1 <= int(port) <= 65535)):
            raise self.unexpected()
        return text


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. `host` is without the brackets of IPv6; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


class ListenAddress(Leaf):
    """`host:port`, `[::]:port`."""

    expected = "an address such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080"
    schema = shaped(pattern=rf"^(.+:[0-9]{{1,5}}{SUBSTITUTED})$")
    stand_in = "127.0.0.1:0"

    def read(self, text: str) -> Address:
        host, colon, port = text.rpartition(":")
        if not colon or not _PORT.match(port) or int(port) > 65535:
            raise self.unexpected(f"write 127.0.0.1:{text}" if _PORT.match(text) else "")
        if not host or host == "*":
            raise self.unexpected(f"write 0.0.0.0:{port} for every interface")
        if is_bracketed_ipv6(host):
            return Address(host[1:-1], int(port))
        if not HOST_NAME.match(host):
            raise self.unexpected()
        return Address(host, int(port))


def is_bracketed_ipv6(host: str) -> bool:
    if not (host.startswith("[") and host.endswith("]")):
        return False
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


def is_host(host: str) -> bool:
    """Whether this may be the host of a URL, without the brackets of IPv6."""
    return bool(HOST_NAME.match(host)) or is_bracketed_ipv6(f"[{host}]")


def split_url(leaf: Leaf, text: str, hint: str = "") -> tuple[SplitResult, str, int | None]:
    """A URL with its host and its port. Raises the leaf's error, without the text: that of urlsplit repeats a part."""
    try:
        url = urlsplit(text)
        return url, url.hostname or "", url.port
    except ValueError:
        raise leaf.unexpected(hint, is_secret=True) from None


class NetworkRange(Leaf):
    """An address or a network in CIDR notation."""

    expected = "a network such as 10.0.0.0/8 or fd00::/8"
    schema = shaped()

    def read(self, text: str) -> Network:
        try:
            return ipaddress.ip_network(text)
        except ValueError:
            pass
        try:
            hint = f"write {ipaddress.ip_network(text, strict=False)}"
        except ValueError:
            hint = ""
        raise self.unexpected(hint)


@dataclass(frozen=True)
class AbsolutePath(Leaf):
    """An absolute path in the file system."""

    example: str = "/etc/idempotency-gateway/tls.pem"

    schema = shaped(pattern=r"^(/|\$\{)")

    @property
    def expected(self) -> str:
        return f"an absolute path such as {self.example}"

    def read(self, text: str) -> Path:
        if not text.startswith("/") or "\0" in text:
            raise self.unexpected()
        return Path(text)

    def placeholder(self, name: str) -> str:
        return str(PLACEHOLDER_DIRECTORY / f"placeholder-{re.sub('[^A-Za-z0-9]', '-', name)}")


@dataclass(frozen=True, slots=True)
class UpstreamUrl:
    """Where the service is. `host` is without the brackets of IPv6."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of `Host` that names the service, without the scheme's default port."""
        host = bracketed(self.host)
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class ServiceUrl(Leaf):
    """`http` or `https`, a host and an optional port, and nothing else: targets are forwarded as they came."""

    expected = "a URL such as http://127.0.0.1:9000 or https://service.internal"
    schema = shaped(pattern=rf"^(https?://[^/?#@]+/?{SUBSTITUTED})$")
    stand_in = PLACEHOLDER_URL

    def read(self, text: str) -> UpstreamUrl:
        url, host, port = split_url(self, text)
        if "@" in text:
            raise self.unexpected("credentials do not belong in this URL", is_secret=True)
        if url.scheme not in ("http", "https") or not host or port == 0:
            raise self.unexpected()
        if url.path not in ("", "/") or "?" in text or "#" in text:
            raise self.unexpected("without a path or query: paths are never rewritten")
        if not is_host(host):
            raise self.unexpected()
        return UpstreamUrl(url.scheme, host, port or (443 if url.scheme == "https" else 80))


@dataclass(frozen=True, slots=True)
class AuthorizationUrl:
    """Where an authorising service is asked: a service, and the path and query there."""

    service: UpstreamUrl
    target: str

    @property
    def scheme(self) -> str:
        return self.service.scheme

    def __str__(self) -> str:
        """Without the query, which may hold anything."""
        return f"{self.service}{self.target.partition('?')[0]}"


class ForwardAuthUrl(Leaf):
    """`http` or `https`, a host, and perhaps a path and a query."""

    expected = "a URL such as http://127.0.0.1:4180/oauth2/auth"
    schema = shaped(pattern=rf"^(https?://[^?#@]+(\?[^#]*)?{SUBSTITUTED})$")
    stand_in = PLACEHOLDER_URL

    def read(self, text: str) -> AuthorizationUrl:
        try:
            url = urlsplit(text)
        except ValueError:
            raise self.unexpected(is_secret=True) from None
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        # urlsplit drops line breaks and tabs.
        if not _TARGET.fullmatch(target) or not re.fullmatch('[!"$-~]+', text):
            raise self.unexpected("its path and query are visible ASCII, without #")
        if "@" in url.netloc:
            raise self.unexpected("credentials do not belong in this URL", is_secret=True)
        try:
            return AuthorizationUrl(ServiceUrl().read(f"{url.scheme}://{url.netloc}"), target)
        except PydanticCustomError:
            raise self.unexpected() from None

    def write(self, value: AuthorizationUrl) -> str:
        return f"{value}?placeholder" if "?" in value.target else str(value)


class PublicUrl(Leaf):
    """`http` or `https`, a host, and perhaps a path: what callers see before a path of the gateway."""

    expected = "a URL such as https://api.example.com"
    schema = shaped(pattern=rf"^(https?://[^?#@]+{SUBSTITUTED})$")
    stand_in = PLACEHOLDER_URL

    def read(self, text: str) -> str:
        url, host, port = split_url(self, text)
        if "@" in text:
            raise self.unexpected("credentials do not belong in this URL", is_secret=True)
        if url.scheme not in ("http", "https") or not is_host(host) or port == 0:
            raise self.unexpected()
        if not re.fullmatch(rf"({_PATH})?/?", url.path) or "?" in text or "#" in text:
            raise self.unexpected("without a query; its path is plain")
        return text.rstrip("/")


class TypeBase(Leaf):
    """What stands before the name of a problem in its type: a URL that ends where a name may follow."""

    expected = "a URL such as https://docs.example.com/problems/"
    schema = shaped(pattern=rf"^(https?://[^?#@]+[/#]{SUBSTITUTED})$")

    def read(self, text: str) -> str:
        if not text.endswith(("/", "#")):
            raise self.unexpected("it ends with / or #, and the name of the problem follows")
        PublicUrl().read(text.removesuffix("#"))
        return text


class WebOrigin(Leaf):
    """The origin of a web page as browsers write it: scheme, host and port, in lower case, without the usual port."""

    expected = "an origin such as https://app.example.com"
    schema = shaped(pattern=rf"^(https?://[^/?#@]+{SUBSTITUTED})$")

    def read(self, text: str) -> str:
        url = ServiceUrl().read(text)
        if str(url) != text:
            raise self.unexpected(f"browsers write {url}")
        return text


# A path of the gateway's own on the public listener. It has one spelling, and no variables.
RESERVED_PATH = Text(
    "a path such as /_operations",
    lambda text: re.fullmatch(_PATH, text) is not None and len(text) <= _RESERVED_CHARS_MAX,
    {"pattern": f"^{_PATH}$"},
    "of letters, digits, '-', '_' and '~', without a slash at its end",
)


@dataclass(frozen=True, slots=True)
class SqliteUrl:
    """An embedded store in one file, for one host."""

    path: Path


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A Postgres that many gateways may share. The DSN may hold a password, and prints as stars."""

    dsn: SecretStr

    @property
    def is_pooled(self) -> bool:
        """Whether it says that it leads to a pgbouncer."""
        options = dict(parse_qsl(urlsplit(self.dsn.get_secret_value()).query))
        return options.get("pgbouncer", "false").lower() in ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A Redis. The URL may hold a password, and prints as stars."""

    url: SecretStr

    @property
    def kind(self) -> str:
        """How its masters are found: `sentinel`, `cluster`, or empty where the URL names the one there is."""
        return self.url.get_secret_value().partition("://")[0].partition("+")[2]


class DurableUrl(Leaf):
    """The durable store."""

    expected = "sqlite:///PATH, postgresql://USER@HOST/DATABASE or redis://USER@HOST:PORT/DATABASE"
    schema = shaped(pattern=rf"^(sqlite:///.+|postgres(ql)?://.+|rediss?(\+sentinel)?://.+{SUBSTITUTED})$")
    stand_in = "postgresql://placeholder@placeholder/placeholder"

    def read(self, text: str) -> SqliteUrl | PostgresUrl | RedisUrl:
        scheme = text.partition("://")[0]
        if scheme in ("redis+cluster", "rediss+cluster"):
            raise self.unexpected(_NO_CLUSTER_HINT, is_secret=True)
        if scheme.partition("+")[0] in ("redis", "rediss"):
            return _AloneUrl().read(text)
        if scheme == "sqlite":
            return SqliteUrl(self._file(text.removeprefix("sqlite://")))
        if scheme not in ("postgresql", "postgres"):
            raise self.unexpected(is_secret=True)
        try:
            url = urlsplit(text)
        except ValueError:
            raise self.unexpected(_PASSWORD_HINT, is_secret=True) from None
        options = dict(parse_qsl(url.query, keep_blank_values=True))
        has_host = bool(url.netloc.rpartition("@")[2] or options.get("host"))
        # A list of hosts, each with its port, is allowed; urlsplit does not support it.
        hosts = re.sub(r"\[[^]]*\]", "", url.netloc.rpartition("@")[2]).split(",")
        ports = [host.rpartition(":")[2] for host in hosts if ":" in host]
        # An unescaped / or ? in a password ends the host early, and the rest would be shown as the database; after an
        # unescaped @ the driver takes the rest for a part of the host.
        is_cut = re.search("[/@]", url.path[1:]) or any("@" in name for name in options) or url.netloc.count("@") > 1
        if not has_host or "#" in text or is_cut or not all(_PORT.match(port) for port in ports):
            raise self.unexpected(_PASSWORD_HINT, is_secret=True)
        if options.get("sslmode", "prefer") not in _SSL_MODES:
            raise self.unexpected(f"sslmode is {alternatives(_SSL_MODES)}", is_secret=True)
        if max(len(hosts), options.get("host", "").count(",") + 1) > _HOSTS_MAX:
            raise self.unexpected(f"at most {_HOSTS_MAX} hosts", is_secret=True)
        if options.get("target_session_attrs", "primary") not in _PRIMARY or "load_balance_hosts" in options:
            hint = "leave out target_session_attrs and load_balance_hosts: of several hosts, the primary is used"
            raise self.unexpected(hint, is_secret=True)
        return PostgresUrl(SecretStr(text))

    def write(self, value: SqliteUrl) -> str:
        return value.path.as_uri().replace("file://", "sqlite://", 1)

    def _file(self, rest: str) -> Path:
        path = unquote(rest)
        if not path.startswith("/") or "?" in rest or "#" in rest or "\0" in path:
            raise self.unexpected("the path is absolute and the store is a file", is_secret=True)
        path = "/" + path.lstrip("/")
        if path.split("/")[1] in _MEANT_RELATIVE:
            raise self.unexpected("the path is absolute: write all of it", is_secret=True)
        if path.endswith("/") or path == "/:memory:":
            raise self.unexpected("the store is a file", is_secret=True)
        return Path(path)


class StreamUrl(Leaf):
    """One Redis. The URL must not set options that change timeouts or retries."""

    expected = "redis://HOST:PORT/DATABASE or rediss://HOST:PORT/DATABASE"
    schema = shaped(pattern=rf"^(rediss?://.+{SUBSTITUTED})$")
    stand_in = "redis://placeholder:6379/0"
    kinds = frozenset(("",))

    def read(self, text: str) -> RedisUrl:
        scheme, _, rest = text.partition("://")
        base, _, kind = scheme.partition("+")
        try:
            url = urlsplit(f"{base}://{rest}")
        except ValueError:
            raise self.unexpected(_PASSWORD_HINT, is_secret=True) from None
        if base not in ("redis", "rediss") or kind not in self.kinds:
            raise self.unexpected(_TLS_HINT if kind in _MEANT_TLS else "", is_secret=True)
        hosts = url.netloc.rpartition("@")[2].split(",")
        if not all(map(_is_place, hosts)) or "#" in text:
            # After an unescaped /, ? or # in a password, what is before it is taken for the host.
            raise self.unexpected(_PASSWORD_HINT, is_secret=True)
        if len(hosts) > 1 and not kind:
            raise self.unexpected("redis:// names one host", is_secret=True)
        if hint := self._why_no_path(kind, url.path):
            raise self.unexpected(hint, is_secret=True)
        options = _REDIS_OPTIONS | (_SENTINEL_OPTIONS if kind == "sentinel" else frozenset())
        if {name for name, _ in parse_qsl(url.query, keep_blank_values=True)} - options:
            raise self.unexpected(f"the only options are {', '.join(sorted(options))}", is_secret=True)
        return RedisUrl(SecretStr(text))

    def _why_no_path(self, kind: str, path: str) -> str:
        match kind:
            case "sentinel" if not re.match(r"/[A-Za-z0-9._-]+(/[0-9]{0,4})?\Z", path):
                return "the path is the name that the sentinels have for the master, and the number of the database"
            case "cluster" if path not in ("", "/"):
                return "a cluster has one database: write no number"
            case "" if not re.match(r"(/[0-9]{0,4})?\Z", path):
                return "the path is the number of the database"
        return ""


class _AloneUrl(StreamUrl):
    """One Redis, or the master that sentinels name, that keeps operations alone."""

    expected = "redis://HOST:PORT/DATABASE or redis+sentinel://HOST,HOST/NAME/DATABASE"
    kinds = frozenset(("", "sentinel"))


class FastUrl(StreamUrl):
    """One Redis, the master that sentinels name, or a cluster."""

    expected = "redis://HOST:PORT/DATABASE, redis+sentinel://HOST,HOST/NAME/DATABASE or redis+cluster://HOST,HOST"
    schema = shaped(pattern=rf"^(rediss?(\+sentinel|\+cluster)?://.+{SUBSTITUTED})$")
    kinds = frozenset(("", "sentinel", "cluster"))


def _is_place(text: str) -> bool:
    """A host, and perhaps a port."""
    try:
        HostName(may_have_port=True).read(text)
    except PydanticCustomError:
        return False
    return True
