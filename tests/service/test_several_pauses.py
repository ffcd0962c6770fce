"""Policies of several limits that are paused and reset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import ConfigInvalidError, Verdict
from penstock.core._errors import UnsupportedError
from penstock.service._core import Service
from penstock.service._judging import Judgement
from tests.support.helpers import NOW

from .several import serving


@pytest.fixture
def service() -> Service:
    return serving()


def test_a_pause_holds_on_every_node_until_it_is_lifted(
    nodes: tuple[Service, Service, Any],
) -> None:
    """Of the limits that the attributes have keys for, or of those that are named."""
    one, other, run = nodes
    until = NOW * 2
    run(one.pause("one", until, key="k"))
    assert not run(other.check("one", "k"))
    run(other.reset("one", key="k"))
    assert run(one.check("one", "k"))
    run(one.pause("api", until, attributes={"user": "u"}))
    assert judge(other, run, user="u").violated == ("user",)
    assert judge(other, run, user="v")
    run(one.reset("api", attributes={"user": "u"}))
    assert judge(other, run, user="u")
    run(one.pause("api", until, attributes={"user": "u"}, limits=["posts"]))
    assert judge(other, run, user="u")
    assert judge(other, run, user="u", method="POST").violated == ("posts",)


def judge(service: Service, run: Any, **attributes: Any) -> Verdict:
    asked = service.judge("api", attributes)
    return (asked if isinstance(asked, Judgement) else run(asked())).verdict


def test_what_cannot_be_paused_or_reset_is_told(service: Service) -> None:
    async def fails(call: Any) -> str:
        with pytest.raises((ConfigInvalidError, UnsupportedError)) as caught:
            await call
        return str(caught.value)

    async def main() -> None:
        assert "has its key in these attributes (plan)" in await fails(
            service.reset("api", attributes={"plan": "pro"})
        )
        assert "there is no limit 'usr'" in await fails(
            service.reset("api", attributes={"user": "u"}, limits=["usr"])
        )
        assert "has a single limit" in await fails(service.reset("one", attributes={"user": "u"}))
        assert "key must" in await fails(service.reset("one"))
        assert "slots" in await fails(
            service.pause("key", NOW, attributes={"key": "k"}, limits=["flight"])
        )

    asyncio.run(main())
