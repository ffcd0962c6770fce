"""The requests of PostgresStore's flows to a connection, and every way in which they may fail.

A statement that the server refuses has changed nothing. If the connection failed, it matters
whether the statement had been sent: if so, the error says that the request may have been charged,
and it is not repeated, since that could charge it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core._errors import ConfigInvalidError, PenstockError, StoreUnavailableError
from ...core._flow import Flow
from .._sheet import ConnectionFailedError

__all__ = [
    "CONFLICTS",
    "NO_FUNCTION",
    "TIMEOUTS",
    "UNPREPARED",
    "Pipeline",
    "PostgresFlow",
    "PostgresRequest",
    "Query",
    "RefusalError",
    "Row",
    "Statement",
    "interrupted",
    "late",
    "late_connect",
    "late_reply",
    "missing_table",
    "not_ours",
    "unavailable",
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
class Query:
    """Run a statement: one round trip. Sends back the rows.

    `bound_ms` is how long the server may take, where the connection's own bound is too long."""

    statement: Statement
    values: tuple[Any, ...] = ()
    writes: bool = False
    bound_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Run statements one after the other, up to the first that is refused: one round trip, where
    the driver can send them at once. Sends back the rows of each."""

    queries: tuple[Query, ...]

    @property
    def writes(self) -> bool:
        return any(query.writes for query in self.queries)


PostgresRequest = Query | Pipeline
PostgresFlow = Flow[PostgresRequest, Any]


class RefusalError(Exception):
    """The server refused a statement, and rolled it back."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state


_SETTLED = "nothing was charged"
_DOUBT = "the request may have been charged, and was not repeated for that reason"

CONFLICTS = frozenset({"40001", "40P01"})
"""Refusals that ask for another try: someone else was first, or a deadlock was broken."""

TIMEOUTS = frozenset({"55P03", "57014"})
"""Refusals of a statement that would have taken longer than it was given."""

UNPREPARED = frozenset({"26000", "42P05"})
"""A prepared statement is not where it was left: something pools connections in between."""

NO_FUNCTION = "42883"
"""The refusal to call a function that is not there."""

_MISSING = frozenset({"42P01", NO_FUNCTION, "3F000"})
_FULL = frozenset({"53100", "53200"})
_ADVICE = {
    "25006": "this server is a standby or set to read-only; use the primary's address",
    "42501": "grant this user SELECT, INSERT, UPDATE and DELETE on the table, and EXECUTE on its "
    "functions",
    "53100": "make room on the server's disk",
    "53200": "the server has no memory left",
    "53300": "the server has no connection left; raise max_connections or run fewer processes",
    "55P03": "someone holds a lock on the table",
    "57014": "the server took longer than the store's timeout",
}


def unavailable(
    error: ConnectionFailedError | RefusalError, table: str, *, was_sent: bool
) -> PenstockError:
    """The error of a call whose connection or server failed. `was_sent`: a write of this call was
    in flight; a call that only reads, or waits, is never in doubt."""
    if isinstance(error, ConnectionFailedError):
        return StoreUnavailableError(f"{error}; {_effect(was_sent and error.may_have_run)}")
    if error.state in _MISSING:
        return missing_table(table)
    # A session may have been terminated after its commit.
    effect = _effect(was_sent and error.state.startswith("57P"))
    advice = f"; {_ADVICE[error.state]}" if error.state in _ADVICE else ""
    text = f"PostgreSQL refused ({error.state}): {error}{advice}; {effect}"
    return StoreUnavailableError(text, reason="full" if error.state in _FULL else "away")


def _effect(in_doubt: bool) -> str:
    return _DOUBT if in_doubt else _SETTLED


def missing_table(table: str) -> ConfigInvalidError:
    return ConfigInvalidError(
        f"the table {table} or its function is missing: create them once, with "
        "`penstock store init URL` or store.init()"
    )


def not_ours(table: str, mark: str | None) -> ConfigInvalidError:
    detail = "no comment" if mark is None else f"the comment {mark!r}"
    return ConfigInvalidError(
        f"the table {table} is not a store of this version (it has {detail}); name another one "
        "with ?table= or table="
    )


def late_connect(where: str) -> ConnectionFailedError:
    return ConnectionFailedError(f"no connection to {where} in time", may_have_run=False)


def late_reply(where: str, request: PostgresRequest) -> ConnectionFailedError:
    return ConnectionFailedError(f"no reply from {where} in time", may_have_run=request.writes)


def late(where: str, timeout_ms: int, *, in_doubt: bool) -> StoreUnavailableError:
    return StoreUnavailableError(f"{where}: no answer within {timeout_ms} ms; {_effect(in_doubt)}")


def interrupted(where: str, *, in_doubt: bool) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{where}: the caller that was sending was interrupted; {_effect(in_doubt)}"
    )
