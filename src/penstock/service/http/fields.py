"""Bodies: JSON, read strictly.

What JSON leaves to the reader's taste is refused here, so that no two readers of one request can
disagree: a name that occurs twice, NaN and its kin, text that is not UTF-8. Whether a value is a
good key, cost or limit is the core's to say; this module knows names and shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.scanner import make_scanner
from typing import Any, NoReturn

from .problem import ProblemError

__all__ = ["decode", "require_fields"]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ProblemError("malformed_json", "a name occurs twice in one object")
    return fields


def _constant(text: str) -> NoReturn:
    raise ProblemError("malformed_json", f"{text} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
# The decoder's engine. What the decoder adds, spaces around the value, few clients send.
_scan: Any = make_scanner(_decoder)  # type: ignore[arg-type]


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`."""
    try:
        text = body.decode()
        if text[:1] == "{":
            value, end = _scan(text, 0)
            if end == len(text):
                return value  # type: ignore[no-any-return]
        value = _decoder.decode(text)
    except ProblemError:
        raise
    except StopIteration:
        # How the engine says that a value was to come: `{"key":}`.
        raise ProblemError("malformed_json", "not JSON: a value is missing") from None
    except UnicodeDecodeError:
        raise ProblemError("malformed_json", "the body is not UTF-8") from None
    except RecursionError:
        raise ProblemError("malformed_json", "the body is nested too deeply") from None
    except ValueError as error:
        # A number of thousands of digits is a ValueError too, in words about the interpreter.
        known = isinstance(error, json.JSONDecodeError)
        detail = f"not JSON: {error}" if known else "a number has too many digits"
        raise ProblemError("malformed_json", detail) from None
    if type(value) is not dict:
        raise ProblemError("malformed_json", "the body must be a JSON object, such as {}")
    return value


def require_fields(
    fields: dict[str, Any], required: Mapping[str, type], optional: Mapping[str, type]
) -> None:
    """Hold `fields` to the names and types of one call."""
    for name, value in fields.items():
        wanted = required.get(name) or optional.get(name)
        if wanted is None:
            known = ", ".join([*required, *optional])
            raise ProblemError("config_invalid", f"unknown field {name[:80]!r}; known: {known}")
        if type(value) is not wanted:
            raise ProblemError("config_invalid", f"{name} must be {_NAMES[wanted]}")
    for name in required:
        if name not in fields:
            raise ProblemError("config_invalid", f"{name} is missing")


_NAMES = {str: "a string", int: "an integer", bool: "true or false", list: "a list"}
