"""The world of HTTP: the same policy, asked over a connection to a real server.

One server serves all scenarios: each brings a policy file with a prefix of its own, as a reload
does. Its answers are parsed into the same fields, and its headers are compared with its body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from penstock import ConfigInvalidError, Decision, Forecast, ManualClock, Store
from tests.service.http.serving import Client, InProcessServer, Reply

from .reference import Broken
from .scenarios import START, Call, Scenario
from .services import ServiceWorld
from .worlds import Answer

TOKEN = "the-token-of-the-model"


class Served(InProcessServer):
    """A server whose policies and clock the scenarios set."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        super().__init__(clock=self.clock, token=TOKEN)
        self.service: Any = None
        make = self._make

        def made() -> Any:
            self.service = make()
            return self.service

        self._make = made

    def apply(self, file: Any) -> None:
        """Serve another policy file."""

        async def replace() -> None:
            self.service.apply(file)

        self.run(replace())


@cache
def served() -> Served:
    """The server of all scenarios."""
    return Served().__enter__()


class HttpWorld(ServiceWorld):
    """The policy by HTTP and JSON."""

    def __init__(self, scenario: Scenario, store: Store, prefix: str) -> None:
        self.server = served()
        self.client = Client(self.server.port, timeout=30)
        super().__init__(scenario, store, prefix)
        self.clock = self.server.clock
        self.clock.set(scenario.start)

    def build(self) -> None:
        self.server.apply(self.file())

    def close(self) -> None:
        self.client.close()

    def reload(self, call: Call) -> Answer:
        self.base = call.plan
        self.server.apply(self.file())
        return Answer()

    def post(self, path: str, **fields: Any) -> Reply:
        reply = self.client.post(path, fields, Authorization=f"Bearer {TOKEN}")
        if reply.status != 200:
            raise ConfigInvalidError(f"{reply.status} {reply.body.decode()}")
        return reply

    def asked(self, call: Call) -> dict[str, Any]:
        return {"policy": "p", "attributes": self.attributes(call)}

    def look(self, call: Call) -> Mapping[str, Decision]:
        return self.peek(call).limits

    def peek(self, call: Call) -> Answer:
        return verdict_in(self.post("/v1/peek", **self.asked(call)))

    def check(self, call: Call) -> Answer:
        return verdict_in(self.post("/v1/check", **self.asked(call), **self.costs(call)))

    many = check

    def forecast(self, call: Call) -> Answer:
        told = self.post("/v1/forecast", **self.asked(call), cost=call.cost).json["forecast"]
        return Answer(
            forecast=Forecast(told["spendable_now"], told["next_replenish_at"], told["full_at"])
        )

    def reserve(self, call: Call) -> Answer:
        fields = {**self.asked(call), **self.costs(call), "max_wait_ms": call.wait_ms}
        reply = self.post("/v1/reserve", **fields)
        number = self.keep(reply.json["charge_id"], call)
        return verdict_in(reply, starts_at=reply.json["starts_at"], charge=number)

    def settle(self, call: Call) -> Answer:
        number, charge_id = self._charged(call)
        reply = self.post("/v1/settle", charge_id=charge_id, actual=call.amount)
        return Answer(done=reply.json["settled"], charge=number)

    def cancel(self, call: Call) -> Answer:
        number, charge_id = self._charged(call)
        done = self.post("/v1/cancel", charge_id=charge_id).json["cancelled"]
        return Answer(done=done, charge=number)

    def renew(self, call: Call) -> Answer:
        number, charge_id = self._charged(call)
        return Answer(done=self.post("/v1/renew", charge_id=charge_id).json["held"], charge=number)

    def pause(self, call: Call) -> Answer:
        until = self.clock.now() + call.amount
        self.post("/v1/pause", **self.asked(call), until_ms=until, limits=self.named(held=False))
        return Answer()

    def reset(self, call: Call) -> Answer:
        self.post("/v1/reset", **self.asked(call), limits=self.named(held=True))
        return Answer()


def verdict_in(reply: Reply, **more: Any) -> Answer:
    """The verdict in a reply, whose headers have to say the same (section 13)."""
    told = reply.json
    decisions = {name: _decision(each) for name, each in told["limits"].items()}
    decision = _decision(told["decision"])
    _compare_headers(reply, decisions, decision, set(told["shadows"]), told["binding"])
    return Answer(
        allowed=decision.allowed,
        limits=decisions,
        decision=decision,
        binding=told["binding"],
        violated=tuple(told["violated"]),
        shadowed=tuple(told["shadowed"]),
        **more,
    )


def _decision(told: dict[str, Any]) -> Decision:
    fields = ("allowed", "limit", "remaining", "reset_at", "retry_after_ms")
    return Decision(*[told[name] for name in fields])


def _compare_headers(
    reply: Reply,
    decisions: dict[str, Decision],
    decision: Decision,
    shadows: set[str],
    binding: str,
) -> None:
    """One member per enforced limit, the binding one first, with what is left; Retry-After exactly
    on a denial."""
    header = reply.headers.get("ratelimit", "")
    members = {name: int(left) for name, left in re.findall(r'"([^"]+)";r=(\d+)', header)}
    enforced = {name: told.remaining for name, told in decisions.items() if name not in shadows}
    if members != enforced or (members and next(iter(members)) != binding):
        raise Broken("headers state what is left", None, f"{header!r}, but {json.dumps(enforced)}")
    retry = reply.headers.get("retry-after")
    wanted = None if decision.allowed else str(-(-decision.retry_after_ms // 1000))
    if retry != wanted:
        raise Broken("Retry-After is the wait of a denial", None, f"{retry!r}, not {wanted!r}")
