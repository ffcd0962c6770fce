"""Processes that lease from one real server, some of them killed, all of them with wrong clocks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock import fixed_window
from penstock.core._transform import leasing
from penstock.stores.redis import RedisStore
from tests.leasing.crowds import until
from tests.leasing.node import RECORD, true_us
from tests.servers import Valkey, require

REPO = Path(__file__).resolve().parents[2]
WINDOW_MS = 200
WINDOWS = 30
LIMIT = 300
BATCH = 20
LOW_WATER = 5
# Six nodes, sync and async, with clocks up to 5 s off either way.
SKEWS_MS = (0, 5_000, -5_000, 2_500, -700, 90)

Record = tuple[int, int, int, int]


class Fleet:
    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.stop = folder / "end"
        self.made = 0
        self.running: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Once all of them are at work: on a busy machine they take long to start."""
        for skew_ms in SKEWS_MS:
            self.running.append(self.start(skew_ms))
        logs = [self.folder / f"node-{made + 1}" for made in range(len(SKEWS_MS))]
        until(lambda: all(log.exists() and log.stat().st_size for log in logs))

    def start(self, skew_ms: int) -> subprocess.Popen[bytes]:
        self.made += 1
        options = {
            "url": self.url,
            "seed": self.made,
            "skew_ms": skew_ms,
            "end": str(self.stop),
            "log": str(self.folder / f"node-{self.made}"),
            "limit": LIMIT,
            "window_ms": WINDOW_MS,
            "batch": BATCH,
            "low_water": LOW_WATER if self.made % 3 == 0 else 0,
            "mode": "async" if self.made % 2 else "sync",
        }
        command = [sys.executable, "-m", "tests.leasing.node", json.dumps(options)]
        env = {**os.environ, "PYTHONPATH": f"{REPO / 'src'}{os.pathsep}{REPO}"}
        return subprocess.Popen(command, cwd=REPO, env=env)

    def kill_one(self, rng: random.Random) -> None:
        """With -9, and another takes its place."""
        place = rng.randrange(len(self.running))
        self.running[place].kill()
        self.running[place].wait(10)
        self.running[place] = self.start(rng.choice(SKEWS_MS))

    def end(self) -> list[Record]:
        self.stop.touch()
        for process in self.running:
            assert process.wait(60) == 0
        records: list[Record] = []
        for log in self.folder.glob("node-*"):
            data = log.read_bytes()
            whole = len(data) - len(data) % RECORD.size
            records += RECORD.iter_unpack(data[:whole])
        return records


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], dict[int, int]]:
    """What the fleet admitted, and what the store had granted by the end of each window."""
    require("valkey")
    with Valkey() as server:
        fleet = Fleet(server.url, tmp_path_factory.mktemp("fleet"))
        fleet.begin()
        rng, granted = random.Random(6), Counter[int]()
        kill_at = true_us() + 1_000_000
        until_us = true_us() + WINDOWS * WINDOW_MS * 1_000
        while (now := true_us()) < until_us:
            start, count = server.call("HMGET", "coupled:key", "s", "c")
            if start is not None:
                granted[int(start)] = max(granted[int(start)], int(count))
            if now >= kill_at and now < until_us - 1_500_000:
                fleet.kill_one(rng)
                kill_at = now + 1_300_000
            time.sleep(0.004)
        assert fleet.made > len(SKEWS_MS) + 1
        return fleet.end(), granted


def certain_windows(records: list[Record]) -> Counter[int]:
    """Requests by the window that they certainly fell into, by true time."""
    spans = ((before // 1_000, after // 1_000) for before, after, _, _ in records)
    return Counter(a // WINDOW_MS for a, b in spans if a // WINDOW_MS == b // WINDOW_MS)


def test_coupled_no_window_admits_more_than_the_limit(
    run: tuple[list[Record], dict[int, int]],
) -> None:
    """By the window that each decision names, whatever the clocks of the nodes show."""
    records = [record for record in run[0] if record[3]]
    windows = Counter(reset_at for _, _, reset_at, _ in records)
    # A third of them at least: a busy machine may skip some.
    assert len(windows) >= WINDOWS // 3
    assert max(windows.values()) <= LIMIT
    # The demand was there: several windows were used up but for what nodes held at their end.
    full = [count for count in windows.values() if count >= LIMIT - len(SKEWS_MS) * BATCH]
    assert len(full) >= 5


def test_coupled_credits_are_spent_in_their_own_window(
    run: tuple[list[Record], dict[int, int]],
) -> None:
    """By true time as well: every spend began before the window that it is counted in ended."""
    for before, _, reset_at, coupled in run[0]:
        assert not coupled or before < reset_at * 1_000
    assert max(certain_windows([r for r in run[0] if r[3]]).values()) <= LIMIT


def test_carried_over_no_window_admits_more_than_the_bound(
    run: tuple[list[Record], dict[int, int]],
) -> None:
    """By true time, since what is carried over is spent in another window than its own."""
    records = [record for record in run[0] if not record[3]]
    windows = certain_windows(records)
    # A third of them at least: a busy machine may skip some.
    assert len(windows) >= WINDOWS // 3
    assert max(windows.values()) <= LIMIT + len(SKEWS_MS) * (BATCH - 1)


def test_a_kill_loses_the_unspent_credits_of_one_node_and_window(
    run: tuple[list[Record], dict[int, int]],
) -> None:
    """The store hands out the whole limit in the windows that follow, to those who are left."""
    records, granted = run
    used_up = [start for start, count in granted.items() if count == LIMIT]
    assert len(used_up) >= 5
    spent = Counter(reset_at - WINDOW_MS for _, _, reset_at, coupled in records if coupled)
    # Each node, dead or alive, may keep a batch to the end, on top of its low-water mark; a kill
    # one more, under way.
    for start in used_up:
        assert LIMIT - spent[start] <= (len(SKEWS_MS) + 1) * (BATCH + LOW_WATER)


def test_a_dead_node_costs_its_batch_and_nothing_else() -> None:
    """To the unit: it leased 20, spent 3 and died; the others get all the rest."""
    require("valkey")
    with Valkey() as server:
        code = (
            "import os, signal, sys\n"
            "from penstock import fixed_window\n"
            "from penstock.leasing import two_tier\n"
            "from penstock.stores.redis import RedisStore\n"
            f"store = RedisStore.from_url({server.url!r}, timeout_ms=20_000)\n"
            f"limiter = two_tier(fixed_window({LIMIT}, 10**9), store, batch={BATCH})\n"
            "for _ in range(3): limiter.check('key')\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        env = {**os.environ, "PYTHONPATH": str(REPO / "src")}
        died = subprocess.run([sys.executable, "-c", code], env=env, timeout=60, check=False)
        assert died.returncode == -9
        store = RedisStore.from_url(server.url, timeout_ms=20_000)
        rest = store.apply("key", leasing(fixed_window(LIMIT, 10**9), 1), 0, LIMIT)
        assert rest.capacity == LIMIT - BATCH
        store.close()
