"""From a key and some commands to the right server's replies, whatever happens on the way.

What is repeated, and why that is safe: a refusal means that nothing was run, so NOSCRIPT, MOVED,
ASK, LOADING and their like are answered by sending the same request again, in another form, to
another place or a little later. A connection that was never made carried nothing. But once a
consuming request has been written and its reply is missing, it is never sent again: the server
may have counted it, and a second copy would be counted too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.strategy import LuaScript
from .faults import DISOWNED, PASSING, refused, unavailable
from .requests import Address, Ask, Command, Discard, LinkError, Pause, RedisFlow, Refusal
from .topology import Topology

__all__ = ["Errand", "Patience", "Router", "as_eval"]

_ASKING: Command = ("ASKING",)
_ATTEMPTS = 6
_FIRST_PAUSE_MS = 4


class Patience:
    """How often a call may try again: a few times, ever later, never in step with others."""

    def __init__(self, attempts: int = _ATTEMPTS) -> None:
        self._left = attempts
        self._pause_ms = float(_FIRST_PAUSE_MS)

    def wait(self, error: Exception, *, consuming: bool) -> RedisFlow:
        self.spend(error, consuming=consuming)
        ms = self._pause_ms * random.uniform(0.5, 1)
        self._pause_ms *= 2
        try:
            yield Pause(ms)
        except LinkError:
            raise unavailable(error, consuming=consuming) from error

    def spend(self, error: Exception, *, consuming: bool) -> None:
        """Try again at once, unless it has been tried too often."""
        self._left -= 1
        if self._left <= 0:
            raise unavailable(error, consuming=consuming) from error


@dataclass(slots=True)
class Errand:
    """Commands on their way. `script` is what their EVALSHA stands for; `keys` is for messages."""

    key: str
    keys: str
    commands: Sequence[Command]
    script: LuaScript | None
    consuming: bool
    where: Address | None = None
    asking: bool = False

    def sending(self) -> Sequence[Command]:
        return (_ASKING, *self.commands) if self.asking else self.commands


class Router:
    """Runs errands against a topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def ask(
        self,
        key: str,
        commands: Sequence[Command],
        *,
        script: LuaScript | None = None,
        consuming: bool,
        pinned: bool = False,
    ) -> RedisFlow:
        """The replies to the commands, none of them a refusal."""
        where = self.topology.locate(key)
        trouble: LinkError | Refusal | None = None
        if where is not None:
            try:
                replies = yield Ask(where, commands, pinned)
                trouble = _refusal_in(replies)
            except LinkError as error:
                trouble = error
            if trouble is None:
                return replies
        # Nearly every call has ended here, at its first attempt, with nothing else prepared.
        errand = Errand(key, f"key {key!r}", commands, script, consuming)
        return (yield from self._insist(errand, where, trouble, pinned))

    def _insist(
        self,
        errand: Errand,
        where: Address | None,
        trouble: LinkError | Refusal | None,
        pinned: bool,
    ) -> RedisFlow:
        patience = Patience()
        while True:
            if where is not None and isinstance(trouble, LinkError):
                yield from self.recover(errand, where, trouble, patience)
            elif where is not None and isinstance(trouble, Refusal):
                yield from self.react(errand, where, trouble, patience)
            where = errand.where or self.topology.locate(errand.key)
            if where is None:
                where = yield from self.find(errand.key, patience, consuming=errand.consuming)
            try:
                replies = yield Ask(where, errand.sending(), pinned)
                trouble = _refusal_in(replies)
            except LinkError as error:
                trouble = error
            if trouble is None:
                return replies[1:] if errand.asking else replies

    def find(self, key: str, patience: Patience, *, consuming: bool) -> RedisFlow:
        """Who owns the key, learnt anew."""
        while True:
            try:
                yield from self.topology.find()
            except LinkError as error:
                if not error.again:
                    raise unavailable(error, consuming=consuming) from error
                yield from patience.wait(_harmless(error), consuming=consuming)
                continue
            where = self.topology.locate(key)
            if where is not None:
                return where
            missing = LinkError("no server owns the key's slot", may_have_run=False)
            yield from patience.wait(missing, consuming=consuming)

    def recover(
        self, errand: Errand, where: Address, error: LinkError, patience: Patience
    ) -> RedisFlow:
        """After a failed link: get ready to try again, if nothing can have been charged."""
        self.topology.lost(where)
        if (errand.consuming and error.may_have_run) or not error.again:
            raise unavailable(error, consuming=errand.consuming) from error
        errand.where, errand.asking = None, False
        yield from patience.wait(error, consuming=errand.consuming)

    def react(
        self, errand: Errand, where: Address, refusal: Refusal, patience: Patience
    ) -> RedisFlow:
        """After a refusal: get ready to try again, if the reason is one that passes."""
        code = refusal.code
        if code == "NOSCRIPT" and errand.script is not None:
            patience.spend(refusal, consuming=errand.consuming)
            errand.commands = as_eval(errand.commands, errand.script)
        elif code in ("MOVED", "ASK") and (owner := self.topology.moved(refusal, where)):
            patience.spend(refusal, consuming=errand.consuming)
            errand.where, errand.asking = owner, code == "ASK"
        elif code in PASSING:
            if code in DISOWNED:
                self.topology.lost(where)
                yield Discard(where)
                errand.where, errand.asking = None, False
            yield from patience.wait(refusal, consuming=errand.consuming)
        else:
            raise refused(refusal, errand.keys, consuming=errand.consuming) from refusal


def as_eval(commands: Sequence[Command], script: LuaScript) -> list[Command]:
    """The same commands with the script's text in the place of its hash; it is cached on the way.

    An answer to NOSCRIPT, which each node of a cluster gives once, and each server after a
    restart, a failover or a SCRIPT FLUSH.
    """
    return [
        ("EVAL", script.source, *command[2:]) if command[0] == "EVALSHA" else command
        for command in commands
    ]


def _refusal_in(replies: Sequence[Any]) -> Refusal | None:
    for reply in replies:
        if type(reply) is Refusal:
            return reply
    return None


def _harmless(error: LinkError) -> LinkError:
    """A failed look-up charges nobody, whatever it was that got lost."""
    return LinkError(str(error), may_have_run=False, again=error.again)
