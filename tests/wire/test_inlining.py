"""Scripts mean the same with functions and without: by shapes that tell the two apart, and by
programs made at random, each run as it is written and as it is put together."""

from __future__ import annotations

import random

import pytest
import redis

from penstock import slots
from penstock.core._lua_inlining import inlined
from penstock.core._register import registered
from penstock.core._strategy import Strategy
from tests.support.effort import count

SHAPES = {
    "several results": """
local function both(a, b)
  local sum = a + b
  return sum, a - b
end
local x, y, z = both(5, 3)
return {x, y, z or -1}
""",
    "an argument that has the name of another parameter": """
local function less(a, b)
  local c = a - b
  return c
end
local a, b = 10, 3
local c = less(b, a)
return {a, b, c}
""",
    "a parameter that is changed": """
local function next(now)
  now = now + 1
  return now
end
local now = 1
local later = next(now)
return {now, later}
""",
    "a result that has the name of a local of the function": """
local function work(x)
  local state = x * 2
  local limit = state + 1
  return limit, state
end
local state, limit = work(4)
state, limit = work(state)
return {state, limit}
""",
    "a name of the script that the caller has, too": """
local scale = 100
local function scaled(x)
  local y = x * scale
  return y
end
local function twice(scale)
  local y = scaled(scale)
  return y * 2
end
local z = twice(3)
return {z, scale}
""",
    "a name of the script that a block has, too": """
local scale = 100
local function scaled(x)
  local y = x * scale
  return y
end
local sums = {}
for scale = 1, 3 do
  local y = scaled(scale)
  sums[scale] = y
end
return sums
""",
    "a name that it declares, and had from the script before that": """
local base = 7
local function shifted(x)
  local before = base
  local base = x
  return before + base
end
local function outer(base)
  local y = shifted(base)
  return y
end
local y = outer(1)
return {y, base}
""",
    "a result that nobody wants": """
local done = 0
local function inner(x)
  done = done + x
  return done
end
local function outer(x) return inner(x) end
outer(2)
inner(3)
return done
""",
    "more than one end": """
local function sign(x)
  if x < 0 then return -1 end
  return 1
end
local function nothing(x)
  if x then return end
end
local a = sign(-3)
local b = sign(3)
nothing(1)
return {a, b}
""",
    "an end without results, and no end at all": """
local seen = {}
local function note(x)
  seen[#seen + 1] = x
  return
end
local function note_too(x)
  seen[#seen + 1] = x * 10
end
note(1)
note_too(2)
local nothing = note(3)
return {#seen, seen[2], nothing == nil and 1 or 0}
""",
    "calls that are more than a line, or less": """
local function one(x) return x + 1 end
local function two(x)
  local y = one(x)
  return y
end
local a =
  two(1)
local b = two(2)
  + 10
local c = one(1) + two(3)
local d = {
  one(4),
  two(5)
}
local e = two(
  one(6)
)
return {a, b, c, d[1], d[2], e}
""",
    "texts that look like code": """
local function said(a, b)
  local both = a .. b
  return both
end
local a = said('x, y', ' = f(z)')
local b = said("return -- not", ' a comment') -- but this is
local c = said(') + said(', '(')
return {a, b, c}
""",
    "any number of arguments": """
local function counted(...)
  local n = select('#', ...)
  return n
end
local n = counted(1, 2, 3)
return n
""",
    "too few arguments, and too many": """
local function filled(a, b)
  local sum = a + (b or 100)
  return sum
end
local x = filled(1)
local y = filled(1, 2, 3)
return {x, y}
""",
    "a function that calls itself": """
local function sum(n)
  local rest = 0
  if n > 0 then
    rest = sum(n - 1)
  end
  return n + rest
end
local all = sum(4)
return all
""",
    "a comment over several lines": """
--[[ local function odd()
  return 1
end ]]
local function one()
  local x = 1
  return x
end
local x = one()
return x
""",
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_script_means_what_it_meant_with_its_functions(client: redis.Redis, name: str) -> None:
    """Told apart by what it returns."""
    script = SHAPES[name].strip()
    # A local of a function must not be taken for one of the script, nor the other way round.
    assert client.eval(inlined(script), 0) == client.eval(script, 0)


def test_programs_at_random_mean_the_same(client: redis.Redis) -> None:
    """Of few names, so that they meet wherever they can."""
    fewer = 0
    for seed in range(count(300, 5_000)):
        program = _program(random.Random(seed))
        made = inlined(program)
        assert client.eval(made, 0) == client.eval(program, 0), f"seed {seed}:\n{program}\n{made}"
        fewer += made.count("local function") < program.count("local function")
    assert fewer > 100


def test_a_check_of_every_built_in_strategy_has_no_functions() -> None:
    """What a server would make anew for each."""
    sources = [source for kind in _built_in() for source in kind.lua_sources]
    sources += [kind.lua_with_figures for kind in _built_in() if kind.lua_with_figures]
    assert len(sources) >= 9
    assert [each.name for each in sources if "function" in each.check.source] == []
    assert [each.name for each in sources if "function" in each.many.source] == []


def test_a_slot_is_taken_renewed_and_given_back_without_functions() -> None:
    """By scripts for each of these alone."""
    (source,) = slots(1).lua_sources
    for operation in ("take", "renew", "release"):
        assert "function" not in source.alone(operation, shadow=False).source


def _built_in() -> list[type[Strategy]]:
    kinds = [kind for kind in registered() if kind.lua_sources]
    return [kind for kind in kinds if kind.__module__.startswith("penstock.strategies.")]


_NAMES = ("a", "b", "c", "d")


def _program(chance: random.Random) -> str:
    """Functions that call those above them, and a script that calls them all."""
    lines = [f"local a, b = {chance.randint(1, 9)}, {chance.randint(1, 9)}"]
    known: list[tuple[str, int]] = []
    for place in range(chance.randint(1, 4)):
        parameters = chance.sample(_NAMES, chance.randint(0, 3))
        lines.append(f"local function f{place}({', '.join(parameters)})")
        lines += _block(chance, known, [*parameters, "a", "b"], "  ")
        if chance.random() < 0.2:
            lines.append(f"  if {_value(chance, ['a', 'b'])} > 5 then return 3 end")
        results = [_value(chance, [*parameters, "a", "b"]) for _ in range(chance.randint(0, 3))]
        if results or chance.random() < 0.5:
            lines.append(f"  return {', '.join(results)}".rstrip())
        lines.append("end")
        known.append((f"f{place}", len(parameters)))
    lines += _block(chance, known, ["a", "b"], "")
    lines += ["for c = 1, 2 do", *_block(chance, known, ["a", "b", "c"], "  "), "end"]
    lines.append("return {a or -1, b or -1}")
    return "\n".join(lines) + "\n"


def _block(
    chance: random.Random, known: list[tuple[str, int]], names: list[str], indent: str
) -> list[str]:
    lines = []
    names = list(names)
    for _ in range(chance.randint(1, 4)):
        target = chance.choice(_NAMES)
        local = "local " if target not in names or chance.random() < 0.4 else ""
        if known and chance.random() < 0.6:
            function, takes = chance.choice(known)
            given = max(0, takes + chance.randint(-1, 1))
            value = f"{function}({', '.join([_value(chance, names) for _ in range(given)])})"
            if chance.random() < 0.2:
                lines.append(f"{indent}{value}")
                continue
        else:
            value = _value(chance, names)
        # What is nothing becomes a number, so that sums go on.
        lines += [f"{indent}{local}{target} = {value}", f"{indent}{target} = ({target} or 4) % 97"]
        names.append(target)
    return lines


def _value(chance: random.Random, names: list[str]) -> str:
    name, number = chance.choice(names), chance.randint(1, 9)
    # A parameter that nobody gave is nothing.
    kinds = (name, str(number), f"(({name} or 2) + {number})", f"(({name} or 3) * {number}) % 97")
    value = chance.choice(kinds)
    return f"({value} or 1)" if value == name else value
