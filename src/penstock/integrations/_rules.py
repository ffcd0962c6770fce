"""What is limited: rules, as they are declared on an app, a router or a route.

A `Rule` is one limit and the conditions for its requests. `AppLimits` has what all rules of an app
share: the store, how clients are identified, the fail mode. Mistakes are reported here, when a rule
is declared; `_deciding` decides requests, and `_ruling` is the result.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from functools import partial
from typing import Any, TypedDict

from .._arguments import is_async, require_plain
from .._limits import Limit
from ..core._clock import Clock
from ..core._errors import StoreUnavailableError
from ..core._flow import Flow
from ..core._store import Store
from ..core._strategy import Strategy
from ..core._validation import reject, require_choice, require_int, require_options, shown
from ..stores._opening import open_for_limiter
from ._ruling import OutageLog
from ._who import (
    AddressKey,
    HeaderKey,
    Key,
    RequestReader,
    TrustedProxies,
    discard,
    require_secret,
)

__all__ = [
    "AppLimits",
    "Exemption",
    "Rule",
    "WebOptions",
    "add_rules",
    "app_limits",
    "as_rules",
    "is_plain",
    "optional",
    "path_of",
    "require_sync_functions",
    "slug",
    "value_of",
]

FAIL_MODES = ("open", "closed", "error")

_NO_ASYNC = "functions for keys, costs and exemptions must be sync here, where requests are"

Exempt = str | Callable[[Any], Any] | Sequence[str | Callable[[Any], Any]] | None
"""Paths, in which `*` matches anything, or functions of a request, or several of either."""


class WebOptions(TypedDict, total=False):
    """The options that all integrations take for a whole app.

    `store` is where counts are kept: a URL such as `"redis://localhost:6379"`, a store, or nothing
    for the memory of this process; `prefix` stands before its keys. `key` identifies clients, by
    default by address, with `trusted_proxies`, `forwarded_header` and `ipv6_prefix` as for
    `by_address`. `hash_keys` is a secret: keys are stored as HMACs under it. `exempt` is paths, or
    functions of a request, that are not limited. `fail` is the fail mode: while the store is away,
    `"open"` lets requests pass, `"closed"` answers 503, `"error"` raises. `shadow` counts and never
    denies. If `headers` is False, only refusals have the headers of limits; `legacy_headers` adds
    `X-RateLimit-*`. `on_denied` makes the response of a refusal, from the request and the verdict,
    which is None for a 503. `clock` is for tests.
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


class Rule:
    """One limit, as it is declared on an app, a router or a route.

    `limit` is a rate such as `"100/minute"`, a strategy, a `Limit`, or an existing limiter. `name`
    is its name in headers and in keys of the store: rules of one name count together. `key`
    identifies clients: a function of the request, sync or async, or the result of `by_address`,
    `by_header` or `by_api_key`; by default it is that of the app. `cost` is the cost of a request,
    a number or a function of the request; 0 only peeks.

    `methods` and `paths` select the requests that it applies to, where GET includes HEAD; `exempt`
    excludes some. With `per_route` each route counts separately. With `charge_when`, a function of
    the response, a request is charged while it runs, and the charge is given back if the function
    returns False. A `shadow` never denies.

    `attributes` is for a `ServiceLimiter` whose policy has several limits: a function of the
    request, sync or async, that returns the attributes, such as `{"user": "alice", "tokens": 700}`,
    or None if the request is not limited.
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
        attributes: Callable[[Any], Any] | None = None,
    ) -> None:
        self.ready: Any = None
        self.limit: Limit | None = None
        self.keyless: bool = False
        if callable(getattr(limit, "acheck", None)) and callable(getattr(limit, "areserve", None)):
            self.ready = limit
            if shadow:
                reject("a limiter that is there already cannot be made a shadow; give its strategy")
        else:
            self.limit = optional(limit, shadow)
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
        self.exempt: Exemption | None = _exempting(exempt)
        self.per_route: bool = per_route
        require_plain("charge_when", charge_when, "the response")
        self.charge_when: Callable[[Any], Any] | None = charge_when
        self.attributes: Callable[[Any], Any] | None = attributes
        if attributes is not None:
            self._require_policy(attributes, key, cost)

    def _require_policy(self, attributes: Any, key: Any, cost: Any) -> None:
        if not callable(attributes):
            reject(f"attributes must be a function of the request, not {shown(attributes)}")
        if not hasattr(self.ready, "policy"):
            reject("attributes are for a policy of a service: give a ServiceLimiter as the limit")
        if key is not None or callable(cost) or self.per_route:
            reject(
                "a policy that is asked by attributes has its keys and costs from them: leave key, "
                "per_route and a function for the cost out"
            )

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


def add_rules(rules: dict[str, Rule], more: Iterable[Rule], after: str) -> None:
    """Add rules to others, by name; one without a name is named after its app, router or route."""
    for rule in more:
        name = rule.name or _free(slug(after), rules)
        if rules.setdefault(name, rule) is not rule:
            reject(f"two limits of {after!r} are called {name!r}; give each a name of its own")


def slug(text: str) -> str:
    """A text as the name of a limit: other characters than those allowed become dashes."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "app"
    if len(plain) <= 64:
        return plain
    from hashlib import sha256

    return f"{plain[:47]}-{sha256(plain.encode()).hexdigest()[:16]}"


def path_of(function: Any) -> str:
    """The dotted path of a view or a handler, after which its limits are named."""
    while True:
        inner = function.func if isinstance(function, partial) else None
        inner = inner or getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


class AppLimits:
    """The options of all limits of one app; see `WebOptions`."""

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
        """How `decide` handles an awaitable, which only `adecide` can await."""
        self.prefix = prefix
        self.clock = clock
        self.address: AddressKey = AddressKey(
            trusted_proxies, forwarded_header=forwarded_header, ipv6_prefix=ipv6_prefix
        )
        _require_key_function(key)
        self.key: Key = self.address if key is None else key
        self.secret: bytes | None = require_secret(hash_keys)
        self.exempt: Exemption | None = _exempting(exempt)
        self.fail = require_choice("fail", fail, FAIL_MODES)
        self.shadow = shadow
        self.headers = headers
        self.legacy_headers = legacy_headers
        if on_denied is not None and not callable(on_denied):
            reject(f"on_denied must be a function of request and verdict, not {shown(on_denied)}")
        self.on_denied = on_denied
        home, self._owns_store = open_for_limiter(store, clock)
        self.store: Store = home
        self._outages = OutageLog()

    def outage(self, error: StoreUnavailableError) -> None:
        """Log that the store is away, every ten seconds at most; raise in the mode `error`."""
        if self.fail == "error":
            raise error
        passes = "requests pass unlimited" if self.fail == "open" else "requests are refused"
        self._outages.warn("rate limits: %s (%s)", error, passes)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        if self._owns_store:
            self.store.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        if self._owns_store:
            await self.store.aclose()


def app_limits(reader: RequestReader, options: Mapping[str, Any]) -> AppLimits:
    """The limits of an app with these options; the error for an unknown one suggests another."""
    require_options(options, list(WebOptions.__annotations__))
    return AppLimits(reader, **options)


def require_sync_functions(*owners: Any) -> None:
    """Reject async functions of rules and apps in a framework that cannot await them, where they
    are declared."""
    for owner in owners:
        keys = owner.key.values() if isinstance(owner.key, Mapping) else [owner.key]
        exempt = () if owner.exempt is None else owner.exempt.functions
        others = getattr(owner, "cost", None), getattr(owner, "attributes", None)
        for function in (*keys, *exempt, *others):
            if callable(function) and is_async(function):
                reject(f"{_NO_ASYNC}; {shown(function)} is async: make it a plain def")


def _refuse_async(value: Any) -> Any:
    discard(value)
    reject(_NO_ASYNC)


def is_plain(value: Any) -> bool:
    """Whether a value is not an awaitable."""
    return value is None or not inspect.isawaitable(value)


def value_of(value: Any) -> Flow[Any, Any]:
    if type(value) is not str and not is_plain(value):
        value = yield value
    return value


def optional(limit: Any, shadow: bool) -> Limit:
    """The limit, made optional: calls without a key for it skip it. A limit without keys gets a
    constant one, so that it can be skipped as well."""
    declared = limit if isinstance(limit, Limit) else Limit(limit)
    return Limit(declared.strategy, shadow=declared.shadow or shadow, optional=True)


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
    found = {name.upper() for name in names}
    # Frameworks answer a HEAD by the view that answers a GET.
    return frozenset(found | {"HEAD"} if "GET" in found else found)


def _matching(paths: str | Sequence[str]) -> Callable[[str], Any]:
    """Whether a path is one of these patterns."""
    patterns = [paths] if isinstance(paths, str) else list(paths)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern.startswith(("/", "*")):
            reject(f"a path must begin with '/', such as '/static/*', not {shown(pattern)}")
    return re.compile("|".join(map(translate, patterns))).match


class Exemption:
    """Which requests are not limited: by path, or by functions of a request."""

    def __init__(self, given: Sequence[str | Callable[[Any], Any]]) -> None:
        paths = [each for each in given if not callable(each)]
        self._matches = _matching(paths) if paths else None
        self.functions: list[Callable[[Any], Any]] = [each for each in given if callable(each)]

    def __call__(self, reader: RequestReader, request: Any) -> Flow[Any, bool]:
        if self._matches is not None and self._matches(reader.path(request)):
            return True
        for function in self.functions:
            if (yield from value_of(function(request))):
                return True
        return False


def _exempting(exempt: Exempt) -> Exemption | None:
    if exempt is None:
        return None
    return Exemption([exempt] if isinstance(exempt, str) or callable(exempt) else list(exempt))
