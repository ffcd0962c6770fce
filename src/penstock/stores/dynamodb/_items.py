"""Requests as operations of the DynamoDB API, and its replies as answers. No I/O.

An item is `penstock_key`, `version`, `record` and `reclaim_at`, the table's TTL attribute in epoch
seconds. The name of the hash key is what makes a table ours: a table of another program does not
have it.
"""

from __future__ import annotations

from typing import Any

from ...core._clock import SystemClock
from ...core._validation import reject
from ..cas import AnyRequest, Check, Drop, Held, Read, ReadAll, Swap, SwapAll
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


def operation(table: str, request: AnyRequest) -> Operation:
    if isinstance(request, ReadAll):
        gets = [{"Get": {"TableName": table, "Key": key_of(key)}} for key in request.keys]
        return "transact_get_items", {"TransactItems": gets}
    if isinstance(request, SwapAll):
        return "transact_write_items", {
            "TransactItems": [_part(table, write) for write in request.writes]
        }
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


_PARTS = {"put_item": "Put", "delete_item": "Delete"}


def _part(table: str, write: Swap | Drop | Check) -> dict[str, Any]:
    """One item of a transaction. Which condition failed is told without what was found instead."""
    if isinstance(write, Check):
        keywords = {"TableName": table, "Key": key_of(write.key), **_condition(write.expected)}
        name = "ConditionCheck"
    else:
        method, keywords = operation(table, write)
        name = _PARTS[method]
    keywords.pop("ReturnValuesOnConditionCheckFailure")
    return {name: keywords}


def answer(request: AnyRequest, reply: dict[str, Any]) -> Any:
    """What the flow is told when the operation went through."""
    if isinstance(request, ReadAll):
        found = (response.get("Item") for response in reply["Responses"])
        pairs = zip(found, request.keys, strict=True)
        return [held(item, key) if item else None for item, key in pairs]
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
