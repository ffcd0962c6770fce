"""The DynamoDB store."""

from __future__ import annotations

from ._store import DynamoDBStore

__all__ = ["DynamoDBStore"]
