"""The JSON Schema of the configuration file, for editors, generated from the models.

`python -m gateway.config.schema` prints it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from gateway.config.descriptions import descriptions
from gateway.config.models import Config
from gateway.config.section import Section


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
