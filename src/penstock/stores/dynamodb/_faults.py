"""Every fault of botocore and of DynamoDB, as one of ours. No other file translates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core._errors import ConfigInvalidError, StoreUnavailableError
from ..cas import AnyRequest, Conflict, ConnectionFailedError, Drop, ReadAll, Swap, SwapAll
from ._items import HASH_KEY, held

__all__ = ["error_code", "final", "translated"]

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
# Why an item of a transaction was not written: others were first, or are about to be.
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
    """The code of an error reply; empty for every other fault."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return str(code)


def translated(error: BaseException, request: AnyRequest | None, table: str) -> Any:
    """A Conflict or an exception of ours; what is not a driver's stays itself."""
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
    """What a transaction is that wrote nothing."""
    codes = {reason.get("Code", "None") for reason in reasons} - {"None"}
    if codes and codes <= _RACED:
        return Conflict()
    if "ValidationError" in codes:
        return ConfigInvalidError(f"{text}; the hash key of a table of ours is {HASH_KEY!r}")
    return ConnectionFailedError(text, may_have_run=False, again=True)
