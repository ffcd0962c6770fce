"""Which server owns a key: one fixed server, the master that the sentinels name, or the node that
holds the key's slot.

The tables are plain memory; learning them is a flow, for sync and async calls. A table may be out
of date at any time: the servers say so (MOVED, READONLY, a refused connection), and the caller then
calls `moved` or `lost`.

All sentinels, and all nodes of a cluster, know the same. So a frozen one must not cost a call,
which goes on to the next with the time that is left, nor the calls after it, which first ask those
that have not failed.

A master that was frozen and replaced meanwhile believes that it is the master until the sentinels
tell it otherwise: it would admit again what the new master has admitted, and no caller would
notice. So an answer of the sentinels is trusted for a second, which is less than they take to
replace a master.
"""

from __future__ import annotations

import random
import time
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...core._validation import shown
from .._sheet import ConnectionFailedError
from ._requests import Address, Command, Exchange, RedisFlow, Refusal

__all__ = ["Cluster", "Fixed", "Sentinels", "Topology", "slot_of"]


SLOTS = 16_384

_Accept = Callable[[Address, Any], RedisFlow]


# The share of the remaining time for one of several servers; the rest is for the others.
_SHARE = 0.5

# How long an address of the master is used before the sentinels are asked again.
_TRUSTED_S = 1.0


class Topology(Protocol):
    """What a flow needs to know about servers."""

    def locate(self, key: str) -> Address | None:
        """The server that owns the key; None if it has to be looked up first."""

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        """The places of the keys, in order, by which of them may be used by one script."""

    def is_one_group(self, keys: Sequence[str]) -> bool:
        """Whether one script may use all of them."""

    def is_one_slot(self, lead: str) -> bool:
        """Whether all keys that begin with `lead` may be used by one script."""

    def find(self) -> RedisFlow:
        """Look up the servers. Raises ConnectionFailedError if none of them can tell."""

    def lost(self, where: Address) -> None:
        """The server there does not serve (any more)."""

    def moved(self, refusal: Refusal, asked: Address) -> Address | None:
        """Where a MOVED or ASK points; None if redirections have no meaning here."""


class Fixed:
    """One fixed server."""

    def __init__(self, where: Address) -> None:
        self.where = where

    def locate(self, _key: str) -> Address | None:
        return self.where

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        return [list(range(len(keys)))]

    def is_one_group(self, keys: Sequence[str]) -> bool:
        return True

    def is_one_slot(self, _lead: str) -> bool:
        return True

    def find(self) -> RedisFlow:
        yield from ()

    def lost(self, where: Address) -> None:
        pass

    def moved(self, _refusal: Refusal, _asked: Address) -> Address | None:
        return None

    def __repr__(self) -> str:
        return str(self.where)


class _Informants:
    """Several servers that can answer the same question; those that failed are asked last."""

    def __init__(self) -> None:
        self._failed: dict[Address, None] = {}

    def ask(
        self,
        members: Sequence[Address],
        question: Command,
        accept: _Accept,
        last_share: float = 1.0,
    ) -> RedisFlow:
        """Ask one server after the other until `accept` is content with an answer; it returns what
        is wrong with it, or None. Returns what was wrong last, or None. The last server has
        `last_share` of the time that is left then."""
        order = self._order(members)
        wrong: object = "nobody to ask was given"
        for number, member in enumerate(order, 1):
            share = _SHARE if number < len(order) else last_share
            try:
                (reply,) = yield Exchange(member, (question,), share=share)
                wrong = yield from accept(member, reply)
            except ConnectionFailedError as error:
                wrong = error
            if wrong is None:
                for silent in order[: number - 1]:
                    self.failed(silent)
                # Servers that are no longer members are dropped.
                self._failed = {f: None for f in list(self._failed) if f in order and f != member}
                return None
        # Only the first had enough time to answer. The next call begins with the second.
        for silent in order[:1]:
            self.failed(silent)
        return wrong

    def failed(self, member: Address) -> None:
        self._failed.pop(member, None)
        self._failed[member] = None

    def _order(self, members: Sequence[Address]) -> list[Address]:
        failed = list(self._failed)
        return [*(m for m in members if m not in failed), *(f for f in failed if f in members)]


class Sentinels(Fixed):
    """The master of `service`, as the sentinels see it and as it sees itself."""

    def __init__(self, sentinels: Sequence[Address], service: str) -> None:
        self.sentinels: list[Address] = list(sentinels)
        self.service = service
        self.master: Address | None = None
        self._trusted_until = 0.0
        self._informants = _Informants()

    def locate(self, _key: str) -> Address | None:
        return self.master if time.monotonic() < self._trusted_until else None

    def find(self) -> RedisFlow:
        question = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.service.encode())
        wrong = yield from self._informants.ask(self.sentinels, question, self._accept, self._share)
        if wrong is not None and self.master is None:
            text = f"no master for {self.service!r}: {wrong}"
            raise ConnectionFailedError(text, may_have_run=False, again=True)
        # If no sentinel answers, the master may still work.
        self._trusted_until = time.monotonic() + _TRUSTED_S

    @property
    def _share(self) -> float:
        """Of the time that is left: where a master is known, some is kept to ask it."""
        return 1.0 if self.master is None else _SHARE

    def _accept(self, sentinel: Address, reply: Any) -> RedisFlow:
        if not isinstance(reply, list):
            return f"{sentinel} does not know {self.service!r} ({reply})"
        master = _address_of(reply)
        if master is None:
            return f"{sentinel} answered {shown(reply)}, which is no address"
        if master != self.master:
            (role,) = yield Exchange(master, ((b"ROLE",),), share=self._share)
            if not isinstance(role, list) or role[:1] not in (["master"], [b"master"]):
                return f"{master} is not a master yet"
        self.master = master
        return None

    def lost(self, where: Address) -> None:
        if self.master == where:
            self.master = None

    def __repr__(self) -> str:
        return f"{self.service!r} of the sentinels at {', '.join(map(str, self.sentinels))}"


class Cluster:
    """The slot table. `remap` is for clients that see other addresses than the nodes do."""

    def __init__(
        self,
        seeds: Sequence[Address],
        remap: Callable[[tuple[str, int]], tuple[str, int]] | None = None,
    ) -> None:
        self.seeds: list[Address] = list(seeds)
        self._remap = remap
        self._owners: list[Address | None] = [None] * SLOTS
        self._suspect = True
        self._lost: set[Address] = set()
        self._informants = _Informants()

    def locate(self, key: str) -> Address | None:
        owner = None if self._suspect else self._owners[slot_of(key)]
        return None if owner in self._lost else owner

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        by_slot: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            by_slot.setdefault(slot_of(key), []).append(place)
        return list(by_slot.values())

    def is_one_group(self, keys: Sequence[str]) -> bool:
        return len({slot_of(key) for key in keys}) == 1

    def is_one_slot(self, lead: str) -> bool:
        return hash_tag(lead) is not None

    def find(self) -> RedisFlow:
        known = {owner for owner in self._owners if owner is not None}
        places = random.sample(sorted(known), len(known))
        places += [seed for seed in self.seeds if seed not in known]
        wrong = yield from self._informants.ask(places, (b"CLUSTER", b"SLOTS"), self._accept)
        if wrong is not None:
            text = f"no cluster node knows the slots: {wrong}"
            raise ConnectionFailedError(text, may_have_run=False, again=True)

    def _accept(self, node: Address, reply: Any) -> RedisFlow:
        yield from ()
        if not isinstance(reply, list) or not reply:
            return f"{node} answered {shown(reply)}"
        return self._learn(reply, node)

    def lost(self, where: Address) -> None:
        # Only its slots: keys of the other nodes need not wait.
        self._lost.add(where)
        self._informants.failed(where)

    def moved(self, refusal: Refusal, asked: Address) -> Address | None:
        code, slot, place = [*refusal.text.split()[:3], "", ""][:3]
        host, _, port = place.rpartition(":")
        where = _address_of([host, port])
        if where is None or not (slot.isascii() and slot.isdigit() and int(slot[:9]) < SLOTS):
            text = f"{asked} answered {shown(refusal.text)}, which is no redirection"
            raise ConnectionFailedError(text, may_have_run=False)
        owner = self._address(where.host, where.port, asked)
        if code == "MOVED":
            self._owners[int(slot)] = owner
            # One slot has moved, so others may have: read the table again before the next call.
            self._suspect = True
        return owner

    def __repr__(self) -> str:
        return f"the cluster of {', '.join(map(str, self.seeds))}"

    def _learn(self, reply: list[Any], asked: Address) -> str | None:
        """Read the table; returns what is wrong with it, or None."""
        owners: list[Address | None] = [None] * SLOTS
        if len(reply) > SLOTS:
            return f"{asked} answered {len(reply)} ranges of slots"
        for entry in reply:
            shared = _range_of(entry)
            if shared is None:
                return f"{asked} answered {shown(entry)}, which is no range of slots"
            first, last, master = shared
            owner = self._address(master.host, master.port, asked)
            owners[first : last + 1] = [owner] * (last + 1 - first)
        self._owners = owners
        self._suspect = False
        self._lost = set()
        return None

    def _address(self, host: str, port: int, asked: Address) -> Address:
        # A node that does not know its own name means the host of this connection.
        host = asked.host if host in ("", "?") else host
        return Address(*self._remap((host, port))) if self._remap else Address(host, port)


def slot_of(key: str) -> int:
    """The slot of a key, or of its hash tag."""
    tag = hash_tag(key)
    return crc_hqx((key if tag is None else tag).encode(), 0) % SLOTS


def hash_tag(key: str) -> str | None:
    """The text in the first pair of braces, if there is any."""
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if 0 <= start < end - 1 else None


def _range_of(entry: Any) -> tuple[int, int, Address] | None:
    """The slots of an entry of CLUSTER SLOTS, and their master; None if it is malformed."""
    if not isinstance(entry, list) or len(entry) < 3:
        return None
    first, last = entry[:2]
    if type(first) is not int or type(last) is not int or not 0 <= first <= last < SLOTS:
        return None
    master = _address_of(entry[2])
    return None if master is None else (first, last, master)


def _address_of(reply: Any) -> Address | None:
    """A host and a port, as bytes, text or a number; None if they are anything else."""
    if not isinstance(reply, list) or len(reply) < 2:
        return None
    host, port = [
        part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in reply[:2]
    ]
    if isinstance(port, str) and port.isascii() and port.isdigit() and len(port) <= 5:
        port = int(port)
    if type(port) is not int or not 0 < port <= 65_535:
        return None
    if host is None or isinstance(host, str):
        return Address(host or "", port)
    return None
