"""The request to explain: curl's words, or a file, as the bytes that a client sends."""

from __future__ import annotations

import argparse
import re
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import Final, NoReturn

from gateway.core.identity.peer import Hop, hop_from, read_certificate

_BYTES_MAX: Final = 256 * 1024 * 1024
_URL: Final = re.compile(r"(?:(https?)://)?([^/?#]*)([^#]*)", re.IGNORECASE)
_HEAD: Final = re.compile(rb"(.*?)(?:\r?\n\r?\n|\Z)", re.DOTALL)
_FRAMING: Final = re.compile(rb"^(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE | re.MULTILINE)


class RequestWrong(ValueError):
    """There is no request in this. The text says what to write."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is on the wire, which may be as wrong as that. `is_secure`: it comes over TLS."""

    wire: bytes = field(repr=False)
    is_secure: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RequestWrong(f"behind --: {message}; these words of curl are known: {self._known()}")

    def _known(self) -> str:
        return ", ".join(action.option_strings[-1] for action in self._actions if action.option_strings)


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("url")
    parser.add_argument("-X", "--request")
    parser.add_argument("-H", "--header", action="append", default=[])
    parser.add_argument("-u", "--user")
    # Joined by & in the order in which they come.
    for name in ("--data", "--data-binary", "--data-raw", "--json"):
        spelt = ("-d", name) if name == "--data" else (name,)
        parser.add_argument(*spelt, dest="data", action=_Data, default=[])
    for flags in ("-i --include", "-s --silent", "-S --show-error", "-v --verbose", "-k --insecure"):
        parser.add_argument(*flags.split(), action="store_true")
    return parser


class _Data(argparse.Action):
    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        namespace.data = [*namespace.data, (option, values)]


def from_words(words: Sequence[str]) -> Request:
    """What curl sends, but that a path stays as it is written. The command may stand before its words. Raises
    `RequestWrong`."""
    given = _parser().parse_args(list(words[1:] if words[:1] == ["curl"] else words))
    scheme, authority, target = _URL.match(given.url).groups()  # type: ignore[union-attr]
    if not authority or "@" in authority:
        raise RequestWrong("expected a URL such as http://host/path; credentials are given by -H or -u")
    bodies = [_content(option, text) for option, text in given.data]
    is_json = any(option == "--json" for option, _ in given.data)
    headers = {"Host": authority, "Accept": "application/json" if is_json else "*/*"}
    if given.user is not None:
        headers["Authorization"] = f"Basic {b64encode(given.user.encode()).decode()}"
    body = (b"" if is_json else b"&").join(bodies)
    if bodies:
        headers["Content-Type"] = "application/json" if is_json else "application/x-www-form-urlencoded"
        headers["Content-Length"] = str(len(body))
    lines = []
    for text in given.header:
        name, separator, value = text.partition(":")
        if not separator and text.endswith(";"):
            name, separator = text[:-1], ":"
        if not name.strip() or not separator or "\n" in text or "\r" in text:
            raise RequestWrong("behind --: a header is written 'Name: value'")
        for own in [own for own in headers if own.lower() == name.strip().lower()]:
            del headers[own]
        if value or text.endswith(";"):
            lines.append(f"{name}: {value.strip()}")
    method = given.request or ("POST" if bodies else "GET")
    target = target if target.startswith("/") else f"/{target}"
    head = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), *lines, "", ""]
    try:
        wire = "\r\n".join(head).encode("latin-1") + body
    except UnicodeEncodeError:
        raise RequestWrong("behind --: a URL and headers are ASCII; escape other characters of the URL") from None
    return Request(wire, is_secure=(scheme or "").lower() == "https")


def from_file(path: Path) -> Request:
    """A request line, headers, an empty line, and the body to its last byte. Raises `RequestWrong`.

    The lines of the head may end as in any text file. What is not written is added: the version, and `Host` of a URL in
    the request line; the length of a body.
    """
    return from_text(_read(path), str(path))


def from_text(content: bytes, name: str) -> Request:
    """As `from_file`, for text; `name` is its name in mistakes."""
    found = _HEAD.match(content)
    head = b"" if found is None else found[1]
    body = b"" if found is None else content[found.end() :]
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    first = lines[0].split(b" ")
    if len(first) < 2 or not all(first[:2]):
        raise RequestWrong(f"{name}: expected a request line such as POST /v1/payments HTTP/1.1")
    is_secure = False
    if len(first) == 2:
        scheme, authority, target = _URL.match(first[1].decode("latin-1")).groups()  # type: ignore[union-attr]
        is_secure = (scheme or "").lower() == "https"
        if scheme is not None:
            first[1] = (target if target.startswith("/") else f"/{target}").encode("latin-1")
            if not any(line.lower().startswith(b"host:") for line in lines):
                lines.insert(1, b"Host: " + authority.encode("latin-1"))
        lines[0] = b" ".join([*first, b"HTTP/1.1"])
    if body and not _FRAMING.search(b"\n".join(lines[1:])):
        lines.append(b"Content-Length: %d" % len(body))
    return Request(b"\r\n".join([*lines, b"", b""]) + body, is_secure)


def hop_of(request: Request, peer: str, certificate: Path | None) -> Hop:
    """Where the request comes from. Raises `RequestWrong`."""
    hop = hop_from(peer, is_secure=request.is_secure or certificate is not None)
    if certificate is None:
        return hop
    try:
        read = read_certificate(PEM_cert_to_DER_cert(_read(certificate).decode("latin-1")))
    except ValueError:
        read = None
    if read is None:
        raise RequestWrong(f"{certificate}: expected one certificate as PEM")
    return replace(hop, certificate=read)


def _content(option: str, text: str) -> bytes:
    """The content of a word that gives data; only `--data-raw` takes `@` to the letter."""
    if option == "--data-raw" or not text.startswith("@"):
        return text.encode()
    content = _read(Path(text[1:]))
    # As curl reads it.
    return content.translate(None, b"\r\n\0") if option in ("-d", "--data") else content


def _read(path: Path) -> bytes:
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(_BYTES_MAX + 1)
        else:
            with path.open("rb") as stream:
                content = stream.read(_BYTES_MAX + 1)
    except OSError as error:
        raise RequestWrong(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _BYTES_MAX:
        raise RequestWrong(f"{path} is longer than {_BYTES_MAX // 1024 // 1024} MiB")
    return content
