"""The JSON Schema of the configuration file, for editors, generated from the models.

`python -m gateway.config.schema` prints it.
"""

from __future__ import annotations

import json
import sys

from gateway.config.models import Config


def schema_text() -> str:
    """The schema as it is published."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
