"""The figures of docs/strategies.md, from the strategies themselves: `python -m bench.figures`.

The adversary asks for one unit after the other, without pause, and comes back exactly when a
denial says so. It may spend a single unit beforehand, to open a window early. What counts is the
most that any true window then holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock import (
    Strategy,
    fixed_window,
    gcra,
    sliding_window,
    sliding_window_log,
    token_bucket,
)

__all__ = ["most_in_a_window"]

LIMIT, WINDOW_MS = 100, 60_000
MINUTE = 1_760_000_040_000  # on the minute, thirteen digits
_PHASES_MS = (0, 1, 15_000, 30_000, 45_000, 59_999)
_LEADS_MS = (None, 1_000, 30_000, 59_999)


def _greedy(strategy: Strategy, start: int, end: int, lead: int | None) -> Iterator[int]:
    """The instants at which units are admitted."""
    state, expires = None, 0
    now = start if lead is None else start - lead
    while now < end:
        if now >= expires:
            state = None
        outcome = strategy.check(state, now, 1)
        if outcome.persist:
            state, expires = outcome.state, now + outcome.ttl_ms
        if outcome.result.allowed:
            yield now
            now = max(now, start)
        else:
            now += outcome.result.retry_after_ms


def _most(stamps: list[int]) -> int:
    """The most stamps in any `WINDOW_MS`, its first instant left out."""
    first = most = 0
    for position, stamp in enumerate(stamps):
        while stamps[first] <= stamp - WINDOW_MS:
            first += 1
        most = max(most, position - first + 1)
    return most


def most_in_a_window(strategy: Strategy) -> int:
    """The most that the adversary gets out of any window."""
    return max(
        _most(list(_greedy(strategy, MINUTE + phase, MINUTE + phase + 2 * WINDOW_MS, lead)))
        for phase in _PHASES_MS
        for lead in _LEADS_MS
    )


def main() -> None:
    print(f"Most admitted in any {WINDOW_MS} ms at {LIMIT} per {WINDOW_MS} ms")
    for strategy in (
        gcra(LIMIT, WINDOW_MS),
        gcra(LIMIT, WINDOW_MS, burst=10),
        gcra(LIMIT, WINDOW_MS, burst=1),
        token_bucket(LIMIT, LIMIT * 1000 / WINDOW_MS),
        fixed_window(LIMIT, WINDOW_MS),
        fixed_window(LIMIT, WINDOW_MS, "first"),
        sliding_window(LIMIT, WINDOW_MS, 1),
        sliding_window(LIMIT, WINDOW_MS, 10),
        sliding_window(LIMIT, WINDOW_MS, 60),
        sliding_window_log(LIMIT, WINDOW_MS),
    ):
        print(f"  {most_in_a_window(strategy):4}  {strategy!r}")


if __name__ == "__main__":
    main()
