"""`/docs`: a page with the policies that are served, and each call of the API with an example.

Plain HTML that loads and runs nothing. It is made from the OpenAPI document; the examples are made
from its schemas and the policies that are served.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from itertools import islice
from typing import Any

from ...config._words import described
from ...core._validation import MAX_SAFE
from .._entries import Policy
from ._openapi import openapi

__all__ = ["reading_page"]


_SHOWN = 50
# Of a field, that are listed beside it: more of them have a table of their own.
_MOST_VALUES = 8

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --faint: #52606d; --line: #d5dde5;
  --box: #f2f5f8; --link: #0a58ca }
@media (prefers-color-scheme: dark) { :root { --ink: #dce4ec; --paper: #14191f; --faint: #a3b1bf;
  --line: #35414d; --box: #212a33; --link: #8ab8ff } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 56rem; padding: 0 1rem;
  color: var(--ink); background: var(--paper) }
a { color: var(--link) }
h2 { margin: 2.5rem 0 .5rem } h3 { font-size: 1rem; margin: 2rem 0 .25rem; padding-top: 1rem;
  border-top: 1px solid var(--line) }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: var(--box); border-radius: 4px }
code { padding: .1rem .3rem } pre { padding: .75rem; white-space: pre-wrap;
  overflow-wrap: anywhere }
h3 code { background: none; font-size: 1rem; font-weight: bold; padding: 0 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
  border-bottom: 1px solid var(--line) } th { white-space: nowrap }
.fields { table-layout: fixed } .fields td { overflow-wrap: anywhere }
.fields th:nth-child(1) { width: 21% } .fields th:nth-child(2) { width: 29% }
td code { white-space: nowrap }
@media (max-width: 40rem) { table, tbody, tr, td { display: block } th { display: none }
  td { border: 0; padding: 0 } tr { border-bottom: 1px solid var(--line); padding: .4rem 0 } }
th, .faint { color: var(--faint); font-weight: normal } summary { cursor: pointer }
nav ul { columns: 16rem; padding-left: 1.2rem }
"""


def reading_page(policies: Mapping[str, Policy], base: str, *, asks_token: bool = False) -> bytes:
    """The whole page. `base` is where the service was asked, such as http://127.0.0.1:8080."""
    document = openapi()
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    title = escape(document["info"]["title"])
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        f"<p>{escape(document['info']['description'])} "
        '<a href="/openapi.json">openapi.json</a></p>',
        *_policies(policies),
        *_index(operations),
    ]
    if asks_token:
        parts.append("<p>In the lines below, <code>$TOKEN</code> is the token of the service.</p>")
    examples = _Examples(policies, base, asks_token)
    for method, path, operation in operations:
        parts += _call(method, path, operation, examples)
    parts += _types(document["components"]["schemas"])
    parts += _errors(document)
    return "".join([*parts, "</html>"]).encode()


def _policies(policies: Mapping[str, Policy]) -> Iterator[str]:
    yield '<h2 id="policies">Policies</h2><table><tr><th>name<th>kind<th>allows<th>store away'
    for policy in islice(policies.values(), _SHOWN):
        lines = described("", policy.kind, policy.terms)
        words = lines[1:] if len(lines) > 1 else policy.terms.splitlines()
        told = "<br>".join(escape(line.strip()) for line in words)
        yield (
            f"<tr><td><code>{escape(policy.name)}</code><td>{escape(policy.kind)}<td>{told}"
            f"<td>fail {escape(policy.fail)}"
        )
    yield "</table>"
    if len(policies) > _SHOWN:
        yield f'<p class="faint">and {len(policies) - _SHOWN:,} more</p>'


def _index(operations: list[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    yield '<h2 id="calls">Calls</h2><nav><ul>'
    for method, path, operation in operations:
        name = escape(operation["operationId"])
        yield f'<li><a href="#{name}">{method.upper()} {escape(path)}</a>'
    yield '<li><a href="#types">Types</a><li><a href="#errors">Errors</a></ul></nav>'


def _call(method: str, path: str, operation: dict[str, Any], examples: _Examples) -> Iterator[str]:
    name = escape(operation["operationId"])
    yield f'<h3 id="{name}"><code>{method.upper()} {escape(path)}</code></h3>'
    yield f"<p>{escape(operation['summary'])}</p>"
    for line in examples.lines(method, path, operation):
        yield f"<pre>{escape(line)}</pre>"
    if path in _FOR_OPERATORS and not examples.asks_token:
        yield "<p>This service has no token, so it refuses this: start it with --token-file.</p>"
    body = operation.get("requestBody")
    schemas = [] if body is None else _alternatives(body["content"]["application/json"]["schema"])
    for at, schema in enumerate(schemas):
        yield '<p class="faint">or</p>' if at else ""
        yield from _fields(schema)
    if operation.get("parameters"):
        rows = [
            (each["name"], f"{_kind(each['schema'])}, in the {each['in']}", each)
            for each in operation["parameters"]
        ]
        yield from _table(rows)
    answers = {
        status: answer
        for status, answer in sorted(operation["responses"].items())
        if "application/problem+json" not in answer.get("content", {})
    }
    for status, answer in answers.items():
        yield f"<p>Answers <code>{status}</code>: {_marked(answer['description'])}</p>"
        for schema in answer["content"].values():
            for one in _alternatives(schema["schema"]):
                yield from _fields(one)
    refusals = sorted(operation["responses"].keys() - answers.keys())
    linked = ", ".join(f'<a href="#e{status}">{status}</a>' for status in refusals)
    yield f'<p class="faint">Errors: {linked}</p>'


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    """The fields of an object as a table, those that are required first."""
    required = schema.get("required", [])
    properties = schema.get("properties", {})
    rows = [
        (name, f"{_kind(properties[name])}{'' if name in required else ', optional'}", each)
        for name, each in sorted(properties.items(), key=lambda item: item[0] not in required)
    ]
    yield from _table(rows)


def _table(rows: list[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    if not rows:
        return
    yield '<table class="fields"><tr><th>field<th>is<th>meaning'
    for name, kind, schema in rows:
        told = _marked(_resolved(schema).get("description", ""))
        yield f"<tr><td><code>{escape(name)}</code><td>{_linked(kind)}<td>{told}"
    yield "</table>"


def _linked(kind: str) -> str:
    """The text with the names of types as links to their sections."""
    words = escape(kind).split(" ")
    types = openapi()["components"]["schemas"]
    return " ".join(
        f'<a href="#{word}">{word}</a>{rest}' if word in types else word + rest
        for word, rest in ((each.rstrip(","), "," * each.endswith(",")) for each in words)
    )


def _types(schemas: dict[str, Any]) -> Iterator[str]:
    """The types that fields refer to; the error has a section of its own."""
    yield '<h2 id="types">Types</h2>'
    for name, schema in schemas.items():
        if "properties" in schema and name != "Problem":
            yield f'<h3 id="{escape(name)}"><code>{escape(name)}</code></h3>'
            yield from _fields(schema)


def _errors(document: dict[str, Any]) -> Iterator[str]:
    """Each status of an error once: they are the same for every call."""
    found: dict[str, str] = {}
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                if "application/problem+json" in answer.get("content", {}):
                    found.setdefault(status, answer["description"])
    yield '<h2 id="errors">Errors</h2><p>A refusal is <code>application/problem+json</code>:</p>'
    yield from _fields(_resolved({"$ref": "#/components/schemas/Problem"}))
    yield "<table><tr><th>status<th>code, and what it means"
    for status, text in sorted(found.items()):
        yield f'<tr id="e{status}"><td><code>{status}</code><td>{_marked(text)}'
    yield "</table>"


def _marked(text: str) -> str:
    """With what stands between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = openapi()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return _resolved(found)


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that it may be."""
    schema = _resolved(schema)
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices is None or "properties" in schema:
        return [schema]
    return [one for choice in choices for one in _alternatives(choice)]


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema and len(schema["enum"]) <= _MOST_VALUES:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices:
        return " or ".join(dict.fromkeys(map(_kind, choices)))
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    bounds = [_number(schema[word]) if word in schema else "" for word in ("minimum", "maximum")]
    if any(bounds):
        low, high = bounds
        kind += f" from {low}" * bool(low) + f" to {high}" * bool(high)
    return kind


def _number(bound: int) -> str:
    return "2^53 - 1" if bound == MAX_SAFE else f"{bound:,}"


_FOR_OPERATORS = ("/v1/pause", "/v1/reset")
_HELD = "limits with slots"
# Which kinds of policies have a call, those first that fit its plainest form.
_KINDS_OF = {
    "/v1/debit": ("budget", "unified"),
    "/v1/admit": ("admission", "unified"),
    "/v1/reserve": ("limiter", "limits", _HELD),
}
_ASKED = ("limiter", "limits")
# The calls that are shown by a key and by attributes, where there are policies for both.
_BOTH_WAYS = ("/v1/check", "/v1/check-many", "/v1/peek", "/v1/forecast", "/v1/reserve")
# What one call answers with and another one asks for: which call, and in which field.
_FROM = {"CHARGE_ID": ("/v1/reserve", "charge_id"), "LEASE_ID": ("/v1/admit", "lease_id")}
# In a shell, in the place of a word in a body; a minute from now, for an instant.
_IN_SHELL = {
    **{word: f"""'"${word}"'""" for word in _FROM},
    '"UNTIL_MS"': """'"$(($(date +%s) + 60))000"'""",
}


class _Examples:
    """Lines for a shell that work here, as far as the policies that are served have the call."""

    def __init__(self, policies: Mapping[str, Policy], base: str, asks_token: bool) -> None:
        self.asks_token = asks_token
        self._base = base
        self._of_kind: dict[str, Policy] = {}
        for policy in islice(policies.values(), _SHOWN):
            # What is held cannot be checked, and nothing else can be renewed.
            self._of_kind.setdefault(_HELD if _has_slots(policy) else policy.kind, policy)

    def lines(self, method: str, path: str, operation: dict[str, Any]) -> list[str]:
        if method == "get":
            return [self._line(path.replace("{client}", "alice"))]
        chosen = self._policies_for(path)
        lines = [self._post(path, operation, each) for each in chosen]
        for word, (call, field) in _FROM.items():
            if f"${word}" in lines[0]:
                asked = self._post(call, openapi()["paths"][call]["post"], self._asked(path, call))
                found = f"""sed 's/.*"{field}": *"\\([^"]*\\)".*/\\1/'"""
                return [f"{word}=$({asked} | {found})\n{lines[0]}"]
        return lines

    def _policies_for(self, path: str) -> list[Policy | None]:
        kinds = _KINDS_OF.get(path, _ASKED)
        found: list[Policy | None] = [
            self._of_kind[kind] for kind in kinds if kind in self._of_kind
        ]
        return (found if path in _BOTH_WAYS else found[:1]) or [None]

    def _asked(self, path: str, call: str) -> Policy | None:
        """The policy whose answer to `call` is what `path` is about."""
        held = self._of_kind.get(_HELD) if path == "/v1/renew" else None
        return held or self._policies_for(call)[0]

    def _line(self, path: str, *words: str) -> str:
        token = '-H "Authorization: Bearer $TOKEN"' if self.asks_token else ""
        parts = ["curl -sS", token, shlex.quote(self._base + path), *words]
        return " ".join(part for part in parts if part)

    def _post(self, path: str, operation: dict[str, Any], policy: Policy | None) -> str:
        schemas = _alternatives(operation["requestBody"]["content"]["application/json"]["schema"])
        body = shlex.quote(json.dumps(self._body(policy, schemas)))
        for word, told in _IN_SHELL.items():
            body = body.replace(word, told)
        return self._line(path, "-d", body)

    def _body(self, policy: Policy | None, schemas: list[dict[str, Any]]) -> dict[str, Any]:
        several = None if policy is None else policy.several
        wanted = "key" if several is None else "attributes"
        named = [each for each in schemas if "policy" in each.get("properties", {})]
        fitting = [each for each in named if wanted in each["properties"]]
        # Where no policy fits, a limit that the request brings along does.
        schema = (fitting or [each for each in schemas if each not in named] or named)[0]
        required = dict.fromkeys(schema.get("required", ()))
        if wanted in schema["properties"]:
            required[wanted] = None
            required.pop("attributes" if wanted == "key" else "key", None)
        known: dict[str, Any] = {"policy": "NAME" if policy is None else policy.name}
        if several is not None:
            told = several.example()
            is_list = schema["properties"].get("attributes", {}).get("type") == "array"
            known["attributes"] = [told] if is_list else told
        return {
            name: known[name] if name in known else _example(name, schema["properties"][name])
            for name in required
        }


def _has_slots(policy: Policy) -> bool:
    return policy.several is not None and policy.several.has_slots


_VALUES: dict[str, Any] = {
    "key": "alice",
    "keys": ["alice", "bob"],
    "limit": 10,
    "window_ms": 60_000,
    "lease_id": "LEASE_ID",
    "lease_ids": ["LEASE_ID"],
    "charge_id": "CHARGE_ID",
    "attributes": {"user": "alice"},
    "until_ms": "UNTIL_MS",
}


def _example(name: str, schema: dict[str, Any]) -> Any:
    """A value of the schema, the usual one for a name that is known."""
    schema = _resolved(schema)
    if name in _VALUES:
        return _VALUES[name]
    if choices := schema.get("oneOf") or schema.get("anyOf"):
        return _example(name, choices[0])
    if "enum" in schema:
        return schema["enum"][0]
    return {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}.get(
        schema.get("type", ""), name
    )
