"""A strategy that is not of this package: registered once, it is known wherever ours are."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock import ConfigInvalidError, ManualClock, MemoryStore, Parameter, Strategy, rate_limit
from penstock.config import parse_policies
from penstock.core._lua import LuaSource
from penstock.core._register import find_strategy, registered
from penstock.service.http._openapi import openapi, openapi_json
from penstock.strategies import Gcra
from penstock.testkit import (
    ConformanceError,
    conformance_cases,
    run_store_conformance,
    sample_strategies,
    temporarily_registered,
)
from tests.servers.process import REPO, environment
from tests.service.worlds import policies, service_on
from tests.stores.redis.live import new_key, open_empty, running
from tests.support.helpers import NOW
from tools.wire.convert import strategy_of
from tools.wire.manifest import published

TOY = "tests.support.leaky_bucket"


@pytest.fixture
def leaky_bucket() -> Iterator[Any]:
    """The class of the toy, which is forgotten when the test is over."""
    with temporarily_registered():
        # Its first import registers it, as that of a user's module would; the others do not.
        yield penstock.register(importlib.import_module(TOY).LeakyBucket)


def file_with(policy: str) -> str:
    return f"version: 1\nlimiters:\n  api: {policy}\n"


@pytest.mark.parametrize(
    "policy",
    [
        "{strategy: leakyBucket, capacity: 5, leakEvery: 600ms, leakUnits: 2}",
        "{strategy: leaky_bucket, capacity: 5, leak_every: 600ms, leak_units: 2}",
        "{strategy: leakyBucket, capacity: 5, leakEveryMs: 600, leakUnits: 2}",
        "{strategy: leaky_bucket, capacity: 5, leak_every_ms: 600, leak_units: 2}",
    ],
)
def test_a_policy_file_may_name_it(leaky_bucket: Any, policy: str) -> None:
    """In both spellings, with durations in words or in milliseconds."""
    strategy = parse_policies(file_with(policy)).policies["api"].strategy
    assert type(strategy) is leaky_bucket
    assert strategy.values == {"capacity": 5, "leak_every_ms": 600, "leak_units": 2}


def test_what_a_policy_file_leaves_out_has_its_default(leaky_bucket: Any) -> None:
    """And in JSON it is the same."""
    text = (
        '{"version": 1, "limiters": {"api": '
        '{"strategy": "leakyBucket", "capacity": 5, "leakEvery": "1m"}}}'
    )
    strategy = parse_policies(text, "p.json").policies["api"].strategy
    assert strategy is not None
    assert strategy.values == {"capacity": 5, "leak_every_ms": 60_000, "leak_units": 1}


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (
            "{strategy: leakyBucket, capacity: 5}",
            "limiters.api.leakEvery: is missing; write for example leakEvery: 600ms",
        ),
        (
            "{strategy: leaky_bucket, capacity: 0, leak_every: 1s}",
            "limiters.api.capacity: must be a whole number from 1 to 1000000000, not 0",
        ),
        (
            "{strategy: leaky_bucket, capacity: 5, leak_every: 600}",
            "limiters.api.leak_every: must be a duration such as '600ms', not 600; a number of "
            "milliseconds goes under leak_every_ms",
        ),
        (
            "{strategy: leakyBucket, capacity: 5, leakEvery: 1s, leakUnit: 2}",
            "limiters.api.leakUnit: is not known here; did you mean leakUnits?",
        ),
        (
            "{strategy: leakyBuckets, capacity: 5, leakEvery: 1s}",
            "limiters.api.strategy: must be one of gcra, ",
        ),
        (
            "{strategy: leakyBuckets, capacity: 5, leakEvery: 1s}",
            "not 'leakyBuckets'; did you mean leakyBucket?",
        ),
        (
            "{strategy: leakyBucket, capacity: 1000000000, leakEvery: 1d}",
            "limiters.api: a bucket of 1000000000 takes ",
        ),
        (
            "{strategy: leakyBucket, capacity: 5, leakEvery: 1s, federated: {batch: 2}}",
            "limiters.api.federated: needs a strategy with a window",
        ),
        ("{capacity: 5, leakEvery: 1s}", "limiters.api.strategy: is missing; write one of gcra, "),
    ],
)
def test_what_is_wrong_with_it_in_a_policy_file_is_told(
    leaky_bucket: Any, policy: str, told: str
) -> None:
    """With the path and what would be right, in the spelling of the file."""
    with pytest.raises(ConfigInvalidError) as refused:
        parse_policies(file_with(policy))
    assert told in str(refused.value)


@pytest.mark.parametrize("spelling", ["leaky_bucket", "leakyBucket"])
def test_a_request_may_bring_it_along(leaky_bucket: Any, spelling: str) -> None:
    """Made from a limit and a window, as its `per` says."""
    service, clock = service_on()

    async def main() -> list[bool]:
        checks = [service.check_inline("k", 3, 60_000, 1, spelling) for _ in range(4)]
        answers = [bool(await check) for check in checks]
        clock.advance(20_000)
        return [*answers, bool(await service.check_inline("k", 3, 60_000, 1, spelling))]

    assert asyncio.run(main()) == [True, True, True, False, True]


def test_openapi_offers_it_as_long_as_it_is_registered(leaky_bucket: Any) -> None:
    """The document follows the registry."""

    def offered() -> list[str]:
        check = openapi()["components"]["schemas"]["InlineCheck"]
        names: list[str] = check["properties"]["strategy"]["enum"]
        return names

    assert "leaky_bucket" in offered()
    assert b'"leaky_bucket"' in openapi_json()
    with temporarily_registered(_named("other_bucket", leaky_bucket)):
        assert offered()[-2:] == ["leaky_bucket", "other_bucket"]
    assert offered()[-1] == "leaky_bucket"


def test_the_wire_knows_it_and_does_not_publish_it(leaky_bucket: Any) -> None:
    """By its name in camelCase; the manifest is about the scripts of this package."""
    options = {"capacity": 5, "leakEveryMs": 600}
    assert repr(strategy_of("leakyBucket", options)) == repr(leaky_bucket(5, 600))
    assert "leakyBucket" not in {source.strategy for source in published()}


def test_its_budget_can_be_leased(leaky_bucket: Any) -> None:
    """`twoTier` stands beside it as beside any other, and no more is admitted."""
    text = file_with("{strategy: leakyBucket, capacity: 7, leakEvery: 1h, twoTier: {batch: 3}}")
    service, _ = service_on(MemoryStore(), config=policies(text))

    async def main() -> int:
        return sum([bool(await service.check("api", "k")) for _ in range(20)])

    assert asyncio.run(main()) == 7


@pytest.mark.parametrize("name", ["valkey", "redis8"])
def test_redis_decides_by_its_script(leaky_bucket: Any, name: str) -> None:
    """One by one and in batches as its Python does, on keys that hold what its Lua writes."""
    strategy, key = leaky_bucket(5, 600), new_key()
    store, clock = open_empty(name), ManualClock(NOW)
    there, here = (rate_limit(strategy, store=s, clock=clock) for s in (store, MemoryStore()))
    for later, cost in ((0, 3), (10, 2), (10, 1), (600, 1), (600, 1), (-100, 1), (1_300, 2)):
        clock.set(NOW + later)
        assert there.check(key, cost) == here.check(key, cost), (later, cost)
        assert there.peek(key) == here.peek(key)
        assert there.forecast(key) == here.forecast(key)
    keys = [key, "b", key, "b", "c"]
    assert there.check_many(keys) == here.check_many(keys)
    assert running(name).call("HKEYS", "b") == ["l", "a"]
    running(name).call("HSET", "theirs", "name", "alice")
    for ask in (there.check, there.peek):
        with pytest.raises(ConfigInvalidError):
            ask("theirs")
    store.close()


def _named(name: str, base: Any, **members: Any) -> Any:
    return type(name.title().replace("_", ""), (base,), {"name": name, **members})


@pytest.mark.parametrize("kind", ["memory", "valkey"])
def test_the_conformance_kit_tries_it_too(leaky_bucket: Any, kind: str) -> None:
    """By itself; a script that says something else than the Python beside it is found out."""
    make = MemoryStore if kind == "memory" else lambda: open_empty("valkey")
    assert leaky_bucket in {type(strategy) for strategy in sample_strategies()}
    run_store_conformance(make, atomic=False)

    def strict(self: Any, state: Any, now: int, cost: int) -> Any:
        return leaky_bucket.check(self, state, now, cost + 1)

    # Whoever declares a source and a check says that the two agree.
    wrong = _named("wrong_bucket", leaky_bucket, check=strict, lua_sources=leaky_bucket.lua_sources)
    (case,) = (case for case in conformance_cases() if case.name == "decides as plain Python")
    with temporarily_registered(wrong):
        if kind == "memory":  # which runs no Lua
            run_store_conformance(make, cases=[case])
            return
        with pytest.raises(ConformanceError, match=r"wrong_bucket\(capacity=7"):
            run_store_conformance(make, cases=[case])


def test_the_fuzzers_and_the_laws_try_it_by_themselves() -> None:
    """A test run in which a module has registered it has its cases, and they pass."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", TOY, "-rA", "--no-header", "-k"),
            "leaky_bucket and not redis7",
            *(
                "tests/properties",
                "tests/strategies/test_laws.py",
                "tests/accel/test_paths_agree.py",
            ),
            "tests/core/test_limiter.py",
        ],
        cwd=REPO,
        env=environment(STEPS="2000", PENSTOCK_PURE=os.environ.get("PENSTOCK_PURE", "")),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
    passed = set(re.findall(r"^PASSED tests/\S*::(\w+)\[", done.stdout, re.MULTILINE))
    wanted = {
        "test_lua_agrees",
        "test_lua_for_many_agrees",
        "test_the_interpreted_table_agrees",
        "test_the_limiter_in_memory_agrees",
        "test_a_clock_that_goes_back_admits_no_more_than_one_that_stood_still",
        "test_a_state_past_its_ttl_decides_as_no_state_at_all",
    }
    assert wanted <= passed


class _Fine(Strategy):
    """All that a registered strategy needs."""

    name = "fine_one"
    parameters = (Parameter("limit", "count"), Parameter("window_ms", "span"))

    def check(self, state: Any, now: int, cost: int) -> Any:
        raise NotImplementedError


def _with(*parameters: Any) -> Any:
    return _named("fine_one", _Fine, parameters=parameters)


def _made_by(init: Callable[..., None]) -> Any:
    return _named("fine_one", _Fine, __init__=init)


def _lua(**options: Any) -> Any:
    facts: Any = {"state": "", "raw": "", "decode": id, "argv": ("now", "limit", "cost"), **options}
    file = facts.pop("file", str(REPO / "tests" / "support" / "leaky_bucket.lua"))
    return _named("fine_one", _Fine, lua_sources=(LuaSource("fineOne", file, **facts),))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Gcra(5, 1_000), "register takes a subclass of Strategy, not gcra("),
        (lambda: int, "register takes a subclass of Strategy, not <class 'int'>"),
        (lambda: "gcra", "register takes a subclass of Strategy, not 'gcra'"),
        (lambda: Strategy, "Strategy cannot be registered without check"),
        (
            lambda: _named("gcra", _Fine),
            "'gcra' is taken by penstock.strategies._gcra.Gcra",
        ),
        (lambda: _named("tokenBucket", _Fine), "must be in snake_case, not 'tokenBucket'"),
        (
            lambda: _named("bucket", _Fine, wire_name="tokenBucket"),
            "'bucket' is taken by penstock.strategies._token_bucket.TokenBucket",
        ),
        (lambda: _named("fine_one", _Fine, wire_name="Fine One"), "must be in camelCase"),
        (lambda: _named("Fine", _Fine), "the name of Fine must be in snake_case, not 'Fine'"),
        (lambda: _named("fine_2", _Fine), "must be in snake_case, not 'fine_2'"),
        (lambda: _with("limit"), "must be a tuple of Parameter, not ('limit',)"),
        (
            lambda: _named("fine_one", _Fine, parameters=[Parameter("limit", "count")]),
            "must be a tuple of Parameter, not [Parameter(",
        ),
        (lambda: _with(Parameter("fail", "count")), "cannot have a parameter 'fail': the name is"),
        (lambda: _with(Parameter("fail_ms", "span")), "cannot have a parameter 'fail_ms'"),
        (
            lambda: _with(Parameter("size", "count"), Parameter("size", "rate")),
            "cannot have a parameter 'size': the name is taken",
        ),
        (
            lambda: _with(Parameter("window", "count"), Parameter("window_ms", "span")),
            "cannot have a parameter 'window_ms': the name is taken",
        ),
        (lambda: Parameter("Size", "count"), "must be in snake_case, not 'Size'"),
        (lambda: Parameter(5, "count"), "must be in snake_case, not 5"),  # type: ignore[arg-type]
        (lambda: Parameter("size", "number"), "the kind of size must be 'count' or"),
        (
            lambda: Parameter("window", "span"),
            "window: the name of a span, and of nothing else, must end in _ms",
        ),
        (
            lambda: Parameter("size_ms", "count"),
            "size_ms: the name of a span, and of nothing else, must end in _ms",
        ),
        (
            lambda: Parameter("mode", "choice"),
            "mode: the kind 'choice', and no other, needs choices",
        ),
        (
            lambda: Parameter("size", "count", choices=("a",)),
            "size: the kind 'choice', and no other, needs choices",
        ),
        (lambda: Parameter("size", "count", default=0), "size must be an integer from 1 to"),
        (
            lambda: Parameter("mode", "choice", choices=("a", "b"), default="c"),
            "mode must be 'a' or 'b', not 'c'",
        ),
        (
            lambda: _made_by(lambda self, limit: None),
            "the constructor of FineOne must take its declared parameters by name (limit, "
            "window_ms), and require none that is not declared or has a default",
        ),
        (
            lambda: _made_by(lambda self, limit, window_ms, more: None),
            "the constructor of FineOne must take",
        ),
        (
            lambda: _made_by(lambda self, limit, window_ms, *, more: None),
            "the constructor of FineOne must take",
        ),
        (
            lambda: _lua(argv=("now", "limit", "windowMs", "size", "cost")),
            "the Lua source fineOne of FineOne takes size; it may take now, cost and parameters "
            "that are numbers: limit, windowMs",
        ),
        (lambda: _lua(argv=("limit", "cost")), "argv of fineOne must begin with 'now'"),
        (lambda: _lua(file="nowhere.lua"), "fineOne of FineOne is no file: nowhere.lua"),
    ],
)
def test_what_cannot_be_registered_is_refused_and_changes_nothing(
    make: Callable[[], Any], told: str
) -> None:
    """Before anybody asks for it, with what would be right."""
    before = registered()
    with pytest.raises(ConfigInvalidError) as refused:
        penstock.register(make())
    assert refused.value.code == "config_invalid"
    assert told in str(refused.value)
    assert registered() == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: _Fine,
        lambda: _lua(),
        lambda: _made_by(lambda self, limit, window_ms, more=1: None),
        lambda: _made_by(lambda self, *, limit, window_ms, more=1: None),
        lambda: _made_by(lambda self, **values: None),
    ],
)
def test_what_can_be_made_from_its_declaration_can_be_registered(make: Callable[[], Any]) -> None:
    """As a decorator too: the class comes back. A second time does nothing."""
    with temporarily_registered():
        cls = make()
        assert penstock.register(cls) is cls
        assert penstock.register(cls) is cls
        assert find_strategy("fine_one") is find_strategy("fineOne") is cls
        assert registered()[-1] is cls
    assert find_strategy("fine_one") is None
