"""The record that every store outside the process keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigInvalidError
from penstock.stores.record import FORMAT, MARGIN_MS, keep_ms, pack, unpack

NOW = 1_700_000_000_000

_finite = st.floats(allow_nan=False, allow_infinity=False)
_leaves = st.none() | st.booleans() | st.integers() | _finite | st.text()
_states = st.recursive(
    _leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


# None is the absence of a state, and is not kept.
@given(state=_states.filter(lambda state: state is not None))
def test_any_state_of_json_types_comes_back_exactly(state: Any) -> None:
    """Values and types, to the bit."""
    back = unpack(pack("gcra", state, NOW + 1), "k", "gcra", NOW)
    assert repr(back) == repr(state)


def test_a_record_says_what_it_is() -> None:
    """Anyone with a JSON reader can tell format, strategy, expiry and state."""
    text = pack('an "odd" name', (3.5, NOW), NOW + 60_000)
    assert json.loads(text) == {
        "v": FORMAT,
        "strategy": 'an "odd" name',
        "expires_at": NOW + 60_000,
        "state": [3.5, NOW],
    }
    assert unpack(text.encode(), "k", 'an "odd" name', NOW) == [3.5, NOW]


def test_a_state_is_absent_from_its_expiry_on() -> None:
    """One ms before it is there; no record at all is the same as an expired one."""
    text = pack("gcra", 0, NOW)
    assert unpack(text, "k", "gcra", NOW - 1) == 0
    assert unpack(text, "k", "gcra", NOW) is None
    assert unpack(None, "k", "gcra", NOW) is None


def test_an_expired_record_of_another_strategy_is_in_nobodys_way() -> None:
    """A key may change hands once what it held is forgotten."""
    assert unpack(pack("gcra", 1.5, NOW), "k", "token_bucket", NOW) is None


@pytest.mark.parametrize(
    "raw",
    [
        pack("token_bucket", 1, NOW + 1),
        pack("gcra", 1, NOW + 1).replace('"v":1', '"v":2'),
        pack("gcra", 1, NOW + 1).replace('"v":1', '"v":true'),
        pack("gcra", 1, NOW + 1).replace(str(NOW + 1), '"later"'),
        pack("gcra", 1, NOW + 1).replace('"state":1', '"state":null'),
        pack("gcra", 1, NOW + 1).replace('"state":1', '"state":NaN'),
        pack("gcra", 1, NOW + 1).replace('"state":1', '"state":-Infinity'),
        '{"v":1}',
        "[1, 2]",
        "1.5",
        "",
        "not json",
        b"\xff\xfe",
    ],
)
def test_what_is_not_ours_is_refused(raw: str | bytes) -> None:
    """Reading it as absent would admit what it had counted."""
    with pytest.raises(ConfigInvalidError, match="key 'k' holds the state of something else"):
        unpack(raw, "k", "gcra", NOW)


@pytest.mark.parametrize(
    "state",
    [{1, 2}, b"bytes", float("nan"), float("inf"), [float("-inf")], {1: 2}, [{"a": {2: 3}}]],
)
def test_a_state_that_would_not_come_back_is_refused(state: Any) -> None:
    """Better at the first check than wrong at the second."""
    with pytest.raises(ConfigInvalidError, match="the state of 'mine' cannot be kept"):
        pack("mine", state, NOW)


def test_a_record_outlasts_its_state_by_as_much_again() -> None:
    """And by a minute at least, so that giving space back never changes a decision."""
    assert keep_ms(1) == 1 + MARGIN_MS
    assert keep_ms(3_600_000) == 7_200_000
