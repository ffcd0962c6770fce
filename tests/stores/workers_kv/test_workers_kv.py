"""WorkersKVStore: approximate, as it says."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from penstock import Decision, Outcome, Strategy, fixed_window, gcra
from penstock.core._transform import checking
from penstock.stores.workers_kv import WorkersKVStore
from tests.stores import edge
from tests.stores.exactness import assert_exact_from_tasks, assert_exact_from_threads
from tests.support.processes import forking_context

NOW = 1_700_000_000_000


class _OneAtATime(Strategy):
    """A limit of one, whose callers decide at the same moment."""

    limit = 1

    def __init__(self, gate: Any) -> None:
        self._gate = gate

    def check(self, state: Any, now: int, cost: int) -> Outcome[Decision]:
        self._gate.wait(40)
        allowed = state is None
        decision = Decision(allowed, 1, 0, now + 60_000, 0 if allowed else 60_000)
        return Outcome(1, decision, 60_000, allowed)


def test_it_admits_more_than_the_limit() -> None:
    """Three processes that decide at the same moment are all admitted, at a limit of one."""
    forking = forking_context()
    gate, answers = forking.Barrier(3), forking.Queue()
    arguments = (edge.url_of("workers-kv"), gate, answers)
    processes = [forking.Process(target=_process, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    try:
        assert [answers.get(timeout=60) for _ in processes] == [True] * 3
    finally:
        for process in processes:
            process.join(60)
            process.close()
        answers.close()


def _process(url: str, gate: Any, answers: Any) -> None:
    store = edge.opened(url)
    answers.put(store.apply("k", checking(_OneAtATime(gate)), NOW, 1).allowed)
    store.close()


def test_it_says_so() -> None:
    """Where a reader looks first."""
    assert "**Approximate**: it admits more than the limit" in (WorkersKVStore.__doc__ or "")
    store = edge.open_empty("workers-kv")
    assert repr(store).startswith("<approximate WorkersKVStore at http")
    store.close()
    page = (edge.STORES.parents[2] / "docs" / "stores" / "workers-kv.md").read_text()
    assert "approximate" in page.lower()


def test_inside_one_process_it_is_exact() -> None:
    """Callers take turns, so that nothing is lost between them."""
    url = edge.url_of("workers-kv")
    assert_exact_from_tasks(lambda: edge.opened(url))
    assert_exact_from_threads(lambda: edge.opened(url))


@pytest.mark.parametrize("window_ms", [1, 1_000, 10**11])
def test_a_ttl_is_never_below_the_floor_or_above_the_ceiling(window_ms: int) -> None:
    """Workers KV refuses less than 60 s, and more than 31 bits of them."""
    store = edge.open_empty("workers-kv")
    assert store.apply("k", checking(fixed_window(5, window_ms)), NOW, 1).remaining == 4
    store.close()


@pytest.mark.parametrize("key", [".", "..", "%2E", "a/b", "a?b#c", "é\n\0", "k" * 511, "k" * 4096])
def test_any_key_has_a_name_of_its_own(key: str) -> None:
    """Names are plain ASCII of at most 512 bytes, whatever the key."""
    store: Any = edge.open_empty("workers-kv")
    assert store.apply(key, checking(gcra(10, 1_000)), NOW, 1).remaining == 9
    name = quote(key, safe=":") if key.strip(".") else key.replace(".", "%2E")
    path = edge.running("workers-kv").kv_path(store.namespace, quote(name, safe=""))
    status, text = edge.running("workers-kv").api("GET", path)
    if len(name) < 512:
        assert status == 200
        assert text.partition("\n")[2].startswith('{"v":1,"strategy":"gcra"')
    else:
        assert status != 200
    store.close()
