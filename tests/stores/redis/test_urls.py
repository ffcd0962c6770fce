"""What a Redis URL may say beside where the server is."""

from __future__ import annotations

import pytest

from penstock import ConfigInvalidError
from penstock.stores import open_store
from penstock.stores.redis import RedisStore


def test_the_url_may_carry_the_options_of_the_store() -> None:
    """A program that knows a store by its URL alone can still set its deadline and its clock."""
    store = open_store("redis://127.0.0.1:1/0?timeout_ms=500&use_server_time=false&client_name=x")
    assert isinstance(store, RedisStore)
    assert (store.timeout_ms, store.reads_own_clock) == (500, False)
    store.close()


@pytest.mark.parametrize("query", ["timeout_ms=soon", "timeout_ms=-1", "use_server_time=maybe"])
def test_nonsense_in_the_options_of_the_url_is_refused(query: str) -> None:
    """With the parameter's name in the text."""
    with pytest.raises(ConfigInvalidError, match=query.partition("=")[0]):
        open_store(f"redis://127.0.0.1:1/0?{query}")
