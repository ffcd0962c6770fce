"""A server that answers from a script, for tests without a network."""

from __future__ import annotations

from typing import Any

from penstock import Decision, gcra
from penstock.core._flow import drive
from penstock.core._transform import checking
from penstock.stores._sheet import ConnectionFailedError
from penstock.stores.redis._flows import RedisFlows
from penstock.stores.redis._requests import Address, CloseIdle, Delay, Enter, Exchange, Parallel
from penstock.stores.redis._routing import RedisRouter
from penstock.stores.redis._topology import Fixed, Topology

HERE, THERE = Address("here", 1), Address("there", 2)
YES = [1, 10, 9, 1_000, 0]
GRANTED = Decision(True, 10, 9, 1_000, 0)
CHECK = checking(gcra(10, 1_000))


class Script:
    """A server that answers by a list, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Address | None, str]] = []
        self.exchanges: list[Exchange] = []
        self.pauses = 0
        self.paused_ms: list[float] = []
        self.discarded: list[Address] = []

    def serve(self, request: Any) -> Any:
        if isinstance(request, Delay):
            self.pauses += 1
            self.paused_ms.append(request.ms)
            return None
        if isinstance(request, Enter):
            return None
        if isinstance(request, CloseIdle):
            self.discarded.append(request.where)
            return None
        if isinstance(request, Parallel):
            return [self._settled(exchange) for exchange in request.exchanges]
        return self._answer(request)

    def _settled(self, exchange: Exchange) -> Any:
        try:
            return self._answer(exchange)
        except ConnectionFailedError as error:
            return error

    def _answer(self, exchange: Exchange) -> Any:
        self.exchanges.append(exchange)
        self.asked.append(
            (exchange.where, " ".join(command[0].decode() for command in exchange.commands))
        )
        answer = self.answers.pop(0)
        if isinstance(answer, ConnectionFailedError):
            raise answer
        return answer


def check(script: Script, topology: Topology | None = None) -> Any:
    flows = RedisFlows(RedisRouter(topology or Fixed(HERE)), use_server_time=True)
    return drive(flows.apply("k", CHECK, 0, 1), script.serve)


def slots(*owners: Address) -> list[Any]:
    """A CLUSTER SLOTS reply that shares the slots out evenly."""
    size = 16_384 // len(owners)
    edges = [size * place for place in range(len(owners))] + [16_384]
    return [
        [edges[place], edges[place + 1] - 1, [owner.host.encode(), owner.port, b"id"]]
        for place, owner in enumerate(owners)
    ]


def lost() -> ConnectionFailedError:
    return ConnectionFailedError("lost", may_have_run=True, again=True)


def refused() -> ConnectionFailedError:
    return ConnectionFailedError("refused", may_have_run=False, again=True)


def late() -> ConnectionFailedError:
    return ConnectionFailedError("late", may_have_run=True)
