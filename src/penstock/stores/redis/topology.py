"""Which server owns a key: one fixed server, the master that the sentinels name, or the node that
holds the key's slot.

The tables are plain memory; learning is a flow, so that one description serves both colours. A
table may be out of date at any time: the servers say so (MOVED, READONLY, a refused connection),
and whoever hears it calls `moved` or `lost`.
"""

from __future__ import annotations

import random
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .requests import Address, Ask, LinkError, RedisFlow, Refusal

__all__ = ["Cluster", "Fixed", "Sentinels", "Topology", "slot_of"]

SLOTS = 16_384


class Topology(Protocol):
    """What a flow needs to know about places."""

    def locate(self, key: str) -> Address | None:
        """Who owns the key; None when that has to be found out first."""

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        """The places of the keys, in order, by which of them may be used by one script."""

    def find(self) -> RedisFlow:
        """Learn the places; raises LinkError when nobody can tell."""

    def lost(self, where: Address) -> None:
        """The server there does not serve (any more)."""

    def moved(self, refusal: Refusal, asked: Address) -> Address | None:
        """Where a MOVED or ASK points; None if redirections have no meaning here."""


class Fixed:
    """One server, always the same."""

    def __init__(self, where: Address) -> None:
        self.where = where

    def locate(self, _key: str) -> Address | None:
        return self.where

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        return [list(range(len(keys)))]

    def find(self) -> RedisFlow:
        yield from ()

    def lost(self, where: Address) -> None:
        pass

    def moved(self, _refusal: Refusal, _asked: Address) -> Address | None:
        return None

    def __repr__(self) -> str:
        return str(self.where)


class Sentinels(Fixed):
    """The master of `service`, as the sentinels see it and as it sees itself."""

    def __init__(self, sentinels: Sequence[Address], service: str) -> None:
        self.sentinels = list(sentinels)
        self.service = service
        self.master: Address | None = None

    def locate(self, _key: str) -> Address | None:
        return self.master

    def find(self) -> RedisFlow:
        heard: object = "no sentinel was given"
        for sentinel in list(self.sentinels):
            try:
                (reply,) = yield Ask(
                    sentinel, (("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service),)
                )
                if not isinstance(reply, list):
                    heard = f"{sentinel} does not know {self.service!r} ({reply})"
                    continue
                master = Address(_text(reply[0]), int(reply[1]))
                (role,) = yield Ask(master, (("ROLE",),))
            except LinkError as error:
                heard = error
                continue
            if isinstance(role, list) and _text(role[0]) == "master":
                self._prefer(sentinel)
                self.master = master
                return
            heard = f"{master} is not a master yet"
        raise LinkError(f"no master for {self.service!r}: {heard}", may_have_run=False, again=True)

    def lost(self, where: Address) -> None:
        if self.master == where:
            self.master = None

    def __repr__(self) -> str:
        return f"{self.service!r} of the sentinels at {', '.join(map(str, self.sentinels))}"

    def _prefer(self, sentinel: Address) -> None:
        """Ask first the one that answered last."""
        others = [other for other in self.sentinels if other != sentinel]
        self.sentinels = [sentinel, *others]


class Cluster:
    """The slot table. `remap` is for clients that see other addresses than the nodes do."""

    def __init__(
        self,
        seeds: Sequence[Address],
        remap: Callable[[tuple[str, int]], tuple[str, int]] | None = None,
    ) -> None:
        self.seeds = list(seeds)
        self._remap = remap
        self._owners: list[Address | None] = [None] * SLOTS
        self._suspect = True

    def locate(self, key: str) -> Address | None:
        return None if self._suspect else self._owners[slot_of(key)]

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        by_slot: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            by_slot.setdefault(slot_of(key), []).append(place)
        return list(by_slot.values())

    def find(self) -> RedisFlow:
        known = {owner for owner in self._owners if owner is not None}
        places = random.sample(sorted(known), len(known))
        heard: object = "no node was given"
        for where in [*places, *(seed for seed in self.seeds if seed not in known)]:
            try:
                (reply,) = yield Ask(where, (("CLUSTER", "SLOTS"),))
            except LinkError as error:
                heard = error
                continue
            if isinstance(reply, list) and reply:
                self._learn(reply, where)
                return
            heard = f"{where} answered {reply}"
        raise LinkError(f"no cluster node knows the slots: {heard}", may_have_run=False, again=True)

    def lost(self, where: Address) -> None:
        self._suspect = True

    def moved(self, refusal: Refusal, asked: Address) -> Address | None:
        code, slot, place = refusal.text.split()[:3]
        host, _, port = place.rpartition(":")
        owner = self._address(host, int(port), asked)
        if code == "MOVED":
            self._owners[int(slot)] = owner
            # One slot has moved, so others may have: read the table again before the next call.
            self._suspect = True
        return owner

    def __repr__(self) -> str:
        return f"the cluster of {', '.join(map(str, self.seeds))}"

    def _learn(self, reply: list[Any], asked: Address) -> None:
        owners: list[Address | None] = [None] * SLOTS
        for first, last, master, *_replicas in reply:
            owner = self._address(_text(master[0]), int(master[1]), asked)
            owners[first : last + 1] = [owner] * (last + 1 - first)
        self._owners = owners
        self._suspect = False

    def _address(self, host: str, port: int, asked: Address) -> Address:
        # A node that does not know its own name means: the host you already talk to.
        host = asked.host if host in ("", "?") else host
        return Address(*self._remap((host, port))) if self._remap else Address(host, port)


def slot_of(key: str) -> int:
    """The slot of a key, or of its hash tag: what stands in the first pair of braces."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw or "")
