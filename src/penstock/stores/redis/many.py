"""A check of many keys as one script.

Running a script costs a server several microseconds before its first line, so a pipeline of a
hundred checks is a hundred times that. The riders of this package bring a script for many keys.
For one that does not, the wrapper below runs the very text of its check once per key: inside it,
KEYS holds that key, and TIME stands still, so that all keys are decided at one instant. Replies
come back flat, five integers per key.

In a cluster a script may only use keys of one slot. Keys that share a hash tag share a slot, as
in `{tenant}:read` and `{tenant}:write`; the others go as single checks in their node's pipeline.
"""

from __future__ import annotations

from functools import lru_cache

from ...core.strategy import LuaScript

__all__ = ["MAX_KEYS", "over_many"]

MAX_KEYS = 512
"""Keys per script: a server does nothing else while a script runs."""

_WRAPPER = """\
-- {name} over all KEYS, at one instant; reply: five integers per key
local keys, call, time = KEYS, redis.call, redis.call('TIME')
local redis = {{
  call = function(command, ...)
    if command == 'TIME' then return time end
    return call(command, ...)
  end,
}}
local arguments, one, flat, size = {{}}, {{}}, {{}}, 0
for place = 1, #ARGV do arguments[place] = tonumber(ARGV[place]) end
local function check(KEYS, ARGV)
{source}
end
for place = 1, #keys do
  one[1] = keys[place]
  local reply = check(one, arguments)
  flat[size + 1], flat[size + 2], flat[size + 3] = reply[1], reply[2], reply[3]
  flat[size + 4], flat[size + 5] = reply[4], reply[5]
  size = size + 5
end
return flat
"""


@lru_cache(maxsize=256)
def over_many(script: LuaScript) -> LuaScript:
    """The script that runs `script` for each of its keys."""
    source = _WRAPPER.format(name=script.name, source=script.source)
    return LuaScript(f"{script.name}.many", source)
