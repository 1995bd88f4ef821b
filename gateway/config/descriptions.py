"""What the docstrings of settings say, read from the source where somebody asks.

pydantic would read them at each start (`use_attribute_docstrings`), which made it take a quarter longer.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel


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
