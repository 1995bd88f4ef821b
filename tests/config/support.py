"""Short ways to write a configuration file in a test, and many of them as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config import Config, ConfigError, parse

GLOBAL = """\
upstream: {url: http://127.0.0.1:9000}
store: {durable: sqlite:///var/lib/gateway/operations.db}
"""
ROUTE = """\
routes:
  - name: pay
    match: {path: /pay}
    key: {header: Idempotency-Key}
    scope: {api_key: X-Api-Key}
    outcome: {preset: standard}
"""
MINIMAL = GLOBAL + ROUTE
ROUTE_LINE = GLOBAL.count("\n") + ROUTE.count("\n") + 1
"""The line of the first key that is added to the route of MINIMAL."""
ENCRYPTING = f"{GLOBAL}secrets: {{encryption: [{{id: a, key: '{'A' * 43}='}}]}}\n"
ACCEPTING = f"{ENCRYPTING}{ROUTE}    accept: {{}}\n".replace(
    "{api_key: X-Api-Key}", "{header: X-T, from: [10.0.0.0/8]}"
)
INBOX = f"{ENCRYPTING}{ROUTE}".replace("    key: {header: Idempotency-Key}\n", "").replace(
    "{api_key: X-Api-Key}", "shared"
)
"""What the route of an inbox has beside it."""


def written(*keys: str, base: str = MINIMAL) -> str:
    """The base with these keys of its route or, behind a ^, of the file. A key that is there already is replaced."""
    lines = base.splitlines()
    for key in keys:
        line = key[1:] if key.startswith("^") else f"    {key}"
        lines = [each for each in lines if not each.startswith(line.partition(":")[0] + ":")]
        lines.insert(0 if key.startswith("^") else len(lines), line)
    return "\n".join(lines) + "\n"


def rows(table: str, words: Mapping[str, str]) -> list[tuple[str, str]]:
    """A table of `keys => what is said`, with + between keys. An indented line goes on with the row before it, and
    <WORD> is a text that rows share. Rows of one shape follow upon it, in which % is what each of them has: first in
    the keys, then in what is said."""
    for word, text in words.items():
        table = table.replace(f"<{word}>", text)
    found, shape = [], ""
    for row in re.sub(r"\n +", " ", table.strip("\n")).split("\n"):
        whole = row
        if row.startswith("| "):
            cell, _, rest = row.removeprefix("| ").partition(" |")
            keys, _, said = shape.partition("=>")
            whole = f"{keys.replace('%', cell)}=>{said.replace('%', rest.strip())}"
        elif "%" in row:
            shape = row
            continue
        keys, _, said = whole.partition("=>")
        found.append((keys.strip(), said.strip()))
    return found


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """The sections that a value of this kind is or has."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in get_args(kind):
        yield from models_in(argument)


def settings_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of the file, as `routes.key.header`, from a section on."""
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}".lstrip(".")
        yield here, field
        for section in models_in(field.annotation):
            yield from settings_of(section, here)


def is_said(text: str, said: str) -> bool:
    """Whether the text is what a row says, in which … stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, said.split("…"))), text) is not None


def report(text: str | bytes, environ: Mapping[str, str] | None = None) -> list[str]:
    """The mistakes of a file that has some, as they are printed, without the name of the file."""
    with pytest.raises(ConfigError) as caught:
        parse(text, file="f", environ=environ)
    return [line.removeprefix("f:") for line in str(caught.value).splitlines()]


def mistakes(text: str) -> list[str]:
    return [line.partition(": ")[2] for line in report(text)]


def read(text: str, environ: Mapping[str, str] | None = None) -> Config:
    return parse(text, file="f", environ=environ)
