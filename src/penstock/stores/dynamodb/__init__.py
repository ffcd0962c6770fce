"""The DynamoDB store."""

from __future__ import annotations

from .store import DynamoDBStore

__all__ = ["DynamoDBStore"]
