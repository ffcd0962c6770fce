"""The table of named policies, which are built on first use.

A table belongs to one policy file; a reload makes a new table, which replaces the old one in one
assignment. A policy is built when it is first used, because a file may have tens of thousands, most
of which are rarely used, and no request should wait until all are built. Building cannot fail: the
whole file was validated before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any

from ..config import fail_modes, has_fail_mode, names_with
from ..config._model import FAIL_MODES, PolicyFile
from ..config._policies import Policies
from ..core._errors import ConfigInvalidError
from ..core._store import Store
from ..leasing import TwoTierLimiter
from ._entries import Entry, EntryBuilder, Policy, Site

__all__ = ["SHOWN", "PolicyTable", "UnknownPolicyError", "unknown_policy"]


SHOWN = 1_000
"""Files with at most this many policies have all of them in the metrics from the start; those of
longer files appear with their first request."""

# Comparing a name with this many takes about a millisecond.
_GUESSED = 100

# This many built policies are some ten thousand objects.
_GROWTH = 256


class UnknownPolicyError(ConfigInvalidError):
    """No policy has that name."""


class PolicyTable:
    """The policies of one file, by name. `before` is the table that this one will replace;
    iterating over `taking_over` transfers what it keeps in this process."""

    def __init__(self, file: PolicyFile, site: Site, before: PolicyTable | None = None) -> None:
        self.file = file
        self.entries: dict[str, Entry] = {}
        self.policies: Mapping[str, Policy] = _Served(self)
        self._site = site
        self._before = before
        self._build = EntryBuilder(file.prefix, site, {} if before is None else before.entries)
        if len(file.policies) <= SHOWN:
            for name in file.policies:
                site.metrics.tally(name)
        # Build one, so that an invalid prefix or store, which concerns all, is an error here.
        for name in islice(file.policies, 1):
            self[name]

    @cached_property
    def decides_without_store(self) -> bool:
        """Whether some policy decides while the store is away, by its fail mode."""
        modes = [mode for mode in FAIL_MODES if mode != "error"]
        return any(has_fail_mode(self.file.policies, mode, self._site.fail) for mode in modes)

    @property
    def fail_modes(self) -> Mapping[str, str]:
        """The fail mode of each policy; of those that have been used if there are very many."""
        if len(self.file.policies) <= SHOWN:
            return self._fail_modes
        return {name: entry.policy.fail for name, entry in self.entries.items()}

    @cached_property
    def _fail_modes(self) -> Mapping[str, str]:
        return fail_modes(self.file.policies, self._site.fail)

    def degraded(self) -> dict[str, tuple[str, bool]]:
        """The fail mode of each policy that has answered by it, and whether it did so a moment
        ago."""
        return {
            name: (entry.policy.fail, entry.guard.is_degraded)
            for name, entry in self.entries.items()
            if entry.guard.was_degraded
        }

    def __getitem__(self, name: str) -> Entry:
        try:
            return self.entries[name]
        except (KeyError, TypeError):
            return self._made(name)

    def _made(self, name: str) -> Entry:
        spec = self.file.policies.get(name) if isinstance(name, str) else None
        if spec is None:
            raise unknown_policy(name, self.file.policies)
        entry = self.entries[name] = self._build.entry(spec)
        if len(self.entries) % _GROWTH == 0:
            self._site.grown()
        return entry

    def taking_over(self) -> Iterator[None]:
        """Take over from the old table, and build policies with slots; in small steps, between
        which the old table may serve requests."""
        if len(self.file.policies) <= SHOWN:
            for name in names_with(self.file.policies, "concurrency"):
                yield
                self[name]
        before, looked_at = self._before, set[str]()
        while before is not None and (made := before.entries.keys() - looked_at):
            for name in made:
                yield
                self._take_over(name, before)
            looked_at |= made
        self._before = None
        self._build = EntryBuilder(self.file.prefix, self._site, {})

    def _take_over(self, name: str, before: PolicyTable) -> None:
        """Keep a policy whose definition has not changed. Build another one now if it has state in
        this process that can be taken over."""
        if name not in self.file.policies or name in self.entries:
            return
        entry = before.entries[name]
        if self.file.prefix == before.file.prefix and _defined_alike(name, self.file, before.file):
            self.entries[name] = entry
        elif entry.keeps_state:
            self[name]

    def letting_go(self) -> Iterator[None]:
        """Drop the policies in small steps, since freeing a million objects at once takes long."""
        while self.entries:
            self.entries.popitem()
            yield

    def slots(self) -> dict[str, dict[str, int]]:
        """The ceiling and use of the slots of each policy that has some."""
        held: dict[str, dict[str, int]] = {}
        for name, entry in self.entries.items():
            if entry.control is not None:
                slots = entry.control.concurrency
                # First, since reading this may find expired leases.
                in_flight = slots.in_flight
                held[name] = {
                    "limit": slots.limit,
                    "in_flight": in_flight,
                    "reclaimed": entry.tally.reclaimed,
                }
        return held

    def own_stores(self) -> Iterator[tuple[str, Store]]:
        """The stores in this process that belong to a single policy, by kind."""
        for entry in self.entries.values():
            if entry.budget is not None and entry.budget.store is not self._site.store:
                yield "budgets", entry.budget.store
            if isinstance(entry.limiter, TwoTierLimiter):
                yield "credits", entry.limiter.near_store

    async def aclose(self) -> None:
        """Wait for leases in flight."""
        for entry in self.entries.values():
            if isinstance(entry.limiter, TwoTierLimiter):
                await entry.limiter.aclose()


class _Served(Mapping[str, Policy]):
    """The descriptions of the policies of a table."""

    __slots__ = ("_table",)

    def __init__(self, table: PolicyTable) -> None:
        self._table = table

    def get(self, name: str, default: Any = None) -> Any:
        # Called for every reply, for a policy that has just been used.
        entry = self._table.entries.get(name)
        return super().get(name, default) if entry is None else entry.policy

    def __getitem__(self, name: str) -> Policy:
        if name not in self._table.file.policies:
            raise KeyError(name)
        return self._table[name].policy

    def __contains__(self, name: object) -> bool:
        return name in self._table.file.policies

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.file.policies)

    def __len__(self) -> int:
        return len(self._table.file.policies)


def _defined_alike(name: str, one: PolicyFile, other: PolicyFile) -> bool:
    if isinstance(one.policies, Policies) and isinstance(other.policies, Policies):
        return one.policies.same(name, other.policies)
    return one.policies[name] == other.policies.get(name)


def unknown_policy(name: object, known: Collection[str]) -> UnknownPolicyError:
    """The error, with the most similar name unless there are too many to compare."""
    near = get_close_matches(str(name)[:80], known, n=1) if len(known) <= _GUESSED else []
    hint = f"did you mean {near[0]!r}?" if near else "use one of the policy file"
    return UnknownPolicyError(f"there is no policy {str(name)[:80]!r}; {hint}")
