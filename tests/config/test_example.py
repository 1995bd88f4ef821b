"""The published example and schema agree with the program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway.config import Config, Placeholders, load, notices, parse
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


def keys_of(node: Any, path: str = "") -> Iterator[str]:
    """Every key in it, as `routes.key.header`."""
    for key, value in node.items() if isinstance(node, dict) else ():
        here = f"{path}.{key}".removeprefix(".")
        yield here
        if not (key in FREE and isinstance(value, dict)):
            yield from keys_of(value, here)
    for item in node if isinstance(node, list) else ():
        yield from keys_of(item, path)


def test_example_is_complete() -> None:
    # What a route may change of the upstream and of the delivery is written once, at the top.
    known = {key for key, _ in settings_of(Config) if not key.startswith(("routes.upstream.", "routes.delivery."))}
    # So are the forms of a scope, and an authorising service.
    forms = {"routes.scope.compose.": "routes.scope.", "routes.authorize.forward_auth.": "routes.scope.forward_auth."}
    forms["admin.sign_in.jwt.keys."] = "routes.scope.jwt.keys."
    for place, elsewhere in forms.items():
        known = {elsewhere + key.removeprefix(place) if key.startswith(place) else key for key in known}
    assert known - set(keys_of(yaml.safe_load(COMPLETE))) == set()


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
