"""Nodes that move slots, fail or wait: whom a check asks next, decided without a network."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core._flow import drive
from penstock.stores._sheet import ConnectionFailedError
from penstock.stores.redis._flows import RedisFlows
from penstock.stores.redis._requests import Address, Refusal
from penstock.stores.redis._routing import RedisRouter
from penstock.stores.redis._topology import Cluster, Sentinels, slot_of

from .scripted import CHECK, GRANTED, HERE, THERE, YES, Script, check, late, slots


def test_a_moved_slot_is_followed() -> None:
    """The request goes where the server points, and the table is read again before the next."""
    cluster = Cluster([HERE])
    script = Script([slots(HERE)], [Refusal(f"MOVED {slot_of('k')} there:2")], [YES])
    assert check(script, cluster) == GRANTED
    assert script.asked[-1] == (THERE, "EVALSHA")
    assert cluster.locate("k") is None


def test_nodes_that_point_at_each_other_are_given_time_to_agree() -> None:
    """Each of them says MOVED until the word has spread: not a reason to give up in a hurry."""
    slot = slot_of("k")
    there, here = [Refusal(f"MOVED {slot} there:2")], [Refusal(f"MOVED {slot} here:1")]
    script = Script([slots(HERE)], *[there, here] * 10, [YES])
    assert check(script, Cluster([HERE])) == GRANTED
    assert script.pauses == 18


def test_a_slot_that_is_moving_is_asked_for_at_its_new_place() -> None:
    """ASK is followed with ASKING, and the table stays."""
    cluster = Cluster([HERE])
    script = Script(
        [slots(HERE)],
        [Refusal(f"ASK {slot_of('k')} there:2")],
        [b"OK", Refusal("NOSCRIPT No matching script.")],
        [b"OK", YES],
    )
    assert check(script, cluster) == GRANTED
    assert script.asked[-2:] == [(THERE, "ASKING EVALSHA"), (THERE, "ASKING EVAL")]
    assert cluster.locate("k") == HERE


def test_a_node_without_a_name_is_at_the_host_that_was_asked() -> None:
    """Managed clusters leave the host empty."""
    cluster = Cluster([HERE])
    script = Script([[[0, 16_383, [b"", 7, b"id"]]]], [YES])
    check(script, cluster)
    assert script.asked[-1][0] == Address("here", 7)


def test_one_of_several_who_know_may_use_half_of_the_time() -> None:
    """A frozen node leaves time for the others; the last to be asked may use all of it."""
    shares: list[float] = []
    script = Script(late(), late(), [slots(THERE)], [YES])

    def serve(request: Any) -> Any:
        shares.append(request.share)
        return script.serve(request)

    flows = RedisFlows(
        RedisRouter(Cluster([Address(name, 1) for name in "abc"])), use_server_time=True
    )
    assert drive(flows.apply("k", CHECK, 0, 1), serve) == GRANTED
    assert shares == [0.5, 0.5, 1.0, 1.0]


def test_who_failed_is_asked_last() -> None:
    """By the calls after it, whether this one found somebody who knew or nobody at all."""
    a, b, c = (Address(name, 1) for name in "abc")
    sentinels = Sentinels([a, b, c], "service")
    named, master = [[b"there", b"2"]], [[b"master"]]
    script = Script(late(), named, master)
    drive(sentinels.find(), script.serve)
    assert [where for where, _ in script.asked] == [a, b, THERE]
    sentinels.lost(THERE)
    script = Script(late(), late(), late())
    with pytest.raises(ConnectionFailedError):
        drive(sentinels.find(), script.serve)
    assert [where for where, _ in script.asked] == [b, c, a]
    script = Script(named, master)
    drive(sentinels.find(), script.serve)
    assert script.asked[0][0] == c


def test_a_master_that_is_known_is_confirmed_by_one_answer_or_by_silence() -> None:
    """It need not say itself what the sentinels say of it; where they say nothing, some time is
    left to ask it."""
    a, b = (Address(name, 1) for name in "ab")
    sentinels = Sentinels([a, b], "service")
    named = [[b"there", b"2"]]
    drive(sentinels.find(), Script(named, [[b"master"]]).serve)
    script = Script(named)
    drive(sentinels.find(), script.serve)
    assert [where for where, _ in script.asked] == [a]
    shares: list[float] = []

    def silent(request: Any) -> Any:
        shares.append(request.share)
        raise late()

    drive(sentinels.find(), silent)
    assert shares == [0.5, 0.5]
    assert sentinels.locate("k") == THERE


def test_a_lost_node_takes_only_its_own_slots_with_it() -> None:
    """The keys of the other need no look-up, and the lost one is not asked for the table."""
    cluster = Cluster([HERE])
    drive(cluster.find(), Script([slots(HERE, THERE)]).serve)
    cluster.lost(HERE)
    assert (cluster.locate("b"), cluster.locate("a")) == (None, THERE)
    script = Script([slots(HERE, THERE)])
    drive(cluster.find(), script.serve)
    assert [where for where, _ in script.asked] == [THERE]
    assert cluster.locate("b") == HERE
