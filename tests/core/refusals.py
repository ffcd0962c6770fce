"""How the tests see that something is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import ConfigInvalidError, PenstockError


def assert_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigInvalidError, match=says) as caught:
        call()
    assert caught.value.code == "config_invalid"
    assert isinstance(caught.value, (PenstockError, ValueError))
    assert len(str(caught.value)) < 400
