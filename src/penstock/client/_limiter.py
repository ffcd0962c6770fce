"""`ServiceLimiter`: a policy of a service, with the calls of a limiter.

Each call is described by a `ServiceCall`: the request, how to read the answer, and what to return
if there is none. `_ask` and `_aask` carry it out, so the sync and the async calls cannot differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, overload
from weakref import WeakKeyDictionary

from ..core._claims import Closing
from ..core._clock import Clock, SystemClock, require_clock
from ..core._decision import Decision, DegradedDecision, Forecast
from ..core._errors import OverloadedError, StoreUnavailableError, UnsupportedError
from ..core._loops import running_loop
from ..core._reserving import require_until, require_wait
from ..core._validation import (
    reject,
    require_choice,
    require_cost,
    require_int,
    require_key,
    require_keys,
    shown,
)
from ..core._verdict import Verdict
from ..core._waiting import KeyQueues, Wait, aacquire, acquire, timeout_in_ms, waiting_clock
from ._admission import Beats, LoopBeats, ServiceSlot
from ._charge import LoopRenewer, Renewer, ServiceCharge
from ._questions import (
    AnswerError,
    Attributes,
    Cost,
    ServiceCall,
    attributes_of,
    decision_of,
    decisions_of,
    failed_forecast,
    failed_verdict,
    forecast_of,
    itself,
    nothing,
    readers,
    text_field,
    texts_field,
    verdicts_of,
    whole_field,
)
from ._transport import Answer, ServiceTransport, no_answer, open_transport

__all__ = ["ServiceLimiter"]

FailMode = Literal["open", "closed", "error"]


class ServiceLimiter(Closing):
    """A limiter that asks a policy of a service. Safe to share between threads and event loops.

    `url` is the address of the service: `"http://host:8080"`, `"https://..."`,
    `"grpc://host:50051"` or `"grpcs://..."`. `token` is the service's access token. A call takes at
    most `timeout_ms`; without an answer, `fail` decides: `"open"` allows, `"closed"` denies and
    says to retry after a second, `"error"` raises `store_unavailable`. `tls` replaces the system's
    certificates: an `ssl.SSLContext` for https, channel credentials of grpcio for grpcs.
    `max_waiters` bounds how many callers may wait in `acquire` for one key. Slots are renewed at
    least every `heartbeat_ms`; by default three times per ttl, and at least every ten seconds.

    A policy with one limit takes a key and returns a `Decision`; a policy with several limits takes
    a mapping of attributes and returns a `Verdict`. Its cost is one number for all limits, or a
    mapping by limit, such as `{"tokens": 700}`. A limit that the mapping leaves out takes its cost
    from the attribute that the policy names for it, if any, and otherwise costs 1.
    """

    answers_at_once: bool = False
    """Always False: every call waits for the service, so an event loop must use the async
    calls."""

    def __init__(
        self,
        url: str,
        policy: str,
        *,
        token: str | None = None,
        timeout_ms: int = 1_000,
        fail: FailMode = "open",
        tls: Any = None,
        max_waiters: int | None = None,
        heartbeat_ms: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.policy: str = _require_policy(policy)
        """The name of the policy."""
        self.fail: FailMode = require_choice("fail", fail, get_args(FailMode))
        """The fail mode: what is returned when the service does not answer."""
        if max_waiters is not None:
            require_int("max_waiters", max_waiters, low=0)
        self.clock: Clock = SystemClock() if clock is None else require_clock(clock)
        """The clock that times waiting; decisions use the clock of the service."""
        timeout_ms = require_int("timeout_ms", timeout_ms, high=3_600_000)
        opened = open_transport(url, token, timeout_ms, tls)
        self.url: str = opened[0]
        """The address of the service."""
        self._transport: ServiceTransport = opened[1]
        self._queues = KeyQueues(max_waiters)
        self._waiting_clock = waiting_clock(self.clock)
        if heartbeat_ms is not None:
            require_int("heartbeat_ms", heartbeat_ms, low=100, high=3_600_000)
        self._heartbeat_s = None if heartbeat_ms is None else heartbeat_ms / 1000
        self._beats = Beats(self, self._heartbeat_s)
        self._loop_beats: WeakKeyDictionary[Any, LoopBeats] = WeakKeyDictionary()
        self._holds = False
        self._renewer = Renewer()
        self._loop_renewers: WeakKeyDictionary[Any, LoopRenewer] = WeakKeyDictionary()

    @overload
    def check(self, key: str, cost: int = ...) -> Decision: ...

    @overload
    def check(self, key: Attributes, cost: Cost = ...) -> Verdict: ...

    @overload
    def check(self, key: str, cost: Mapping[str, int]) -> Verdict: ...

    def check(self, key: str | Attributes, cost: Cost = 1) -> Decision | Verdict:
        """Decide a request of `cost` and, if it is allowed, spend it."""
        answer: Decision | Verdict = self._ask(self._checking(key, cost))
        return answer

    @overload
    async def acheck(self, key: str, cost: int = ...) -> Decision: ...

    @overload
    async def acheck(self, key: Attributes, cost: Cost = ...) -> Verdict: ...

    @overload
    async def acheck(self, key: str, cost: Mapping[str, int]) -> Verdict: ...

    async def acheck(self, key: str | Attributes, cost: Cost = 1) -> Decision | Verdict:
        """The awaitable twin of `check`."""
        answer: Decision | Verdict = await self._aask(self._checking(key, cost))
        return answer

    @overload
    def check_many(self, keys: Iterable[str], cost: int = ...) -> list[Decision]: ...

    @overload
    def check_many(self, keys: Iterable[Attributes], cost: Cost = ...) -> list[Verdict]: ...

    def check_many(
        self, keys: Iterable[str] | Iterable[Attributes], cost: Cost = 1
    ) -> list[Decision] | list[Verdict]:
        """As one `check` per key, or per mapping of attributes, in order, all at the same instant;
        at most 1,000 of them."""
        answers: list[Decision] | list[Verdict] = self._ask(self._checking_many(keys, cost))
        return answers

    @overload
    async def acheck_many(self, keys: Iterable[str], cost: int = ...) -> list[Decision]: ...

    @overload
    async def acheck_many(self, keys: Iterable[Attributes], cost: Cost = ...) -> list[Verdict]: ...

    async def acheck_many(
        self, keys: Iterable[str] | Iterable[Attributes], cost: Cost = 1
    ) -> list[Decision] | list[Verdict]:
        """The awaitable twin of `check_many`."""
        answers: list[Decision] | list[Verdict] = await self._aask(self._checking_many(keys, cost))
        return answers

    @overload
    def peek(self, key: str) -> Decision: ...

    @overload
    def peek(self, key: Attributes) -> Verdict: ...

    def peek(self, key: str | Attributes) -> Decision | Verdict:
        """What `check` would answer for a cost of 1, with `remaining` as it stands. Spends
        nothing."""
        answer: Decision | Verdict = self._ask(self._peeking(key))
        return answer

    @overload
    async def apeek(self, key: str) -> Decision: ...

    @overload
    async def apeek(self, key: Attributes) -> Verdict: ...

    async def apeek(self, key: str | Attributes) -> Decision | Verdict:
        """The awaitable twin of `peek`."""
        answer: Decision | Verdict = await self._aask(self._peeking(key))
        return answer

    def forecast(self, key: str | Attributes, cost: Cost = 1) -> Forecast:
        """How many requests of `cost` fit now, and when there is more. Spends nothing."""
        forecast: Forecast = self._ask(self._forecasting(key, cost))
        return forecast

    async def aforecast(self, key: str | Attributes, cost: Cost = 1) -> Forecast:
        """The awaitable twin of `forecast`."""
        forecast: Forecast = await self._aask(self._forecasting(key, cost))
        return forecast

    def reserve(
        self, key: str | Attributes, cost: Cost = 1, *, max_wait_ms: int = 0
    ) -> ServiceCharge:
        """Spend `cost` as `check` does, and return a `ServiceCharge` that can be settled when the
        true cost is known, or cancelled. A denial is a charge that is not `allowed`.

        With a `max_wait_ms`, strategies with a pace may book units that they will have within
        that time: `charge.starts_at` is when.
        """
        charge: ServiceCharge = self._ask(self._reserving(key, cost, max_wait_ms))
        return charge

    async def areserve(
        self, key: str | Attributes, cost: Cost = 1, *, max_wait_ms: int = 0
    ) -> ServiceCharge:
        """The awaitable twin of `reserve`."""
        charge: ServiceCharge = await self._aask(self._reserving(key, cost, max_wait_ms))
        return charge

    @overload
    def take(self, key: str, cost: int = ...) -> Decision | ServiceCharge: ...

    @overload
    def take(self, key: Attributes, cost: Cost = ...) -> Verdict | ServiceCharge: ...

    @overload
    def take(self, key: str, cost: Mapping[str, int]) -> Verdict | ServiceCharge: ...

    def take(self, key: str | Attributes, cost: Cost = 1) -> Decision | Verdict | ServiceCharge:
        """As `check`, or, if the policy has slots among its limits, as `reserve`: then the result
        is the charge that holds them. The first call finds out which."""
        if not self._holds:
            try:
                return self.check(key, cost)
            except UnsupportedError:
                pass
        return self.reserve(key, cost)

    @overload
    async def atake(self, key: str, cost: int = ...) -> Decision | ServiceCharge: ...

    @overload
    async def atake(self, key: Attributes, cost: Cost = ...) -> Verdict | ServiceCharge: ...

    @overload
    async def atake(self, key: str, cost: Mapping[str, int]) -> Verdict | ServiceCharge: ...

    async def atake(
        self, key: str | Attributes, cost: Cost = 1
    ) -> Decision | Verdict | ServiceCharge:
        """The awaitable twin of `take`."""
        if not self._holds:
            try:
                return await self.acheck(key, cost)
            except UnsupportedError:
                pass
        return await self.areserve(key, cost)

    def pause(
        self, key: str | Attributes, until_ms: int, *, limits: Iterable[str] | None = None
    ) -> None:
        """Admit nothing for this key before the instant `until_ms`. With several limits, `limits`
        names those to pause; by default, all that the attributes have keys for. Needs the
        token."""
        self._ask(self._operating("pause", key, limits, until_ms=require_until(until_ms)))

    async def apause(
        self, key: str | Attributes, until_ms: int, *, limits: Iterable[str] | None = None
    ) -> None:
        """The awaitable twin of `pause`."""
        await self._aask(self._operating("pause", key, limits, until_ms=require_until(until_ms)))

    def reset(self, key: str | Attributes, *, limits: Iterable[str] | None = None) -> None:
        """Forget what the key has spent, and lift a pause. Callers of this limiter that wait in
        `acquire` ask again at once. Needs the token."""
        self._ask(self._operating("reset", key, limits))
        self._queues.reset_all()

    async def areset(self, key: str | Attributes, *, limits: Iterable[str] | None = None) -> None:
        """The awaitable twin of `reset`."""
        await self._aask(self._operating("reset", key, limits))
        self._queues.reset_all()

    @overload
    def acquire(
        self, key: str, cost: int = ..., timeout: float | None = ...
    ) -> Decision | ServiceCharge: ...

    @overload
    def acquire(
        self, key: Attributes, cost: Cost = ..., timeout: float | None = ...
    ) -> Verdict | ServiceCharge: ...

    @overload
    def acquire(
        self, key: str, cost: Mapping[str, int], timeout: float | None = ...
    ) -> Verdict | ServiceCharge: ...

    def acquire(
        self, key: str | Attributes, cost: Cost = 1, timeout: float | None = None
    ) -> Decision | Verdict | ServiceCharge:
        """Wait until the request is admitted. Callers of this limiter with the same key are served
        in the order in which they came; other processes are not in that queue. If the policy has
        slots among its limits, returns the charge that holds them.

        Raises `rate_limit_exceeded`, with the decision, after `timeout` seconds or as soon as it is
        known that the wait would be longer.
        """
        peeking = self._peeking(key)
        answer: Decision | Verdict | ServiceCharge = acquire(
            self._wait(key, cost, timeout),
            lambda _leads: _admissible(self.take(key, cost), cost),
            lambda: self._ask(peeking),
        )
        return answer

    @overload
    async def aacquire(
        self, key: str, cost: int = ..., timeout: float | None = ...
    ) -> Decision | ServiceCharge: ...

    @overload
    async def aacquire(
        self, key: Attributes, cost: Cost = ..., timeout: float | None = ...
    ) -> Verdict | ServiceCharge: ...

    @overload
    async def aacquire(
        self, key: str, cost: Mapping[str, int], timeout: float | None = ...
    ) -> Verdict | ServiceCharge: ...

    async def aacquire(
        self, key: str | Attributes, cost: Cost = 1, timeout: float | None = None
    ) -> Decision | Verdict | ServiceCharge:
        """The awaitable twin of `acquire`. Cancelling it leaves the queue."""
        peeking = self._peeking(key)

        async def ask(_leads: bool) -> Any:
            return _admissible(await self.atake(key, cost), cost)

        answer: Decision | Verdict | ServiceCharge = await aacquire(
            self._wait(key, cost, timeout),
            ask,
            lambda: self._aask(peeking),
        )
        return answer

    def _wait(self, key: str | Attributes, cost: Cost, timeout: float | None) -> Wait:
        name = _queue_name(key)
        return Wait(self._queues, name, self._waiting_clock, timeout_in_ms(timeout), cost)

    def debit(self, key: str, tokens: int = 1) -> Decision:
        """Count tokens that were used, for a policy with `tokenBudget`. As long as some of the
        budget is left they are counted in full, even if they exceed it."""
        decision: Decision = self._ask(self._debiting(key, tokens))
        return decision

    async def adebit(self, key: str, tokens: int = 1) -> Decision:
        """The awaitable twin of `debit`."""
        decision: Decision = await self._aask(self._debiting(key, tokens))
        return decision

    def admit(self, key: str, cost: int = 1) -> ServiceSlot:
        """A slot of a policy with `concurrency`, as a context manager: `with limiter.admit(key):`
        or `async with`. The service is asked when the block is entered."""
        return ServiceSlot(self, key, cost)

    def close(self) -> None:
        """Close the connections that sync calls have used."""
        self._transport.close()

    async def aclose(self) -> None:
        """Close the connections of sync calls and of the running event loop."""
        await self._transport.aclose()

    def __repr__(self) -> str:
        return f"<ServiceLimiter policy {self.policy!r} at {self.url}>"

    def _ask(self, question: ServiceCall) -> Any:
        try:
            answer = self._transport.call(question.call, question.fields)
        except StoreUnavailableError as error:
            return self._failed(question, error)
        except UnsupportedError:
            self._refused(question)
            raise
        return self._read(question, answer)

    async def _aask(self, question: ServiceCall) -> Any:
        try:
            answer = await self._transport.acall(question.call, question.fields)
        except StoreUnavailableError as error:
            return self._failed(question, error)
        except UnsupportedError:
            self._refused(question)
            raise
        return self._read(question, answer)

    def _refused(self, question: ServiceCall) -> None:
        """A policy that does not support `check` has slots: from now on `take` reserves."""
        self._holds = self._holds or question.call == "check"

    def _read(self, question: ServiceCall, answer: Answer) -> Any:
        """A malformed answer is an outage of the service: the fail mode decides."""
        try:
            return question.read(answer)
        except AnswerError as error:
            problem = (
                f"its answer to {question.call!r} is not that of a Penstock service of a "
                f"compatible version: {error}"
            )
            return self._failed(question, no_answer(self.url, question.call, problem, sent=True))

    def _failed(self, question: ServiceCall, error: StoreUnavailableError) -> Any:
        is_outage = not isinstance(error, OverloadedError)
        if question.failed is None or self.fail == "error" or not is_outage:
            raise error
        return question.failed(DegradedDecision.by(self.fail, 0, self.clock.now()))

    def _fields(self, key: str | Attributes, **more: Any) -> dict[str, Any]:
        if isinstance(key, Mapping):
            return {"policy": self.policy, "attributes": attributes_of(key), **more}
        return {"policy": self.policy, "key": require_key(key), **more}

    def _checking(self, key: str | Attributes, cost: Cost) -> ServiceCall:
        fields = self._fields(key, **_cost(cost))
        return ServiceCall("check", fields, *readers(key, cost))

    def _checking_many(self, keys: Iterable[str] | Iterable[Attributes], cost: Cost) -> ServiceCall:
        each = require_keys(keys)
        fields: dict[str, Any] = {"policy": self.policy, **_cost(cost)}
        if "costs" in fields or any(isinstance(key, Mapping) for key in each):
            told = [key if isinstance(key, Mapping) else {"key": require_key(key)} for key in each]
            fields["attributes"] = [attributes_of(attributes) for attributes in told]
            read: Callable[[Answer, int], Any] = verdicts_of
            failed: Callable[[Decision], Any] = failed_verdict
        else:
            fields["keys"] = [require_key(key) for key in each]
            read, failed = decisions_of, itself
        count = len(each)
        return ServiceCall(
            "check-many",
            fields,
            lambda answer: read(answer, count),
            lambda decision: [failed(decision)] * count,
        )

    def _peeking(self, key: str | Attributes) -> ServiceCall:
        return ServiceCall("peek", self._fields(key), *readers(key, 1))

    def _forecasting(self, key: str | Attributes, cost: Cost) -> ServiceCall:
        fields = self._fields(key, **_cost(cost))
        return ServiceCall("forecast", fields, forecast_of, failed_forecast)

    def _reserving(self, key: str | Attributes, cost: Cost, max_wait_ms: int) -> ServiceCall:
        fields = self._fields(key, **_cost(cost))
        if require_wait(max_wait_ms):
            fields["max_wait_ms"] = max_wait_ms
        read, failed = readers(key, cost)
        asked_at = time.monotonic()

        def charge(told: Answer) -> ServiceCharge:
            return ServiceCharge(
                self,
                read(told),
                text_field(told, "charge_id"),
                charged_at=whole_field(told, "charged_at"),
                starts_at=whole_field(told, "starts_at"),
                ttl_ms=whole_field(told, "ttl_ms"),
                asked_at=asked_at,
            )

        def uncharged(decision: Decision) -> ServiceCharge:
            now = self.clock.now()
            return ServiceCharge(self, failed(decision), charged_at=now, starts_at=now)

        return ServiceCall("reserve", fields, charge, uncharged)

    def _debiting(self, key: str, tokens: int) -> ServiceCall:
        units = require_int("tokens", tokens)
        fields = {"policy": self.policy, "key": require_key(key), "tokens": units}
        return ServiceCall("debit", fields, decision_of, itself)

    def _admitting(self, key: str, cost: int, told: Callable[[Answer], None]) -> ServiceCall:
        fields = {"policy": self.policy, "key": require_key(key), "cost": require_cost(cost)}

        def admitted(answer: Answer) -> Decision:
            told(answer)
            return decision_of(answer)

        return ServiceCall("admit", fields, admitted, itself)

    def _releasing(self, lease_id: str, dropped: bool) -> ServiceCall:
        return ServiceCall("release", {"lease_id": lease_id, "dropped": dropped}, nothing)

    def _beating(self, lease_ids: list[str]) -> ServiceCall:
        def renewed(answer: Answer) -> tuple[list[str], int]:
            return texts_field(answer, "reclaimed_ids"), whole_field(answer, "next_deadline")

        return ServiceCall("heartbeat", {"lease_ids": lease_ids}, renewed)

    def _abeats(self) -> LoopBeats:
        loop = running_loop()
        beats = self._loop_beats.get(loop)
        if beats is None:
            beats = self._loop_beats[loop] = LoopBeats(self, self._heartbeat_s)
        return beats

    def _loop_renewer(self) -> LoopRenewer:
        loop = running_loop()
        renewer = self._loop_renewers.get(loop)
        if renewer is None:
            renewer = self._loop_renewers[loop] = LoopRenewer()
        return renewer

    def _operating(
        self, call: str, key: str | Attributes, limits: Iterable[str] | None, **more: Any
    ) -> ServiceCall:
        fields = self._fields(key, **more)
        if limits is not None:
            fields["limits"] = require_keys(limits)
        return ServiceCall(call, fields, nothing)


def _require_policy(policy: Any) -> str:
    if not isinstance(policy, str) or not policy:
        reject(f"policy must be the name of a policy of the service, not {shown(policy)}")
    return policy


def _cost(cost: Cost) -> dict[str, Any]:
    """The fields of a request for a cost, or for costs by limit."""
    if not isinstance(cost, Mapping):
        return {"cost": require_cost(cost)}
    for name, units in cost.items():
        if not isinstance(name, str):
            reject(
                "a mapping of costs has the names of limits as its keys, such as {'tokens': 700}, "
                f"not {shown(name)}"
            )
        require_int(f"the cost of {name!r}", units, 0)
    return {"costs": dict(cost)} if cost else {"cost": 1}


def _queue_name(key: str | Attributes) -> str:
    """The name of the queue in which callers with this key wait."""
    if isinstance(key, str):
        return key
    return ", ".join(f"{name}={value!r}" for name, value in sorted(key.items()))


def _admissible(answer: Any, cost: Cost) -> Any:
    """Reject a cost that could never be admitted. With several limits only the service knows the
    costs, so nothing is checked."""
    if isinstance(cost, Mapping) or not isinstance(answer, Decision):
        return answer
    if not answer.allowed and 0 < answer.limit < cost:
        reject(
            f"a cost of {cost} can never be admitted by this policy: "
            f"ask for at most {answer.limit} at once"
        )
    return answer
