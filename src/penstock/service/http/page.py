"""The OpenAPI document as a page to read: plain HTML, with nothing to fetch and nothing to run."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from typing import Any

from .openapi import openapi

__all__ = ["HTML", "page"]

HTML = "text/html; charset=utf-8"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 52rem; padding: 0 1rem;
  color: #1c2733; background: #fff }
h2 { font-size: 1rem; margin: 2.5rem 0 .25rem; border-top: 1px solid #d5dde5; padding-top: 1rem }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f2f5f8; border-radius: 4px }
code { padding: .1rem .3rem } pre { padding: .75rem; overflow-x: auto }
table { border-collapse: collapse; width: 100% }
td { vertical-align: top; padding: .2rem .75rem .2rem 0 } summary { cursor: pointer }
@media (prefers-color-scheme: dark) { body { color: #d8e0e8; background: #14191f }
  h2 { border-color: #323c46 } code, pre { background: #222a33 } }
"""


@cache
def page() -> bytes:
    """The whole page."""
    document = openapi()
    info = document["info"]
    sections = [
        _section(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])} "
        '<a href="/openapi.json">openapi.json</a></p>' + "".join(sections) + "<h2>Types</h2>"
        f"<pre>{_shown(document['components']['schemas'])}</pre></html>"
    ).encode()


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [
        f"<h2><code>{method.upper()} {escape(path)}</code></h2>",
        f"<p>{escape(operation['summary'])}</p>",
    ]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        parts.append(f"<pre>{_shown(_resolved(schema))}</pre>")
    rows = "".join(
        f"<tr><td><code>{status}</code><td>{escape(answer['description'])}"
        for status, answer in sorted(operation["responses"].items())
    )
    parts.append(f"<details><summary>Answers</summary><table>{rows}</table></details>")
    return "".join(parts)


def _resolved(schema: Any) -> Any:
    """With what it refers to in place: a reader should not have to look it up."""
    if isinstance(schema, list):
        return [_resolved(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _resolved(openapi()["components"]["schemas"][name])
    return {key: _resolved(value) for key, value in schema.items()}


def _shown(schema: Any) -> str:
    return escape(json.dumps(schema, indent=2))
