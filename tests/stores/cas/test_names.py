"""Names that a backend can hold."""

from __future__ import annotations

import pytest

from penstock import ConfigInvalidError
from penstock.stores.cas._requests import fit, require_name


@pytest.mark.parametrize("text", ["k", "鍵", "🔑", "a\0"])
def test_a_long_key_becomes_a_name_of_the_limit(text: str) -> None:
    """Exactly so long, beginning like the key, and another for another key."""
    long = text * 300
    name = fit(long, 200)
    assert len(name.encode()) == 200
    assert name.startswith(text * 10)
    assert fit(long + text, 200) != name
    assert fit(long, 200) == name


def test_a_short_key_is_its_own_name() -> None:
    """Up to one byte below the limit: names of that length are for long keys only."""
    assert fit("k" * 199, 200) == "k" * 199
    assert fit("k" * 200, 200) != "k" * 200


def test_no_key_can_be_made_up_that_meets_the_name_of_another() -> None:
    """The name of a long key is itself too long to be a key that goes in unchanged."""
    name = fit("k" * 300, 200)
    assert fit(name, 200) != name


@pytest.mark.parametrize("bad", ["", "a b", "a\n", 'a"', "ä", None, 7])
def test_a_bad_name_is_refused(bad: object) -> None:
    """Before it becomes part of a statement or a path."""
    with pytest.raises(ConfigInvalidError, match="table must match"):
        require_name("table", bad, r"[a-z]+")
