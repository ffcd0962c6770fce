"""The spender by itself, and its golden vectors on both executors of the rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigInvalidError, Decision
from penstock.core._transform import checking
from penstock.leasing import LeaseSpender
from penstock.leasing._credits import Credits, granting
from tests.support.helpers import PATHS, make_store
from tools.wire.convert import decision_fields

VECTORS = json.loads(
    (Path(__file__).parents[2] / "wire/vectors/golden-vectors-leases.json").read_text()
)
SUITES: list[dict[str, Any]] = VECTORS["suites"]

STEADY = [suite for suite in SUITES if "goes-back" not in suite["name"]]

each_suite = pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite["name"])


def spender_of(suite: dict[str, Any]) -> LeaseSpender:
    options = suite["options"]
    return LeaseSpender(options["limit"], options["ttlMs"], options["windowCoupled"])


def fields(decision: Decision | None) -> dict[str, bool | int] | None:
    return None if decision is None else decision_fields(decision)


@each_suite
def test_the_spender_answers_as_written(suite: dict[str, Any]) -> None:
    """What another implementation must do, this one does."""
    spender = spender_of(suite)
    for event in suite["events"]:
        if event["type"] == "grant":
            spender.apply_lease(event["capacity"], event["expiresAt"])
        else:
            assert fields(spender.spend(event["now"], event["cost"])) == event["expect"], event


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("suite", STEADY, ids=lambda suite: suite["name"])
def test_credits_in_a_store_answer_as_written(suite: dict[str, Any], path: str) -> None:
    """The near tier follows the same vectors, but for those of a clock that goes back."""
    options = suite["options"]
    coupled = options["windowCoupled"]
    credits = Credits(options["limit"], aligned=coupled)
    store, spending, now = make_store(path), checking(credits), 0
    for event in suite["events"]:
        if event["type"] == "grant":
            end = event["expiresAt"]
            fresh = (event["capacity"], end, end if coupled else 2**45)
            store.apply("key", granting(credits, fresh), now, 1)
        else:
            now = event["now"]
            decision = store.apply("key", spending, now, event["cost"])
            assert fields(decision if decision.allowed else None) == event["expect"], event


def test_the_vectors_cover_what_they_promise() -> None:
    """Each situation in which spenders could part, coupled and carried."""
    assert VECTORS["contractVersion"] == "1"
    assert {suite["primitive"] for suite in SUITES} == {"lease"}
    names = [suite["name"] for suite in SUITES]
    assert len(set(names)) == len(names)
    for situation in (
        "exhaustion",
        "refresh-inside-a-window",
        "boundary",
        "cost-above-capacity",
        "many-windows-later",
        "real-epoch",
    ):
        for label in ("coupled", "carried"):
            assert f"lease/{situation}/{label}" in names
    answers = [e["expect"] for suite in SUITES for e in suite["events"] if e["type"] == "spend"]
    assert None in answers
    assert all(list(a) == VECTORS["decisionFields"] for a in answers if a is not None)


def test_a_spend_before_any_grant_asks_for_one() -> None:
    """It never invents a denial."""
    assert LeaseSpender(10, 1_000, True).spend(5, 1) is None


def test_without_a_window_end_the_reset_is_a_ttl_away() -> None:
    """Credits put in by hand, before any grant, are good for `ttl_ms`."""
    spender = LeaseSpender(10, 1_000, True)
    spender.credits = 2
    assert spender.spend(5, 1) == Decision(True, 10, 1, 1_005, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeaseSpender(0, 1_000, True), "limit"),
        (lambda: LeaseSpender(1, -1, True), "ttl_ms"),
        (lambda: LeaseSpender(1, 1, True).apply_lease(-1, 5), "capacity"),
        (lambda: LeaseSpender(1, 1, True).apply_lease(1, -5), "now"),
        (lambda: LeaseSpender(1, 1, True).spend(5, 0), "cost"),
        (lambda: LeaseSpender(1, 1, True).spend(5, True), "cost"),
    ],
)
def test_what_could_never_be_right_is_refused(make: Any, message: str) -> None:
    """As everywhere in the package, before anything is counted."""
    with pytest.raises(ConfigInvalidError, match=message):
        make()
