"""Following a policy file while it changes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock
from penstock.config import load_policy_file, parse_policies
from penstock.service import Service, build_service
from penstock.service.core import UnknownPolicyError
from penstock.service.reloading import Reloader
from tests.service.worlds import NOW


def text(limit: int = 3, more: str = "") -> str:
    return f"version: 1\nlimiters:\n  api: {{strategy: gcra, limit: {limit}, period: 1h}}\n{more}"


class World:
    """A service that follows a file, and the file."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "penstock.yaml"
        self.path.write_text(text())
        self.service: Service = build_service(
            load_policy_file(self.path), clock=ManualClock(NOW), **options
        )
        self.reloader = Reloader(self.service, str(self.path), every_s=0.01)

    def limit(self) -> int:
        return self.service.policies["api"].limit


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def looks(world: World, times: int = 2) -> int:
    """How many of so many looks led to a reload."""
    return sum([await world.reloader.look() for _ in range(times)])


def test_a_file_that_stays_as_it_is_is_not_read_again(world: World) -> None:
    """Nor one that was only touched."""
    os.utime(world.path, (1, 1))
    assert asyncio.run(looks(world, 3)) == 0
    assert world.service.snapshot().reloads == {"ok": 0, "failed": 0}


def test_a_change_is_served_once_two_looks_agree_on_it(world: World) -> None:
    """A file caught half-written is not taken for the whole."""

    async def main() -> None:
        world.path.write_text(text(7))
        assert not await world.reloader.look()
        world.path.write_text(text(8))
        assert not await world.reloader.look()
        assert world.limit() == 3
        assert await world.reloader.look()
        assert world.limit() == 8
        assert await looks(world) == 0

    asyncio.run(main())
    assert world.service.snapshot().reloads == {"ok": 1, "failed": 0}


def test_a_swapped_symlink_is_seen(tmp_path: Path) -> None:
    """As a mounted configuration is updated: the name stays, what it points to changes."""
    for name, limit in (("one", 3), ("two", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "penstock.yaml").write_text(text(limit))
    link = tmp_path / "data"
    link.symlink_to("one")
    path = tmp_path / "penstock.yaml"
    path.symlink_to("data/penstock.yaml")
    service = build_service(load_policy_file(path), clock=ManualClock(NOW))
    reloader = Reloader(service, str(path))
    fresh = tmp_path / "fresh"
    fresh.symlink_to("two")
    fresh.replace(link)

    async def main() -> None:
        await reloader.look()
        assert await reloader.look()

    asyncio.run(main())
    assert service.policies["api"].limit == 9


@pytest.mark.parametrize("bad", ["version: 1\nlimiters: {api: {strategy: gkra}}", "{", None])
def test_a_bad_file_leaves_the_old_one_at_work_and_is_told(world: World, bad: str | None) -> None:
    """By readiness and by the count; a good one clears it."""

    async def main() -> None:
        await world.service.check("api", "k")
        if bad is None:
            world.path.unlink()
        else:
            world.path.write_text(bad)
        assert await looks(world, 4) == 1
        ready = await world.service.ready()
        assert ready.ok
        assert str(world.path) in ready.reload_error
        assert (await world.service.check("api", "k")).remaining == 1
        assert world.service.snapshot().reloads == {"ok": 0, "failed": 1}
        world.path.write_text(text())
        assert await looks(world) == 1
        assert (await world.service.ready()).reload_error == ""

    asyncio.run(main())


def test_a_fault_of_the_reader_is_told_like_a_bad_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw is reported too, and the next good file is served."""

    def broken(path: str) -> None:
        raise KeyError("what nobody foresaw")

    async def main() -> None:
        monkeypatch.setattr("penstock.service.reloading.load_policy_file", broken)
        assert not await world.reloader.reload()
        assert "KeyError" in (await world.service.ready()).reload_error
        assert world.service.snapshot().reloads == {"ok": 0, "failed": 1}
        monkeypatch.undo()
        world.path.write_text(text(7))
        assert await world.reloader.reload()
        assert world.limit() == 7

    asyncio.run(main())


def test_following_ends_only_when_it_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that fails is reported, and the one after it is made."""

    def broken(path: str) -> str:
        raise MemoryError("for a moment")

    async def main() -> None:
        monkeypatch.setattr("penstock.service.reloading._digest", broken)
        following = asyncio.ensure_future(world.reloader.run())
        await until(lambda: world.service.snapshot().reloads["failed"] > 0)
        monkeypatch.undo()
        world.path.write_text(text(7))
        await until(lambda: world.limit() == 7)
        assert world.service.reload_error == ""
        assert not following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(main())


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


def test_counts_start_afresh_where_the_meaning_is_another(world: World) -> None:
    """They would mean something else under the new limit."""

    async def main() -> None:
        await world.service.check("api", "k", 3)
        world.path.write_text(text(5))
        assert await world.reloader.reload()
        assert (await world.service.check("api", "k")).remaining == 4
        world.path.write_text(text(3))
        assert await world.reloader.reload()
        assert not await world.service.check("api", "k")

    asyncio.run(main())


def test_a_policy_that_is_gone_is_unknown_and_uncounted(world: World) -> None:
    """Reloads without end do not add up to metrics without end."""

    async def main() -> None:
        world.path.write_text(text().replace("api:", "web:"))
        assert await world.reloader.reload()
        with pytest.raises(UnknownPolicyError, match="no policy 'api'"):
            await world.service.check("api", "k")
        assert set(world.service.snapshot().policies) == {"web", "inline"}

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


def test_reloads_that_overlap_end_with_what_the_file_says(world: World) -> None:
    """One at a time, each reading the file anew."""

    async def main() -> None:
        for limit in range(4, 30):
            world.path.write_text(text(limit))
            await asyncio.gather(*(world.reloader.reload() for _ in range(4)))
            assert world.limit() == limit

    asyncio.run(main())


def test_a_file_that_cannot_be_applied_changes_nothing(world: World) -> None:
    """The table is made whole before it is put in place."""
    broken = parse_policies(text(9), "penstock.yaml")
    object.__setattr__(broken, "prefix", "\ud800")
    with pytest.raises(ValueError, match="surrogate"):
        world.service.apply(broken)
    assert world.limit() == 3


async def until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen in time")


def test_a_started_service_follows_its_file_and_obeys_sighup(tmp_path: Path) -> None:
    """The whole of it, on a real loop and a real signal."""
    world = World(tmp_path, watch=str(tmp_path / "penstock.yaml"))

    async def main() -> None:
        await world.service.start()
        await asyncio.sleep(0.05)
        world.path.write_text(text(6))
        await until(lambda: world.limit() == 6)
        before = world.service.snapshot().reloads["ok"]
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: world.service.snapshot().reloads["ok"] > before)
        await world.service.aclose()

    asyncio.run(main())
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
