"""The OpenAPI 3.1 document of the HTTP API, made from tables.

The tests hold the server to it: they send what it allows and what it does not, and compare.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from ...config._model import FAIL_MODES
from ...core._strategy import Strategy
from ...core._validation import MAX_KEY_BYTES, MAX_SAFE, MAX_SPAN_MS
from .._core import MAX_BATCH
from .._inline import DEFAULT_STRATEGY, MAX_WINDOW_MS, inline_strategies, most_units
from ._answers import CODES

__all__ = ["openapi", "openapi_json"]


_INSTANT = {"type": "integer", "minimum": 0, "description": "Epoch milliseconds."}
_WHOLE = {"type": "integer", "minimum": 0}
_KEY = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_KEY_BYTES,
    "description": f"Whose limit it is. At most {MAX_KEY_BYTES} bytes in UTF-8.",
}
_POLICY = {"type": "string", "description": "A policy's name, as in the policy file."}
_COST = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_SAFE,
    "default": 1,
    "description": "How many units the request takes.",
}
_BID = {"type": "integer", "description": "A term of a bid: without effect here."}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_KEYED = {"policy": _POLICY, "key": _KEY}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_SAFE}
_WINDOW = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_WINDOW_MS,
    "description": "At most 30 days.",
}


_MODE = {
    "degraded": {
        "type": "string",
        "enum": ["open", "closed"],
        "description": "The fail mode that decided, since the store was away; absent otherwise.",
    }
}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": [*required],
        "additionalProperties": False,
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_SCHEMAS: dict[str, Any] = {
    "Decision": _object(
        {
            "allowed": {"type": "boolean", "description": "Whether the request may go ahead."},
            "remaining": {**_WHOLE, "description": "What is left."},
            "limit": {**_WHOLE, "description": "The most that there can be at once."},
            "reset_at": {
                **_INSTANT,
                "description": "When all of it is there again, in epoch milliseconds.",
            },
            "retry_after_ms": {
                **_WHOLE,
                "description": "When it is worth to ask again; 0 exactly when allowed.",
            },
        },
        _MODE,
    ),
    "ClientDecision": _object(
        {"allowed": {"type": "boolean"}, "remaining": _WHOLE, "resetAt": _INSTANT},
        {"message": {"type": "string"}, **_MODE},
    ),
    "Problem": _object(
        {
            "type": {"type": "string", "description": "`about:blank`: the code says more."},
            "title": {"type": "string", "description": "The status, in words."},
            "status": {"type": "integer", "description": "The status of the reply."},
            "code": {
                "type": "string",
                "enum": [*CODES],
                "description": "What to branch on: it is never renamed.",
            },
            "detail": {"type": "string", "description": "What was wrong, for people."},
        },
        {
            "reason": {
                "type": "string",
                "enum": ["away", "full"],
                "description": "Of a store that is unavailable: it is away, or has no room.",
            }
        },
    ),
    "PolicyCheck": _object(_KEYED, {"cost": _COST}),
    "Forecast": _object(
        {"spendable_now": _WHOLE, "next_replenish_at": _INSTANT, "full_at": _INSTANT}, _MODE
    ),
    "Readiness": _object(
        {
            "ready": {"type": "boolean"},
            "stopping": {"type": "boolean"},
            "store_reachable": {"type": "boolean"},
            "store_full": {"type": "boolean"},
            "policies": _WHOLE,
            "reloaded": {"type": "boolean"},
        },
        {
            "store_error": {"type": "string"},
            "reload_error": {"type": "string"},
            "states": {
                "type": "object",
                "additionalProperties": {"type": "string", "enum": ["ok", *FAIL_MODES]},
                "description": "Of each policy: `ok`, or the fail mode that decides for now.",
            },
        },
    ),
}


def _inline_schemas() -> dict[str, Any]:
    """One for the strategies that take any limit, and one for each that remembers every unit."""
    inline = inline_strategies()
    plain = [cls.name for cls in inline if not cls.unit_bytes]
    strategy = {"type": "string", "enum": plain, "default": DEFAULT_STRATEGY}
    schemas = {
        "InlineCheck": _object(
            {"key": _KEY, "limit": _LIMIT, "window_ms": _WINDOW},
            {"cost": _COST, "strategy": strategy},
        )
    }
    for cls in inline:
        if cls.unit_bytes:
            most = {"maximum": most_units(cls), "description": "It keeps something for every unit."}
            schemas[f"Inline{cls.wire_name[0].upper()}{cls.wire_name[1:]}Check"] = _object(
                {
                    "key": _KEY,
                    "limit": {**_LIMIT, **most},
                    "window_ms": _WINDOW,
                    "strategy": {"type": "string", "enum": [cls.name]},
                },
                {"cost": _COST},
            )
    every = [*map(_ref, schemas), _ref("PolicyCheck")]
    return {**schemas, "Check": {"oneOf": every}}


_ATTRIBUTES = {
    "type": "object",
    "additionalProperties": {
        "oneOf": [{"type": "string"}, {"type": "integer", "minimum": 0, "maximum": MAX_SAFE}]
    },
    "description": "What the limits of the policy ask for: text, or a number for a cost.",
}
_COSTS = {
    "type": "object",
    "additionalProperties": {**_WHOLE, "maximum": MAX_SAFE},
    "description": "Of several limits, what the request costs some, by name; 0 only looks.",
}
_VERDICT = {
    "limits": {
        "type": "object",
        "additionalProperties": _ref("Decision"),
        "description": "What each limit said, by name.",
    },
    "binding": {"type": "string", "description": "The limit that `decision` is of."},
    "violated": {**_TEXTS, "description": "The limits that denied."},
    "shadowed": {**_TEXTS, "description": "The shadows that would have denied."},
    "shadows": {**_TEXTS, "description": "The limits that deny nobody."},
}
_LIMIT_NAMES = {**_TEXTS, "description": "Of several limits, those that are meant."}
_CHARGE_ID = {"type": "string", "description": "What reserve answered with."}
_DECIDED = _object({"decision": _ref("Decision")})
_JUDGED = _object({"decision": _ref("Decision")}, _VERDICT)
_ADMITTED = _object(
    {
        "decision": _ref("Decision"),
        "lease_id": {"type": "string"},
        "lease_expires_at": _INSTANT,
        "binding_axis": {"type": "string", "enum": ["", "concurrency", "rate", "cost"]},
        "policy_denied": {"type": "boolean", "enum": [False]},
    }
)
_BATCH = {"type": "array", "items": _KEY, "maxItems": MAX_BATCH}
_REQUESTS = {"type": "array", "items": _ATTRIBUTES, "maxItems": MAX_BATCH}
_LEASES = {**_TEXTS, "maxItems": MAX_BATCH}


def _by_key_or_attributes(optional: dict[str, Any]) -> dict[str, Any]:
    by_attributes = _object(
        {"policy": _POLICY, "attributes": _ATTRIBUTES}, {"key": _KEY, **optional}
    )
    return {"oneOf": [_object(_KEYED, optional), by_attributes]}


# Per call of /v1: what it does, what it takes, what it answers.
_CALLS: dict[str, tuple[str, Any, Any]] = {
    "check": (
        "Decide one request: by a key, or by attributes where the policy has several limits.",
        _by_key_or_attributes({"cost": _COST, "costs": _COSTS}),
        _JUDGED,
    ),
    "check-many": (
        "Decide for many keys, in order, at one instant; or for many requests by attributes.",
        {
            "oneOf": [
                _object({"policy": _POLICY, "keys": _BATCH}, {"cost": _COST}),
                _object(
                    {"policy": _POLICY, "attributes": _REQUESTS}, {"cost": _COST, "costs": _COSTS}
                ),
            ]
        },
        {
            "oneOf": [
                _object({"decisions": {"type": "array", "items": _ref("Decision")}}),
                _object({"verdicts": {"type": "array", "items": _JUDGED}}),
            ]
        },
    ),
    "peek": (
        "What a request would be told. Spends nothing.",
        _by_key_or_attributes({}),
        _JUDGED,
    ),
    "forecast": (
        "What can be spent now, and when there is more. Spends nothing.",
        _by_key_or_attributes({"cost": _COST, "costs": _COSTS}),
        _object({"forecast": _ref("Forecast")}),
    ),
    "debit": (
        "Count tokens that were used against a budget.",
        _object(_KEYED, {"tokens": _COST}),
        _DECIDED,
    ),
    "admit": (
        "Take a slot and spend the rate, or nothing of it; a budget denies what does not fit.",
        _object(_KEYED, {"cost": _COST, "hold": _BID, "value": _BID}),
        _ADMITTED,
    ),
    "release": (
        "Give a slot back. Idempotent.",
        _object({"lease_id": {"type": "string"}}, {"dropped": {"type": "boolean"}}),
        _object({}),
    ),
    "heartbeat": (
        "Keep slots that are still in use.",
        _object({"lease_ids": _LEASES}),
        _object({"live_ids": _TEXTS, "reclaimed_ids": _TEXTS, "next_deadline": _INSTANT}, _MODE),
    ),
    "reserve": (
        "Spend as a check does, and hold it until it is settled. May book ahead.",
        _by_key_or_attributes(
            {
                "cost": _COST,
                "costs": _COSTS,
                "max_wait_ms": {
                    **_WHOLE,
                    "maximum": MAX_SPAN_MS,
                    "description": "How far ahead units may be booked.",
                },
            }
        ),
        _object(
            {
                "decision": _ref("Decision"),
                "charge_id": {"type": "string", "description": "Empty where nothing is held."},
                "charged_at": _INSTANT,
                "starts_at": _INSTANT,
                "ttl_ms": {
                    **_WHOLE,
                    "description": "How long slots are held unless they are renewed; 0: none are.",
                },
            },
            _VERDICT,
        ),
    ),
    "settle": (
        "Replace what was reserved by what was used. Idempotent: a charge settles once.",
        _object(
            {
                "charge_id": _CHARGE_ID,
                "actual": {
                    "oneOf": [
                        {**_WHOLE, "maximum": MAX_SAFE},
                        {
                            "type": "object",
                            "additionalProperties": {**_WHOLE, "maximum": MAX_SAFE},
                        },
                    ],
                    "description": "What was used: of every limit, or by the names of some.",
                },
            }
        ),
        _object(
            {"settled": {"type": "boolean", "description": "Whether this call did it."}},
            {
                "uncharged": {
                    "type": "object",
                    "additionalProperties": _WHOLE,
                    "description": "What was used and not charged, by limit, since a key owes at "
                    "most one whole limit; absent if everything was charged.",
                }
            },
        ),
    ),
    "cancel": (
        "Give back what was reserved. Idempotent.",
        _object({"charge_id": _CHARGE_ID}),
        _object({"cancelled": {"type": "boolean", "description": "Whether this call did it."}}),
    ),
    "renew": (
        "Keep the slots of a charge that are still in use.",
        _object({"charge_id": _CHARGE_ID}),
        _object({"held": {"type": "boolean", "description": "Whether they are still held."}}),
    ),
    "pause": (
        "Let nothing in before an instant, on every node. With the token only.",
        _object(
            {"policy": _POLICY, "until_ms": _INSTANT},
            {"key": _KEY, "attributes": _ATTRIBUTES, "limits": _LIMIT_NAMES},
        ),
        _object({}),
    ),
    "reset": (
        "Forget what was spent, and lift a pause. With the token only.",
        _object(
            {"policy": _POLICY}, {"key": _KEY, "attributes": _ATTRIBUTES, "limits": _LIMIT_NAMES}
        ),
        _object({}),
    ),
}

_DECISION_HEADERS = {
    "RateLimit": 'What is left, and in how many seconds there is more: `"name";r=9;t=60`.',
    "RateLimit-Policy": 'What the policy grants: `"name";q=10;w=60`.',
}
# One decision has both; several, and a forecast, have the policy in common.
_HEADERS_OF = {
    **dict.fromkeys(
        ("check", "peek", "debit", "admit", "reserve"), ("RateLimit", "RateLimit-Policy")
    ),
    **dict.fromkeys(("check-many", "forecast"), ("RateLimit-Policy",)),
}
_LEGACY = [
    {
        "name": "headers",
        "in": "query",
        "schema": {"type": "string", "enum": ["x"]},
        "description": "`x` adds the `X-RateLimit-*` headers.",
    },
    {
        "name": "X-RateLimit-Format",
        "in": "header",
        "schema": {"type": "string", "enum": ["legacy"]},
        "description": "`legacy` adds the `X-RateLimit-*` headers.",
    },
]


def _content(schema: Any, kind: str = "application/json") -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def _answer(text: str, schema: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    described = {
        name: {"description": meaning, "schema": {"type": "string"}}
        for name, meaning in (headers or {}).items()
    }
    return {"description": text, "headers": described, **_content(schema)}


def _problems() -> dict[str, Any]:
    """One response for every status of an error."""
    texts: dict[str, list[str]] = {}
    for code, (status, meaning) in CODES.items():
        texts.setdefault(str(status), []).append(f"`{code}`: {meaning}")
    return {
        status: {
            "description": " ".join(meanings),
            **_content(_ref("Problem"), "application/problem+json"),
        }
        for status, meanings in texts.items()
    }


def _operation(name: str, summary: str, answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {**_problems(), **answers},
        **more,
    }


def _body(schema: Any) -> dict[str, Any]:
    return {"required": True, **_content(schema)}


def _checks() -> dict[str, Any]:
    told = {**_DECISION_HEADERS, "Retry-After": "Seconds to wait, at least 1."}
    post = _operation(
        "check",
        "Decide one request, by a policy's name or by a limit of its own.",
        {
            "200": _answer("Allowed.", _ref("Decision"), _DECISION_HEADERS),
            "429": _answer("Denied. Nothing was counted.", _ref("Decision"), told),
        },
        requestBody=_body(_ref("Check")),
        parameters=_LEGACY,
    )
    client = {"name": "client", "in": "path", "required": True, "schema": _KEY}
    get = _operation(
        "checkClient",
        "Decide one request of a client, under the policy `default`.",
        {
            "200": _answer("Allowed.", _ref("ClientDecision"), _DECISION_HEADERS),
            "429": _answer("Denied. Nothing was counted.", _ref("ClientDecision"), told),
        },
        parameters=[client, *_LEGACY],
    )
    return {"/check": {"post": post}, "/check/{client}": {"get": get}}


def _v1() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for name, (summary, takes, gives) in _CALLS.items():
        headers = {field: _DECISION_HEADERS[field] for field in _HEADERS_OF.get(name, ())}
        post = _operation(
            "v1" + name.title().replace("-", ""),
            summary,
            {"200": _answer("Answered; a denial too is an answer.", gives, headers)},
            requestBody=_body(takes),
            parameters=_LEGACY,
        )
        paths[f"/v1/{name}"] = {"post": post}
    return paths


def _pages() -> dict[str, Any]:
    alive = _object({"status": {"type": "string", "enum": ["alive"]}})
    ready = _ref("Readiness")
    text = {"type": "string"}
    pages = {
        "/health": ("health", "Alive.", {"200": _answer("Alive.", alive)}),
        "/ready": (
            "ready",
            "Whether the service can decide requests, by its store or else by fail modes.",
            {"200": _answer("Ready.", ready), "503": _answer("Not ready.", ready)},
        ),
        "/metrics": (
            "metrics",
            "Counts, for Prometheus.",
            {"200": {"description": "Counts.", **_content(text, "text/plain")}},
        ),
        "/openapi.json": (
            "openapi",
            "This document.",
            {"200": _answer("This document.", {"type": "object"})},
        ),
        "/docs": (
            "docs",
            "This document, to be read.",
            {"200": {"description": "A page.", **_content(text, "text/html")}},
        ),
    }
    described = {path: {"get": _operation(*page)} for path, page in pages.items()}
    described["/ready"]["get"]["parameters"] = [
        {
            "name": "store",
            "in": "query",
            "schema": {"type": "string", "enum": ["1"]},
            "description": "`1` asks whether the store answers, too.",
        },
        {
            "name": "verbose",
            "in": "query",
            "schema": {"type": "string", "enum": ["1"]},
            "description": "`1` asks for the state of each policy; with the token only.",
        },
    ]
    return described


def openapi() -> dict[str, Any]:
    """The document. Do not change it."""
    return _made(inline_strategies())


@cache
def _made(_strategies: tuple[type[Strategy], ...]) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": "1",
            "description": "One limit, enforced exactly, wherever the traffic is.",
        },
        "paths": {**_checks(), **_v1(), **_pages()},
        "components": {
            "schemas": {**_SCHEMAS, **_inline_schemas()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


def openapi_json() -> bytes:
    return _text(inline_strategies())


@cache
def _text(strategies: tuple[type[Strategy], ...]) -> bytes:
    return json.dumps(_made(strategies), indent=2).encode()
