"""Creating the table, as a flow of operations for sync and async.

All that such a table has of a schema is its hash key and its TTL attribute, and both are checked.
Their names stand for the version too: a layout that this one could not read would have another
hash key, which every operation here is refused for. What is in an item says its own version, in
the record.
"""

from __future__ import annotations

from typing import Any

from ...core._errors import ConfigInvalidError, StoreUnavailableError
from ...core._flow import Flow
from ..cas._requests import RetryPause
from ._faults import error_code
from ._items import HASH_KEY, TTL_ATTRIBUTE, Operation

__all__ = ["create"]

_LOOKS = 120
_PAUSE_MS = 500.0


def create(table: str) -> Flow[Operation | RetryPause, None]:
    """Create the table and switch its TTL on, unless that was done before."""
    name = {"TableName": table}
    try:
        yield (
            "create_table",
            {
                **name,
                "AttributeDefinitions": [{"AttributeName": HASH_KEY, "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": HASH_KEY, "KeyType": "HASH"}],
                "BillingMode": "PAY_PER_REQUEST",
            },
        )
    except Exception as error:
        if error_code(error) != "ResourceInUseException":
            raise
    for _ in range(_LOOKS):
        described = (yield "describe_table", name)["Table"]
        _require_ours(table, described)
        if described["TableStatus"] == "ACTIVE":
            break
        yield RetryPause(_PAUSE_MS)
    else:
        raise StoreUnavailableError(f"the table {table!r} did not become active in time")
    yield from _switch_ttl_on(name)


def _switch_ttl_on(name: dict[str, Any]) -> Flow[Operation | RetryPause, None]:
    try:
        if (yield from _ttl_is_on(name)):
            return
        setting = {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
        try:
            yield "update_time_to_live", {**name, "TimeToLiveSpecification": setting}
        except Exception as error:
            # Two processes that create the table at once both see it off; the second to switch
            # it on is refused, and has what it wanted.
            if error_code(error) != "ValidationException" or not (yield from _ttl_is_on(name)):
                raise
    except Exception as error:
        # Servers that speak the API need not have a TTL; nothing but space depends on it.
        if error_code(error) != "UnknownOperationException":
            raise


def _ttl_is_on(name: dict[str, Any]) -> Flow[Operation | RetryPause, bool]:
    ttl = (yield "describe_time_to_live", name)["TimeToLiveDescription"]
    if ttl.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        return False
    _require_our_ttl(name["TableName"], ttl.get("AttributeName"))
    return True


def _require_our_ttl(table: str, attribute: str | None) -> None:
    if attribute != TTL_ATTRIBUTE:
        raise ConfigInvalidError(
            f"the TTL of the table {table!r} is on {attribute!r}, and ours on {TTL_ATTRIBUTE!r}: "
            "switch it off there and repeat this, or choose another table"
        )


def _require_ours(table: str, described: dict[str, Any]) -> None:
    keys = {(part["AttributeName"], part["KeyType"]) for part in described["KeySchema"]}
    types = {
        part["AttributeName"]: part["AttributeType"] for part in described["AttributeDefinitions"]
    }
    if keys != {(HASH_KEY, "HASH")} or types.get(HASH_KEY) != "S":
        names = ", ".join(sorted(name for name, _ in keys))
        raise ConfigInvalidError(
            f"the table {table!r} belongs to something else: its key is {names}, and ours is the "
            f"text {HASH_KEY}; choose another name"
        )
