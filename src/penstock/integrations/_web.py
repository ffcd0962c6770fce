"""What is limited, and what the client gets: the part that all web frameworks share.

A `Rule` is one limit as it is declared on an app, a router or a route. `AppLimits` holds what holds
for a whole app: the store, how clients are told apart, what happens when the store is away. The
rules that a request is subject to are a `RuleSet`, made once for each combination that occurs, and
asked as one decision (`Limits`): a request that any of them denies is charged to none. The answer
is a `Ruling`, which knows the headers and the body of a refusal.

Nothing here knows a framework. An integration brings a `RequestReader`, calls `decide` or
`adecide`, and turns a refusal into a response of its own.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import translate
from typing import Any, NamedTuple, TypedDict

from .._limits import Limit, Limits
from ..adapters._headers import VerdictHeaders
from ..core._clock import Clock
from ..core._decision import Decision
from ..core._errors import StoreUnavailableError
from ..core._flow import Flow, adrive, drive
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import reject, require_choice, require_int, shown
from ..core._verdict import Verdict
from ..stores._opening import open_for_limiter
from ._who import AddressKey, HeaderKey, Key, RequestReader, TrustedProxies, reading

__all__ = [
    "PROBLEM_JSON",
    "Answered",
    "AppLimits",
    "Rule",
    "RuleSet",
    "Ruling",
    "WebOptions",
    "add_rules",
    "app_limits",
    "as_rules",
    "headers_of",
    "slug",
]

PROBLEM_JSON = "application/problem+json"
FAIL_MODES = ("open", "closed", "error")

_PROBLEMS = "https://iana.org/assignments/http-problem-types#"
_RETRY_S = 1
_LOG_EVERY_S = 10.0
_SHORTEST_SECRET = 16

_NO_ASYNC = "functions for keys, costs and exemptions must be sync here, where requests are"

_log = logging.getLogger("penstock.integrations")

Exempt = str | Callable[[Any], Any] | Sequence[str | Callable[[Any], Any]] | None
"""Paths, in which `*` stands for anything, or functions of a request, or several of either."""


class WebOptions(TypedDict, total=False):
    """The options that all integrations take for a whole app.

    `store` is where counts are kept: a URL such as `"redis://localhost:6379"`, a store, or nothing
    for the memory of this process; `prefix` stands before its keys. `key` tells clients apart, by
    their address unless it says otherwise, with `trusted_proxies`, `forwarded_header` and
    `ipv6_prefix` as for `by_address`. `hash_keys` is a secret: keys are stored as HMACs under it.
    `exempt` names paths, or functions of a request, that are not limited. `fail` says what a
    request gets while the store is away: `"open"` lets it pass, `"closed"` answers 503, `"error"`
    raises. `shadow` counts and never denies. `headers` of False leaves those of limits off
    answers that are no refusals, `legacy_headers` adds `X-RateLimit-*`. `on_denied` makes the
    refusal, from the request and the verdict, which is None for a 503. `clock` is for tests.
    """

    store: Store | str | None
    prefix: str
    clock: Clock | None
    key: Key | None
    trusted_proxies: TrustedProxies
    forwarded_header: str
    ipv6_prefix: int
    hash_keys: str | bytes | None
    exempt: Exempt
    fail: str
    shadow: bool
    headers: bool
    legacy_headers: bool
    on_denied: Callable[..., Any] | None


class Answered(NamedTuple):
    """What `charge_when` is shown of a response where the framework has no object for it."""

    status_code: int
    """Such as 200."""
    headers: Mapping[str, str]
    """By their names in lower case."""


class Rule:
    """One limit, as it is declared on an app, a router or a route.

    `limit` is a rate such as `"100/minute"`, a strategy, a `Limit`, or a limiter that is there
    already. `name` is what its headers and its keys in the store call it: rules of one name count
    together. `key` tells clients apart, as a function of the request, sync or async, or what
    `by_address`, `by_header` and `by_api_key` make; without one the app's is used. `cost` is what a
    request costs, a number or a function of the request, where 0 only looks.

    `methods` and `paths` say which requests it is for, `exempt` which it is not for. `per_route`
    counts each route of its own. With `charge_when`, a function of the response, a request is
    charged while it runs and gets everything back if the function says no. A `shadow` never denies.
    """

    def __init__(
        self,
        limit: str | Strategy | Limit | Any,
        *,
        name: str | None = None,
        key: Key | Mapping[str, Key] | None = None,
        cost: int | Callable[[Any], Any] = 1,
        methods: Iterable[str] | None = None,
        paths: str | Sequence[str] | None = None,
        exempt: Exempt = None,
        per_route: bool = False,
        charge_when: Callable[[Any], Any] | None = None,
        shadow: bool = False,
    ) -> None:
        self.ready: Any = None
        self.limit: Limit | None = None
        self.keyless: bool = False
        if callable(getattr(limit, "acheck", None)) and callable(getattr(limit, "areserve", None)):
            self.ready = limit
            if shadow:
                reject("a limiter that is there already cannot be made a shadow; give its strategy")
        else:
            self.limit = _optional(limit, shadow)
            self.keyless = isinstance(limit, Limit) and limit.keyless
        if name is not None and (not isinstance(name, str) or slug(name) != name):
            reject(
                "the name of a limit consists of letters, digits, '_', '.' and '-', at most 64, "
                f"not {shown(name)}"
            )
        self.name: str | None = name
        self.key: Key | Mapping[str, Key] | None = key
        for each in key.values() if isinstance(key, Mapping) else [key]:
            _require_key_function(each)
        if not callable(cost):
            require_int("cost", cost, 0)
        self.cost: int | Callable[[Any], Any] = cost
        self.methods: frozenset[str] | None = _methods(methods)
        self.paths: Callable[[str], Any] | None = None if paths is None else _matching(paths)
        self.exempt: Callable[..., Flow[Any, bool]] | None = _exempting(exempt)
        self.per_route: bool = per_route
        if charge_when is not None and not callable(charge_when):
            reject(f"charge_when must be a function of the response, not {shown(charge_when)}")
        self.charge_when: Callable[[Any], Any] | None = charge_when

    def __repr__(self) -> str:
        what = self.ready if self.limit is None else self.limit.strategy
        return f"<{type(self).__name__} {self.name or ''} {what!r}>"


def as_rules(limits: Iterable[Any], default: str = "app") -> dict[str, Rule]:
    """Rules by name, from rates, strategies and rules; those without a name are numbered."""
    named: dict[str, Rule] = {}
    for limit in limits:
        rule = limit if isinstance(limit, Rule) else Rule(limit)
        name = rule.name or _free(default, named)
        if named.setdefault(name, rule) is not rule:
            reject(f"two limits are called {name!r}; give each a name of its own")
    return named


def _free(name: str, taken: Mapping[str, Any]) -> str:
    place = 1
    while (free := name if place == 1 else f"{name}-{place}") in taken:
        place += 1
    return free


def slug(text: str) -> str:
    """A text as the name of a limit: what is not allowed in one becomes a dash."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "app"
    if len(plain) <= 64:
        return plain
    from hashlib import sha256

    return f"{plain[:47]}-{sha256(plain.encode()).hexdigest()[:16]}"


class AppLimits:
    """What holds for all limits of one app; see `WebOptions`."""

    def __init__(
        self,
        reader: RequestReader,
        *,
        store: Store | str | None = None,
        prefix: str = "web",
        clock: Clock | None = None,
        key: Key | None = None,
        trusted_proxies: TrustedProxies = None,
        forwarded_header: str = "x-forwarded-for",
        ipv6_prefix: int = 64,
        hash_keys: str | bytes | None = None,
        exempt: Exempt = None,
        fail: str = "open",
        shadow: bool = False,
        headers: bool = True,
        legacy_headers: bool = False,
        on_denied: Callable[..., Any] | None = None,
    ) -> None:
        self.reader = reader
        self.resolve: Callable[[Any], Any] = _refuse_async
        """What `decide` does with an awaitable, which only `adecide` can wait for."""
        self.prefix = prefix
        self.clock = clock
        self.address: AddressKey = AddressKey(
            trusted_proxies, forwarded_header=forwarded_header, ipv6_prefix=ipv6_prefix
        )
        _require_key_function(key)
        self.key: Key = self.address if key is None else key
        self.secret: bytes | None = _secret(hash_keys)
        self.exempt: Callable[..., Flow[Any, bool]] | None = _exempting(exempt)
        self.fail = require_choice("fail", fail, FAIL_MODES)
        self.shadow = shadow
        self.headers = headers
        self.legacy_headers = legacy_headers
        if on_denied is not None and not callable(on_denied):
            reject(f"on_denied must be a function of request and verdict, not {shown(on_denied)}")
        self.on_denied = on_denied
        home, self._owns_store = open_for_limiter(store, clock)
        self.store: Store = home
        self._quiet_until = 0.0

    def rule_set(self, rules: Mapping[str, Rule]) -> RuleSet:
        """These rules, by name, as one decision."""
        return RuleSet(self, rules)

    def outage(self, error: StoreUnavailableError) -> None:
        """Log that the store is away, every ten seconds at most; raise it if that is the mode."""
        if self.fail == "error":
            raise error
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _LOG_EVERY_S
            passes = "requests pass unlimited" if self.fail == "open" else "requests are refused"
            _log.warning("rate limits: %s (%s)", error, passes)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        if self._owns_store:
            await self.store.aclose()


def app_limits(reader: RequestReader, options: Mapping[str, Any]) -> AppLimits:
    """The limits of an app with these options; an unknown one is told what was meant."""
    known = WebOptions.__annotations__
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            reject(f"there is no option {shown(name)}; {hint}")
    return AppLimits(reader, **options)


class _RulePart:
    """A rule, or one of the limits of a ready-made `Limits`, with what was settled for it."""

    __slots__ = ("charge_name", "cost", "key", "name", "rule")

    def __init__(self, name: str, rule: Rule, key: Callable[[Any], Any] | None) -> None:
        self.name = name
        self.charge_name = name
        self.rule = rule
        self.key = key
        self.cost = rule.cost


class _PlainPart(NamedTuple):
    name: str
    key: Callable[[Any], Any]

    def question(self, key: str | None) -> tuple[dict[str, str], Any] | None:
        return None if key is None else ({self.name: key}, 1)


class _OneLimit:
    """A limiter with one limit, asked like one with several."""

    def __init__(self, name: str, limiter: Any) -> None:
        self._name = name
        self._limiter = limiter
        self.limits = {name: _Declared(getattr(limiter, "strategy", None), False)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limiter, name)

    def check(self, keys: Mapping[str, str], cost: Any) -> Verdict:
        key, units = keys[self._name], cost if cost == 1 else cost[self._name]
        limiter = self._limiter
        return self._verdict(limiter.check(key, units) if units else limiter.peek(key))

    async def acheck(self, keys: Mapping[str, str], cost: Any) -> Verdict:
        key, units = keys[self._name], cost if cost == 1 else cost[self._name]
        limiter = self._limiter
        return self._verdict(
            await limiter.acheck(key, units) if units else await limiter.apeek(key)
        )

    def _verdict(self, decision: Decision) -> Verdict:
        return Verdict((self._name,), (decision,), (False,))

    def reserve(self, keys: Mapping[str, str], cost: Mapping[str, int]) -> Any:
        return self._limiter.reserve(keys[self._name], cost[self._name])

    async def areserve(self, keys: Mapping[str, str], cost: Mapping[str, int]) -> Any:
        return await self._limiter.areserve(keys[self._name], cost[self._name])


class _Declared(NamedTuple):
    strategy: Strategy | None
    shadow: bool


class _Source(NamedTuple):
    """A limiter and the parts that are asked of it."""

    limits: Any
    parts: list[_RulePart]


class RuleSet:
    """The rules that a request is subject to, asked as one decision."""

    def __init__(self, app: AppLimits, rules: Mapping[str, Rule]) -> None:
        self.app = app
        self.rules = rules
        self._sources = list(self._limiters(rules))
        self._parts = [part for source in self._sources for part in source.parts]
        limits = {name: it for source in self._sources for name, it in source.limits.limits.items()}
        self.made: VerdictHeaders = VerdictHeaders(limits)
        self._shadows = {name: limit.shadow for name, limit in limits.items()}
        only = self._sources[0].limits if len(self._sources) == 1 else None
        holds = any(
            getattr(limit.strategy, "is_held", False) or part.rule.charge_when is not None
            for part in self._parts
            if (limit := limits.get(part.name)) is not None
        )
        # The common case: no charge has to be given back, so a check does.
        self._limits: Any = None if holds else only
        self._at_once = self._limits is not None and getattr(self._limits, "answers_at_once", False)
        has_conditions = app.exempt is not None or any(
            rule.methods or rule.paths or rule.exempt or rule.per_route or callable(rule.cost)
            for rule in rules.values()
        )
        self._plain = None if has_conditions else self._only_part()

    def _only_part(self) -> _PlainPart | None:
        """The common case, one limit without conditions; None in any other."""
        if len(self._parts) != 1 or self._limits is None:
            return None
        (part,) = self._parts
        return None if part.key is None or part.cost != 1 else _PlainPart(part.name, part.key)

    def now(self) -> int:
        """The instant by the clock of the limits."""
        instant: int = self._sources[0].limits.clock.now()
        return instant

    def decide(self, request: Any) -> Ruling | None:
        """The ruling on a request; None if no limit is for it."""
        plain = self._plain
        if plain is None:
            question = drive(self._asking(request), self.app.resolve)
        else:
            key = plain.key(request)
            question = plain.question(key if _is_plain(key) else self.app.resolve(key))
        if question is None:
            return None
        keys, costs = question
        try:
            if self._limits is not None:
                return Ruling(self, self._limits.check(keys, costs))
            return drive(self._reserve(keys, costs), _call)
        except StoreUnavailableError as error:
            return self._failed(error)

    async def adecide(self, request: Any) -> Ruling | None:
        """The awaitable twin of `decide`."""
        plain = self._plain
        if plain is None:
            question = await adrive(self._asking(request), _await)
        else:
            key = plain.key(request)
            question = plain.question(key if _is_plain(key) else await key)
        if question is None:
            return None
        keys, costs = question
        try:
            if self._at_once:
                return Ruling(self, self._limits.check(keys, costs))
            if self._limits is not None:
                return Ruling(self, await self._limits.acheck(keys, costs))
            return await adrive(self._reserve(keys, costs), _acall)
        except StoreUnavailableError as error:
            return self._failed(error)

    def _asking(self, request: Any) -> Flow[Any, tuple[dict[str, str], Any] | None]:
        """Keys and costs by name; what may have to be awaited is yielded."""
        app = self.app
        if app.exempt is not None and (yield from app.exempt(app.reader, request)):
            return None
        keys: dict[str, str] = {}
        costs: dict[str, int] = {}
        applicable: dict[int, bool] = {}
        asked = False
        for part in self._parts:
            rule = part.rule
            if id(rule) not in applicable:
                applicable[id(rule)] = yield from self._applies(rule, request)
            if not applicable[id(rule)]:
                continue
            if part.key is not None:
                key = yield from _value(part.key(request))
                if key is None:
                    continue
                keys[part.name] = f"{app.reader.route(request)} {key}" if rule.per_route else key
            asked = True
            cost = part.cost
            costs[part.name] = (yield from _value(cost(request))) if callable(cost) else cost
        return (keys, costs) if asked else None

    def _applies(self, rule: Rule, request: Any) -> Flow[Any, bool]:
        reader = self.app.reader
        if rule.methods is not None and reader.method(request) not in rule.methods:
            return False
        if rule.paths is not None and not rule.paths(reader.path(request)):
            return False
        return rule.exempt is None or not (yield from rule.exempt(reader, request))

    def _reserve(self, keys: dict[str, str], costs: Any) -> Flow[Any, Ruling]:
        """Charge what can be given back, source by source; a denial gives back those before."""
        held: list[tuple[Any, list[_RulePart]]] = []
        told: dict[str, Decision] = {}
        for limits, parts in self._sources:
            asked = [part for part in parts if part.name in costs]
            if not asked:
                continue
            mine = {part.name: keys[part.name] for part in asked if part.key is not None}
            cost = {part.name: costs[part.name] for part in asked}
            charge = yield limits, "reserve", (mine, cost)
            several = charge.verdict
            told.update({asked[0].name: charge.decision} if several is None else several.limits)
            if not charge.allowed:
                for earlier, _ in held:
                    yield earlier, "cancel", ()
                held = []
                break
            held.append((charge, asked))
        names = tuple(told)
        verdict = Verdict(names, tuple(told.values()), tuple([self._shadows[n] for n in names]))
        return Ruling(self, verdict, held)

    def _failed(self, error: StoreUnavailableError) -> Ruling:
        self.app.outage(error)
        return Ruling(self, None)

    def _limiters(self, rules: Mapping[str, Rule]) -> Iterable[_Source]:
        app = self.app
        own: dict[str, Limit] = {}
        parts: list[_RulePart] = []
        for name, rule in rules.items():
            if rule.limit is None:
                continue
            limit = rule.limit
            if app.shadow and not limit.shadow:
                limit = _optional(limit, True)
            own[name] = limit
            parts.append(
                _RulePart(name, rule, _everybody if rule.keyless else self._key(rule.key, name))
            )
        if own:
            limits = Limits(own, store=app.store, clock=app.clock, prefix=app.prefix)
            yield _Source(limits, parts)
        for name, rule in rules.items():
            if rule.ready is not None:
                yield self._ready(name, rule)

    def _ready(self, name: str, rule: Rule) -> _Source:
        declared = getattr(rule.ready, "limits", None)
        if declared is None:
            part = _RulePart(name, rule, self._key(rule.key, name))
            part.charge_name = ""
            return _Source(_OneLimit(name, rule.ready), [part])
        return _Source(
            rule.ready,
            [
                _RulePart(inner, rule, None if limit.keyless else self._key(rule.key, inner))
                for inner, limit in declared.items()
            ],
        )

    def _key(self, key: Key | Mapping[str, Key] | None, name: str) -> Callable[[Any], Any]:
        if isinstance(key, Mapping):
            if name not in key:
                reject(f"the limit {name!r} has no key; there are {', '.join(key)}")
            key = key[name]
        app = self.app
        return reading(app.key if key is None else key, app.reader, app.address, app.secret)


class Ruling:
    """What the limits said to one request, and what the client is told of it.

    `verdict` is None while the store is away.
    """

    __slots__ = ("_held", "_rules", "allowed", "verdict")

    def __init__(
        self,
        rules: RuleSet,
        verdict: Verdict | None,
        held: Sequence[tuple[Any, list[_RulePart]]] = (),
    ) -> None:
        self._rules = rules
        self._held = held
        self.verdict: Verdict | None = verdict
        self.allowed: bool = rules.app.fail != "closed" if verdict is None else verdict.allowed

    @property
    def status(self) -> int:
        """Of a refusal: 429, or 503 while the store is away."""
        return 503 if self.verdict is None else 429

    @property
    def is_open(self) -> bool:
        """Whether something is held until the response is known."""
        return bool(self._held)

    def headers(self) -> dict[str, str]:
        """What to add to the response."""
        verdict = self.verdict
        app = self._rules.app
        if verdict is None:
            return {} if self.allowed else {"Retry-After": str(_RETRY_S)}
        if verdict.allowed and not app.headers:
            return {}
        return self._rules.made.of(verdict, self._rules.now(), legacy=app.legacy_headers)

    def problem(self) -> bytes:
        """The body of a refusal, as problem+json."""
        if self.verdict is None:
            told: dict[str, Any] = {
                "type": f"{_PROBLEMS}temporary-reduced-capacity",
                "title": "Limits cannot be checked at the moment",
                "status": 503,
                "detail": f"Try again in {_RETRY_S} s.",
                "code": "store_unavailable",
            }
        else:
            seconds = max(1, -(-self.verdict.retry_after_ms // 1000))
            told = {
                "type": f"{_PROBLEMS}quota-exceeded",
                "title": "Too many requests",
                "status": 429,
                "detail": f"Try again in {seconds} s.",
                "code": "rate_limit_exceeded",
                "violated-policies": list(self.verdict.violated),
            }
        return json.dumps(told).encode()

    def settle(self, response: Any) -> None:
        """Give back what is not to be charged, once the response is known; None if there is none,
        and then what was charged stays."""
        if self._held:
            try:
                drive(self._settlement(response), _call)
            except StoreUnavailableError as error:
                self._lost(error)

    async def asettle(self, response: Any) -> None:
        """The awaitable twin of `settle`."""
        if self._held:
            try:
                await adrive(self._settlement(response), _acall)
            except StoreUnavailableError as error:
                self._lost(error)

    def _settlement(self, response: Any) -> Flow[Any, None]:
        held, self._held = self._held, ()
        for charge, parts in held:
            used = {
                part.charge_name: 0
                for part in parts
                if response is not None
                and part.rule.charge_when is not None
                and not part.rule.charge_when(response)
            }
            yield charge, "settle", (used,)

    def _lost(self, error: StoreUnavailableError) -> None:
        """The response is on its way, so that nobody is left to be told but the log."""
        _log.warning("rate limits: a charge could not be settled: %s", error)


def headers_of(rulings: Sequence[Ruling]) -> dict[str, str]:
    """The headers of all rulings on a request. If one denied, it is the last, and comes first."""
    if len(rulings) == 1:
        return rulings[0].headers()
    told: dict[str, str] = {}
    for ruling in reversed(rulings):
        for name, value in ruling.headers().items():
            is_list = name.startswith("RateLimit") and name in told
            told[name] = f"{told[name]}, {value}" if is_list else told.get(name, value)
    return told


def add_rules(rules: dict[str, Rule], more: Iterable[Rule], after: str) -> None:
    """Add rules to others, by name; those without one are named after what they were given to."""
    for rule in more:
        name = rule.name or _free(slug(after), rules)
        if rules.setdefault(name, rule) is not rule:
            reject(f"two limits of {after!r} are called {name!r}; give each a name of its own")


def _call(request: tuple[Any, str, tuple[Any, ...]]) -> Any:
    target, name, arguments = request
    return getattr(target, name)(*arguments)


async def _acall(request: tuple[Any, str, tuple[Any, ...]]) -> Any:
    target, name, arguments = request
    return await getattr(target, f"a{name}")(*arguments)


async def _await(value: Awaitable[Any]) -> Any:
    return await value


def _refuse_async(value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
    reject(_NO_ASYNC)


def _is_plain(value: Any) -> bool:
    """Whether a value has not to be awaited."""
    return type(value) is str or value is None or not inspect.isawaitable(value)


def _value(value: Any) -> Flow[Any, Any]:
    if not _is_plain(value):
        value = yield value
    return value


def _optional(limit: Any, shadow: bool) -> Limit:
    """The limit, left out of calls that have no key for it. One for everybody has a constant key,
    so that a request that it is not for can leave it out."""
    declared = limit if isinstance(limit, Limit) else Limit(limit)
    return Limit(declared.strategy, shadow=declared.shadow or shadow, optional=True)


def _everybody(request: Any) -> str:
    return "everybody"


def _require_key_function(key: Any) -> None:
    if key is not None and not isinstance(key, (AddressKey, HeaderKey)) and not callable(key):
        reject(
            "key must be a function of the request, or by_address(), by_header(...) or "
            f"by_api_key(), not {shown(key)}"
        )


def _methods(methods: Iterable[str] | None) -> frozenset[str] | None:
    if methods is None:
        return None
    names = [methods] if isinstance(methods, str) else list(methods)
    if not names or not all(isinstance(name, str) and name.isalpha() for name in names):
        reject(f"methods must be names such as ['POST'], not {shown(methods)}")
    return frozenset(name.upper() for name in names)


def _matching(paths: str | Sequence[str]) -> Callable[[str], Any]:
    """Whether a path is one of these patterns."""
    patterns = [paths] if isinstance(paths, str) else list(paths)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern.startswith(("/", "*")):
            reject(f"a path must begin with '/', such as '/static/*', not {shown(pattern)}")
    return re.compile("|".join(map(translate, patterns))).match


def _exempting(exempt: Exempt) -> Callable[[RequestReader, Any], Flow[Any, bool]] | None:
    if exempt is None:
        return None
    given = [exempt] if isinstance(exempt, str) or callable(exempt) else list(exempt)
    functions = [each for each in given if callable(each)]
    paths = [each for each in given if not callable(each)]
    matches = _matching(paths) if paths else None

    def exempts(reader: RequestReader, request: Any) -> Flow[Any, bool]:
        if matches is not None and matches(reader.path(request)):
            return True
        for function in functions:
            if (yield from _value(function(request))):
                return True
        return False

    return exempts


def _secret(given: str | bytes | None) -> bytes | None:
    if given is None:
        return None
    secret = given.encode() if isinstance(given, str) else given
    if not isinstance(secret, bytes) or len(secret) < _SHORTEST_SECRET:
        reject(f"hash_keys must be a secret of at least {_SHORTEST_SECRET} bytes")
    return secret
