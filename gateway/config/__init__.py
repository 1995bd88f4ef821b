"""The configuration file, as values.

load() reads a file and returns a Config, or raises every mistake of the file at once. The rest of the program sees
values only: no YAML, no environment, no positions.

*The file as values.* `models` is the whole file and what other systems receive, `route` a protected route, whose its
keys are and who says so, `delivery` the service, its probes, and what is accepted now and delivered later. `section` is
what mappings have in common, `leaf` reads single values.

*From text to mistakes.* `document` reads YAML and knows all positions. pydantic finds mistakes within a section,
`checks` those between sections, and remarks on what is allowed but questionable.

*For people and editors.* `effective` reads in the models what may be written where and what it is for: so it turns
pydantic's errors into mistakes, writes the configuration in force as text, finds what differs between two, and writes
the JSON Schema. `openapi` drafts a file from the description of a service; only the command that does loads it.

*For requests.* A section is what runs. Where the core has a type of its own, the section makes that value.

Entered by load, parse. Imports core.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from gateway.config.checks import disagreements, notices
from gateway.config.document import FILE_BYTES_MAX, ConfigError, Document, Mistake, StandIn, read_document
from gateway.config.effective import Placeholders, changes, digest_of, empty_values, explain
from gateway.config.models import Config

__all__ = [
    "Config",
    "ConfigError",
    "Document",
    "Mistake",
    "Placeholders",
    "changes",
    "digest_of",
    "load",
    "load_with_places",
    "notices",
    "parse",
    "state_dir_of",
]


def load(path: Path, environ: Mapping[str, str], *, stand_in: StandIn | None = None) -> Config:
    """The configuration in a file. Raises ConfigError with every mistake; reads the files that `${file:...}` names.
    `stand_in` returns values for variables that are not set and files that cannot be read; without it they are
    mistakes."""
    return load_with_places(path, environ, stand_in=stand_in)[0]


def load_with_places(
    path: Path, environ: Mapping[str, str], *, stand_in: StandIn | None = None
) -> tuple[Config, Document]:
    """As `load`, with the document, which knows where everything is written."""
    try:
        with path.open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError([Mistake(str(path), None, None, "", f"cannot be read: {error.strerror}")]) from None
    document = read_document(text, str(path), environ, stand_in)
    return _valid(document), document


def state_dir_of(path: Path) -> Path:
    """The `state_dir` that a file names, also if the file is wrong; else the default."""
    default = Path("/var/lib/idempotency-gateway")
    with suppress(OSError, ConfigError):
        tree = read_document(path.read_bytes()[:FILE_BYTES_MAX], str(path), {}, Placeholders()).tree
        if isinstance(tree, dict) and isinstance(named := tree.get("state_dir"), str):
            return Path(named)
    return default


def parse(
    text: str | bytes,
    *,
    file: str = "gateway.yaml",
    environ: Mapping[str, str] | None = None,
    stand_in: StandIn | None = None,
) -> Config:
    """As `load`, for text; `file` is the name in mistakes."""
    return _valid(read_document(text, file, environ or {}, stand_in))


def _valid(document: Document) -> Config:
    mistakes = list(document.mistakes)
    config = None
    if isinstance(document.tree, dict):
        try:
            config = Config.model_validate(document.tree)
        except ValidationError as error:
            mistakes.extend(explain(error, document))
        mistakes.extend(empty_values(document))
        mistakes.extend(disagreements(document, config))
    if mistakes or config is None:
        raise ConfigError(mistakes)
    return config
