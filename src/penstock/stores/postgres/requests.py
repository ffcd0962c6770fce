"""What the flows of PostgresStore ask of a connection, and how it may fail to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core._flow import Flow

__all__ = [
    "Ask",
    "PostgresFlow",
    "RefusalError",
    "Request",
    "Row",
    "Statement",
    "Together",
]

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement with the types of its parameters and of its columns.

    Types are `text`, `int8`, `int4` and, for parameters, arrays of `bytea`, `text` and `int8`.
    A name lets a connection keep it prepared.
    """

    sql: str
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """Run a statement: one round trip. Sends back the rows.

    `bound_ms` is how long the server may take, where the connection's own bound is too long."""

    statement: Statement
    values: tuple[Any, ...] = ()
    writes: bool = False
    bound_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """Run statements one after the other, up to the first that is refused: one round trip, where
    the driver can send them at once. Sends back the rows of each."""

    asks: tuple[Ask, ...]

    @property
    def writes(self) -> bool:
        return any(ask.writes for ask in self.asks)


Request = Ask | Together
PostgresFlow = Flow[Request, Any]


class RefusalError(Exception):
    """The server refused a statement, and rolled it back."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state
