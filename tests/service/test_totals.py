"""Counts of several workers, added up and kept."""

from __future__ import annotations

import re

from penstock.service._channel import Counted
from penstock.service._metrics import MAX_GONE, Tally
from penstock.service._totals import Totals, added, counters_of

ONE = """\
# HELP a_total As.
# TYPE a_total counter
a_total{p="x y"} 1
# HELP s Seconds.
# TYPE s histogram
s_bucket{le="+Inf"} 2
s_sum 0.5
s_count 2
"""
TWO = """\
# HELP a_total As.
# TYPE a_total counter
a_total{p="x y"} 10
a_total{p="z"} 7
# HELP s Seconds.
# TYPE s histogram
s_bucket{le="+Inf"} 3
s_sum 0.25
s_count 3
"""
SUM = """\
# HELP a_total As.
# TYPE a_total counter
a_total{p="x y"} 11
a_total{p="z"} 7
# HELP s Seconds.
# TYPE s histogram
s_bucket{le="+Inf"} 5
s_sum 0.75
s_count 5
"""


def test_equal_samples_are_summed_and_stay_with_their_family() -> None:
    """Also those that only one of them has."""
    assert added([ONE, TWO]) == SUM
    assert added([ONE]) == ONE


REST = """\
# HELP replies_total Replies.
# TYPE replies_total counter
replies_total{code="200"} %d
# HELP connections Open connections.
# TYPE connections gauge
connections %d
"""


def counts(allowed: int) -> tuple[int, ...]:
    tally = Tally()
    tally.allowed = allowed
    return tally.counts()


def told(allowed: dict[str, int], replies: int = 0, connections: int = 0) -> Counted:
    policies = {name: counts(count) for name, count in allowed.items()}
    return Counted(policies, REST % (replies, connections))


def value(totals: Totals, sample: str) -> int:
    return int(re.findall(rf"^{re.escape(sample)} (\d+)$", totals.text(), re.MULTILINE)[0])


def allowed(totals: Totals, policy: str) -> int:
    return value(totals, f'penstock_decisions_total{{policy="{policy}",outcome="allowed"}}')


def test_of_a_worker_that_is_gone_the_counters_stay_and_the_gauges_do_not() -> None:
    """Its successor begins at zero, and the sums go on."""
    totals = Totals()
    totals.take("one", told({"api": 5, "web": 1}, 6, 3))
    totals.take("two", told({"api": 7}, 7, 4))
    for _ in range(2):
        assert (allowed(totals, "api"), allowed(totals, "web")) == (12, 1)
        assert value(totals, 'replies_total{code="200"}') == 13
        totals.retire("one", {"api", "web"})
    assert value(totals, "connections") == 4
    totals.take("three", told({"api": 2}, 2, 1))
    assert allowed(totals, "api") == 14
    assert value(totals, 'replies_total{code="200"}') == 15
    assert value(totals, "connections") == 5


def test_a_worker_tells_what_has_changed_only() -> None:
    """What it told before stands."""
    totals = Totals()
    totals.take("one", told({"api": 5, "web": 1}))
    totals.take("one", told({"api": 6}))
    assert (allowed(totals, "api"), allowed(totals, "web")) == (6, 1)


def test_counts_that_a_worker_moves_are_in_one_place() -> None:
    """From a policy that is gone for good to all those that are."""
    totals = Totals()
    totals.take("one", told({"api": 5, "(removed)": 1}))
    totals.take("one", Counted({"api": None, "(removed)": counts(6)}, ""))
    assert allowed(totals, "(removed)") == 6
    assert "api" not in totals.text()


def test_names_without_end_do_not_add_up() -> None:
    """Those that are served are kept, though all workers die at once."""
    totals = Totals()
    served = {f"served{number}": 1 for number in range(MAX_GONE + 10)}
    totals.take("one", told({**served, **{f"gone{n}": 1 for n in range(MAX_GONE + 10)}}))
    totals.retire("one", served)
    assert allowed(totals, "(removed)") == 10
    text = totals.text()
    assert len(re.findall(r'decisions_total.policy="served', text)) == 2 * len(served)
    assert len(re.findall(r'decisions_total.policy="gone', text)) == 2 * MAX_GONE
    assert sum(map(int, re.findall(r'outcome="allowed"} (\d+)', text))) == 2 * (MAX_GONE + 10)


def test_only_what_grows_is_kept() -> None:
    """By the kind that the exposition gives each family."""
    assert counters_of(REST % (1, 2)) == (REST % (1, 2)).partition("# HELP connections")[0]
    assert counters_of(ONE) == ONE
