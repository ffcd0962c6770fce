"""Counts of several workers, added up."""

from __future__ import annotations

from pathlib import Path

from penstock.service.http.pool import Pool, added

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


def test_a_worker_adds_what_the_others_left(tmp_path: Path) -> None:
    """Its own counts are the ones it has now, not those it left."""
    one, two = Pool(str(tmp_path), "0"), Pool(str(tmp_path), "1")
    one.publish(TWO)
    two.publish(TWO)
    assert one.total(ONE) == SUM
