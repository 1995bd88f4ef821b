"""From the OpenAPI description of a service to a configuration that protects its writes.

Owns what a description says about routes, keys and callers, and nothing of what it leaves open: that stays a value that
begins with DECIDE, which no setting takes, so that `check` names each with its choices. A description shows no effects,
so what a status means is always left open. Invariant: the text is a configuration but for its decisions, because it is
read as one before it is handed out; a route that the gateway refuses is a comment that says why.

Knows OpenAPI 3.0 and 3.1, with references within the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import yaml

from gateway import CommandWrong
from gateway.config import ConfigError, parse
from gateway.config.checks import OWN_SEMANTICS
from gateway.config.document import DECISION, NOTHING, Mistake
from gateway.config.models import ROUTES_MAX
from gateway.core.routing import PathPattern, PatternError

DESCRIPTION_BYTES_MAX: Final = 16 * 1024 * 1024
_WRITES: Final = ("post", "put", "patch", "delete")
_DEPTH_MAX: Final = 200
_REFERENCES_MAX: Final = 16
_KEY_HEADER: Final = re.compile(r"idempoten|dedup", re.IGNORECASE)
_WORD: Final = re.compile(r"[A-Za-z/][A-Za-z0-9._/-]*\Z")
_MISTAKE_OF_ROUTE: Final = re.compile(r"routes\[([0-9]+)\]")

_CERTIFICATE: Final = "{client_certificate: san}"
_OUTGOING: Final = "the service sends it, and the gateway is for what it gets"


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration with `routes` protected routes, of which `decisions` values are left open."""

    text: str
    routes: int
    decisions: int


@dataclass(slots=True)
class _Route:
    name: str
    method: str
    pattern: PathPattern
    settings: list[str]
    why_off: str = ""
    """Why it is only a comment; empty where it is not."""


def draft(description: bytes, file: str, upstream: str | None = None) -> Draft:
    """The configuration for a description. Raises `CommandWrong` for what is none, with one line."""
    return _Description(_read(description, file), file, upstream).draft()


# -- the description --------------------------------------------------------------------------------------------------


def _read(description: bytes, file: str) -> dict[str, Any]:
    if len(description) > DESCRIPTION_BYTES_MAX:
        raise CommandWrong(f"{file}: a description has at most {DESCRIPTION_BYTES_MAX // 1024**2} MiB")
    try:
        tree = _tree(description.decode("utf-8-sig"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise CommandWrong(f"{file}{place}: this is neither JSON nor YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise CommandWrong(f"{file}: this is neither JSON nor YAML in UTF-8") from None
    if "swagger" in _mapping(tree):
        raise CommandWrong(f"{file}: this is Swagger {_quoted(tree['swagger'])}; convert it to OpenAPI 3.0 or 3.1")
    if not str(_mapping(tree).get("openapi", "")).startswith(("3.0", "3.1")):
        raise CommandWrong(f"{file}: this is no description in OpenAPI 3.0 or 3.1, which begins with `openapi: 3.1.0`")
    return _mapping(tree)


def _tree(text: str) -> Any:
    """Without tags, merges and guesses at types, so that no description grows or makes anything."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # Braces are YAML, too, which says where it breaks.
    loader, depth = getattr(yaml, "CBaseLoader", yaml.BaseLoader), 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_MAX:  # The stack of the quick loader is not Python's, and its end is the program's.
            raise ValueError(f"values are nested deeper than {_DEPTH_MAX}")
    return yaml.load(text, loader)  # noqa: S506 - it makes text only


def _mapping(value: Any) -> dict[str, Any]:
    """A mapping as it is; anything else has nothing to say."""
    if not isinstance(value, dict):
        return {}
    if "<<" in value:
        raise CommandWrong("the description merges mappings with <<, which is not OpenAPI: write it as JSON")
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class _Description:
    """A description that follows its references, with its `routes`, in the order in which they have to be matched, and
    `remarks` on what cannot be one."""

    def __init__(self, tree: dict[str, Any], file: str, upstream: str | None) -> None:
        self._tree, self._file, self._upstream = tree, file, upstream
        self._schemes = _mapping(_mapping(tree.get("components")).get("securitySchemes"))
        self.routes: list[_Route] = []
        self.remarks: list[str] = []
        for path, item in _mapping(tree.get("paths")).items():
            if path.startswith("/"):
                self._add_item(path, item)
        self.remarks += [f"webhook {_quoted(name)}: {_OUTGOING}" for name in _mapping(tree.get("webhooks"))]
        for route in [] if self.active else self.routes:
            route.why_off = ""
        for route in self.active[ROUTES_MAX:]:
            route.why_off = f"there are at most {ROUTES_MAX} routes"

    @property
    def active(self) -> list[_Route]:
        return [route for route in self.routes if not route.why_off]

    def draft(self) -> Draft:
        """The draft without the routes that the gateway itself refuses."""
        while active := self.active:
            text = "\n".join(self._lines()) + "\n"
            try:
                parse(text)
                mistakes: tuple[Mistake, ...] = ()
            except ConfigError as error:
                mistakes = error.mistakes
            refused = [mistake for mistake in mistakes if f"found '{DECISION}" not in mistake.message]
            if not refused:
                return Draft(text, len(active), len(mistakes))
            for mistake in refused:
                what = "; ".join(filter(None, (mistake.message, mistake.hint)))
                number = _MISTAKE_OF_ROUTE.match(mistake.path)
                if number is None:
                    source = "--upstream" if mistake.path.startswith("upstream") else f"{self._file}: its configuration"
                    raise CommandWrong(f"{source}: {what}")
                active[int(number[1])].why_off = what
        reasons = [*(f"{route.name}: {route.why_off}" for route in self.routes), *self.remarks, "there is none"]
        raise CommandWrong(f"{self._file}: no POST, PUT, PATCH or DELETE can be a route; {reasons[0]}")

    # -- routes -------------------------------------------------------------------------------------------------------

    def _add_item(self, path: str, given: Any) -> None:
        target = self.resolved(given)
        if target is None:
            self.remarks.append(f"{_quoted(path)}: its reference leads to nothing in this file")
            return
        item = {**target, **_mapping(given)}
        for method in (name for name in _WRITES if name in item):
            operation = _mapping(item[method])
            label = f"{method.upper()} {_quoted(path)}"
            try:
                pattern = _pattern(self.base(operation, item) + path)
            except PatternError as error:
                self.remarks.append(f"{label}: {error}")
                continue
            key = self.key(operation, item)
            settings = [
                f"key: {key or _open('where the key is; no header is documented')}",
                f"scope: {self.scope(operation)}",
                f"outcome: {{preset: {_open('which statuses mean that nothing was done')}}}",
            ]
            if "202" in _mapping(operation.get("responses")):
                settings.append(f"accept: {_open('202 is documented; {} or leave this out')}")
            name = self._name(str(operation.get("operationId") or f"{method}{pattern.text}"))
            why_off = "" if key else OWN_SEMANTICS.get(method.upper(), "")
            self._add(_Route(name, method.upper(), pattern, settings, why_off))
            calls = _mapping(operation.get("callbacks"))
            self.remarks += [f"callback {_quoted(name)} of {label}: {_OUTGOING}" for name in calls]

    def _name(self, said: str) -> str:
        """A name of a route that no other one has."""
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", said).strip("_.-")[:64] or "route"
        names = (name, *(f"{name[:58]}_{number}" for number in range(2, len(self.routes) + 3)))
        taken = {route.name for route in self.routes}
        return next(each for each in names if each not in taken)

    def _add(self, route: _Route) -> None:
        """Before all that would take its requests: in a description the order of paths means nothing."""
        for place, other in enumerate(self.routes):
            if other.method == route.method and other.pattern.covers(route.pattern):
                if route.pattern.covers(other.pattern):
                    same = f"{other.name} takes the same requests"
                    self.remarks.append(f"{route.method} {_quoted(route.pattern.text)}: {same}")
                else:
                    self.routes.insert(place, route)
                return
        self.routes.append(route)

    # -- what it says -------------------------------------------------------------------------------------------------

    def resolved(self, value: Any) -> dict[str, Any] | None:
        """What a reference leads to; None where that is not in this file."""
        for _ in range(_REFERENCES_MAX):
            reference = _mapping(value).get("$ref")
            if reference is None:
                return _mapping(value)
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return None
            value = self._tree
            for part in unquote(reference[2:]).split("/"):
                value = _mapping(value).get(part.replace("~1", "/").replace("~0", "~"))
            if value is None:
                return None
        return None

    def base(self, *holders: Mapping[str, Any]) -> str:
        """The path of the first server, of the innermost holder that names any."""
        named = (_list(holder.get("servers")) for holder in (*holders, self._tree))
        server = _mapping(next((servers[0] for servers in named if servers), None))
        url = str(server.get("url", ""))
        for name, variable in _mapping(server.get("variables")).items():
            url = url.replace(f"{{{name}}}", str(_mapping(variable).get("default", f"{{{name}}}")))
        return re.split("[?#]", re.sub(r"\A(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#]*", "", url))[0].rstrip("/")

    def key(self, operation: Mapping[str, Any], item: Mapping[str, Any]) -> str | None:
        """The setting for the documented header, or else the property of a JSON body, that is named like a key's."""
        listed = [*_list(operation.get("parameters")), *_list(item.get("parameters"))]
        for parameter in (self.resolved(each) or {} for each in listed):
            name = str(parameter.get("name", ""))
            if str(parameter.get("in")) == "header" and _KEY_HEADER.search(name):
                required = str(parameter.get("required", "")).lower() == "true"
                return f"{{header: {_value(name)}, required: {str(required).lower()}}}"
        content = _mapping((self.resolved(operation.get("requestBody")) or {}).get("content"))
        schema = self.resolved(_mapping(content.get("application/json")).get("schema")) or {}
        for name in filter(_KEY_HEADER.search, _mapping(schema.get("properties"))):
            pointer = "/" + name.replace("~", "~0").replace("/", "~1")
            return f"{{body: {_value(pointer)}, required: {str(name in _list(schema.get('required'))).lower()}}}"
        return None

    def scope(self, operation: Mapping[str, Any]) -> str:
        """The setting for who signs in, where all documented ways are the same caller's."""
        ways = _list(operation.get("security", self._tree.get("security")))
        if not ways or not all(map(_mapping, ways)):
            return _open("whose key it is; no security is required")
        scopes = {self._scope_of(_mapping(way)) for way in ways}
        return scopes.pop() if len(scopes) == 1 else _open("whose key it is; there are several ways in")

    def _scope_of(self, way: Mapping[str, Any]) -> str:
        """The setting for schemes that are used together."""
        parts = list(dict.fromkeys(self._part(self.resolved(self._schemes.get(name))) for name in way))
        unknown = [part for part in parts if not part.startswith("{")]
        if len(parts) == 1 or unknown:
            return (unknown or parts)[0]
        return f"{{compose: [{', '.join(parts)}]}}"

    def _part(self, scheme: Mapping[str, Any] | None) -> str:
        said = {name: str(value).lower() for name, value in (scheme or {}).items()}
        match said.get("type"), said.get("in"), said.get("scheme"):
            case "apikey", "header", _:
                return f"{{api_key: {_value(str((scheme or {}).get('name', '')))}}}"
            case "apikey", _, _:
                return _open("whose key it is; the API key is in no header")
            case "http", _, "basic" | "bearer" if "jwt" not in said.get("bearerFormat", ""):
                return "{api_key: Authorization}"
            case ("http", _, "bearer") | ("oauth2" | "openidconnect", _, _):
                return _open("whose key it is; a token changes, use claims")
            case "mutualtls", _, _:
                return _CERTIFICATE
            case _:
                return _open("whose key it is; the scheme is not described")

    # -- the text -----------------------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[str]:
        title, upstream = _quoted(_mapping(self._tree.get("info")).get("title", "")), self._upstream
        yield f"# The writes of {title}, from {_quoted(self._file)}. A value that begins with DECIDE is left open:"
        yield (
            "# `idempotency-gateway check` names each with its choices; docs/reference/configuration.md explains them."
        )
        yield "# A route behind a # is left out, for the reason above it."
        yield f"upstream: {{url: {_open('where the service is') if upstream is None else _value(upstream)}}}"
        yield 'store: {durable: "sqlite:///var/lib/idempotency-gateway/operations.db"} # for one host; or Postgres'
        yield '#secrets: {fingerprint_key: "${FINGERPRINT_KEY}"} # the preset payments needs it'
        if any(_CERTIFICATE in setting for route in self.active for setting in route.settings):
            files = ", ".join(f"{name}: {_open('the path of a PEM file')}" for name in ("cert", "key", "client_ca"))
            yield f"listen: {{address: 127.0.0.1:8080, tls: {{{files}}}}}"
        yield "routes:"
        for route in self.routes:
            if route.why_off:
                yield f"  # Left out: {_plain(route.why_off)}."
            hidden = "#" if route.why_off else ""
            yield f"{hidden}  - name: {_value(route.name)}"
            yield f"{hidden}    match: {{methods: [{route.method}], path: {_value(route.pattern.text)}}}"
            yield from (f"{hidden}    {setting}" for setting in route.settings)
        yield from (f"# {_plain(remark)}." for remark in self.remarks)


def _pattern(path: str) -> PathPattern:
    if not path.isprintable():
        raise PatternError("a path has no control characters")
    # The name of a variable says nothing about what matches.
    return PathPattern.parse(re.sub(r"\{[\w.$-]+\}", lambda name: re.sub(r"[^A-Za-z0-9_{}]", "_", name[0]), path))


def _value(text: str) -> str:
    """A value as YAML, to the letter: what looks like a reference to a variable is none."""
    if _WORD.match(text) and text not in NOTHING:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable()).replace("${", "$${")


def _open(what: str) -> str:
    """A value that is left open. A mistake shows values of up to 60 characters, and so its reader what is to decide."""
    return _value(DECISION + what)


def _quoted(value: object) -> str:
    """What the description says, on one line."""
    return json.dumps(str(value)[:120])


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
