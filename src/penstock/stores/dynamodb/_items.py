"""Requests as operations of the DynamoDB API, and its replies as answers. No I/O.

An item is `penstock_key`, `version`, `record` and `reclaim_at`, the table's TTL attribute in epoch
seconds. The name of the hash key is what makes a table ours: a table of another program does not
have it.
"""

from __future__ import annotations

from typing import Any

from ...core._clock import SystemClock
from ...core._validation import reject
from ..cas import Drop, Held, Read, Request
from ..cas._requests import fit

__all__ = ["HASH_KEY", "TTL_ATTRIBUTE", "Operation", "answer", "held", "key_of", "operation"]

HASH_KEY = "penstock_key"
TTL_ATTRIBUTE = "reclaim_at"

_MAX_KEY_BYTES = 2048
_NAMES = {"#v": "version"}

Operation = tuple[str, dict[str, Any]]
"""The name of a client's method, and its keywords."""

_now_ms = SystemClock().now


def key_of(key: str) -> dict[str, Any]:
    return {HASH_KEY: {"S": fit(key, _MAX_KEY_BYTES)}}


def operation(table: str, request: Request) -> Operation:
    common: dict[str, Any] = {"TableName": table}
    if isinstance(request, Read):
        return "get_item", {**common, "Key": key_of(request.key), "ConsistentRead": True}
    if isinstance(request, Drop):
        common["Key"] = key_of(request.key)
        if request.expected is None:
            return "delete_item", common
        return "delete_item", {**common, **_condition(request.expected)}
    # Rounded up: a second early would be early.
    reclaim_at = (_now_ms() + request.keep_ms) // 1000 + 1
    common["Item"] = {
        **key_of(request.key),
        "version": {"S": request.version},
        "record": {"S": request.record},
        TTL_ATTRIBUTE: {"N": str(reclaim_at)},
    }
    return "put_item", {**common, **_condition(request.expected)}


def answer(request: Request, reply: dict[str, Any]) -> Any:
    """What the flow is told when the operation went through."""
    if not isinstance(request, Read):
        return ""
    item = reply.get("Item")
    return None if item is None else held(item, request.key)


def held(item: dict[str, Any], key: str) -> Held:
    try:
        return Held(item["record"]["S"], item["version"]["S"])
    except (KeyError, TypeError):
        reject(f"the item of key {key!r} was not written by this store: give it its own table")


def _condition(expected: Held | None) -> dict[str, Any]:
    if expected is None:
        return {
            "ConditionExpression": "attribute_not_exists(#k)",
            "ExpressionAttributeNames": {"#k": HASH_KEY},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
    return {
        "ConditionExpression": "#v = :v",
        "ExpressionAttributeNames": _NAMES,
        "ExpressionAttributeValues": {":v": {"S": expected.version}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
