"""The published example and schema agree with the program."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.config import Config, ConfigError, Placeholders, load, notices, parse
from gateway.config.effective import schema_text
from gateway.config.leaf import PostgresUrl
from tests.config.support import settings_of

PUBLISHED = Path(__file__).parents[2] / "config"
EXAMPLE = (PUBLISHED / "gateway.example.yaml").read_text()
COMPLETE = re.sub(r"(?m)^( *)#(?=[^ \n])", r"\1", re.sub(r"(?m)^  #  ", "    ", EXAMPLE)).replace(
    "http://127.0.0.1", "https://127.0.0.1"
)
"""The example with its alternatives, which need an upstream behind TLS."""


def test_example() -> None:
    """The example is a configuration as it stands; Stripe's libraries send forms, of which `only` and `ignore` say
    nothing, and name an account in a header."""
    config = load(PUBLISHED / "gateway.example.yaml", {"DATABASE_PASSWORD": "swordfish"}, stand_in=Placeholders())
    assert isinstance(config.store.durable, PostgresUrl)
    assert config.store.durable.dsn.get_secret_value() == "postgresql://gateway:swordfish@db/gateway"
    assert [route.name for route in config.routes][:2] == ["create_payment", "capture_charge"]
    assert [notice.path for notice in notices(config)] == ["routes[7].scope"]
    stripe = [route.fingerprint for route in config.routes if route.errors == "stripe"]
    assert [each for each in stripe if each.only or each.ignore] == []
    assert ["Stripe-Account" in each.headers for each in stripe] == [True] * len(stripe)


def test_example_with_alternatives() -> None:
    """What the example leaves out as an alternative is right, too. Regions exclude certificates and order."""
    unordered = re.sub(r"(?m)^    order:.*\n(?:      .*\n)*", "", COMPLETE)
    config = parse(unordered.replace("{client_certificate: san}", "shared"), stand_in=Placeholders())
    assert config.regions is not None
    assert [key.id for key in config.secrets.fingerprint_keys] == ["2025-06", "2024-06"]
    assert config.listen.tls is not None
    assert config.upstream.tls is not None


# Mappings whose keys are the user's own: fields to send, places in a body.
FREE = {"defaults", "headers", "where"}


def keys_of_example(node: yaml.Node | None = None, path: str = "") -> Iterator[tuple[str, int, int]]:
    """Every key of the complete example, as `routes.key.header`, with its line and column (from 0)."""
    match node or yaml.compose(COMPLETE, yaml.BaseLoader):
        case yaml.MappingNode(value=pairs):
            for key, value in pairs:
                here = f"{path}.{key.value}".removeprefix(".")
                yield here, key.start_mark.line, key.start_mark.column
                if not (key.value in FREE and isinstance(value, yaml.MappingNode)):
                    yield from keys_of_example(value, here)
        case yaml.SequenceNode(value=items):
            for item in items:
                yield from keys_of_example(item, path)


def test_example_is_complete() -> None:
    # What a route may change of the upstream and of the delivery is written once, at the top.
    known = {key for key, _ in settings_of(Config) if not key.startswith(("routes.upstream.", "routes.delivery."))}
    # So are the forms of a scope, and an authorising service.
    forms = {"routes.scope.compose.": "routes.scope.", "routes.authorize.forward_auth.": "routes.scope.forward_auth."}
    forms["admin.sign_in.jwt.keys."] = "routes.scope.jwt.keys."
    for place, elsewhere in forms.items():
        known = {elsewhere + key.removeprefix(place) if key.startswith(place) else key for key in known}
    assert known - {path for path, _, _ in keys_of_example()} == set()


def test_every_misspelt_key_is_recognised() -> None:
    """Each key of the example, misspelt with all of its depth, is reported in its place with the right spelling."""
    depths: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for path, line, column in keys_of_example():
        depths[path.count(".")].append((line, column, path.rpartition(".")[2]))
    assert sum(map(len, depths.values())) > 100
    for level in depths.values():
        lines = COMPLETE.splitlines(keepends=True)
        expected = []
        # From the right, so that what is still to be changed in a line stays where it is.
        for line, column, key in sorted(level, reverse=True):
            wrong = key[0] + key[2:] if len(key) > 3 else key + "s"
            if wrong != "headers":
                lines[line] = lines[line][:column] + wrong + lines[line][column + len(key) :]
                expected.append((line + 1, wrong, f"did you mean {key}?"))
        with pytest.raises(ConfigError) as caught:
            parse("".join(lines), stand_in=Placeholders())
        found = [
            (mistake.line, mistake.path.rpartition(".")[2], mistake.hint)
            for mistake in caught.value.mistakes
            if mistake.message.startswith("unknown key ")
        ]
        assert Counter(expected) <= Counter(found)


def test_schema_is_published() -> None:
    assert (PUBLISHED / "gateway.schema.json").read_text() == schema_text()


def test_the_schema_describes_every_key_and_allows_no_other() -> None:
    schema = json.loads(schema_text())
    assert {each["additionalProperties"] for each in (schema, *schema["$defs"].values()) if "properties" in each} == {
        False
    }
    wait = schema["$defs"]["InFlight"]["properties"]["wait"]
    assert (wait["default"], bool(re.search(wait["pattern"], "300ms")), re.search(wait["pattern"], "5")) == (
        "5s",
        True,
        None,
    )
    undescribed = [
        f"{name}.{key}"
        for name, definition in schema["$defs"].items()
        for key, value in definition.get("properties", {}).items()
        if "description" not in value and "$ref" not in value
    ]
    assert undescribed == []
