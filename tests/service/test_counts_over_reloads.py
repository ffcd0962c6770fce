"""What was counted and what is held outlives a reload."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.config import parse_policies
from penstock.service._core import UnknownPolicyError
from penstock.service._metrics import MAX_GONE

from .reloads import World, text


def test_counts_are_kept_where_the_meaning_is_the_same(world: World) -> None:
    """Other policies, another fail mode, comments: none of that is its meaning."""

    async def main() -> None:
        await world.service.check("api", "k", 2)
        more = "  web: {strategy: gcra, limit: 1, period: 1s}\n# a comment\n"
        world.path.write_text(text(more=more).replace("1h}", "60m, fail: closed}"))
        assert await world.reloader.reload()
        assert (await world.service.check("api", "k")).remaining == 0
        assert world.service.policies["api"].fail == "closed"
        assert await world.service.check("web", "k")

    asyncio.run(main())


def test_a_limit_that_is_raised_or_lowered_forgets_nothing(world: World) -> None:
    """Whatever the strategy: its counts are read under the new figures."""

    async def main() -> None:
        await world.service.check("api", "k", 2)
        world.path.write_text(windowed(5))
        assert await world.reloader.reload()
        assert (await world.service.check("api", "k", 4)).remaining == 1
        world.path.write_text(windowed(10))
        assert await world.reloader.reload()
        assert (await world.service.check("api", "k")).remaining == 5
        world.path.write_text(windowed(3))
        assert await world.reloader.reload()
        assert not await world.service.check("api", "k")
        world.path.write_text(windowed(6))
        assert await world.reloader.reload()
        assert (await world.service.check("api", "k")).remaining == 0

    asyncio.run(main())


def test_counts_start_afresh_under_another_window(world: World) -> None:
    """They could not be read there, and are found again when the window comes back."""

    async def main() -> None:
        await world.service.check("api", "k", 3)
        world.path.write_text(text().replace("1h", "2h"))
        assert await world.reloader.reload()
        assert (await world.service.check("api", "k")).remaining == 2
        world.path.write_text(text())
        assert await world.reloader.reload()
        assert not await world.service.check("api", "k")

    asyncio.run(main())


def windowed(limit: int) -> str:
    return f"version: 1\nlimiters:\n  api: {{strategy: fixedWindow, limit: {limit}, window: 1h}}\n"


def test_a_policy_that_is_gone_is_unknown_and_uncounted(world: World) -> None:
    """Reloads without end do not add up to metrics without end."""

    async def main() -> None:
        world.path.write_text(text().replace("api:", "web:"))
        assert await world.reloader.reload()
        with pytest.raises(UnknownPolicyError, match="no policy 'api'"):
            await world.service.check("api", "k")
        assert set(world.service.snapshot().policies) == {"web", "inline"}

    asyncio.run(main())


def test_the_counts_of_a_policy_that_was_away_go_on(world: World) -> None:
    """A counter never goes back, and those who are gone for good are counted together."""

    async def main() -> None:
        for number in range(3):
            await world.service.check("api", "k")
            world.path.write_text(text().replace("api:", f"web{number}:"))
            assert await world.reloader.reload()
            await world.service.check(f"web{number}", "k")
            world.path.write_text(text())
            assert await world.reloader.reload()
        await world.service.check("api", "k")
        counted = world.service.snapshot().policies
        assert counted["api"] == {**counted["api"], "allowed": 3, "denied": 1}
        assert [counted[f"web{number}"]["allowed"] for number in range(3)] == [1, 1, 1]

    asyncio.run(main())


def test_slots_that_were_taken_back_stay_counted_when_the_slots_change(world: World) -> None:
    """Also those that are taken back from holders of the old ones."""

    async def main() -> None:
        for limit in (2, 3):
            slots = f"  jobs: {{concurrency: {{minLimit: {limit}, maxLimit: {limit}}}}}\n"
            world.service.apply(parse_policies(text(more=slots)))
            assert (await world.service.admit("jobs", "k")).decision
        for _ in range(2):
            world.clock.advance(5_000)
            await world.service.heartbeat([])
            assert world.service.snapshot().slots["jobs"]["reclaimed"] == 2
            slots = "  jobs: {concurrency: {minLimit: 4, maxLimit: 4}}\n"
            world.service.apply(parse_policies(text(more=slots)))

    asyncio.run(main())


def test_policies_that_are_gone_for_good_are_counted_together(world: World) -> None:
    """Names without end do not add up, and their counts are not lost."""

    async def main() -> None:
        for number in range(MAX_GONE + 50):
            name = f"web{number}"
            world.service.apply(parse_policies(text().replace("api:", f"{name}:")))
            await world.service.check(name, "k")
        world.service.apply(parse_policies(text()))
        counted = world.service.snapshot().policies
        assert len(counted) == MAX_GONE + 3
        assert counted["(removed)"]["allowed"] == 50
        assert "web49" not in counted
        assert sum(counts["allowed"] for counts in counted.values()) == MAX_GONE + 50

    asyncio.run(main())


SLOTS = "  jobs: {concurrency: {minLimit: 2, maxLimit: 2}}\n"
BUDGET = "  llm: {tokenBudget: {budget: 5, window: 1h, maxKeys: 9}}\n"


def test_slots_and_private_budgets_survive_a_reload(tmp_path: Path) -> None:
    """What is kept in this process is taken over, not made anew."""
    world = World(tmp_path)

    async def main() -> None:
        world.path.write_text(text(3, SLOTS + BUDGET))
        assert await world.reloader.reload()
        held = await world.service.admit("jobs", "k")
        assert await world.service.debit("llm", "k", 9)
        world.path.write_text(text(4, SLOTS + BUDGET))
        assert await world.reloader.reload()
        assert world.service.snapshot().slots["jobs"]["in_flight"] == 1
        assert not await world.service.debit("llm", "k")
        world.path.write_text(text(4, SLOTS.replace("2}", "3}")))
        assert await world.reloader.reload()
        assert (await world.service.heartbeat([held.lease_id])).live_ids == [held.lease_id]
        await world.service.release(held.lease_id)
        assert world.service.snapshot().slots["jobs"]["in_flight"] == 0

    asyncio.run(main())


def test_reloads_under_load_lose_and_invent_nothing(world: World) -> None:
    """Requests between two reloads see one table or the other; the limit holds throughout."""

    async def main() -> None:
        world.path.write_text(text(50))
        assert await world.reloader.reload()

        async def ask() -> int:
            admitted = 0
            for _ in range(20):
                admitted += bool(await world.service.check("api", "k"))
                await asyncio.sleep(0)
            return admitted

        async def change() -> None:
            for step in range(20):
                web = f"  web: {{strategy: gcra, limit: {step + 1}, period: 1s}}\n"
                world.service.apply(parse_policies(text(50, web), "penstock.yaml"))
                await asyncio.sleep(0)

        answers = await asyncio.gather(change(), *(ask() for _ in range(10)))
        assert sum(answer for answer in answers if answer is not None) == 50

    asyncio.run(main())
