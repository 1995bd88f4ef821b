"""YAML that is broken, hostile or easily misread, and what is filled into it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import ConfigError, load, parse
from gateway.config.leaf import RedisUrl
from tests.config.support import MINIMAL, ROUTE_LINE, read, report, rows, written

SECRET = "hunter2-" + "correct.horse.battery.stäple" * 2


UNUSABLE = r"""
 => 1:1: the file is empty
- a => 1:1: <NO_MAPPING>
~ => 1:1: <NO_MAPPING>
a: b⏎---⏎c: d => 2:1: YAML: a second document begins here; expected only one
a: [b, c} => 1:9: YAML: expected ',' or ']', but got '}'; <CLOSE>
log: {level: ${LEVEL}} => 1:15: YAML: expected ',' or '}', but got '{'; inside braces or brackets quote a value that
    holds {, such as "/v1/{id}" or "${NAME}"
a: b: c => 1:5: YAML: mapping values are not allowed here; quote a value that holds ': ', check the indentation, and
    that the line above has a space after its colon
a:⏎⇥b: c => 2:1: YAML: found character '\t' that cannot start any token; indent with spaces
a: 'b⏎c: d => 1:4: YAML: this quotation mark has no second one
a:⏎  b: c⏎ d: e => 3:2: YAML: <NO_FIT>
a:⏎  b: c⏎  d⏎  e: f => 3:3: YAML: could not find expected ':'; is a colon missing, or the space after it?
a: @b => 1:4: YAML: found character '@' that cannot start any token; quote a value that begins with it
a: "C:\pay" => 1:8: YAML: found unknown escape character 'p'; single quotes take a backslash as it is
from: * => 1:8: YAML: <NO_ANCHOR>
a: *hunter2 => 1:4: YAML: <NO_ANCHOR>
a: !hunter2!x b => 1:4: YAML: this tag is malformed; quote a value that begins with !
service: !!python/object/apply:os.system [ls] => 1:10: service: YAML tags are not supported; quote a value that begins
    with !
? [a]⏎: b => 1:3: a key must be a word
<<: 5 => 1:1: << merges mappings only
log: &a {<<: *a} => 1:6: log: << merges a mapping into itself
log: &a [*a] => 1:6: log[0][0]: values are nested deeper than 24; does an alias name itself?
a: b⏎c: ␀ => 2:4: the file contains a control character
"""
WORDS = {
    "NO_MAPPING": "expected a mapping of keys such as listen, upstream and routes",
    "CLOSE": "quote the value, or close the brace or bracket that was opened before it",
    "NO_FIT": "this does not fit the lines above it; check the indentation, the pairs of quotes, braces and brackets, "
    "and the space after each colon",
    "NO_ANCHOR": "this names an anchor that does not exist; quote a value that begins with *",
}
SIGNS = str.maketrans({"⏎": "\n", "⇥": "\t", "‧": " ", "␀": "\0"})
"""What the table cannot have as it is."""


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        *((text.translate(SIGNS), mistake) for text, mistake in rows(UNUSABLE.lstrip("\n"), WORDS)),
        ("[" * 5000, "values are nested deeper than 24"),
        ("a: " + "[" * 40 + "]" * 40, "1:6: a[0][0]: values are nested deeper than 24; does an alias name itself?"),
        (b"a: \xff", "1:4: the file is not text in UTF-8"),
        (b"\x7fELF\x02\x00\x01", "1:1: the file contains a control character"),
        (b"#" * (1024 * 1024 + 1), "the file is longer than 1024KiB"),
    ],
    ids=lambda text: text[:24] if isinstance(text, str) else None,
)
def test_unusable_text(text: str | bytes, mistake: str) -> None:
    """Text that is no configuration is refused with the place where it stops to be one."""
    assert mistake in [line.strip() for line in report(text)]


def test_multiplying_aliases() -> None:
    """Aliases that multiply are stopped before they fill the memory."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (mistake,) = report("\n".join(lines))
    assert mistake.endswith("the file grows to more than 50000 values; do aliases multiply?")


def test_aliases_and_merges() -> None:
    """Parts of a file can be shared, and what stands beside a merge goes before it."""
    text = """\
upstream: {url: http://a}
store: {durable: sqlite:///a.db}
routes:
  - &pay
    name: pay
    match: {path: /pay}
    key: &key {header: Idempotency-Key}
    scope: shared
    outcome: {preset: standard}
  - <<: *pay
    name: refund
    key: *key
    match: {path: /refund}
"""
    pay, refund = read(text).routes
    assert (refund.name, refund.match.path.text, refund.key, refund.scope) == ("refund", "/refund", pay.key, "shared")


def test_byte_order_mark_and_line_ends() -> None:
    """Files of other systems are read too, and lines are counted alike."""
    text = MINIMAL.replace("\n", "\r\n").encode("utf-8-sig")
    assert parse(text) == read(MINIMAL)
    assert report(text + b"    errors: x\r\n")[0].startswith(f"{ROUTE_LINE}:13: ")


@pytest.mark.parametrize("word", ["on", "no", "1_000", "0o17", "1e3", "1.50", "007", "2001-01-01"])
def test_words_stay_words(word: str) -> None:
    """What YAML 1.1 takes for a boolean, a number or a date is the word that was written, also where it is a key."""
    assert read(written(f"^service: {word}")).service == word
    assert report(written(f"^{word}: a"))[0].startswith("1:1: ")


def with_secrets(value: str) -> str:
    return written(f'^secrets: {{fingerprint_key: {{id: a, key: "{value}"}}}}')


@pytest.mark.parametrize(
    ("written_as", "filled"),
    [
        pytest.param("${A}-${B_2}", f"{SECRET}-${{A}}", id="variables, whole or in part, once"),
        pytest.param(f"$${{A}} $5 $$ {SECRET}", f"${{A}} $5 $$ {SECRET}", id="what is literal"),
        pytest.param("${file:DIRECTORY/key}", SECRET, id="a file, without the end of its last line"),
    ],
)
def test_what_is_filled_in(written_as: str, filled: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    text = with_secrets(written_as.replace("DIRECTORY", str(tmp_path)))
    config = read(text + "limits: {max_in_flight: '${N}'}\n", {"A": SECRET, "B_2": "${A}", "N": "7"})
    assert config.secrets.fingerprint_keys[0].key.get_secret_value() == filled.encode()
    assert config.limits.max_in_flight == 7


def test_a_file_that_cannot_be_a_secret_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    (tmp_path / "long").write_bytes(b"x" * 70_000)
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        ("binary", "it is not text in UTF-8"),
        ("long", "is longer than 64KiB"),
        ("pipe", "pipe is not a file"),
    ):
        (mistake,) = report(with_secrets(f"${{file:{tmp_path}/{name}}}"))
        assert mistake.endswith(why)


SQLITE = "sqlite:///var/lib/gateway/operations.db"
PLACES_OF_SECRETS = [
    # In what is written, where it is wrong in some way; some are short enough to be shown.
    *map(
        written,
        f"""
^secrets: {{fingerprint_key: {{id: '{SECRET}', key: short}}}}
^secrets: {{fingerprint_key: {{id: a, key: [{SECRET}]}}}}
^secrets: {{fingerprint_key: {{id: a, {SECRET}}}}}
^secrets: {{fingerprint_key: {{id: a, {SECRET}: b}}}}
^secrets: {{fingerprint_key: {{id: a, hunter2: b}}}}
^secrets: {{fingerprint_key: '{SECRET}'}}
^secrets: '{SECRET}'
^secrets: {{{SECRET}: a, {SECRET}: b}}
scope: {{api_key: '{SECRET}'}}
scope: {{api_key: hunter2_x}}
^store: postgresql://u:hunter2@h/d
^upstream: http://u:hunter2@h
upstream: http://u:hunter2@h
recovery: {{probe: {{path: /a, done: [{{status: [200]}}], headers: Bearer hunter2}}}}
recovery: {{probe: {{path: /a, done: [{{status: [200]}}], headers: {{Bearer hunter2}}}}}}
^upstream: {{url: http://user:{SECRET}@127.0.0.1:9000}}
^upstream: {{url: http://{SECRET}@[:::9000}}
^upstream: {{url: http://127.0.0.1:{SECRET}}}
""".strip().split("\n"),
    ),
    *(
        written(f"^store: {{durable: {form.format(url.format(SECRET))}}}")
        for url in ("postgresql://u:{}@h/a#b", "mysql://u:{}@h/d", "postgresql://u:{}/x@h/d", "{}", "redis://:{}@h:x")
        for form in ("'{}'", f"{SQLITE}, fast: '{{}}/x'", f"{SQLITE}, {{}}")
    ),
    # In what is filled in.
    written("in_flight: {wait: '${N}'}"),
    *(
        written(*(line.replace("FILLED", filled) for line in lines.split(" + ")))
        for filled in ("${S}", "x ${S}")
        for lines in (
            "^service: 'FILLED'", "^listen: 'FILLED'", "^log: {level: 'FILLED'}", "^trusted_proxies: 'FILLED'",
            "^trusted_proxies: ['FILLED']", "in_flight: {wait: 'FILLED'}", "key: {header: 'FILLED'}",
            "match: {path: 'FILLED', methods: ['FILLED']}", "errors: 'FILLED'",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", PLACES_OF_SECRETS)
def test_secrets_stay_secret(text: str) -> None:
    """No mistake repeats what may be a secret, wherever it stands, or a number that was filled in."""
    with pytest.raises(ConfigError) as caught:
        parse(text, environ={"S": SECRET, "N": "4711"})
    error = caught.value
    assert not re.search("hunter2|battery|4711", f"{error} {error!r} {error.__cause__!r} {error.__context__!r}")


def test_repr_shows_no_secret() -> None:
    urls = f"'postgresql://u:{SECRET}@h/d', fast: 'redis://:{SECRET}@h'"
    proxy = "from: [10.0.0.1], name: U, roles: {admin: [a]}"
    tokens = "tokens: [{name: vera, token: hunter2-of-vera-23, role: viewer}]"
    admin = (
        f"admin: {{token: hunter2-of-ada-2345, {tokens}, sign_in: {{secret: hunter2-of-all-2345, proxy: {{{proxy}}}}}}}"
    )
    config = read(with_secrets(SECRET).replace(SQLITE, urls) + f"service: a\n{admin}\n")
    assert config.admin.is_on
    assert isinstance(config.store.fast, RedisUrl)
    assert SECRET[:7] in config.store.fast.url.get_secret_value()
    assert "hunter2" not in f"{config!r} {config} {config.store!r} {config.secrets!r}"


@settings(max_examples=250)
@given(st.binary(max_size=60) | st.text("ab:{}[],&*!|>'\"%@`#-? \n\t$\\<~0\x00é", max_size=40))
def test_any_text_or_bytes_are_a_report(text: str | bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    lines = text.count(b"\n" if isinstance(text, bytes) else "\n") + 2
    assert all(mistake.line is None or 1 <= mistake.line <= lines for mistake in caught.value.mistakes)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(MINIMAL)), st.text(alphabet="ab:{}[],&*!'\"#- \n5$\x00", max_size=4))
def test_any_change_is_read_or_reported(position: int, inserted: str) -> None:
    """A file that is changed anywhere is still read, or reported, and nothing else happens."""
    found: object = ()
    try:
        found = parse(MINIMAL[:position] + inserted + MINIMAL[position:]).routes
    except ConfigError as error:
        found = error.mistakes
    assert found


def test_load(tmp_path: Path) -> None:
    """A file is read with the environment that is given, and mistakes name it, also that it cannot be read."""
    path = tmp_path / "gateway.yaml"
    path.write_text(written("^service: ${NAME}"))
    assert load(path, {"NAME": "a"}).service == "a"
    for file, why in (
        (path, ":1:10: service: the environment variable NAME is not set"),
        (tmp_path / "none.yaml", ": cannot be read: No such file or directory"),
        (tmp_path, ": cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(file, {})
        assert str(caught.value) == f"{file}{why}"
