"""Calls that one script decides, begun in compiled code (`accel/redis.pxi`).

The flows define how a call is made, and are used if nothing is compiled. But nearly every call is
one exchange on an open connection, and for that a flow would be half of the cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import native
from ...core._clock import FOREIGN_CLOCKS
from ...core._decision import Decision
from ...core._loops import running_loop
from ...core._steps import Step
from ...core._store import Told
from ...core._transform import Transform
from ._async_connections import AsyncConnections
from ._flows import RedisFlows
from ._multiplexed import MultiplexedConnection
from ._plans import Plan, plan_of_one
from ._room import HEAVY, weight_of
from ._sync_connections import pack
from ._topology import Topology

__all__ = ["FirstExchanges"]


class FirstExchanges:
    """Calls whose first exchange is made in compiled code, and nearly always the only one.

    A call is begun on a connection that is there; None is returned if there is none, or if it takes
    more than one script. Without `told`, which is told the answer, `told` of what is returned is a
    future: of the answer, or of what `RedisFlows.rest_of` has to be told.
    """

    def __init__(
        self, connections: AsyncConnections, flows: RedisFlows, topology: Topology
    ) -> None:
        self._connections = connections
        self._flows = flows
        self._topology = topology
        self._timeout_s = connections.timeout_s

    def begin_check(
        self,
        key: str,
        transform: Transform[Any],
        now: int,
        cost: int,
        told: Told | None = None,
    ) -> Any:
        """Begin one check."""
        lua = transform.lua
        if lua is None or transform.role != "check" or (command := lua.command()) is None:
            return None
        if cost > HEAVY and weight_of(transform, cost) > HEAVY:
            return None
        connection = self._connections.ready(self._topology.locate(key))
        if connection is None:
            return None
        now = self._flows.instant(now)
        payload = command.pack(key, now, cost)
        return self._send(connection, payload, ((key, transform, cost, False),), None, now, told)

    def begin_one(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        """Begin one check, or else one operation."""
        if transform.role == "check":
            return self.begin_check(key, transform, now, cost)
        return self.begin_operation(key, transform, now, cost)

    def begin_operation(self, key: str, transform: Transform[Any], now: int, cost: int) -> Any:
        """Begin one operation; its answer is a list of the result and the instant."""
        lua, argument = transform.lua, transform.argument
        if lua is None or (plan := plan_of_one(transform, lua)) is None:
            return None
        if weight_of(transform, cost) > HEAVY:
            return None
        connection = self._connections.ready(self._topology.locate(key))
        if connection is None or plan.packer is None or type(argument) is tuple:
            return None
        now = self._flows.instant(now)
        payload = plan.packer.pack(key, now, cost, str(argument))
        # The second one stands for the instant.
        step = (key, transform, cost, False)
        return self._send(connection, payload, (step, step), plan, now, None)

    def begin_steps(self, steps: Sequence[Step], now: int, told: Told | None = None) -> Any:
        """Begin several steps, or one of any kind."""
        now = self._flows.instant(now)
        keys = [step[0] for step in steps]
        plan = self._flows.plan_of_one_script(steps, keys, now)
        if plan is None:
            return None
        connection = self._connections.ready(self._topology.locate(keys[0]))
        if connection is None:
            return None
        payload = pack((plan.command(steps, keys, now, {}),))
        return self._send(connection, payload, steps, plan, now, told)

    def _send(
        self,
        connection: MultiplexedConnection,
        payload: bytes,
        steps: Sequence[tuple[str, Transform[Any], int, bool]],
        plan: Plan | None,
        now: int,
        told: Told | None,
    ) -> Any:
        loop = connection.loop
        first = native.FirstExchange(
            connection.address,
            steps,
            plan,
            now,
            loop.time() + self._timeout_s,
            told or loop.create_future(),
            told is not None,
            self,
        )
        connection.send(first, payload)
        return first

    # What compiled code calls.

    def denied(self, steps: Sequence[Step], decisions: Sequence[Decision]) -> None:
        """Not all of them admit."""
        for (_, transform, cost, _), decision in zip(steps, decisions, strict=True):
            if not decision.allowed:
                FOREIGN_CLOCKS.look_at(decision, transform, cost)

    def go_on(self, first: Any, heard: Any, told: Told) -> None:
        """Something else was heard than an answer."""
        flow = self._flows.rest_of(first, heard)
        self._connections.go_on(flow, told, first.deadline)

    def failed(self, error: Exception) -> None:
        context = {"message": "a call could not be answered", "exception": error}
        running_loop().call_exception_handler(context)
