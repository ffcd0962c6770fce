"""Calls to language models: requests and tokens a minute and calls in flight, as one decision.

    model = ModelLimits(requests="500/minute", tokens="60000/minute", in_flight=8)

    with model.call(prompt, max_tokens=500) as call:
        answer = client.chat.completions.create(...)
        call.used(answer)

The cost of a call is known only when it is over. So an estimate is charged first, the prompt and
the longest answer requested, and settled at the end of the block by the usage that the provider
reports: in a response in the format of OpenAI or Anthropic, or in the events of a stream. A call
that fails gives everything back; one whose stream breaks off is charged for the part that arrived.
When a provider refuses a call, nothing is sent until the time that it names.

No client library is needed or imported: responses are read as objects or as parsed JSON.
"""

from __future__ import annotations

import logging as _logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from .. import strategies as _strategies
from ..core import _errors, _renewing, _validation
from ..core._clock import Clock as _Clock
from ..core._store import Store as _Store
from ..core._strategy import Strategy as _Strategy
from ..core._waiting import timeout_in_ms as _timeout_in_ms
from ..stores import _opening
from . import _answers, _pacing

__all__ = ["ModelCall", "ModelLimits", "Usage", "estimate_tokens"]

_log = _logging.getLogger("penstock.integrations")

_OUTLASTED = (
    "a call of up to %d ms outlasts the burst of %r, which is replenished within %d ms: tokens "
    "that were estimated and not used are not given back then; use a larger burst, or pass the "
    "longest_call_ms of your calls"
)
_NOT_SETTLED = "what a call has used could not be told to the store: %s"

_Event = TypeVar("_Event")

_BYTES_PER_TOKEN = 3
"""English has four or more; the estimate should be high."""


def estimate_tokens(text: str) -> int:
    """A high estimate of the tokens of a text. Settling gives back what was not used."""
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


def _covering(tokens: str | _Strategy | None, longest_call_ms: int) -> str | _Strategy | None:
    """A rate gets a burst that lasts as long as the longest call. A strategy is left as it is, with
    a warning if its burst does not."""
    if isinstance(tokens, str):
        strategy = _strategies.strategy_of_rate(tokens)
        burst = -(-strategy.limit * longest_call_ms // strategy.ttl_ms)
        if burst <= strategy.limit:
            return tokens
        if isinstance(strategy, _strategies.Gcra):
            return _strategies.gcra(strategy.rate_limit, strategy.period_ms, burst)
        return _strategies.token_bucket(burst, strategy.values["refill_per_sec"])
    if not isinstance(tokens, _Strategy) or tokens.window_kind is not None:
        return tokens
    if 0 < tokens.ttl_ms < longest_call_ms:
        _log.warning(_OUTLASTED, longest_call_ms, tokens, tokens.ttl_ms)
    return tokens


class ModelLimits:
    """The limits of a model, or of an account with its provider.

    `requests` and `tokens` are rates such as `"500/minute"` or strategies; `in_flight` is the
    number of calls at the same time. All are optional. A call waits for all of them. With a
    `timeout` in seconds it raises `rate_limit_exceeded` as soon as it is known that the wait would
    be longer; 0 never waits.

    With `honour`, the default, limits that responses report are obeyed, for at most `max_pause_ms`.
    Tokens that time has replenished while a call lasted are not given back at its end. So a rate of
    `tokens` gets a burst that covers `longest_call_ms`, at least that of the rate itself; of a
    strategy with a smaller burst there is a warning in the log.

    A place in flight is renewed as long as the call lasts; that of a process that died is free
    after `slot_ttl_ms`. `store`, `prefix`, `clock` and `max_waiters` are those of `rate_limit`:
    with a shared store, all processes together keep the limits, and wait in one order.
    """

    def __init__(
        self,
        *,
        requests: str | _Strategy | None = None,
        tokens: str | _Strategy | None = None,
        in_flight: int | None = None,
        timeout: float | None = None,
        honour: bool = True,
        max_pause_ms: int = 3_600_000,
        slot_ttl_ms: int = 30_000,
        longest_call_ms: int = 60_000,
        store: _Store | str | None = None,
        prefix: str = "model",
        clock: _Clock | None = None,
        max_waiters: int | None = None,
    ) -> None:
        _validation.require_int("longest_call_ms", longest_call_ms, 1)
        limits: dict[str, Any] = {
            "requests": requests,
            "tokens": _covering(tokens, longest_call_ms),
        }
        if in_flight is not None:
            _validation.require_int("in_flight", in_flight, 1)
            limits["in_flight"] = _strategies.slots(in_flight, ttl_ms=slot_ttl_ms)
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        if not limits:
            _validation.reject("there is nothing to limit: give requests, tokens or in_flight")
        if not isinstance(honour, bool):
            _validation.reject(f"honour must be True or False, not {_validation.shown(honour)}")
        self.timeout_ms: int | None = _timeout_in_ms(timeout)
        """How long a call waits at most."""
        self.honour: bool = honour
        """Whether limits that responses report are obeyed."""
        self._store, self._owns_store = _opening.open_for_limiter(store, clock)
        try:
            self._pacer = _pacing.Pacer(
                limits,
                {"requests": "requests", "tokens": "tokens"},
                store=self._store,
                clock=clock,
                prefix=prefix,
                max_waiters=max_waiters,
                max_pause_ms=max_pause_ms,
            )
        except BaseException:
            self.close()
            raise
        self._counts_tokens = tokens is not None

    def call(self, prompt: str | int, max_tokens: int, *, key: str = "all") -> ModelCall:
        """A call of the model, for `with` or `async with`. `prompt` is its text, or its number of
        tokens, and `max_tokens` the longest answer requested. `key` separates accounts, or teams
        with limits of their own."""
        size = estimate_tokens(prompt) if isinstance(prompt, str) else prompt
        if isinstance(size, (list, tuple, dict)):
            _validation.reject(
                "prompt must be a text, or how many tokens it is; of messages give the texts, as "
                "in ' '.join(message['content'] for message in messages)"
            )
        _validation.require_int("prompt", size, 0)
        _validation.require_int("max_tokens", max_tokens, 0)
        _validation.require_key(key)
        if self._counts_tokens:
            strategy = self._pacer.limits.limits["tokens"].strategy
            if 0 < strategy.limit < size + max_tokens:
                _validation.reject(
                    f"a call of up to {size + max_tokens} tokens can never be admitted by "
                    f"{strategy!r}: ask for a shorter answer, or allow more at once"
                )
        return ModelCall(self, key, size, size + max_tokens)

    def remaining(self, key: str = "all") -> dict[str, int]:
        """What is left of each limit."""
        looked = self._pacer.limits.peek(self._pacer.keys(key)).limits
        return {name: looked[name].remaining for name in looked if name != _pacing.PAUSED}

    def close(self) -> None:
        """Close the store that was opened here."""
        if self._owns_store:
            self._store.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        if self._owns_store:
            await self._store.aclose()

    def _cost(self, estimate: int) -> dict[str, int]:
        return {"tokens": max(1, estimate)} if self._counts_tokens else {}


class ModelCall:
    """One call, admitted. Made by `ModelLimits.call`.

    In the block, pass it the answer: `used` for a whole one, `stream` or `astream` for the events
    of a stream, `answered` for a response with its headers. At the end of the block the estimate is
    replaced by the actual usage.
    """

    def __init__(self, limits: ModelLimits, key: str, prompt: int, estimate: int) -> None:
        self._limits = limits
        self._pacer = limits._pacer
        self._key = key
        self._prompt = prompt
        self._estimate = estimate
        self._entered: _pacing.PacedCharge | None = None
        self._answer: tuple[int, Mapping[str, Any]] | None = None
        self._pieces = 0
        self._streaming = False
        self.usage: Usage = Usage()
        """The usage that the provider has reported so far."""

    def used(self, answer: Any) -> None:
        """Take the usage from an answer, as an object or as parsed JSON; or a number of tokens."""
        if isinstance(answer, int) and not isinstance(answer, bool):
            self.usage.total = _validation.require_int("used", answer, 0)
        elif not self.usage.read(answer):
            _validation.reject(
                "this answer reports no usage of a shape that is known here: give the number of "
                "tokens instead, as in call.used(120)"
            )

    def answered(self, response: Any) -> None:
        """Read status and headers of a response, such as one of httpx. If it refuses the call,
        everything is given back at the end of the block."""
        self._answer = _answers.parts_of(response)

    def stream(self, events: Iterable[_Event]) -> Iterator[_Event]:
        """The events as they arrive; the usage that they report is recorded."""
        self._streaming = True
        for event in events:
            self._note(event)
            yield event
        self._streaming = False

    async def astream(self, events: AsyncIterable[_Event]) -> AsyncIterator[_Event]:
        """The twin of `stream` for async iterators."""
        self._streaming = True
        async for event in events:
            self._note(event)
            yield event
        self._streaming = False

    def __enter__(self) -> ModelCall:
        limits = self._limits
        cost = limits._cost(self._estimate)
        self._entered = self._pacer.enter(self._key, cost, limits.timeout_ms)
        _renewing.hold(self._entered.charge)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        entered = self._entered
        assert entered is not None
        told = self._told(error)
        actual = self._actual(error, told)
        try:
            if actual is None:
                entered.charge.cancel()
            else:
                entered.charge.settle(actual)
        except _errors.StoreUnavailableError as away:
            _log.warning(_NOT_SETTLED, away)
        if told is not None and self._limits.honour:
            self._pacer.observe(entered, *told)

    async def __aenter__(self) -> ModelCall:
        limits = self._limits
        cost = limits._cost(self._estimate)
        self._entered = await self._pacer.aenter(self._key, cost, limits.timeout_ms)
        _renewing.ahold(self._entered.charge)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        entered = self._entered
        assert entered is not None
        told = self._told(error)
        actual = self._actual(error, told)
        try:
            if actual is None:
                await entered.charge.acancel()
            else:
                await entered.charge.asettle(actual)
        except _errors.StoreUnavailableError as away:
            _log.warning(_NOT_SETTLED, away)
        if told is not None and self._limits.honour:
            await self._pacer.aobserve(entered, *told)

    def _note(self, event: Any) -> None:
        self._pieces += 1
        self.usage.read(event)

    def _actual(
        self, error: BaseException | None, told: tuple[int, Mapping[str, Any]] | None
    ) -> dict[str, int] | None:
        """The actual usage; empty if the estimate stands, None if nothing was used."""
        if told is not None and told[0] in _answers.REFUSALS:
            return None
        if self._streaming and self._pieces:
            # Broken off: a piece is about a token, and providers report the rest at the end.
            seen = (self.usage.input or self._prompt) + self._pieces
            return self._tokens(max(seen, self.usage.tokens or 0))
        if self.usage.tokens is not None:
            return self._tokens(self.usage.tokens)
        return None if error is not None else {}

    def _tokens(self, used: int) -> dict[str, int]:
        return {"tokens": used} if self._limits._counts_tokens else {}

    def _told(self, error: BaseException | None) -> tuple[int, Mapping[str, Any]] | None:
        found = None if error is None else _answers.parts_of(error)
        return self._answer if found is None else found


class Usage:
    """Tokens that a provider reports, in the format of OpenAI or Anthropic.

    `input` and `output` are None until they are reported, and so is `total`, which some providers
    report as well. Tokens read from a cache do not count, as providers do not count them either.
    """

    __slots__ = ("input", "output", "total")

    def __init__(self) -> None:
        self.input: int | None = None
        self.output: int | None = None
        self.total: int | None = None

    @property
    def tokens(self) -> int | None:
        """All of them; None if nothing was reported."""
        if self.total is not None:
            return self.total
        if self.input is None and self.output is None:
            return None
        return (self.input or 0) + (self.output or 0)

    def read(self, answer: Any) -> bool:
        """Record the usage in an answer or in an event of a stream. False if there is none."""
        found = False
        # Events wrap the usage: in `message` at Anthropic, in `response` at OpenAI.
        for held in (answer, _part(answer, "message"), _part(answer, "response")):
            usage = _part(held, "usage")
            if usage is not None:
                found = self._take(usage) or found
        return found

    def _take(self, usage: Any) -> bool:
        told = {
            "input": _sum(
                usage, ("prompt_tokens",), ("input_tokens", "cache_creation_input_tokens")
            ),
            "output": _sum(usage, ("completion_tokens",), ("output_tokens",)),
            "total": _sum(usage, ("total_tokens",)),
        }
        for name, tokens in told.items():
            if tokens is not None:
                setattr(self, name, tokens)
        return any(tokens is not None for tokens in told.values())

    def __repr__(self) -> str:
        return f"<Usage input={self.input}, output={self.output}, total={self.total}>"


def _part(holder: Any, name: str) -> Any:
    """A field of an object, or of parsed JSON."""
    if isinstance(holder, Mapping):
        return holder.get(name)
    return None if isinstance(holder, str) else getattr(holder, name, None)


def _sum(usage: Any, *spellings: tuple[str, ...]) -> int | None:
    """The sum of the parts of the first spelling that is present."""
    for names in spellings:
        parts = [_part(usage, name) for name in names]
        counts = [part for part in parts if type(part) is int and part >= 0]
        if counts:
            return sum(counts)
    return None
