"""A strategy of your own: one class, one pure method, and it works on every store.

`Backoff` is for password attempts. Each attempt doubles the pause before the next one, up to a
longest pause; after a quiet spell of that length everything is forgiven.
"""

from __future__ import annotations

from penstock import Decision, ManualClock, Outcome, Strategy, rate_limit


class Backoff(Strategy):
    """State: [the instant of the last attempt, the pause after it], as JSON can carry it."""

    name = "backoff"
    limit = 1

    def __init__(self, first_pause_ms: int, longest_pause_ms: int) -> None:
        self.first_pause_ms = first_pause_ms
        self.longest_pause_ms = longest_pause_ms
        self.ttl_ms = longest_pause_ms

    def check(self, state: list[int] | None, now: int, cost: int) -> Outcome[Decision]:
        if state is None:
            last, pause = now, self.first_pause_ms
        else:
            last, pause = state
            # Should the clock go back, the pause still ends when it was going to.
            if now < last + pause:
                wait = last + pause - now
                return Outcome(state, Decision(False, 1, 0, last + pause, wait), 0, False)
            last, pause = now, min(2 * pause, self.longest_pause_ms)
        decision = Decision(True, 1, 0, last + pause, 0)
        return Outcome([last, pause], decision, self.longest_pause_ms, True)


def main() -> None:
    clock = ManualClock(1_767_268_800_000)
    attempts = rate_limit(Backoff(1_000, 60_000), clock=clock)
    for second in range(10):
        decision = attempts.check("alice")
        answer = "try" if decision else f"wait {decision.retry_after_ms} ms"
        print(f"second {second}: {answer}")
        clock.advance(1_000)
    clock.advance(60_000)
    print("a minute later:", "try" if attempts.check("alice") else "wait")


if __name__ == "__main__":
    main()
