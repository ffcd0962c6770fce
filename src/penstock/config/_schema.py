"""The JSON Schema of policy files, for editors that complete and check them.

It is made from the same declarations that the reader uses: the parameters of the registered
strategies and the other fields of policies. It accepts every valid file. Errors that depend on
another place of the file (figures of a plan that do not fit the strategy of the limit) are found by
the reader only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..concurrency._ceilings import MAX_LIMIT
from ..core._durations import UNIT_MS
from ..core._register import registered
from ..core._strategy import Parameter, Strategy
from ..core._validation import MAX_KEY_BYTES, MAX_SAFE, MAX_SPAN_MS
from ._model import FAIL_MODES
from ._policies import (
    BOUNDS,
    BUDGET,
    LAWS,
    MAX_KEYS,
    MODES,
    POLICY_NAME,
    RESERVED,
    SLOTS,
    TWO_TIER,
)
from ._reader import camel
from ._several import HELD, LIMIT_FIELDS, LIMIT_NAME, MAX_LIMITS, UNLIMITED
from ._strategies import spellings

__all__ = ["policy_schema", "schema_text"]

Schema = dict[str, Any]


def _any_case(word: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


_DURATION = rf"^\s*[0-9]*\s*({'|'.join(_any_case(unit) for unit in UNIT_MS)})\s*$"
_SPAN: Schema = {"type": "string", "pattern": _DURATION, "examples": ["500ms", "30s", "1m", "1d"]}
_SPAN_MS: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_SPAN_MS}
_FLAG: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number"}


def _count(low: int = 1, high: int = MAX_SAFE) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


# The schemas of the fields that belong to no strategy, by their names in snake_case.
_KINDS: dict[str, Schema] = {
    "fail": {
        "enum": list(FAIL_MODES),
        "description": "What to answer while the store is away; by default the service's setting.",
    },
    "budget": {**_count(), "description": "Tokens per window."},
    "window": {**_SPAN, "description": "The window, aligned to the epoch."},
    "max_keys": {**_count(1, MAX_KEYS), "description": "How many keys are remembered."},
    "min_limit": {**_count(1, MAX_LIMIT), "description": "The lowest ceiling."},
    "max_limit": {**_count(1, MAX_LIMIT), "description": "The highest ceiling."},
    "initial_limit": {**_count(1, MAX_LIMIT), "description": "Where the ceiling starts."},
    "law": {"enum": list(LAWS), "description": "How the ceiling follows the latency."},
    "lease_ttl": {**_SPAN, "description": "How long a slot is held without a heartbeat."},
    "per_key": {**_FLAG, "description": "Slots for each key, instead of one pool for all."},
    "tolerance": _NUMBER,
    "smoothing": _NUMBER,
    "backoff": {**_NUMBER, "description": "What a dropped request multiplies the ceiling by."},
    "samples": _count(),
    "timeout": {**_SPAN, "description": "A latency above it counts as a drop."},
    "increase": _count(),
    "mode": {"enum": list(MODES), "description": "How the budget is spent on each node."},
    "batch": {**_count(), "description": "Credits taken at once."},
    "low_water": {**_count(0), "description": "Credits left at which the next ones are taken."},
    "window_coupled": {**_FLAG, "description": "Whether credits are void when a window ends."},
    "return_idle_after": {**_SPAN, "description": "When credits nobody spends are dropped."},
    "max_stale": {**_SPAN, "description": "How long a denial is answered from memory at most."},
}


def policy_schema() -> Schema:
    """The schema of a whole file, with the strategies that are registered now."""
    policy = [*map(_policy_by, registered()), _policy_without_strategy(), _policy_of_several()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A policy file of Penstock",
        "type": "object",
        "properties": {
            "version": {"const": 1},
            "defaults": {
                "type": "object",
                "properties": {
                    "prefix": {
                        "type": "string",
                        "description": "Stands before every key in the store.",
                    }
                },
                "additionalProperties": False,
            },
            "limiters": {
                "type": "object",
                "description": "The policies, by name.",
                "minProperties": 1,
                "propertyNames": {
                    "pattern": _whole(POLICY_NAME.pattern),
                    "not": {"enum": list(RESERVED)},
                },
                "additionalProperties": {"anyOf": policy},
            },
        },
        "required": ["version", "limiters"],
        "additionalProperties": False,
        "$defs": {
            "tokenBudget": _budget(),
            "concurrency": {"anyOf": [_concurrency(law) for law in LAWS]},
            "twoTier": _mapping(_own_fields(TWO_TIER)),
            "limits": _limits(),
            "when": _when(),
            "plans": _plans(),
            "overrides": _overrides(),
        },
    }


def schema_text() -> str:
    """The schema as a file of its own."""
    return json.dumps(policy_schema(), indent=2) + "\n"


class _SchemaField:
    """One field of a mapping, which may have several spellings."""

    def __init__(self, schemas: Mapping[str, Schema], required: bool = False) -> None:
        both = {spelled: schema for name, schema in schemas.items() for spelled in _both(name)}
        self.properties: dict[str, Schema] = both
        self.required = required

    def rule(self) -> Schema | None:
        """The rule that it is given exactly once, or at most once."""
        names = list(self.properties)
        if self.required:
            one = [{"required": [name]} for name in names]
            return one[0] if len(one) == 1 else {"oneOf": one}
        if len(names) == 1:
            return None
        pairs = [
            {"required": [name, other]}
            for at, name in enumerate(names)
            for other in names[at + 1 :]
        ]
        return {"not": pairs[0] if len(pairs) == 1 else {"anyOf": pairs}}


def _both(name: str) -> tuple[str, ...]:
    """In camelCase and in snake_case."""
    return tuple(dict.fromkeys((camel(name), name)))


def _mapping(fields: Iterable[_SchemaField], **more: Any) -> Schema:
    fields = list(fields)
    properties = {name: schema for field in fields for name, schema in field.properties.items()}
    rules = [rule for field in fields if (rule := field.rule()) is not None]
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if rules := [*rules, *more.pop("allOf", ())]:
        schema["allOf"] = rules
    return {**schema, **more}


def _own_fields(names: Iterable[str], required: Iterable[str] = ()) -> Iterable[_SchemaField]:
    """Fields of `_KINDS`. A name that ends in `_ms` is another spelling of the name without it."""
    names = tuple(names)
    for name in names:
        exact = f"{name}_ms"
        if name.endswith("_ms"):
            continue
        schemas = {name: _KINDS[name]}
        if exact in names:
            schemas[exact] = {**_SPAN_MS, "description": "In milliseconds."}
        yield _SchemaField(schemas, name in required)


def _parameter(parameter: Parameter, *, required: bool) -> _SchemaField:
    told: Schema = {"description": parameter.doc} if parameter.doc else {}
    if not parameter.is_required and parameter.default is not None:
        told["default"] = parameter.default
    if parameter.kind == "span":
        word, exact = spellings(parameter)
        plain = {key: value for key, value in told.items() if key != "default"}
        return _SchemaField({word: {**_SPAN, **plain}, exact: {**_SPAN_MS, **told}}, required)
    schema: Schema
    if parameter.kind == "count":
        schema = _count(parameter.low, parameter.high)
    elif parameter.kind == "rate":
        schema = {"type": "number", "exclusiveMinimum": 0}
    elif parameter.kind == "choice":
        schema = {"enum": list(parameter.choices)}
    else:
        schema = {"type": "string", "examples": [parameter.example]}
    return _SchemaField({parameter.name: {**schema, **told}}, required)


def _strategy_fields(cls: type[Strategy]) -> list[_SchemaField]:
    named = {"enum": list(dict.fromkeys((cls.wire_name, cls.name)))}
    given = [_parameter(each, required=each.is_required) for each in cls.parameters]
    return [_SchemaField({"strategy": named}, required=True), *given]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _axes() -> list[_SchemaField]:
    return [
        _SchemaField({"fail": _KINDS["fail"]}),
        _SchemaField({"token_budget": _ref("tokenBudget")}),
        _SchemaField({"concurrency": _ref("concurrency")}),
    ]


_FEDERATED = {"federated": _mapping(_own_fields(("batch",), ("batch",)))}
_NO_SLOTS_HANDED_OUT: Schema = {"not": {"required": ["federated", "concurrency"]}}


def _policy_by(cls: type[Strategy]) -> Schema:
    """A strategy; a budget belongs beside it only where there are slots, too."""
    fields = [*_strategy_fields(cls), *_axes(), _SchemaField({"two_tier": _ref("twoTier")})]
    if cls.window_kind is not None:
        fields.append(_SchemaField(_FEDERATED))
    budget_needs = {name: ["concurrency"] for name in _both("token_budget")}
    return _mapping(
        fields,
        title=cls.wire_name,
        dependentRequired=budget_needs,
        allOf=[_NO_SLOTS_HANDED_OUT],
    )


def _policy_without_strategy() -> Schema:
    one = [{"required": [name]} for name in (*_both("token_budget"), "concurrency")]
    return _mapping(
        [*_axes(), _SchemaField(_FEDERATED)],
        title="a budget, slots, or both",
        anyOf=one,
        allOf=[_NO_SLOTS_HANDED_OUT],
    )


def _policy_of_several() -> Schema:
    return _mapping(
        [
            _SchemaField({"limits": _ref("limits")}, required=True),
            _SchemaField({"plans": _ref("plans")}),
            _SchemaField({"overrides": _ref("overrides")}),
            _SchemaField({"fail": _KINDS["fail"]}),
        ],
        title="several limits",
    )


def _budget() -> Schema:
    return _mapping(_own_fields(BUDGET, ("budget", "window")))


def _concurrency(law: str) -> Schema:
    default = next(iter(LAWS))
    names = [name for name in (*BOUNDS, *SLOTS, *LAWS[law]) if name != "law"]
    named = _SchemaField({"law": {"const": law}}, required=law != default)
    return _mapping([named, *_own_fields(names, ("min_limit", "max_limit"))], title=law)


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _attribute(description: str) -> Schema:
    return {"type": "string", "pattern": _whole(LIMIT_NAME.pattern), "description": description}


def _limits() -> Schema:
    return {
        "type": "object",
        "description": "The limits that decide together, by name.",
        "minProperties": 1,
        "maxProperties": MAX_LIMITS,
        "propertyNames": {"pattern": _whole(LIMIT_NAME.pattern)},
        "additionalProperties": {"anyOf": [_limit(cls) for cls in (*registered(), *HELD)]},
        "not": {
            "description": "Not all of them can be shadows: nothing would ever be denied.",
            "additionalProperties": {
                "type": "object",
                "properties": {"shadow": {"const": True}},
                "required": ["shadow"],
            },
        },
    }


def _limit(cls: type[Strategy]) -> Schema:
    schemas = {
        "by": _attribute("The attribute whose value is the key; without it, for everybody."),
        "cost": _attribute("The attribute that tells the cost; without it, the request's."),
        "shadow": {**_FLAG, "description": "Count and report, and never deny."},
        "optional": {**_FLAG, "description": "Not asked where its attributes are missing."},
        "when": _ref("when"),
    }
    own = [
        name for name in LIMIT_FIELDS if name != "strategy" and not (name == "cost" and cls.is_held)
    ]
    optional: Schema = {
        "if": {"required": ["optional"], "properties": {"optional": {"const": True}}},
        "then": {"anyOf": [{"required": ["by"]}, {"required": ["cost"]}]},
    }
    fields = [*_strategy_fields(cls), *(_SchemaField({name: schemas[name]}) for name in own)]
    return _mapping(fields, title=cls.wire_name, allOf=[optional])


def _when() -> Schema:
    text: Schema = {"type": "string", "minLength": 1}
    return {
        "type": "object",
        "description": "The limit is asked only where all of this holds of a request's attributes.",
        "minProperties": 1,
        "propertyNames": {"pattern": _whole(LIMIT_NAME.pattern)},
        "additionalProperties": {
            "anyOf": [
                text,
                {"type": "array", "items": text, "minItems": 1},
                _mapping([_SchemaField({"exists": _FLAG}, required=True)]),
            ]
        },
    }


def _figures() -> Schema:
    """The figures of any strategy: which one it is depends on the limit."""
    free: dict[str, list[Schema]] = {}
    for cls in (*registered(), *HELD):
        for parameter in cls.parameters:
            if not parameter.shapes_state:
                field = _parameter(parameter, required=False)
                for name, schema in field.properties.items():
                    known = free.setdefault(name, [])
                    known.extend([schema] if schema not in known else [])
    properties = {
        name: known[0] if len(known) == 1 else {"anyOf": known} for name, known in free.items()
    }
    figures: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"anyOf": [{"const": UNLIMITED}, figures]}


def _plans() -> Schema:
    plan: Schema = {
        "type": "object",
        "propertyNames": {"pattern": _whole(LIMIT_NAME.pattern)},
        "additionalProperties": _figures(),
    }
    return {
        "type": "object",
        "description": "Figures that replace those of the limits, by the value of one attribute.",
        "properties": {"by": _attribute('The attribute that names the plan; "plan" if left out.')},
        "propertyNames": {"minLength": 1},
        "additionalProperties": plan,
        "if": {"required": ["by"]},
        "then": {"minProperties": 2},
        "else": {"minProperties": 1},
    }


def _overrides() -> Schema:
    keys: Schema = {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"minLength": 1, "maxLength": MAX_KEY_BYTES},
        "additionalProperties": _figures(),
    }
    return {
        "type": "object",
        "description": "Figures for single keys of a limit; they go before a plan.",
        "minProperties": 1,
        "propertyNames": {"pattern": _whole(LIMIT_NAME.pattern)},
        "additionalProperties": keys,
    }
