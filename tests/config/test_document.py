"""YAML that is broken, hostile or easily misread, and what is filled into it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import Config, ConfigError, load, parse
from gateway.config.leaf import RedisUrl
from tests.config.support import MINIMAL, ROUTE_LINE, read, report, rows, written

SECRET = "hunter2-" + "correct.horse.battery.stäple" * 2


UNUSABLE = r"""
 => 1:1: the file is empty
# nothing⏎ => 1:1: the file is empty
- a => 1:1: <NO_MAPPING>
a => 1:1: <NO_MAPPING>
~ => 1:1: <NO_MAPPING>
a: b⏎---⏎c: d => 2:1: YAML: a second document begins here; expected only one
a: [b, c} => 1:9: YAML: expected ',' or ']', but got '}'; <CLOSE>
a: {b: c⏎d: e => 2:2: YAML: expected ',' or '}', but got ':'; <CLOSE>
log: {level: ${LEVEL}} => 1:15: YAML: expected ',' or '}', but got '{'; inside braces or brackets quote a value that
    holds {, such as "/v1/{id}" or "${NAME}"
a: b: c => 1:5: YAML: mapping values are not allowed here; quote a value that holds ': ', check the indentation, and
    that the line above has a space after its colon
a:⏎⇥b: c => 2:1: YAML: found character '\t' that cannot start any token; indent with spaces
a: 'b⏎c: d => 1:4: YAML: this quotation mark has no second one
a:⏎  b: c⏎ d: e => 3:2: YAML: <NO_FIT>
‧a: b⏎c: d => 2:1: YAML: <NO_FIT>
a:⏎  b: c⏎  d⏎  e: f => 3:3: YAML: could not find expected ':'; is a colon missing, or the space after it?
a: @b => 1:4: YAML: found character '@' that cannot start any token; quote a value that begins with it
a: "C:\pay" => 1:8: YAML: found unknown escape character 'p'; single quotes take a backslash as it is
from: * => 1:8: YAML: <NO_ANCHOR>
a: *hunter2 => 1:4: YAML: <NO_ANCHOR>
a: !hunter2!x b => 1:4: YAML: this tag is malformed; quote a value that begins with !
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


def test_tag() -> None:
    """A tag makes no object."""
    mistakes = report(written("^service: !!python/object/apply:os.system [ls]"))
    assert "1:10: service: YAML tags are not supported; quote a value that begins with !" in mistakes


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


@pytest.mark.parametrize("word", ["on", "no", "yes", "y", "1_000", "0o17", "0x1F", "1e3", "1.50", "007", "2001-01-01"])
def test_words_stay_words(word: str) -> None:
    """What YAML 1.1 takes for a boolean, a number or a date is the word that was written."""
    assert read(written(f"^service: {word}")).service == word


@pytest.mark.parametrize("key", ["on", "no", "12", "1.5"])
def test_keys_stay_words(key: str) -> None:
    """A key that YAML 1.1 takes for something else is reported as it was written."""
    assert report(written(f"^{key}: a"))[0].startswith("1:1: ")


def test_listen_is_no_sexagesimal() -> None:
    """`a:22` and `22:22` are addresses, never a number of minutes."""
    address = read(written("^listen: 22:22")).listen.address
    assert (address.host, address.port) == ("22", 22)


def with_secrets(value: str) -> str:
    return written(f'^secrets: {{fingerprint_key: {{id: a, key: "{value}"}}}}')


def secret_of(config: Config) -> bytes:
    return config.secrets.fingerprint_keys[0].key.get_secret_value()


def test_environment() -> None:
    """Variables are filled into values, whole or in part, once."""
    text = with_secrets("${A}-${B_2}")
    assert secret_of(read(text, {"A": SECRET, "B_2": "${A}"})) == f"{SECRET}-${{A}}".encode()


def test_environment_in_numbers() -> None:
    """Numbers, sizes and flags can be filled in as well."""
    text = written("^limits: {max_in_flight: '${N}'}")
    assert read(text, {"N": "7"}).limits.max_in_flight == 7


def test_literal() -> None:
    """`$${` is a plain `${`, and a lone `$` is itself."""
    assert secret_of(read(with_secrets("$${A} $5 $$ " + SECRET))) == f"${{A}} $5 $$ {SECRET}".encode()


def test_secret_file(tmp_path: Path) -> None:
    """The content of a file is filled in, without the end of its last line."""
    (tmp_path / "key").write_text(SECRET + "\n")
    assert secret_of(read(with_secrets(f"${{file:{tmp_path}/key}}"))) == SECRET.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff" * 40, "it is not text in UTF-8"), (b"x" * 70_000, "is longer than 64KiB")],
    ids=["binary", "long"],
)
def test_secret_file_that_is_none(content: bytes, message: str, tmp_path: Path) -> None:
    """A file that cannot be a secret is refused."""
    (tmp_path / "key").write_bytes(content)
    (mistake,) = report(with_secrets(f"${{file:{tmp_path}/key}}"))
    assert mistake.endswith(message)


def test_named_pipe_does_not_block(tmp_path: Path) -> None:
    """A named pipe that nobody writes to is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    assert report(with_secrets(f"${{file:{tmp_path}/pipe}}"))[0].endswith("pipe is not a file")


def places_of_secrets() -> list[str]:
    """Files in which a secret, inline or filled in, stands where it is wrong in some way."""
    lines = [
        written(f"^secrets: {{fingerprint_key: {{id: '{SECRET}', key: short}}}}"),
        written(f"^secrets: {{fingerprint_key: {{id: a, key: [{SECRET}]}}}}"),
        written(f"^secrets: {{fingerprint_key: {{id: a, {SECRET}}}}}"),
        written(f"^secrets: {{fingerprint_key: {{id: a, {SECRET}: b}}}}"),
        written("^secrets: {fingerprint_key: {id: a, hunter2: b}}"),
        written(f"^secrets: {{fingerprint_key: '{SECRET}'}}"),
        written(f"^secrets: '{SECRET}'"),
        written(f"^secrets: {{{SECRET}: a, {SECRET}: b}}"),
        written(f"scope: {{api_key: '{SECRET}'}}"),
        written("scope: {api_key: hunter2_x}"),
        # Short enough to be shown.
        MINIMAL.replace("{durable: sqlite:///var/lib/gateway/operations.db}", "postgresql://u:hunter2@h/d"),
        MINIMAL.replace("{url: http://127.0.0.1:9000}", "http://u:hunter2@h"),
        written("upstream: http://u:hunter2@h"),
        written("recovery: {probe: {path: /a, done: [{status: [200]}], headers: Bearer hunter2}}"),
        written("recovery: {probe: {path: /a, done: [{status: [200]}], headers: {Bearer hunter2}}}"),
        MINIMAL.replace("http://127.0.0.1", f"http://user:{SECRET}@127.0.0.1"),
        MINIMAL.replace("http://127.0.0.1", f"http://{SECRET}@[::"),
        MINIMAL.replace("9000", f"{SECRET}"),
    ]
    for url in ("postgresql://u:{}@h/a#b", "mysql://u:{}@h/d", "postgresql://u:{}/x@h/d", "{}", "redis://:{}@h:x"):
        lines.append(MINIMAL.replace("sqlite:///var/lib/gateway/operations.db", f"'{url.format(SECRET)}'"))
        lines.append(MINIMAL.replace("operations.db}", f"operations.db, fast: '{url.format(SECRET)}/x'}}"))
        lines.append(MINIMAL.replace("operations.db}", f"operations.db, {url.format(SECRET)}}}"))
    for filled in ("${S}", "x ${S}"):
        lines += [
            written(f"^service: '{filled}'"),
            written(f"^listen: '{filled}'"),
            written(f"^log: {{level: '{filled}'}}"),
            written(f"^trusted_proxies: '{filled}'"),
            written(f"^trusted_proxies: ['{filled}']"),
            written(f"in_flight: {{wait: '{filled}'}}"),
            written(f"match: {{path: '{filled}', methods: ['{filled}']}}"),
            written(f"key: {{header: '{filled}'}}"),
            written(f"errors: '{filled}'"),
        ]
    return lines


@pytest.mark.parametrize("text", places_of_secrets())
def test_secrets_stay_secret(text: str) -> None:
    """No mistake repeats what may be a secret, wherever it stands."""
    with pytest.raises(ConfigError) as caught:
        parse(text, environ={"S": SECRET})
    error = caught.value
    shown = f"{error} {error!r} {error.__cause__!r} {error.__context__!r}"
    assert "hunter2" not in shown
    assert "battery" not in shown


def test_filled_in_number_is_not_shown() -> None:
    """The advice on a bare number leaves out a value that was filled in."""
    (mistake,) = report(written("in_flight: {wait: '${N}'}"), {"N": "4711"})
    assert "4711" not in mistake


def test_repr_shows_no_secret() -> None:
    """A configuration with passwords prints without them."""
    config = read(
        with_secrets(SECRET).replace(
            "sqlite:///var/lib/gateway/operations.db", f"'postgresql://u:{SECRET}@h/d', fast: 'redis://:{SECRET}@h'"
        )
        + "service: a\n"
    )
    assert isinstance(config.store.fast, RedisUrl)
    assert SECRET[:7] in config.store.fast.url.get_secret_value()
    assert "hunter2" not in f"{config!r} {config} {config.store!r} {config.secrets!r}"


@settings(max_examples=150)
@given(st.text(alphabet=st.sampled_from("ab:{}[],&*!|>'\"%@`#-? \n\t$\\<~0\x00é"), max_size=40))
def test_any_text_is_a_report(text: str) -> None:
    """Whatever stands in a file, the answer is a report with places in the file."""
    with pytest.raises(ConfigError) as caught:
        parse(text)
    lines = text.count("\n") + 2
    assert all(mistake.line is None or 1 <= mistake.line <= lines for mistake in caught.value.mistakes)


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_report(data: bytes) -> None:
    """The same for bytes that are no text."""
    with pytest.raises(ConfigError):
        parse(data)


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
    """A file is read with the environment that is given, and mistakes name it."""
    path = tmp_path / "gateway.yaml"
    path.write_text(written("^service: ${NAME}"))
    assert load(path, {"NAME": "a"}).service == "a"
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value) == f"{path}:1:10: service: the environment variable NAME is not set"
