"""Writes what a documentation of an API can take over: `docs/api/openapi.yaml` and a page for each problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from gateway import __version__
from gateway.core.outcome import Meaning
from gateway.core.verdict import RULES, Verdict
from gateway.protect.reply import BY_STATUS, CASES, DOUBTS, ROWS, TYPE_PREFIX, Case, Trouble

API: Final = Path(__file__).parents[2] / "docs" / "api"
_HEAD: Final = """\
# What an API behind the gateway can take over into its own description: reference the components, or copy them.
# Made by `make docs`.
"""
# What a verdict says in other cases.
_MORE: Final[dict[Verdict | Trouble, tuple[Case, ...]]] = {
    Trouble.GATEWAY_FAILED: (ROWS["gateway-failed, before"],),
    Verdict.KEY_REUSED: (ROWS["key-reused, incomparable"],),
    Verdict.KEY_EXPIRED: (ROWS["key-expired, other-version"],),
    Verdict.UPSTREAM_UNREACHABLE: (ROWS["upstream-unreachable, unfetched"],),
    Verdict.IN_DOUBT: tuple(case for case in DOUBTS.values() if case is not CASES[Verdict.IN_DOUBT]),
}
# When a problem comes that is no verdict.
_WHEN: Final = {
    Trouble.NO_SUCH_OPERATION: "somebody asks for the status of an operation that does not exist, or is not theirs",
    Trouble.METHOD_NOT_ALLOWED: "the status of an operation is asked for with another method",
    Trouble.ALREADY_COMPLETED: "an operation is called off that has completed",
    Trouble.NO_RESPONSE: "the service broke off, or took too long, under a request that is not protected",
    Trouble.GATEWAY_FAILED: "there is a bug in the gateway",
}
_AGAIN: Final = {
    True: "The same request with the same key can get another response. Repeat it, after `Retry-After` if that came.",
    False: "Repeating the same request with the same key gets the same response.",
    None: "The member `retryable` says whether the same request with the same key can get another response.",
}
_TEXT: Final = {"type": "string"}
_OUTCOMES: Final = [meaning.replace("_", "-") for meaning in Meaning]
_HEADERS: Final[tuple[tuple[str, str, dict[str, Any], str], ...]] = (
    ("IdempotencyStatus", "What became of the request.", {"enum": [verdict.value for verdict in Verdict]}, "stored"),
    ("IdempotencyOutcome", "What is known of an effect of the request, for a gateway in front of this one.",
     {"enum": _OUTCOMES}, "retryable"),
    ("IdempotentReplayed", "This is the response to an earlier request.", {"enum": ["true"]}, "true"),
    ("IdempotencyExpires", "Until when a repeat gets this response, as an HTTP date.", {},
     "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("RetryAfter", "After how many seconds to repeat the request.", {"pattern": "^[0-9]+$"}, "1"),
)  # fmt: skip


def generated() -> dict[Path, str]:
    text = yaml.safe_dump(_openapi(), sort_keys=False, allow_unicode=True, width=120)
    pages = {API / "problems" / f"{code}.md": _page(code) for code in CASES}
    return {API / "openapi.yaml": _HEAD + text} | pages


def component(code: Verdict | Trouble) -> str:
    return "".join(word.capitalize() for word in code.split("-"))


def _cases(code: Verdict | Trouble) -> tuple[Case, ...]:
    of_status = tuple(case for (each, _), case in BY_STATUS.items() if each is code)
    return (CASES[code], *_MORE.get(code, ()), *of_status)


def _is_retryable(case: Case) -> bool:
    return isinstance(case.retry, int)


def _page(code: Verdict | Trouble) -> str:
    case = CASES[code]
    retryable = {_is_retryable(each) for each in _cases(code)}
    if isinstance(code, Verdict):
        when = "\n".join(f"- {rule.when} (rule {rule.number})" for rule in RULES if code in rule.verdicts)
    else:
        when = f"- {_WHEN[code]}"
    parts = [
        f"# {case.title}",
        f"`{code}` · status {case.status} · type `{TYPE_PREFIX}{code}`",
        *(each.detail.replace("{", "‹").replace("}", "›") for each in _cases(code)),
        _AGAIN[retryable.pop() if len(retryable) == 1 else None],
        "When it comes:",
        when,
    ]
    return "\n\n".join(parts) + "\n"


def _openapi() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "What the idempotency gateway adds to an API",
            "version": __version__,
            "description": "Parameters, headers and responses of routes that the gateway protects.",
        },
        "paths": {},
        "components": {
            "parameters": {
                "IdempotencyKey": {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "required": True,
                    "description": "A value of your choice, new for each intent. Repeat a request with the same "
                    "key: it is executed at most once, and the repeat gets the first response.",
                    "schema": {**_TEXT, "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
                    "example": "8e03978e-40d5-43dd-bc93-6894a57f9324",
                },
                "IdempotencyDistinct": {
                    "name": "Idempotency-Distinct",
                    "in": "header",
                    "required": False,
                    "description": "`true`: the same content under another key is meant as well.",
                    "schema": {**_TEXT, "enum": ["true"]},
                },
            },
            "headers": {
                name: {"description": description, "schema": _TEXT | schema, "example": example}
                for name, description, schema, example in _HEADERS
            },
            "schemas": {"Problem": _problem_schema()},
            "responses": {component(code): _response(code) for code in CASES},
        },
    }


def _problem_schema() -> dict[str, Any]:
    uuid = {**_TEXT, "format": "uuid"}
    return {
        "type": "object",
        "description": "RFC 9457. A route may have Stripe's error objects instead, which are the member `error` alone.",
        "required": ["type", "title", "status", "detail", "code", "retryable", "error"],
        "properties": {
            "type": {**_TEXT, "format": "uri"},
            "title": dict(_TEXT),
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {**_TEXT, "description": "What happened, and what to do next."},
            "code": {**_TEXT, "enum": [code.value for code in CASES]},
            "retryable": {
                "type": "boolean",
                "description": "Whether the same request with the same key can get another response.",
            },
            "operation_id": dict(uuid),
            "resource": {**_TEXT, "description": "What the first request made."},
            "differs": {
                "type": "array",
                "items": dict(_TEXT),
                "description": "In what the request differs from the first one.",
            },
            "first_operation": {**uuid, "description": "The operation with the same content under another key."},
            "error": {
                "type": "object",
                "required": ["type", "code", "message"],
                "properties": {name: dict(_TEXT) for name in ("type", "code", "message")},
            },
        },
    }


def _response(code: Verdict | Trouble) -> dict[str, Any]:
    case = CASES[code]
    names = ["Idempotency-Status", "Idempotency-Outcome"] if isinstance(code, Verdict) else []
    names += ["Retry-After"] if any(map(_is_retryable, _cases(code))) else []
    headers = {name: {"$ref": f"#/components/headers/{name.replace('-', '')}"} for name in names}
    schema = {"allOf": [{"$ref": "#/components/schemas/Problem"}, {"properties": {"code": {"const": code.value}}}]}
    return {
        "description": f"{case.title} ({case.status}, `{code}`).",
        "headers": headers,
        "content": {"application/problem+json": {"schema": schema}},
    }
