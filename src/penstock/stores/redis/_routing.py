"""Routing: sends commands for a key to the right server, and repeats them where that is safe.

A refusal means that nothing was run, so NOSCRIPT, MOVED, ASK, LOADING and the like are answered by
sending the same request again, in another form, to another server or a little later. A connection
that was never made carried nothing. But once a consuming request has been written and its reply is
missing, it is never sent again: the server may have counted it, and a second copy would be counted
too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core._errors import PenstockError, StoreUnavailableError
from ...core._lua import LuaScript
from .._sheet import ConnectionFailedError
from ._requests import (
    DISOWNED,
    PASSING,
    PATIENT,
    Address,
    CloseIdle,
    Command,
    Delay,
    Exchange,
    Parallel,
    RedisFlow,
    Refusal,
    refused,
    stopped_midway,
    unavailable,
)
from ._topology import Topology

__all__ = ["CommandSet", "RedisRouter", "names_of", "refusal_in"]


_ASKING: Command = (b"ASKING",)
_ATTEMPTS = 6
_FIRST_PAUSE_MS = 4.0
_DOUBLINGS = 5
# Two nodes that redirect to each other do not both know of a move yet.
_HOPS = 2

Failure = ConnectionFailedError | Refusal


@dataclass(slots=True)
class CommandSet:
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
        """The commands to write; `by_hash` if the server is about to know the script."""
        commands = self.commands
        if self.as_text and not by_hash and self.script is not None:
            commands = [_as_eval(command, self.script) for command in commands]
        return (_ASKING, *commands) if self.asking else commands

    def unavailable(self, failure: Exception) -> StoreUnavailableError:
        return unavailable(failure, consuming=self.consuming, others=self.others)

    def refused(self, refusal: Refusal) -> PenstockError:
        others = self.others or (self.several and stopped_midway(refusal))
        return refused(refusal, self.names, consuming=self.consuming, others=others)

    def may_have_run(self, failure: Failure) -> bool:
        """Whether one of its keys may have been charged although it failed."""
        if isinstance(failure, ConnectionFailedError):
            return failure.may_have_run
        return self.several and stopped_midway(failure)


class RedisRouter:
    """Gets command sets answered by the servers of a topology."""

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
        keys: Sequence[str] = (),
        others: bool = False,
    ) -> RedisFlow:
        """The replies to the commands, none of them a refusal. `keys` are all that they use."""
        where = self.topology.locate(key)
        failure: Failure | None = None
        if where is not None:
            try:
                replies = yield Exchange(where, commands, pinned)
                failure = refusal_in(replies)
            except ConnectionFailedError as error:
                failure = error
            if failure is None:
                return replies
        # Created only now, since nearly every call is answered at its first attempt.
        names = names_of(keys or (key,))
        command_set = CommandSet(key, names, commands, script, consuming, others=others)
        return (yield from self.send(command_set, where, failure, pinned))

    def send_all(self, command_sets: Sequence[CommandSet]) -> RedisFlow:
        """The reply to each set of commands: one pipeline per node, and another one for those that
        were refused. A set that has run is not sent again; if others then fail, their errors say
        so."""
        if len(command_sets) == 1:
            return (yield from self.send(command_sets[0], None, None))
        replies: list[Any] = [None] * len(command_sets)
        pending = dict(enumerate(command_sets))
        while pending:
            shares = yield from self._by_node(pending)
            answers = yield Parallel([Exchange(where, commands) for where, commands, _ in shares])
            failures: list[tuple[CommandSet, Address, Failure]] = []
            for (where, _, members), answer in zip(shares, answers, strict=True):
                for number, reply in _by_command_set(pending, members, answer):
                    if isinstance(reply, (ConnectionFailedError, Refusal)):
                        failures.append((pending[number], where, reply))
                    else:
                        replies[number] = reply
                        del pending[number]
            ran = any(command_set.may_have_run(failure) for command_set, _, failure in failures)
            if ran or len(pending) < len(command_sets):
                for command_set in pending.values():
                    command_set.others = True
            yield from self._prepare_retry(failures)
        return replies

    def send(
        self,
        command_set: CommandSet,
        where: Address | None,
        failure: Failure | None,
        pinned: bool = False,
    ) -> RedisFlow:
        """The replies to a command set; its first attempt may have failed at `where`."""
        while True:
            if where is not None and failure is not None:
                yield from self._prepare_retry([(command_set, where, failure)])
            where = command_set.where or self.topology.locate(command_set.key)
            if where is None:
                where = yield from self._find(command_set)
            try:
                replies = yield Exchange(where, command_set.sending(), pinned)
                failure = refusal_in(replies)
            except ConnectionFailedError as error:
                failure = error
            if failure is None:
                return replies[1:] if command_set.asking else replies

    def _by_node(self, pending: dict[int, CommandSet]) -> RedisFlow:
        """Per node: its address, the commands, and whose they are."""
        nodes: dict[Any, tuple[list[Command], list[int]]] = {}
        sent_scripts: set[tuple[Address, str]] = set()
        for number, command_set in pending.items():
            where = command_set.where or self.topology.locate(command_set.key)
            if where is None:
                where = yield from self._find(command_set)
            script_there = (where, command_set.script.sha1 if command_set.script else "")
            commands, members = nodes.setdefault(where, ([], []))
            commands.extend(command_set.sending(by_hash=script_there in sent_scripts))
            members.append(number)
            if command_set.as_text:
                sent_scripts.add(script_there)
        return [(where, commands, members) for where, (commands, members) in nodes.items()]

    def _find(self, command_set: CommandSet) -> RedisFlow:
        """The owner of the key, looked up again."""
        while True:
            try:
                yield from self.topology.find()
            except ConnectionFailedError as error:
                # A failed look-up charges nothing, even if its reply was lost.
                failure = error.unsent()
            else:
                where = self.topology.locate(command_set.key)
                if where is not None:
                    return where
                failure = ConnectionFailedError(
                    "nobody owns the key's slot", may_have_run=False, again=True
                )
            self._count_failure(command_set, failure)
            yield from _pause_before_retry(command_set, failure)

    def _prepare_retry(self, failures: Sequence[tuple[CommandSet, Address, Failure]]) -> RedisFlow:
        """Prepare the failed requests for another attempt, with one pause for all of them."""
        pausing: tuple[CommandSet, Failure] | None = None
        dropped: set[Address] = set()
        for command_set, where, failure in failures:
            if self._adapt(command_set, where, failure):
                pausing = command_set, failure
            if isinstance(failure, Refusal) and failure.code in DISOWNED and where not in dropped:
                dropped.add(where)
                yield CloseIdle(where)
        if pausing is not None:
            yield from _pause_before_retry(*pausing)

    def _adapt(self, command_set: CommandSet, where: Address, failure: Failure) -> bool:
        """Adapt the request to an error. True if it needs a pause; raises if there is no use in
        another attempt."""
        if isinstance(failure, ConnectionFailedError):
            self.topology.lost(where)
            if command_set.consuming and failure.may_have_run:
                raise command_set.unavailable(failure) from failure
            self._count_failure(command_set, failure)
            command_set.where, command_set.asking = None, False
            return True
        code = failure.code
        if code == "NOSCRIPT" and command_set.script is not None:
            if not command_set.as_text:
                # Not counted: a server that has just restarted may have used up all attempts.
                command_set.as_text = True
                return False
        elif code in ("MOVED", "ASK") and (owner := self._moved(command_set, failure, where)):
            command_set.where, command_set.asking = owner, code == "ASK"
            command_set.tries += 1
            return command_set.tries > _HOPS
        elif code in PASSING:
            if code in DISOWNED:
                self.topology.lost(where)
                command_set.where, command_set.asking = None, False
        else:
            raise command_set.refused(failure) from failure
        self._count_failure(command_set, failure)
        return code in PASSING

    def _moved(self, command_set: CommandSet, refusal: Refusal, where: Address) -> Address | None:
        try:
            return self.topology.moved(refusal, where)
        except ConnectionFailedError as error:
            raise command_set.unavailable(error) from error

    def _count_failure(self, command_set: CommandSet, failure: Failure) -> None:
        """One more thing that went wrong. A server that is there and asks for patience gets it
        until the deadline, which ends the pauses; anything else only so often."""
        command_set.tries += 1
        if isinstance(failure, Refusal) and failure.code in PATIENT:
            return
        hopeless = isinstance(failure, ConnectionFailedError) and not failure.again
        if hopeless or command_set.tries >= _ATTEMPTS:
            raise command_set.unavailable(failure) from failure


def _pause_before_retry(command_set: CommandSet, failure: Failure) -> RedisFlow:
    """A pause, longer each time and never in step with others, if there is time for it."""
    try:
        doublings = min(command_set.tries - 1, _DOUBLINGS)
        yield Delay(_FIRST_PAUSE_MS * 2**doublings * random.uniform(0.5, 1))
    except ConnectionFailedError:
        raise command_set.unavailable(failure) from failure


def _as_eval(command: Command, script: LuaScript) -> Command:
    """The same command with the script's text in the place of its hash; it is cached on the way.

    The answer to NOSCRIPT, which each node of a cluster gives once, and each server after a
    restart, a failover or a SCRIPT FLUSH.
    """
    if command[0] != b"EVALSHA":
        return command
    return (b"EVAL", script.source.encode(), *command[2:])


def names_of(keys: Sequence[str]) -> str:
    """Keys, in a message."""
    first, *others = dict.fromkeys(keys)
    return f"one of the keys {first!r} ... {others[-1]!r}" if others else f"key {first!r}"


def refusal_in(replies: Sequence[Any]) -> Refusal | None:
    """The first error among the replies."""
    for reply in replies:
        if type(reply) is Refusal:
            return reply
    return None


def _by_command_set(
    pending: dict[int, CommandSet],
    members: Sequence[int],
    answer: ConnectionFailedError | list[Any],
) -> list[tuple[int, Any]]:
    """Assign the replies to the requests; a failed connection fails all of them."""
    if isinstance(answer, ConnectionFailedError):
        return [(number, answer) for number in members]
    replies = iter(answer)
    pairs = []
    for number in members:
        reply = next(replies)
        pairs.append((number, next(replies) if pending[number].asking else reply))
    return pairs
