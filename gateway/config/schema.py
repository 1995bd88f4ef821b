"""What the docstrings of settings say, and the JSON Schema of the file, for editors. Both are made of the models.

`python -m gateway.config.schema` prints the schema. The docstrings are read from the source where somebody asks:
pydantic would read them at each start (`use_attribute_docstrings`), which made it take a quarter longer.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel

from gateway.config.models import Config
from gateway.config.section import Section


@cache
def descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """The description of each setting that has one, by its key in the file. Of a program without its source only those
    that are no docstrings."""
    below: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            below.update(_docstrings(each))
    found = {field.alias or name: field.description or below.get(name) for name, field in model.model_fields.items()}
    return {key: text for key, text in found.items() if text}


def _docstrings(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(dedent(inspect.getsource(model)))
    except OSError:
        return
    for one, other in pairwise(statement for definition in tree.body for statement in ast.iter_child_nodes(definition)):
        match one, other:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def schema_text() -> str:
    """The schema as it is published."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
    for model in _sections(Section):
        properties = (schema if model is Config else schema["$defs"].get(model.__name__, {})).get("properties", {})
        for key, text in descriptions(model).items():
            if key in properties:
                properties[key] = dict(sorted({**properties[key], "description": text}.items()))
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _sections(base: type[Section]) -> Iterator[type[Section]]:
    for each in base.__subclasses__():
        yield each
        yield from _sections(each)


if __name__ == "__main__":
    sys.stdout.write(schema_text())
