"""The grammar of a policy file.

| a policy with | is of the kind |
|---|---|
| `strategy` | limiter |
| `tokenBudget` | budget |
| `concurrency` | admission |
| `concurrency`, and `strategy` or `tokenBudget` or both beside it | unified |
| `limits` | limits: see `_several.py` |

A strategy and a budget without slots are two policies, and rejected as one.

A policy may also have `twoTier`, how each node spends its strategy, and `federated`, how many
credits a client may lease.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..budget import TokenBudget, token_budget
from ..concurrency import Aimd, Gradient, Law
from ..concurrency._ceilings import MAX_LIMIT
from ..core._register import RESERVED_NAMES, find_strategy, registered
from ..core._validation import require_prefix
from ._model import DEFAULT_PREFIX, FAIL_MODES, ConcurrencySpec, PolicyFile, PolicySpec, TwoTierSpec
from ._reader import Fields, camel
from ._several import read_several
from ._strategies import class_of, example_of, guarded, parameter_names, strategy_of
from ._tree import Path, Tree
from ._warnings import Warned, warnings_of

__all__ = [
    "BOUNDS",
    "BUDGET",
    "LAWS",
    "MAX_KEYS",
    "MAX_WARNINGS",
    "MODES",
    "POLICY_NAME",
    "RESERVED",
    "SLOTS",
    "TWO_TIER",
    "Policies",
    "names_with",
    "policies_of",
    "read_federated",
    "read_two_tier",
]


# Those of `penstock.leasing`; a test compares.
MODES = ("strict", "cached-deny", "leased")

TWO_TIER = (
    "mode",
    "batch",
    "low_water",
    "window_coupled",
    "return_idle_after",
    "return_idle_after_ms",
    "max_stale",
    "max_stale_ms",
)


def read_two_tier(policy: Fields) -> TwoTierSpec:
    """`twoTier`: how each node spends the strategy."""
    if not policy.has("strategy"):
        policy.fail("two_tier", "needs a strategy in the same policy")
    fields = policy.below("two_tier", TWO_TIER)
    options: dict[str, Any] = {}
    if fields.has("mode"):
        options["mode"] = fields.choice("mode", MODES)
    if fields.has("batch"):
        options["batch"] = fields.integer("batch", 100)
    if fields.has("low_water"):
        most = options.get("batch", TwoTierSpec.batch) - 1
        options["low_water"] = fields.integer("low_water", 20, low=0, high=most)
    if fields.has("window_coupled"):
        options["window_coupled"] = fields.flag("window_coupled")
    if fields.has("return_idle_after") or fields.has("return_idle_after_ms"):
        options["return_idle_after_ms"] = fields.span_ms("return_idle_after", "30s")
    if fields.has("max_stale") or fields.has("max_stale_ms"):
        options["max_stale_ms"] = fields.span_ms("max_stale", "1s")
    return TwoTierSpec(**options)


def read_federated(policy: Fields) -> int:
    """`federated`: the most credits that a client may lease at once."""
    if policy.has("concurrency"):
        policy.fail(
            "federated", "cannot be used with concurrency: slots cannot be leased in batches"
        )
    strategy = find_strategy(policy.raw("strategy")) if policy.has("strategy") else None
    if strategy is not None and strategy.window_kind is None:
        *some, last = (cls.wire_name for cls in registered() if cls.window_kind is not None)
        policy.fail(
            "federated",
            "needs a strategy with a window, at whose end leased credits become void: "
            f"{', '.join(some)} or {last}",
        )
    return policy.below("federated", ("batch",)).integer("batch", 1_000)


RESERVED = ("inline",)
"""Names that the service uses itself."""

MAX_WARNINGS = 1_000
"""How many warnings of a file are kept."""

POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
MAX_KEYS = 2**31 - 1


def policies_of(tree: Tree, digest: str = "") -> PolicyFile:
    """The policies that a file describes; raises `config_invalid` at the first thing wrong."""
    top = Fields(tree, (), tree.value, ("version", "defaults", "limiters"))
    if top.need("version", "1") != 1 or isinstance(top.raw("version"), bool):
        top.fail("version", f"must be 1, the only version there is, not {top.raw('version')!r}")
    named = top.need("limiters", f"{{api: {example_of(registered()[0])}}}")
    if not isinstance(named, dict) or not named:
        top.fail("limiters", "must be a mapping with at least one policy, by name")
    warnings: list[str] = []
    policies = Policies.of(tree, named, warnings)
    return PolicyFile(policies, _prefix(top), tree.source, digest, tuple(warnings))


class Policies(Mapping[str, PolicySpec]):
    """The policies of a valid file. Each is kept as the text of its definition, and built whenever
    it is looked up.

    A file may have tens of thousands. As texts they are cheap to keep, to compare and to send to
    another process. Built, they would be a million objects, and the garbage collector would stop
    all requests for most of a second to look at them.
    """

    __slots__ = ("_texts",)

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    @classmethod
    def of(cls, tree: Tree, named: dict[Any, Any], warnings: list[str]) -> Policies:
        """The policies of a file. Raises at the first error, and appends to `warnings`."""
        texts: dict[str, str] = {}
        good: dict[str, list[Warned]] = {}
        for name, held in named.items():
            _require_name(tree, name)
            text = _text_of(held)
            # In a long file, many policies have the same definition.
            if text not in good:
                good[text] = warnings_of(_policy(tree, name, held))
            for path, told in good[text] if len(warnings) < MAX_WARNINGS else ():
                warnings.append(tree.place(("limiters", name, *path), told))
            texts[name] = text
        return cls(texts)

    def __getitem__(self, name: str) -> PolicySpec:
        return _policy(_FOUND_GOOD, name, json.loads(self._texts[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __eq__(self, other: object) -> bool:
        return self._texts == other._texts if isinstance(other, Policies) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Policies({self._texts!r})"

    def __reduce__(self) -> tuple[type[Policies], tuple[dict[str, str]]]:
        return Policies, (self._texts,)

    def same(self, name: str, other: Policies) -> bool:
        """Whether both have the same definition of a policy."""
        return self._texts.get(name) == other._texts.get(name)

    def having(self, field: str) -> list[str]:
        """The names of the policies with a field such as `concurrency`."""
        spellings = (field, camel(field))
        # Few have it, so only texts that mention it are parsed.
        mentioned = [
            (name, text)
            for name, text in self._texts.items()
            if spellings[0] in text or spellings[1] in text
        ]
        return [
            name for name, text in mentioned if not json.loads(text).keys().isdisjoint(spellings)
        ]

    def fail_modes(self, default: str) -> dict[str, str]:
        """The fail mode of each. `default` is that of policies without one."""
        texts = self._texts.items()
        return {name: json.loads(text).get("fail", default) for name, text in texts}

    def has_fail_mode(self, mode: str, default: str) -> bool:
        """Whether one of them has this fail mode. `default` is that of policies without one."""
        for text in set(self._texts.values()):
            if mode != default and f'"{mode}"' not in text:
                continue
            fields = json.loads(text)
            if fields.get("fail", default) == mode:
                return True
        return False


# No value of a file is part of itself: the readers refuse that.
_encode = json.JSONEncoder(check_circular=False).encode


def _text_of(held: Any) -> str:
    """A definition as text; "" if it is not plain data, and so not a valid policy."""
    try:
        return _encode(held)
    except (TypeError, ValueError, RecursionError):
        return ""


_FOUND_GOOD = Tree("a policy that was found good")


def names_with(policies: Mapping[str, PolicySpec], field: str) -> list[str]:
    """The names of the policies with a field such as `concurrency`."""
    if isinstance(policies, Policies):
        return policies.having(field)
    return [name for name, spec in policies.items() if getattr(spec, field) is not None]


def fail_modes(policies: Mapping[str, PolicySpec], default: str) -> dict[str, str]:
    """The fail mode of each policy. `default` is that of policies without one."""
    if isinstance(policies, Policies):
        return policies.fail_modes(default)
    return {name: spec.fail or default for name, spec in policies.items()}


def has_fail_mode(policies: Mapping[str, PolicySpec], mode: str, default: str) -> bool:
    """Whether a policy has this fail mode."""
    if isinstance(policies, Policies):
        return policies.has_fail_mode(mode, default)
    return any((spec.fail or default) == mode for spec in policies.values())


def _prefix(top: Fields) -> str:
    if not top.has("defaults"):
        return DEFAULT_PREFIX
    defaults = top.below("defaults", ("prefix",))
    if not defaults.has("prefix"):
        return DEFAULT_PREFIX
    return guarded(defaults, lambda fields: require_prefix(fields.text("prefix")))


def _require_name(tree: Tree, name: Any) -> None:
    path = ("limiters", str(name))
    if not isinstance(name, str):
        raise tree.error(path, "a policy's name is text; put it in quotes")
    if not POLICY_NAME.fullmatch(name):
        raise tree.error(
            path,
            "a policy's name is text of at most 64 letters, digits, '.', '_' and '-', and "
            "starts with a letter or digit",
        )
    if name in RESERVED:
        raise tree.error(path, "is a name reserved by the service; choose another")


def _policy(tree: Tree, name: str, held: Any) -> PolicySpec:
    path = ("limiters", name)
    fields = Fields(tree, path, held, _known(tree, path, held))
    if fields.has("limits"):
        return _several(name, fields)
    for word in ("plans", "overrides"):
        if fields.has(word):
            fields.fail(word, "needs `limits` in the same policy, whose figures it replaces")
    has_budget, has_slots = fields.has("token_budget"), fields.has("concurrency")
    if fields.has("strategy") and has_budget and not has_slots:
        fields.fail(
            "token_budget",
            "cannot be used with a strategy in one policy without concurrency; make two policies "
            "of them, or add concurrency",
        )
    if not (fields.has("strategy") or has_budget or has_slots):
        names = ", ".join(cls.wire_name for cls in registered())
        fields.fail("strategy", f"is missing; write one of {names}")
    budget = fields.below("token_budget", BUDGET) if has_budget else None
    return PolicySpec(
        name,
        strategy=strategy_of(fields) if fields.has("strategy") else None,
        budget=None if budget is None else guarded(budget, _budget),
        concurrency=_concurrency(fields) if has_slots else None,
        max_keys=_max_keys(budget) if budget is not None and budget.has("max_keys") else None,
        fail=fields.choice("fail", FAIL_MODES) if fields.has("fail") else None,
        two_tier=read_two_tier(fields) if fields.has("two_tier") else None,
        federated=read_federated(fields) if fields.has("federated") else None,
    )


def _several(name: str, fields: Fields) -> PolicySpec:
    for word in ("strategy", "token_budget", "concurrency", "two_tier", "federated"):
        if fields.has(word):
            fields.fail(
                word,
                "cannot be used with `limits` in one policy; keep one of them",
            )
    fail = fields.choice("fail", FAIL_MODES) if fields.has("fail") else None
    return PolicySpec(name, fail=fail, several=read_several(fields))


def _known(tree: Tree, path: Path, held: Any) -> tuple[str, ...]:
    """The fields that a policy may have, among them the parameters of its strategy."""
    if not isinstance(held, dict) or "strategy" not in held:
        # Parameters without a strategy: the error is the missing strategy, not unknown fields.
        other = {"tokenBudget", "token_budget", "limits"}
        astray = isinstance(held, dict) and not held.keys() & other
        if not astray or "concurrency" in held:
            return RESERVED_NAMES
        every = (name for cls in registered() for name in parameter_names(cls))
        return (*RESERVED_NAMES, *dict.fromkeys(every))
    return (*RESERVED_NAMES, *parameter_names(class_of(tree, path, held)))


BUDGET = ("budget", "window", "window_ms", "max_keys")


def _budget(fields: Fields) -> TokenBudget:
    return token_budget(fields.integer("budget", 100_000), fields.span_ms("window", "1m"))


def _max_keys(fields: Fields) -> int:
    return fields.integer("max_keys", 10_000, high=MAX_KEYS)


BOUNDS = ("min_limit", "max_limit", "initial_limit")
LAWS: dict[str, tuple[str, ...]] = {
    "gradient": ("tolerance", "smoothing", "samples", "backoff"),
    "aimd": ("timeout", "timeout_ms", "increase", "backoff"),
}
SLOTS = ("law", "lease_ttl", "lease_ttl_ms", "per_key", "max_keys")


def _concurrency(policy: Fields) -> ConcurrencySpec:
    held = policy.raw("concurrency")
    law = held.get("law", "gradient") if isinstance(held, dict) else "gradient"
    own = LAWS.get(law, ()) if isinstance(law, str) else ()
    fields = policy.below("concurrency", (*BOUNDS, *SLOTS, *own))
    if fields.has("law"):
        fields.choice("law", tuple(LAWS))
    options: dict[str, Any] = {}
    if fields.has("lease_ttl") or fields.has("lease_ttl_ms"):
        options["lease_ttl_ms"] = fields.span_ms("lease_ttl", "2s")
    if fields.has("per_key"):
        options["per_key"] = fields.flag("per_key")
    if fields.has("max_keys"):
        options["max_keys"] = _max_keys(fields)
    make = _aimd if law == "aimd" else _gradient
    return ConcurrencySpec(guarded(fields, make), **options)


def _bounds(fields: Fields) -> dict[str, Any]:
    options: dict[str, Any] = {
        "min_limit": fields.integer("min_limit", 4, high=MAX_LIMIT),
        "max_limit": fields.integer("max_limit", 200, high=MAX_LIMIT),
    }
    if fields.has("initial_limit"):
        options["initial_limit"] = fields.integer("initial_limit", 20, high=MAX_LIMIT)
    return options


def _gradient(fields: Fields) -> Law:
    options = _bounds(fields)
    for name in ("tolerance", "smoothing", "backoff"):
        if fields.has(name):
            options[name] = fields.number(name, 0.9)
    if fields.has("samples"):
        options["samples"] = fields.integer("samples", 5_000)
    return Gradient(**options)


def _aimd(fields: Fields) -> Law:
    options = _bounds(fields)
    if fields.has("timeout") or fields.has("timeout_ms"):
        options["timeout_ms"] = fields.span_ms("timeout", "1s")
    if fields.has("increase"):
        options["increase"] = fields.integer("increase", 1)
    if fields.has("backoff"):
        options["backoff"] = fields.number("backoff", 0.9)
    return Aimd(**options)
