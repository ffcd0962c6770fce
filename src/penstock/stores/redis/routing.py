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

from ...core.errors import PenstockError, StoreUnavailableError
from ...core.lua import LuaScript
from .faults import DISOWNED, PASSING, PATIENT, refused, stopped_midway, unavailable
from .requests import Address, Ask, Command, Discard, LinkError, Pause, RedisFlow, Refusal, Scatter
from .topology import Topology

__all__ = ["Errand", "Router", "names_of", "refusal_in"]

_ASKING: Command = (b"ASKING",)
_ATTEMPTS = 6
_FIRST_PAUSE_MS = 4.0
_DOUBLINGS = 5
# Two nodes that point at each other have not heard of the same move yet.
_HOPS = 2

Trouble = LinkError | Refusal


@dataclass(slots=True)
class Errand:
    """Commands on their way, and what has been learnt about how to send them.

    `script` is what their EVALSHA stands for, `names` the keys in messages, `several` if there is
    more than one, `others` when further keys of the same call may have been charged. `tries` counts
    what went wrong, `where` and `asking` are the last redirection, `as_text` follows NOSCRIPT.
    """

    key: str
    names: str
    commands: Sequence[Command]
    script: LuaScript | None
    consuming: bool
    several: bool = False
    others: bool = False
    tries: int = 0
    where: Address | None = None
    asking: bool = False
    as_text: bool = False

    def sending(self, *, by_hash: bool = False) -> Sequence[Command]:
        """What goes over the wire; `by_hash` when the server is about to know the script."""
        commands = self.commands
        if self.as_text and not by_hash and self.script is not None:
            commands = [_spelt_out(command, self.script) for command in commands]
        return (_ASKING, *commands) if self.asking else commands

    def unavailable(self, trouble: Exception) -> StoreUnavailableError:
        return unavailable(trouble, consuming=self.consuming, others=self.others)

    def refused(self, refusal: Refusal) -> PenstockError:
        others = self.others or (self.several and stopped_midway(refusal))
        return refused(refusal, self.names, consuming=self.consuming, others=others)

    def may_have_run(self, trouble: Trouble) -> bool:
        """Whether one of its keys may have been charged although it failed."""
        if isinstance(trouble, LinkError):
            return trouble.may_have_run
        return self.several and stopped_midway(trouble)


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
        names: str = "",
        others: bool = False,
    ) -> RedisFlow:
        """The replies to the commands, none of them a refusal."""
        where = self.topology.locate(key)
        trouble: Trouble | None = None
        if where is not None:
            try:
                replies = yield Ask(where, commands, pinned)
                trouble = refusal_in(replies)
            except LinkError as error:
                trouble = error
            if trouble is None:
                return replies
        # Nearly every call has ended here, at its first attempt, with nothing else prepared.
        names = names or names_of((key,))
        errand = Errand(key, names, commands, script, consuming, others=others)
        return (yield from self.insist(errand, where, trouble, pinned))

    def ask_all(self, errands: Sequence[Errand]) -> RedisFlow:
        """The reply to each errand of one command: a pipeline per node, and again for those that
        were refused. An errand that has run is not sent again; those left then say so if they
        fail."""
        if len(errands) == 1:
            return (yield from self.insist(errands[0], None, None))
        replies: list[Any] = [None] * len(errands)
        pending = dict(enumerate(errands))
        while pending:
            shares = yield from self._shares(pending)
            answers = yield Scatter([Ask(where, commands) for where, commands, _ in shares])
            failures: list[tuple[Errand, Address, Trouble]] = []
            for (where, _, members), answer in zip(shares, answers, strict=True):
                for number, reply in _by_errand(pending, members, answer):
                    if isinstance(reply, (LinkError, Refusal)):
                        failures.append((pending[number], where, reply))
                    else:
                        replies[number] = reply
                        del pending[number]
            ran = any(errand.may_have_run(trouble) for errand, _, trouble in failures)
            if ran or len(pending) < len(errands):
                for errand in pending.values():
                    errand.others = True
            yield from self._cope(failures)
        return replies

    def insist(
        self,
        errand: Errand,
        where: Address | None,
        trouble: Trouble | None,
        pinned: bool = False,
    ) -> RedisFlow:
        """The replies to an errand; its first attempt may have met trouble at `where`."""
        while True:
            if where is not None and trouble is not None:
                yield from self._cope([(errand, where, trouble)])
            where = errand.where or self.topology.locate(errand.key)
            if where is None:
                where = yield from self._find(errand)
            try:
                replies = yield Ask(where, errand.sending(), pinned)
                trouble = refusal_in(replies)
            except LinkError as error:
                trouble = error
            if trouble is None:
                return replies[1:] if errand.asking else replies

    def _shares(self, pending: dict[int, Errand]) -> RedisFlow:
        """Per node: its address, the commands, and whose they are."""
        nodes: dict[Any, tuple[list[Command], list[int]]] = {}
        told: set[tuple[Address, str]] = set()
        for number, errand in pending.items():
            where = errand.where or self.topology.locate(errand.key)
            if where is None:
                where = yield from self._find(errand)
            lesson = (where, errand.script.sha1 if errand.script else "")
            commands, members = nodes.setdefault(where, ([], []))
            commands.extend(errand.sending(by_hash=lesson in told))
            members.append(number)
            if errand.as_text:
                told.add(lesson)
        return [(where, commands, members) for where, (commands, members) in nodes.items()]

    def _find(self, errand: Errand) -> RedisFlow:
        """Who owns the errand's key, learnt anew."""
        while True:
            try:
                yield from self.topology.find()
            except LinkError as error:
                # A failed look-up charges nobody, whatever it was that got lost.
                trouble = LinkError(str(error), may_have_run=False, again=error.again)
            else:
                where = self.topology.locate(errand.key)
                if where is not None:
                    return where
                trouble = LinkError("nobody owns the key's slot", may_have_run=False, again=True)
            self._count(errand, trouble)
            yield from _rest(errand, trouble)

    def _cope(self, failures: Sequence[tuple[Errand, Address, Trouble]]) -> RedisFlow:
        """Get the failed errands ready for another attempt; one pause will do for all of them."""
        tired: tuple[Errand, Trouble] | None = None
        dropped: set[Address] = set()
        for errand, where, trouble in failures:
            if self._react(errand, where, trouble):
                tired = errand, trouble
            if isinstance(trouble, Refusal) and trouble.code in DISOWNED and where not in dropped:
                dropped.add(where)
                yield Discard(where)
        if tired is not None:
            yield from _rest(*tired)

    def _react(self, errand: Errand, where: Address, trouble: Trouble) -> bool:
        """What to do differently. True if it is worth a pause; raises if it is no use at all."""
        if isinstance(trouble, LinkError):
            self.topology.lost(where)
            if errand.consuming and trouble.may_have_run:
                raise errand.unavailable(trouble) from trouble
            self._count(errand, trouble)
            errand.where, errand.asking = None, False
            return True
        code = trouble.code
        if code == "NOSCRIPT" and errand.script is not None:
            errand.as_text = True
        elif code in ("MOVED", "ASK") and (owner := self.topology.moved(trouble, where)):
            errand.where, errand.asking = owner, code == "ASK"
            errand.tries += 1
            return errand.tries > _HOPS
        elif code in PASSING:
            if code in DISOWNED:
                self.topology.lost(where)
                errand.where, errand.asking = None, False
        else:
            raise errand.refused(trouble) from trouble
        self._count(errand, trouble)
        return code in PASSING

    def _count(self, errand: Errand, trouble: Trouble) -> None:
        """One more thing that went wrong. A server that is there and asks for patience gets it
        until the deadline, which ends the pauses; anything else only so often."""
        errand.tries += 1
        if isinstance(trouble, Refusal) and trouble.code in PATIENT:
            return
        hopeless = isinstance(trouble, LinkError) and not trouble.again
        if hopeless or errand.tries >= _ATTEMPTS:
            raise errand.unavailable(trouble) from trouble


def _rest(errand: Errand, trouble: Trouble) -> RedisFlow:
    """A pause, longer each time and never in step with others, if there is time for it."""
    try:
        doublings = min(errand.tries - 1, _DOUBLINGS)
        yield Pause(_FIRST_PAUSE_MS * 2**doublings * random.uniform(0.5, 1))
    except LinkError:
        raise errand.unavailable(trouble) from trouble


def _spelt_out(command: Command, script: LuaScript) -> Command:
    """The same command with the script's text in the place of its hash; it is cached on the way.

    The answer to NOSCRIPT, which each node of a cluster gives once, and each server after a
    restart, a failover or a SCRIPT FLUSH.
    """
    if command[0] != b"EVALSHA":
        return command
    return (b"EVAL", script.source.encode(), *command[2:])


def names_of(keys: Sequence[str]) -> str:
    """Keys, in a message."""
    return f"one of the keys {keys[0]!r} ... {keys[-1]!r}" if keys[1:] else f"key {keys[0]!r}"


def refusal_in(replies: Sequence[Any]) -> Refusal | None:
    """The first error among the replies."""
    for reply in replies:
        if type(reply) is Refusal:
            return reply
    return None


def _by_errand(
    pending: dict[int, Errand], members: Sequence[int], answer: LinkError | list[Any]
) -> list[tuple[int, Any]]:
    """Who got which reply; a failed link is everybody's."""
    if isinstance(answer, LinkError):
        return [(number, answer) for number in members]
    replies = iter(answer)
    pairs = []
    for number in members:
        reply = next(replies)
        pairs.append((number, next(replies) if pending[number].asking else reply))
    return pairs
