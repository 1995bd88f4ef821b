"""What was asked for: the configuration file, as values.

load() reads a file and gives a Config, or every mistake of the file at once. The rest of the program sees values only:
no YAML, no environment, no positions.

*The file as values.* `model` is the whole of it and `route` a protected route, with its `identity` (key and scope), its
`recovery` and its `upstream`. `section` is what mappings have in common, `leaf` what single values have: `unit` reads
durations, sizes, counts and names, `address` hosts, networks, files and URLs, `message` the parts of HTTP messages.

*From text to mistakes.* `document` reads YAML and knows where everything stands. `explanation` turns what pydantic says
into mistakes, `agreement` finds those that lie between keys, `report` prints them. `notice` remarks on what is allowed
and still worth a second look. `placeholder` stands for secrets that are not there.

*For editors.* `schema` writes the JSON Schema of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gateway.config.address import Address, PostgresUrl, RedisUrl, SqliteUrl, UpstreamUrl
from gateway.config.agreement import disagreements
from gateway.config.document import FILE_BYTES_MAX, StandIn, read_document
from gateway.config.explanation import empty_values, explain
from gateway.config.identity import (
    ApiKeyScope,
    BodyKey,
    ComposedKey,
    ComposedScope,
    HeaderKey,
    HeaderPart,
    HeaderScope,
    HeadersKey,
    Key,
    Scope,
)
from gateway.config.model import WORKERS_MAX, Admin, Config, Secrets, ServerTls
from gateway.config.notice import notices
from gateway.config.placeholder import DIRECTORY as PLACEHOLDER_DIRECTORY
from gateway.config.placeholder import Placeholders
from gateway.config.recovery import AnswerRule, ProbeRecovery
from gateway.config.report import ConfigError, Mistake
from gateway.config.route import Fingerprint, Route
from gateway.config.upstream import TCP_USER_TIMEOUT_SECONDS, RouteUpstream, Upstream, UpstreamTls

__all__ = [
    "PLACEHOLDER_DIRECTORY",
    "TCP_USER_TIMEOUT_SECONDS",
    "WORKERS_MAX",
    "Address",
    "Admin",
    "AnswerRule",
    "ApiKeyScope",
    "BodyKey",
    "ComposedKey",
    "ComposedScope",
    "Config",
    "ConfigError",
    "Fingerprint",
    "HeaderKey",
    "HeaderPart",
    "HeaderScope",
    "HeadersKey",
    "Key",
    "Mistake",
    "Placeholders",
    "PostgresUrl",
    "ProbeRecovery",
    "RedisUrl",
    "Route",
    "RouteUpstream",
    "Scope",
    "Secrets",
    "ServerTls",
    "SqliteUrl",
    "Upstream",
    "UpstreamTls",
    "UpstreamUrl",
    "load",
    "notices",
    "parse",
]


def load(path: Path, environ: Mapping[str, str], *, stand_in: StandIn | None = None) -> Config:
    """The configuration in a file. Raises ConfigError with every mistake; reads the files that `${file:...}` names.

    `stand_in` gives what stands for variables that are not set and files that cannot be read; without it they are
    mistakes.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError([Mistake(str(path), None, None, "", f"cannot be read: {error.strerror}")]) from None
    return parse(text, file=str(path), environ=environ, stand_in=stand_in)


def parse(
    text: str | bytes,
    *,
    file: str = "gateway.yaml",
    environ: Mapping[str, str] | None = None,
    stand_in: StandIn | None = None,
) -> Config:
    """The same for text; `file` is the name that mistakes show."""
    document = read_document(text, file, environ or {}, stand_in)
    mistakes = list(document.mistakes)
    config = None
    if isinstance(document.tree, dict):
        try:
            config = Config.model_validate(document.tree)
        except ValidationError as error:
            mistakes.extend(explain(error, document))
        mistakes.extend(empty_values(document))
        mistakes.extend(disagreements(document))
    if mistakes or config is None:
        raise ConfigError(mistakes)
    return config
