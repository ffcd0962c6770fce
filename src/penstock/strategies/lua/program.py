"""How a strategy becomes three Lua scripts, and what all of them share.

A program is the body of a check, the body of a read and the names of its arguments. The names are
written once: from them come the line that unpacks ARGV, the order in which Python passes the
values, and the manifest.

Every check starts with the same prelude. A `now` of 0 means the server's clock, any other value is
the instant to use. Lua has one kind of number, the double, so the arithmetic of the oracle carries
over as it stands; what must not happen is a detour through text. `..` and `tostring` keep 14
digits, so numbers become text by `%.17g` (doubles) or `%.0f` (whole numbers) and nothing else.

Physical expiry only gives memory back. A strategy's `ttl` says for how long, on the clock of
whoever asks, a state can matter; the key stays longer than that by a margin, in case others ask by
a slower clock:

    px = max(0, now - the server's clock) + ttl + max(ttl, MARGIN_MS)

The first term is for a caller ahead of the server: those who ask by the right time need the state
until then. So no decision changes as long as no caller is behind the server, or behind whoever
wrote, by more than max(ttl, MARGIN_MS), and none runs at less than half the server's pace. A denial
writes nothing, so it does not prolong a key either.

A check or a read touches KEYS[1] and no other key. There is no `#!lua` line: servers before Redis
7 refuse it, and those after do not need it to run a read on a replica.

The third script decides for many keys, at one instant, and is no part of the contract. Its text is
that of the check, made a function of the key, with everything that all keys share outside of it:
arguments, time, and the functions of Redis and Lua, which are cheaper to reach as locals. A program
that knows a faster way to read and write many keys brings a text of its own.

Its reply is short, because each integer costs something on both sides. `retryAfterMs` is 0 exactly
when a request is allowed, so one of the two will do; the limit is said once; and neighbours that
get the same answer, as idle keys do, share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.strategy import LuaRider, LuaScript

__all__ = ["MARGIN_MS", "NOW_ARGV", "REPLY", "LuaProgram"]

MARGIN_MS = 60_000
"""How much longer than it matters a state is kept, at least."""
NOW_ARGV = 1
REPLY = ("allowed", "limit", "remaining", "resetAt", "retryAfterMs")

_CHECK = """\
-- {name}.check
-- KEYS  1 key
-- ARGV  {places}
-- reply {reply}
-- state {state}
local {names} = {values}

local function serverMs()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local ownClock = now == 0
if ownClock then now = serverMs() end

local function keepMs(ttl)
  local ahead = 0
  if not ownClock then ahead = math.max(0, now - serverMs()) end
  return string.format('%.0f', ahead + ttl + math.max(ttl, {margin}))
end

"""

_MANY = """\
-- {name}.many
-- KEYS  the keys, in order
-- ARGV  {places}
-- reply limit, then per run of equal answers: length, remaining, resetAt, retryAfterMs
-- state {state}
local {names} = {values}
local {locals} = {globals}

local time = call('TIME')
local ahead, serverMs = 0, time[1] * 1000 + floor(time[2] / 1000)
if now == 0 then now = serverMs else ahead = max(0, now - serverMs) end

local keptTtl, kept
local function keepMs(ttl)
  if ttl ~= keptTtl then
    keptTtl, kept = ttl, format('%.0f', ahead + ttl + max(ttl, {margin}))
  end
  return kept
end

"""

_EACH = """\
local function check(key)
{check}
end

local runs, run = {{}}, -2
for place = 1, #KEYS do
  local _, ceiling, remaining, resetAt, retry = check(KEYS[place])
  if runs[run + 1] ~= remaining or runs[run + 2] ~= resetAt or runs[run + 3] ~= retry then
    run = run + 4
    runs[1], runs[run] = ceiling, 0
    runs[run + 1], runs[run + 2], runs[run + 3] = remaining, resetAt, retry
  end
  runs[run] = runs[run] + 1
end
return runs
"""

_LOCALS = {
    "call": "redis.call",
    "format": "string.format",
    "match": "string.match",
    "floor": "math.floor",
    "ceil": "math.ceil",
    "max": "math.max",
    "min": "math.min",
}

_READ = """\
-- {name}.read
-- KEYS  1 key
-- reply {raw}
-- state {state}
"""


@dataclass(frozen=True, slots=True)
class Arguments:
    """ARGV of one strategy: what stands between `now` and `cost`, and what comes after."""

    before: tuple[str, ...]
    after: tuple[str, ...]

    def __call__(self, now: int, cost: int) -> tuple[Any, ...]:
        return (now, *self.before, cost, *self.after)


class LuaProgram:
    """One algorithm in Lua; `rider` gives it the parameters of a strategy."""

    def __init__(
        self,
        name: str,
        *,
        strategy: str,
        argv: tuple[str, ...],
        state: str,
        check: str,
        read: str,
        raw: str,
        decode: Callable[[Any], Any],
        many: str | None = None,
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.argv = argv
        self.state = state
        self.raw = raw
        self.check: LuaScript = LuaScript(f"{name}.check", self._head(_CHECK) + check.lstrip("\n"))
        body = _EACH.format(check=_of_a_key(check)) if many is None else many.lstrip("\n")
        self.many: LuaScript = LuaScript(f"{name}.many", self._head(_MANY) + body)
        head = _READ.format(name=name, raw=raw, state=state)
        self.read: LuaScript = LuaScript(f"{name}.read", head + read.lstrip("\n"))
        self.decode = decode

    def rider(self, **parameters: int | float) -> LuaRider:
        """The rider of a strategy with these parameters, named as in `argv`."""
        cost = self.argv.index("cost")
        before, after = self.argv[1:cost], self.argv[cost + 1 :]
        # repr of a float has every digit that the server needs to read the same double.
        texts = {name: repr(value) for name, value in parameters.items()}
        arguments = Arguments(
            tuple(texts.pop(name) for name in before), tuple(texts.pop(name) for name in after)
        )
        if texts:
            raise TypeError(f"{self.name} takes no {', '.join(texts)}")
        return LuaRider(self.check, self.read, arguments, self.decode, self.many)

    def _head(self, form: str) -> str:
        places = range(1, len(self.argv) + 1)
        return form.format(
            name=self.name,
            places=", ".join(f"{at} {arg}" for at, arg in zip(places, self.argv, strict=True)),
            reply=", ".join(REPLY),
            state=self.state,
            names=", ".join(self.argv),
            values=", ".join(f"tonumber(ARGV[{place}])" for place in places),
            margin=MARGIN_MS,
            locals=", ".join(_LOCALS),
            globals=", ".join(_LOCALS.values()),
        )


def _of_a_key(check: str) -> str:
    """The body of a check as that of a function of `key`, which returns its five integers."""
    text = re.sub(r"return {(.*)}", r"return \1", check.strip("\n")).replace("KEYS[1]", "key")
    for name, of_lua in _LOCALS.items():
        text = text.replace(of_lua, name)
    return text
