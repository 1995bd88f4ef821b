"""What `check --effective` prints: a file that means the same, and shows no secret."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretBytes, SecretStr

from gateway.config import Config, Placeholders, load, parse
from gateway.config.effective import differences, effective
from gateway.config.leaf import PostgresUrl, RedisUrl
from gateway.config.section import Section

EXAMPLE = Path("config/gateway.example.yaml")
SHORT = """
service: shop
upstream: {url: "http://127.0.0.1:9000", response_timeout: 7m}
store: {durable: "sqlite:///tmp/a%20b.db"}
routes:
  - name: pay
    match: {path: /pay}
    key: {header: Idempotency-Key}
    scope: shared
    outcome:
      preset: standard
      when: [{status: [200], where: {/a: ["null", "x: y, {z}", "$${a", "${SET}"]}, is: in_doubt}]
    repeats: {}
    upstream: {keepalive: 1s}
  - name: refund
    match: {path: /refund}
    key: {headers: [A-Key, B-Key]}
    scope: {jwt: {issuer: me, audience: us, keys: {secret: "${TOKEN}"}, algorithms: [HS512], claims: [sub]}}
    outcome: {preset: standard}
"""
ENVIRON = {"SET": "of the environment", "TOKEN": "s3cret-" * 10}


def example() -> Config:
    return load(EXAMPLE, {}, stand_in=Placeholders())


def short() -> Config:
    return parse(SHORT, environ=ENVIRON)


def values_of(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value with its path, and which keys are written; secrets by their type alone."""
    match value:
        case Section():
            yield path, sorted(name for name in value.model_fields_set if getattr(value, name) is not None)
            for name in type(value).model_fields:
                yield from values_of(getattr(value, name), f"{path}.{name}")
        case tuple():
            yield path, len(value)
            for index, item in enumerate(value):
                yield from values_of(item, f"{path}[{index}]")
        case dict():
            yield path, list(value)
            for key, item in value.items():
                yield from values_of(item, f"{path}.{key}")
        case SecretStr() | SecretBytes() | PostgresUrl() | RedisUrl():
            yield path, type(value)
        case _:
            yield path, value


@pytest.mark.parametrize("config", [example(), short()], ids=["example", "short"])
def test_the_text_is_a_file_that_means_the_same(config: Config) -> None:
    text = effective(config)
    again = parse(text)
    assert dict(values_of(again)) == dict(values_of(config))
    assert effective(again) == text
    assert differences(text, effective(again)) == []


def test_no_secret_is_in_the_text() -> None:
    # Whatever the secrets are, the text is the same.
    other = load(EXAMPLE, {}, stand_in=lambda path, name, is_all: Placeholders()(path, f"other-{name}", is_all))
    assert effective(other) == effective(example())
    assert ENVIRON["TOKEN"][:12] not in effective(short())


def test_differences_are_named_by_the_path_of_the_value() -> None:
    """A route keeps its name when its place changes, writing a default is no difference, and what is no configuration
    is refused."""
    old = effective(short())
    found = differences(old, effective(short().model_copy(update={"workers": 4, "routes": short().routes[1:]})))
    assert {"workers: 1 -> 4", "routes: [pay, refund] -> [refund]"} <= set(found)
    assert not [line for line in found if line.startswith("routes[refund]")]
    written = SHORT.replace("repeats: {}", "repeats: {within: 10m}")
    written = written.replace("name: pay", "name: pay\n    operation: pay")
    assert differences(old, effective(parse(written, environ=ENVIRON))) == []
    with pytest.raises(ValueError, match="not the text of a configuration"):
        differences(old, "a: [b")


def test_a_default_is_a_comment_and_an_inherited_value_is_the_one_that_counts() -> None:
    lines = effective(short()).splitlines()
    assert "    repeats: {} #" in lines
    assert "      #within: 10m" in lines
    upstream = lines.index("    upstream:")
    assert "      keepalive: 1s" in lines[upstream:]
    assert "      #response_timeout: 7m" in lines[upstream:]
