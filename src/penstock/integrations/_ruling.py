"""The decision on one request, and what the client gets: headers, and the body of a refusal.

A `Ruling` may hold charges until the response is known: slots, which are renewed meanwhile, and
units that `charge_when` may give back. It can be given back as a whole: if a request is decided
twice, by a middleware and then by a route, and the route denies, the middleware has charged. After
a refund the headers show what is left then; so charges without slots are settled before the headers
of a response are sent.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..adapters._headers import VerdictHeaders
from ..core._decision import Decision
from ..core._durations import wait_in_words
from ..core._errors import StoreUnavailableError
from ..core._flow import Flow, adrive, drive
from ..core._verdict import Verdict

__all__ = [
    "PROBLEM_JSON",
    "Answered",
    "Line",
    "OpenCharge",
    "OutageLog",
    "Ruling",
    "Spent",
    "Telling",
    "acall",
    "agive_back",
    "call",
    "give_back",
    "headers_of",
    "lines_of",
    "lost",
    "put_on",
    "says_yes",
]

PROBLEM_JSON = "application/problem+json"

_PROBLEMS = "https://iana.org/assignments/http-problem-types#"
_RETRY_S = 1
_LOG_EVERY_S = 10.0
# The attribute of a response with the headers that were added to it.
_PUT_ON = "_penstock_told"

_log = logging.getLogger("penstock.integrations")

Line = tuple[bytes, bytes]
"""A header in the form of ASGI."""


class Answered(NamedTuple):
    """The response for `charge_when` if the framework has no object for it."""

    status_code: int
    """Such as 200."""
    headers: Mapping[str, str]
    """By their names in lower case."""


class OpenCharge(NamedTuple):
    """An open charge, and the `charge_when` of each of its limits, by name. `source` is what it is
    a charge of, by `keys`; `name` is the name of its limit, if it has only one."""

    charge: Any
    conditions: Mapping[str, Callable[[Any], Any]]
    source: Any
    keys: Mapping[str, Any]
    name: str

    def settling(self, actual: int | Mapping[str, int]) -> Flow[Any, dict[str, Decision]]:
        """Settle it. Returns what its limits have left then, by name, if something was given
        back."""
        if actual == {}:
            yield self.charge, "settle", (actual,)
            return {}
        left = yield self.charge, "settle_and_look", (actual,)
        if left is None and hasattr(self.source, "look"):
            # A charge of a service, which does not say what is left.
            left = yield self.source, "look", (self.keys,)
        if isinstance(left, Decision):
            return {self.name: left}
        return {} if left is None else dict(left.limits)


Spent = tuple[Any, Mapping[str, Any], Any, int]
"""The arguments of a check, to give back what it spent: limits, keys, costs and instant. A plain
tuple, since every request makes one and hardly any reads it."""


class OutageLog:
    """Logs that a store is away, every ten seconds at most, not for every request."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def warn(self, text: str, *args: Any) -> None:
        """Log it, unless that was done just now."""
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _LOG_EVERY_S
            _log.warning(text, *args)


class Telling:
    """How the limits of an app appear in responses: the same for all of its requests."""

    __slots__ = ("_legacy", "_made", "_now", "_only", "_policy", "_quiet", "is_closed")

    def __init__(
        self,
        made: VerdictHeaders,
        now: Callable[[], int],
        *,
        headers: bool,
        legacy: bool,
        is_closed: bool,
    ) -> None:
        self._made = made
        self._now = now
        self._quiet = not headers
        self._legacy = legacy
        self.is_closed: bool = is_closed
        """Whether requests are refused while the store is away."""
        # The common case, one limit: its policy is formatted once.
        self._only = None if legacy else made.only
        policy = "" if self._only is None else self._only.policy
        self._policy = b"ratelimit-policy", policy.encode("latin-1")

    def headers(self, verdict: Verdict) -> dict[str, str]:
        """The headers for a response."""
        if verdict.allowed and self._quiet:
            return {}
        return self._made.of(verdict, self._now(), legacy=self._legacy)

    def lines(self, verdict: Verdict) -> list[Line]:
        """The same in the form of ASGI."""
        only = self._only
        if only is None or self._quiet or not verdict.allowed:
            return _encoded(self.headers(verdict))
        member = only.member(verdict.decisions[0], self._now())
        return [self._policy, (b"ratelimit", member.encode("latin-1"))]


class Ruling:
    """The decision of the limits on one request, and what the client gets to know of it.

    `verdict` is None if no store of its limits has answered: while they are away, or if the app
    asks for more than they answer in time (`is_overloaded`), which refuses the request in every
    fail mode. `left_out` has the decisions of the fail mode on limits whose store was away.
    """

    __slots__ = ("_left_out", "_spent", "allowed", "held", "is_overloaded", "telling", "verdict")

    def __init__(
        self,
        telling: Telling,
        verdict: Verdict | None,
        spent: Spent | None = None,
        held: Sequence[OpenCharge] = (),
        *,
        is_overloaded: bool = False,
        left_out: Verdict | None = None,
    ) -> None:
        self.telling: Telling = telling
        self.is_overloaded: bool = is_overloaded
        self._left_out = left_out
        self._spent = spent
        self.held: Sequence[OpenCharge] = held
        """The charges that are held until the response is known."""
        self.verdict: Verdict | None = verdict
        if verdict is None:
            self.allowed: bool = not (telling.is_closed or is_overloaded)
        else:
            self.allowed = verdict.allowed

    @property
    def degraded(self) -> str | None:
        """The fail mode that decided for some limit while its store was away, "open" or "closed";
        None if all limits were asked."""
        shown = self.shown
        return None if shown is None else shown.degraded

    @property
    def shown(self) -> Verdict | None:
        """The verdict for the view: `verdict`, and the decisions of the fail mode on limits whose
        store was away. None if the app is overloaded."""
        left_out = self._left_out
        if left_out is None:
            return self.verdict
        return left_out if self.verdict is None else self.verdict.beside(left_out)

    @property
    def status(self) -> int:
        """Of a refusal: 429, or 503 if the store has not answered."""
        return 503 if self.verdict is None else 429

    def headers(self) -> dict[str, str]:
        """The headers for the response."""
        if self.verdict is None:
            return {} if self.allowed else {"Retry-After": str(_RETRY_S)}
        return self.telling.headers(self.verdict)

    def lines(self) -> list[Line]:
        """The same in the form of ASGI."""
        if self.verdict is None:
            return _encoded(self.headers())
        return self.telling.lines(self.verdict)

    def problem(self) -> bytes:
        """The body of a refusal, as problem+json."""
        if self.verdict is None:
            told: dict[str, Any] = {
                "type": f"{_PROBLEMS}temporary-reduced-capacity",
                "title": "Limits cannot be checked at the moment",
                "status": 503,
                "detail": f"Try again in {_RETRY_S} s.",
                "code": "overloaded" if self.is_overloaded else "store_unavailable",
            }
        else:
            told = {
                "type": f"{_PROBLEMS}quota-exceeded",
                "title": "Too many requests",
                "status": 429,
                "detail": f"Try again in {wait_in_words(self.verdict.retry_after_ms)}.",
                "code": "rate_limit_exceeded",
                "violated-policies": list(self.verdict.violated),
            }
        return json.dumps(told).encode()

    def settle(self, response: Any) -> None:
        """Give back what `charge_when` does not charge, once the response is known. With None there
        is no response, and the charge stays."""
        if self.held:
            self._run(self._settlement(response), "settled")

    async def asettle(self, response: Any) -> None:
        """The awaitable twin of `settle`."""
        if self.held:
            await self._arun(self._settlement(response), "settled")

    def _settlement(self, response: Any) -> Flow[Any, None]:
        held, self.held = self.held, ()
        for each in held:
            used = {
                name: 0
                for name, is_charged in each.conditions.items()
                if response is not None and not says_yes(is_charged, response)
            }
            # A charge of one limit has no names.
            actual = 0 if used and each.charge.verdict is None else used
            self._show((yield from each.settling(actual)))

    @property
    def holds_slots(self) -> bool:
        """Whether some of its charges last until the end of the response: those with slots."""
        return any(each.charge.ttl_ms is not None for each in self.held)

    def _show(self, left: Mapping[str, Decision]) -> None:
        """The figures that headers state from now on."""
        if left and self.verdict is not None:
            self.verdict = self.verdict.showing(left)

    def give_back(self) -> None:
        """Give everything back: the request was denied by other limits. Counts of a service or of a
        ready-made limiter that were not held as a charge cannot be given back."""
        if self.allowed:
            self._run(self._restitution(), "given back")

    async def agive_back(self) -> None:
        """The awaitable twin of `give_back`."""
        if self.allowed:
            await self._arun(self._restitution(), "given back")

    def _restitution(self) -> Flow[Any, None]:
        held, self.held = self.held, ()
        for each in held:
            self._show((yield from each.settling(0)))
        spent, self._spent = self._spent, None
        if spent is not None and hasattr(spent[0], "charge_for"):
            limits, keys, costs, asked_at = spent
            charge = yield limits, "charge_for", (keys, costs, self.verdict, asked_at)
            self._show((yield from OpenCharge(charge, {}, limits, keys, "").settling(0)))

    def _run(self, flow: Flow[Any, None], what: str) -> None:
        try:
            drive(flow, call)
        except StoreUnavailableError as error:
            lost(error, what)

    async def _arun(self, flow: Flow[Any, None], what: str) -> None:
        try:
            await adrive(flow, acall)
        except StoreUnavailableError as error:
            lost(error, what)


def says_yes(charge_when: Callable[[Any], Any], response: Any) -> bool:
    """Whether a response is charged. If the function fails, it is: the response is being sent, and
    can no longer be changed."""
    try:
        return bool(charge_when(response))
    except Exception:
        _log.exception("rate limits: charge_when failed, so what was charged stays")
        return True


def lost(error: StoreUnavailableError, what: str) -> None:
    """Log a failure: the response is being sent, and can no longer report it."""
    _log.warning("rate limits: a charge could not be %s: %s", what, error)


def give_back(rulings: Iterable[Ruling]) -> None:
    """Give back the charges of a request that a later limit denied."""
    for ruling in rulings:
        ruling.give_back()


async def agive_back(rulings: Iterable[Ruling]) -> None:
    """The awaitable twin of `give_back`."""
    for ruling in rulings:
        await ruling.agive_back()


def headers_of(rulings: Sequence[Ruling]) -> dict[str, str]:
    """The headers of all rulings on a request. One that denied is the last, and is put first."""
    if len(rulings) == 1:
        return rulings[0].headers()
    told: dict[str, str] = {}
    for ruling in reversed(rulings):
        for name, value in ruling.headers().items():
            is_list = name.startswith("RateLimit") and name in told
            told[name] = f"{told[name]}, {value}" if is_list else told.get(name, value)
    return told


def put_on(response: Any, rulings: Sequence[Ruling]) -> None:
    """Put the headers of rulings on a response, except those that the app has set itself. A
    response that was kept, in a cache or by a view, still has those of another request."""
    headers, kept = response.headers, getattr(response, _PUT_ON, None)
    if kept is not None:
        for name, value in kept.items():
            if headers.get(name) == value:
                del headers[name]
    if not rulings:
        return
    told = headers_of(rulings)
    for name, value in told.items():
        if name not in headers:
            headers[name] = value
    setattr(response, _PUT_ON, told)


def lines_of(rulings: Sequence[Ruling]) -> list[Line]:
    """The same in the form of ASGI."""
    if len(rulings) == 1:
        return rulings[0].lines()
    return _encoded(headers_of(rulings))


def _encoded(headers: Mapping[str, str]) -> list[Line]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def call(request: tuple[Any, str, tuple[Any, ...]]) -> Any:
    """Run a flow that yields methods by their sync names."""
    target, name, arguments = request
    return getattr(target, name)(*arguments)


async def acall(request: tuple[Any, str, tuple[Any, ...]]) -> Any:
    """The awaitable twin of `call`."""
    target, name, arguments = request
    return await getattr(target, f"a{name}")(*arguments)
