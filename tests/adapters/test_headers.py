"""Decisions as headers."""

from __future__ import annotations

import pytest

from penstock import Decision
from penstock.adapters.headers import (
    decision_headers,
    field_name,
    policy_field,
    retry_after_s,
    seconds_until,
)

NOW = 1_700_000_000_000


def test_an_allowed_decision_tells_what_is_left() -> None:
    """Two structured fields, and no more."""
    headers = decision_headers("api", 60_000, Decision(True, 10, 9, NOW + 60_000, 0), NOW)
    assert headers == {"RateLimit-Policy": '"api";q=10;w=60', "RateLimit": '"api";r=9;t=60'}


def test_a_denial_tells_when_to_come_back() -> None:
    """In whole seconds, rounded up."""
    headers = decision_headers("api", 60_000, Decision(False, 10, 0, NOW + 1_500, 1_001), NOW)
    assert headers["Retry-After"] == "2"
    assert headers["RateLimit"] == '"api";r=0;t=2'


def test_the_older_headers_come_on_request() -> None:
    """Their reset is an instant, in epoch seconds."""
    decision = Decision(True, 10, 9, NOW + 1, 0)
    headers = decision_headers("api", None, decision, NOW, legacy=True)
    assert headers["X-RateLimit-Limit"] == "10"
    assert headers["X-RateLimit-Remaining"] == "9"
    assert headers["X-RateLimit-Reset"] == str(NOW // 1000 + 1)
    assert headers["RateLimit-Policy"] == '"api";q=10'


@pytest.mark.parametrize(("ms", "seconds"), [(1, 1), (999, 1), (1_000, 1), (1_001, 2)])
def test_a_wait_is_never_rounded_down(ms: int, seconds: int) -> None:
    """A client that waits as told must not come too early."""
    assert retry_after_s(Decision(False, 1, 0, NOW, ms)) == seconds
    assert seconds_until(NOW + ms, NOW) == seconds
    assert seconds_until(NOW - ms, NOW) == 0


def test_a_name_is_a_string_of_printable_ascii() -> None:
    """Quotes are escaped, everything else percent-encoded, so that no name breaks a header."""
    assert field_name('a"b\\c') == '"a\\"b\\\\c"'
    assert field_name("é\r\n%") == '"%C3%A9%0D%0A%25"'


def test_numbers_stay_in_the_range_of_structured_fields() -> None:
    """Fifteen digits at most."""
    assert policy_field("a", 2**53 - 1, 1) == '"a";q=999999999999999;w=1'
