"""Meter a language model by tokens: the cost of a request is what it may use up.

Each team has 10,000 tokens at once and gets 50 back every second. A request is charged for its
prompt and for the longest answer it asks for, before it is sent.
"""

from __future__ import annotations

from penstock import ManualClock, rate_limit, token_bucket

# A manual clock lets this example show half a minute in no time; leave it out for real time.
clock = ManualClock(1_767_268_800_000)
budget = rate_limit(token_bucket(capacity=10_000, refill_per_sec=50), clock=clock, prefix="tokens")


def complete(team: str, prompt: str, max_answer_tokens: int) -> str:
    cost = len(prompt) // 4 + max_answer_tokens
    decision = budget.check(team, cost)
    if not decision:
        return f"{team}: {cost} tokens refused, try again in {decision.retry_after_ms / 1000:.1f} s"
    return f"{team}: {cost} tokens spent, {decision.remaining} left"


def main() -> None:
    report = "word " * 4_000
    print(complete("red", report, max_answer_tokens=2_000))
    print(complete("red", report, max_answer_tokens=2_000))
    print(complete("blue", "a short question", max_answer_tokens=500))

    clock.advance(30_000)
    forecast = budget.forecast("red", cost=1_000)
    print(f"red, half a minute later: {forecast.spendable_now} requests of 1,000 tokens fit")
    print(complete("red", "a short question", max_answer_tokens=500))


if __name__ == "__main__":
    main()
