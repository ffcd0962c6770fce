"""Following a policy file while it changes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock
from penstock.config import load_policy_file, parse_policies
from penstock.service import _reloading as reloading
from penstock.service import build_service
from penstock.service._core import UnknownPolicyError
from penstock.service._reloading import Reloader
from tests.service.worlds import NOW
from tests.special import KINDS, replace

from .reloads import World, text


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


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_told_and_looked_at_again(world: World, kind: str) -> None:
    """Nothing waits for it, and what follows it is served, were it the same as before."""

    async def main() -> None:
        told = replace(world.path, kind)
        assert await asyncio.wait_for(looks(world, 4), 20) == 1
        assert told in world.service.reload_error
        assert world.service.snapshot().reloads == {"ok": 0, "failed": 1}
        assert await world.service.check("api", "k")
        replace(world.path, "nothing")
        world.path.write_text(text())
        assert await looks(world) == 1
        assert world.service.reload_error == ""

    asyncio.run(main())


def test_a_file_system_that_does_not_answer_holds_up_neither_requests_nor_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once, one thread waits for it, and when it is back the file is followed on."""
    stuck, waiting = threading.Event(), []

    def hang(path: str) -> Any:
        waiting.append(threading.current_thread())
        stuck.wait()
        return find(path)

    find = reloading._find
    monkeypatch.setattr(reloading, "_find", hang)
    monkeypatch.setattr(reloading, "_READ_S", 0.05)

    async def main() -> None:
        assert await looks(world, 4) == 1
        assert "no answer from its file system" in world.service.reload_error
        assert await world.service.check("api", "k")
        assert len(waiting) == 1
        assert waiting[0].daemon

    asyncio.run(main())
    assert waiting[0].is_alive()
    stuck.set()
    waiting[0].join(10)

    async def afterwards() -> None:
        monkeypatch.setattr(reloading, "_READ_S", 20)
        world.path.write_text(text(7))
        world.reloader = Reloader(world.service, str(world.path))
        await looks(world, 3)
        assert world.limit() == 7

    asyncio.run(afterwards())


def test_what_is_no_fault_of_the_file_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a machine that has no process to spare; a bad file is not read again and again."""
    tries = 0

    def starved(raw: bytes, source: str) -> Any:
        nonlocal tries
        tries += 1
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def main() -> None:
        monkeypatch.setattr(reloading, "_RETRY_S", 0.0)
        monkeypatch.setattr(reloading, "parse_apart", starved)
        world.path.write_text(text(7))
        assert await looks(world, 4) == 3
        assert tries == 3
        monkeypatch.undo()
        assert await looks(world, 3) == 1
        assert world.limit() == 7
        world.path.write_text("{")
        assert await looks(world, 4) == 1

    asyncio.run(main())


MANY = 20_000


def many(limit: int) -> str:
    lines = (f"  p{n:05d}: {{strategy: gcra, limit: {limit}, period: 1m}}\n" for n in range(MANY))
    return f"version: 1\nlimiters:\n{''.join(lines)}"


def test_no_request_waits_for_a_file_with_many_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the processor time of the longest step on the event loop, which a busy machine does not
    stretch; that of another process is the time that the file takes."""
    world = World(tmp_path)
    longest = 0.0
    run_handle = asyncio.events.Handle._run  # type: ignore[attr-defined]

    def timed(handle: Any) -> None:
        nonlocal longest
        began = time.thread_time()
        run_handle(handle)
        longest = max(longest, time.thread_time() - began)

    async def take_up(content: str) -> None:
        nonlocal longest
        world.path.write_text(content)
        await asyncio.sleep(0)
        longest = 0.0
        assert await world.reloader.reload()
        # The step that this is part of has to end before it is measured.
        await asyncio.sleep(0)
        assert longest < 0.1

    async def main() -> None:
        await take_up(few)
        await take_up(first)
        assert world.service.policies["p00000"].limit == 3
        assert len(world.service.policies) == MANY
        for number in range(0, MANY, 10):
            await world.service.check(f"p{number:05d}", "k")
        # Some are the same, some are not, and then most are gone.
        await take_up(second)
        assert world.service.policies["p00000"].limit == 4
        await take_up(few)

    few, first, second = text(), many(3), many(3).replace("limit: 3", "limit: 4", MANY // 2)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    monkeypatch.setattr(asyncio.events.Handle, "_run", timed)  # type: ignore[attr-defined]
    asyncio.run(main())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2 * 5


def test_a_name_that_is_not_among_many_is_refused_without_a_guess(tmp_path: Path) -> None:
    """To compare it with all of them would make others wait."""
    names = [f"policy-{number}" for number in range(101)]
    lines = "".join(f"  {name}: {{strategy: gcra, limit: 3, period: 1h}}\n" for name in names)
    service = build_service(parse_policies(f"version: 1\nlimiters:\n{lines}"))
    with pytest.raises(UnknownPolicyError, match="use one of the policy file"):
        asyncio.run(service.check("policy-1x", "k"))
    few = build_service(parse_policies(text()))
    with pytest.raises(UnknownPolicyError, match="did you mean 'api'"):
        asyncio.run(few.check("apis", "k"))


def test_a_fault_of_the_reader_is_told_like_a_bad_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw is reported too, and the next good file is served."""

    def broken(raw: bytes, source: str) -> None:
        raise KeyError("what nobody foresaw")

    async def main() -> None:
        monkeypatch.setattr("penstock.service._reloading.parse_apart", broken)
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
        monkeypatch.setattr("penstock.service._reloading._find", broken)
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

    # That of `nohup` is to ignore the signal.
    before = signal.getsignal(signal.SIGHUP)
    asyncio.run(main())
    assert signal.getsignal(signal.SIGHUP) == before


def test_a_stop_right_behind_a_signal_ends_it(world: World) -> None:
    """Before Python 3.12, `asyncio.wait_for` ignores a cancellation that comes together with what
    it waits for: whoever waited for the reloader to end would wait forever."""

    async def main() -> None:
        for turns in range(8):
            following = asyncio.ensure_future(world.reloader.run())
            await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGHUP)
            for _ in range(turns):
                await asyncio.sleep(0)
            following.cancel()
            _, running = await asyncio.wait({following}, timeout=10)
            assert not running, f"still there, cancelled {turns} turns of the loop later"

    asyncio.run(main())
