"""The items of the table: requests as operations of DynamoDB, and replies as answers. No I/O.

An item is `penstock_key`, `version`, `record` and `reclaim_at`, the table's TTL attribute in epoch
seconds. The hash key and the TTL attribute are all the schema that such a table has, and both are
checked. The name of the hash key identifies a table of Penstock, since tables of other programs do
not have it; an incompatible layout in the future would use another name. The record has a version
of its own.

Errors of botocore and DynamoDB are translated here and in no other file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core._clock import SystemClock
from ...core._errors import ConfigInvalidError, StoreUnavailableError
from ...core._flow import Flow
from ...core._validation import reject
from ..cas import (
    AnyRequest,
    Check,
    Conflict,
    ConnectionFailedError,
    Drop,
    Held,
    Read,
    ReadAll,
    Swap,
    SwapAll,
)
from ..cas._requests import RetryPause, fit

__all__ = [
    "HASH_KEY",
    "TTL_ATTRIBUTE",
    "Operation",
    "answer",
    "create",
    "error_code",
    "final",
    "held",
    "key_of",
    "operation",
    "translated",
]


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
    """One item of a transaction. DynamoDB says which condition failed, but not what it found."""
    if isinstance(write, Check):
        keywords = {"TableName": table, "Key": key_of(write.key), **_condition(write.expected)}
        name = "ConditionCheck"
    else:
        method, keywords = operation(table, write)
        name = _PARTS[method]
    keywords.pop("ReturnValuesOnConditionCheckFailure")
    return {name: keywords}


def answer(request: AnyRequest, reply: dict[str, Any]) -> Any:
    """The answer to the flow when the operation went through."""
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


_BUSY = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionConflictException",
    }
)
_CREDENTIALS = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
_UNKNOWN = frozenset({"UnknownOperationException", "SerializationException"})
# Reasons why an item of a transaction was not written: it was changed, or is being changed.
_RACED = frozenset({"ConditionalCheckFailed", "TransactionConflict"})
# By name, since botocore is only imported when it is used, and aiobotocore raises the same.
_NOT_SENT = frozenset({"ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError"})
_SETTINGS = frozenset(
    {
        "InvalidEndpointConfigurationError",
        "InvalidRegionError",
        "NoAuthTokenError",
        "NoCredentialsError",
        "NoRegionError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "UnknownEndpointError",
    }
)


def error_code(error: BaseException) -> str:
    """The code of an error reply; empty for all other errors."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return str(code)


def translated(error: BaseException, request: AnyRequest | None, table: str) -> Any:
    """A Conflict or an error translated; an exception that is not a driver's is returned as it
    is."""
    if isinstance(error, ConnectionFailedError) or not isinstance(error, Exception):
        return error
    if code := error_code(error):
        return _refused(code, error, request, table)
    if not any(base.__module__.startswith("botocore.") for base in type(error).__mro__):
        return error
    name = type(error).__name__
    text = f"DynamoDB: {error}"
    if name in _SETTINGS:
        advice = "set the region and the credentials as for boto3"
        return ConnectionFailedError(f"{text}; {advice}", may_have_run=False)
    if name in _NOT_SENT:
        return ConnectionFailedError(
            text, may_have_run=False, again=name == "EndpointConnectionError"
        )
    return ConnectionFailedError(text, may_have_run=True, again=name != "ReadTimeoutError")


def final(error: Exception, table: str) -> Exception:
    """The end of a call that is not repeated."""
    ours = translated(error, None, table)
    return StoreUnavailableError(str(ours)) if isinstance(ours, ConnectionFailedError) else ours


def _refused(code: str, error: Any, request: AnyRequest | None, table: str) -> Any:
    if code == "ConditionalCheckFailedException":
        item = error.response.get("Item")
        if item and isinstance(request, (Swap, Drop)):
            return Conflict(held(item, request.key), known=True)
        return Conflict()
    text = f"DynamoDB: {error}"
    if code == "TransactionCanceledException":
        return _cancelled(text, error.response.get("CancellationReasons", ()))
    if code in _UNKNOWN and isinstance(request, (ReadAll, SwapAll)):
        return ConfigInvalidError(
            f"{text}; what listens here has no transactions: make the store with "
            "transactions=False, or with ?transactions=off in its URL"
        )
    if code == "ResourceNotFoundException":
        return ConfigInvalidError(
            f"there is no table {table!r} here; create it once with DynamoDBStore.create_table()"
        )
    if code in _BUSY:
        return ConnectionFailedError(text, may_have_run=False, again=True)
    if code in _CREDENTIALS:
        advice = f"allow GetItem, PutItem, DeleteItem and ConditionCheckItem on the table {table!r}"
        return ConnectionFailedError(f"{text}; {advice}", may_have_run=False)
    if code == "ValidationException":
        return ConfigInvalidError(f"{text}; the hash key of a table of ours is {HASH_KEY!r}")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    return ConnectionFailedError(text, may_have_run=status >= 500, again=status >= 500)


def _cancelled(text: str, reasons: Sequence[dict[str, str]]) -> Any:
    """The answer for a transaction that wrote nothing."""
    codes = {reason.get("Code", "None") for reason in reasons} - {"None"}
    if codes and codes <= _RACED:
        return Conflict()
    if "ValidationError" in codes:
        return ConfigInvalidError(f"{text}; the hash key of a table of ours is {HASH_KEY!r}")
    return ConnectionFailedError(text, may_have_run=False, again=True)


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
            # Two processes that create the table at once both find the TTL disabled; the second to
            # enable it gets an error, which can be ignored.
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
