"""Values of a wrong type in public constructors and calls: `config_invalid`, never an error from
inside."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock import (
    ConfigInvalidError,
    Limits,
    ManualClock,
    MemoryStore,
    PenstockError,
    limited,
    rate_limit,
    slots,
)
from penstock.admission import AdmissionControl
from penstock.budget import token_budget
from penstock.concurrency import Aimd, ConcurrencyLimiter, Gradient
from penstock.leasing import AdaptiveBatch, LeaseSpender, two_tier
from tests.support.helpers import run


class Strange:
    """A value of no use."""

    def __repr__(self) -> str:
        return "<Strange>"


WRONG = {"None": None, "True": True, "1.5": 1.5, "object": Strange(), "list": [None], "bytes": b"x"}


def admission() -> Any:
    return AdmissionControl(
        ConcurrencyLimiter(Gradient(2, 2)),
        rate_limit("5/minute"),
        rate_limit(token_budget(5, 60_000)),
    )


def leased(mode: str) -> Any:
    return two_tier("5/minute", MemoryStore(), mode)  # type: ignore[arg-type]


LIMITERS: dict[str, Callable[[], Any]] = {
    "limiter": lambda: rate_limit("5/minute"),
    "slots": lambda: rate_limit(slots(2)),
    "limits": lambda: Limits({"user": "5/minute"}),
    "cached-deny": lambda: leased("cached-deny"),
    "leased": lambda: leased("leased"),
    "concurrency": lambda: ConcurrencyLimiter(Gradient(2, 2)),
    "admission": admission,
    "budget": lambda: rate_limit(token_budget(5, 60_000)),
}

VERBS = (
    "check",
    "check_many",
    "peek",
    "forecast",
    "reset",
    "reserve",
    "pause",
    "acquire",
    "admit",
    "release",
    "withdraw",
    "heartbeat",
    "debit",
    "has_state",
)

# What a value of the type does as it should: a truth value, or a default.
FINE = {
    ("acquire", "timeout", "None"),
    ("acquire", "timeout", "1.5"),
    ("admit", "ttl_ms", "None"),
}
FLAGS = {"dropped"}

GOOD: dict[str, Any] = {
    "key": "k",
    "keys": ["k"],
    "cost": 1,
    "until_ms": 1,
    "timeout": 0,
    "tokens": 1,
    "lease_id": "x",
    "lease_ids": ["x"],
    "max_wait_ms": 0,
}


def calls() -> list[tuple[str, str, str, str]]:
    found = []
    for kind, make in LIMITERS.items():
        limiter = make()
        for verb in VERBS:
            if not callable(getattr(limiter, verb, None)):
                continue
            call = getattr(type(limiter), verb, None) or getattr(limiter, verb)
            for name in inspect.signature(call).parameters:
                if name not in ("self", *FLAGS):
                    found += [(kind, verb, name, wrong) for wrong in WRONG]
    return [each for each in found if each[1:] not in FINE]


def given(kind: str, verb: str, name: str, wrong: str, parameters: Any) -> dict[str, Any]:
    values = {
        each: ({"user": "k"} if kind == "limits" and each == "keys" else GOOD[each])
        for each in parameters
        if each in GOOD
    }
    return {**values, name: WRONG[wrong]}


@pytest.mark.parametrize(("kind", "verb", "name", "wrong"), calls())
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_call_with_a_wrong_type_is_refused(
    is_async: bool, kind: str, verb: str, name: str, wrong: str
) -> None:
    """Before the store is touched; slots refuse a check as a whole."""
    limiter = LIMITERS[kind]()
    verb = f"a{verb}" if is_async else verb
    call = getattr(limiter, verb)
    signature = inspect.signature(getattr(type(limiter), verb, None) or call)
    values = given(kind, verb, name, wrong, signature.parameters)
    with pytest.raises(PenstockError) as refused:
        run(call(**values)) if is_async else call(**values)
    assert refused.value.code in ("config_invalid", "not_implemented")


MADE: dict[str, tuple[Callable[..., Any], dict[str, Any], set[str]]] = {
    "rate_limit": (rate_limit, {"strategy": "5/minute"}, {"store", "clock", "max_waiters"}),
    "Limits": (Limits, {"limits": {"a": "5/minute"}}, {"store", "clock", "max_waiters"}),
    "limited": (
        limited,
        {"limit": "5/minute"},
        {"key", "timeout", "store", "prefix", "clock", "max_waiters"},
    ),
    "gcra": (penstock.gcra, {"limit": 5, "period_ms": 1_000}, {"burst"}),
    "token_bucket": (penstock.token_bucket, {"capacity": 5, "refill_per_sec": 5}, set()),
    "fixed_window": (penstock.fixed_window, {"limit": 5, "window_ms": 1_000}, set()),
    "sliding_window": (penstock.sliding_window, {"limit": 5, "window_ms": 1_000}, set()),
    "sliding_window_log": (penstock.sliding_window_log, {"limit": 5, "window_ms": 1_000}, set()),
    "calendar_quota": (penstock.calendar_quota, {"limit": 5, "period": "day"}, set()),
    "slots": (slots, {"limit": 5}, set()),
    "token_budget": (token_budget, {"budget": 5, "window_ms": 1_000}, set()),
    "MemoryStore": (
        MemoryStore,
        {},
        {"max_keys", "max_bytes", "sweep_every_ms", "clock"},
    ),
    "ManualClock": (ManualClock, {}, set()),
    "two_tier": (
        two_tier,
        {"strategy": "5/minute", "l2": MemoryStore()},
        {"window_coupled", "return_idle_after_ms", "clock"},
    ),
    "AdaptiveBatch": (AdaptiveBatch, {}, set()),
    "LeaseSpender": (LeaseSpender, {"limit": 5, "ttl_ms": 5, "window_coupled": True}, set()),
    "ConcurrencyLimiter": (ConcurrencyLimiter, {}, {"law", "clock", "store"}),
    "AdmissionControl": (
        AdmissionControl,
        {"concurrency": ConcurrencyLimiter()},
        {"rate", "budget"},
    ),
    "Gradient": (Gradient, {}, {"initial_limit"}),
    "Aimd": (Aimd, {}, {"initial_limit", "timeout_ms"}),
}

# A float or a flag is what is asked for here.
FITS = {
    ("limited", "timeout", "1.5"),
    ("token_bucket", "refill_per_sec", "1.5"),
    ("Gradient", "tolerance", "1.5"),
    ("AdaptiveBatch", "order_cost", "1.5"),
    ("AdaptiveBatch", "strand_penalty", "1.5"),
    ("two_tier", "window_coupled", "True"),
    ("LeaseSpender", "window_coupled", "True"),
    ("ConcurrencyLimiter", "per_key", "True"),
    ("Limits", "require_atomic", "True"),
}


def constructions() -> list[tuple[str, str, str]]:
    found = []
    for name, (make, _, optional) in MADE.items():
        for parameter in inspect.signature(make).parameters:
            found += [
                (name, parameter, wrong)
                for wrong in WRONG
                if not (wrong == "None" and parameter in optional)
            ]
    return [each for each in found if each not in FITS]


@pytest.mark.parametrize(("name", "parameter", "wrong"), constructions())
def test_a_constructor_with_a_wrong_type_refuses_it(name: str, parameter: str, wrong: str) -> None:
    """By an error that names the parameter or what would be right."""
    make, values, _ = MADE[name]
    with pytest.raises(ConfigInvalidError):
        make(**{**values, parameter: WRONG[wrong]})
