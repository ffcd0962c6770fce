"""Many keys at once: what is repeated and what is not, decided without a network."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ConfigInvalidError, Decision, StoreUnavailableError
from penstock.core._flow import drive
from penstock.core._transform import checking
from penstock.stores._sheet import ConnectionFailedError
from penstock.stores.record import pack
from penstock.stores.redis._flows import MAX_KEYS, MAX_WATCHED_KEYS, RedisFlows
from penstock.stores.redis._requests import Delay, Refusal
from penstock.stores.redis._routing import RedisRouter
from penstock.stores.redis._topology import Cluster, Fixed, Topology, slot_of
from tests.support.helpers import NOW, Quota

from .scripted import CHECK, GRANTED, HERE, THERE, YES, Script, lost, refused, slots

DENIED = Decision(False, 10, 0, 1_000, 7)
QUOTA = checking(Quota(2))
SERVER_TIME = [b"%d" % (NOW // 1_000), b"0"]


def check_many(script: Script, keys: list[str], topology: Topology | None = None) -> Any:
    flows = RedisFlows(RedisRouter(topology or Fixed(HERE)), use_server_time=True)
    return drive(flows.apply_many(keys, CHECK, 0, 1), script.serve)


def test_many_keys_are_one_script() -> None:
    """On one server, however often a key is repeated."""
    script = Script([[10, 2, 9, 1_000, 0, 1, 0, 1_000, 7]])
    assert check_many(script, ["a", "b", "a"]) == [GRANTED, GRANTED, DENIED]
    assert script.asked == [(HERE, "EVALSHA")]


def test_a_script_for_many_that_the_server_lacks_is_sent_as_text() -> None:
    """NOSCRIPT is answered with EVAL, once."""
    script = Script([Refusal("NOSCRIPT No matching script.")], [[10, 2, 9, 1_000, 0]])
    assert check_many(script, ["a", "b"]) == [GRANTED] * 2
    assert script.asked == [(HERE, "EVALSHA"), (HERE, "EVAL")]


def test_a_lost_reply_about_many_is_never_asked_for_again() -> None:
    """The server may have counted them all."""
    script = Script(lost())
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        check_many(script, ["a", "b"])
    assert len(script.asked) == 1


def test_more_keys_than_fit_are_several_scripts() -> None:
    """One after the other, so that nobody else waits for all of them, at the instant of the
    server before the first."""
    sizes = (MAX_KEYS, MAX_KEYS, 1)
    script = Script([SERVER_TIME], *([[10, size, 9, 1_000, 0]] for size in sizes[:2]), [YES])
    keys = [str(number) for number in range(sum(sizes))]
    assert check_many(script, keys) == [GRANTED] * len(keys)
    assert script.asked == [(HERE, "TIME"), *[(HERE, "EVALSHA")] * 3]
    assert {
        exchange.commands[0][3 + size]
        for exchange, size in zip(script.exchanges[1:], sizes, strict=True)
    } == {b"%d" % NOW}


def test_an_outage_between_two_scripts_says_that_the_first_has_run() -> None:
    """The keys of the second were not charged, and those of the first were."""
    keys = [str(number) for number in range(MAX_KEYS + 2)]
    script = Script([SERVER_TIME], [[10, MAX_KEYS, 9, 1_000, 0]], *[refused()] * 20)
    with pytest.raises(StoreUnavailableError, match="other keys of this call may") as caught:
        check_many(script, keys)
    assert "the request was not charged" not in str(caught.value)


def test_a_key_of_somebody_else_among_many_says_that_others_may_be_charged() -> None:
    """The script has written the keys before it; of a single key there are no others."""
    wrong = [Refusal("WRONGTYPE Operation against a key holding the wrong kind of value")]
    with pytest.raises(ConfigInvalidError, match=r"prefix.*other keys of this call may"):
        check_many(Script(wrong), ["a", "b"])
    with pytest.raises(ConfigInvalidError) as caught:
        check_many(Script(wrong), ["a"])
    assert "other keys" not in str(caught.value)


def test_many_keys_of_which_none_was_sent_were_not_charged() -> None:
    """Two nodes, neither of which can be reached."""
    script = Script(
        [slots(HERE, THERE)], *[refused()] * 2, *[[slots(HERE, THERE)], *[refused()] * 2] * 9
    )
    with pytest.raises(StoreUnavailableError, match="the request was not charged") as caught:
        check_many(script, ["b", "a"], Cluster([HERE]))
    assert "other keys" not in str(caught.value)


def test_many_keys_are_one_pipeline_per_node() -> None:
    """With one script per slot, since a cluster allows no more."""
    pair = [10, 2, 9, 1_000, 0]
    script = Script([slots(HERE, THERE)], [pair, YES], [YES, YES])
    keys = ["{a}1", "b", "{a}2", "foo", "bar"]
    assert [slot_of(key) // 8_192 for key in keys] == [1, 0, 1, 1, 0]
    assert check_many(script, keys, Cluster([HERE])) == [GRANTED] * 5
    assert sorted(script.asked[1:]) == [(HERE, "EVALSHA EVALSHA"), (THERE, "EVALSHA EVALSHA")]


def test_only_what_did_not_run_is_sent_again() -> None:
    """One node knows the script, the other does not: the first is asked once."""
    script = Script([slots(HERE, THERE)], [YES], [Refusal("NOSCRIPT No matching script.")], [YES])
    assert check_many(script, ["b", "a"], Cluster([HERE])) == [GRANTED] * 2
    assert script.asked[1:] == [(HERE, "EVALSHA"), (THERE, "EVALSHA"), (THERE, "EVAL")]


def test_a_lost_share_of_many_is_never_asked_for_again() -> None:
    """And the message says that other keys may have been charged."""
    script = Script([slots(HERE, THERE)], [YES], lost())
    with pytest.raises(StoreUnavailableError, match="other keys of this call"):
        check_many(script, ["b", "a"], Cluster([HERE]))
    assert len(script.asked) == 3


def test_no_keys_are_no_requests() -> None:
    """An empty batch asks nobody."""
    script = Script()
    assert check_many(script, []) == []


def transact(script: Script, keys: list[str], topology: Topology | None = None) -> list[bool]:
    flows = RedisFlows(RedisRouter(topology or Fixed(HERE)), use_server_time=True)
    decisions = drive(flows.apply_many(keys, QUOTA, 0, 1), script.serve)
    return [decision.allowed for decision in decisions]


def looked(*held: Any) -> list[Any]:
    """The replies to UNWATCH, WATCH, a GET per key and TIME."""
    return [b"OK", b"OK", *held, SERVER_TIME]


def committed(count: int) -> list[Any]:
    return [b"OK", *[b"QUEUED"] * count, [b"OK"] * count]


def test_many_keys_without_lua_are_one_transaction() -> None:
    """Read together and written together; a repeated key counts on what it has left."""
    script = Script(looked(None, None), committed(2))
    assert transact(script, ["a", "b", "a", "a"]) == [True, True, True, False]
    assert script.asked == [(HERE, "UNWATCH WATCH GET GET TIME"), (None, "MULTI SET SET EXEC")]


def test_many_keys_without_lua_are_chunks_at_one_instant() -> None:
    """A transaction holds so many; the others follow, decided at the instant of the first."""
    keys = [str(number) for number in range(MAX_WATCHED_KEYS + 1)]
    late = [b"OK", b"OK", None, [b"%d" % (NOW // 1_000 + 5), b"0"]]
    first = [None] * MAX_WATCHED_KEYS
    script = Script(looked(*first), committed(MAX_WATCHED_KEYS), late, committed(1))
    assert all(transact(script, keys))
    sets = [
        command
        for exchange in script.exchanges
        for command in exchange.commands
        if command[0] == b"SET"
    ]
    assert len({command[2] for command in sets}) == 1


def test_a_race_is_run_again_on_what_the_winner_wrote() -> None:
    """The whole batch is: an EXEC that failed wrote none of it."""
    full = pack("Quota", 2, NOW + 60_000)
    script = Script(looked(None, None), [b"OK", b"QUEUED", b"QUEUED", None], looked(full, None))
    script.answers.append(committed(1))
    assert transact(script, ["a", "b"]) == [False, True]
    assert script.pauses == 1


def test_races_that_never_end_are_given_up_on() -> None:
    """After a bounded number of pauses, random and none of them long, with nothing charged."""
    lost_race = [looked(None), [b"OK", b"QUEUED", None]]
    script = Script(*lost_race * 300)
    with pytest.raises(StoreUnavailableError, match="the request was not charged"):
        transact(script, ["a"])
    assert 100 < script.pauses <= 256
    assert len(set(script.paused_ms)) > 100
    assert max(script.paused_ms) <= 32


def test_races_end_with_the_time() -> None:
    """A pause for which there is no time is the end of the call."""
    script = Script(looked(None), [b"OK", b"QUEUED", None])

    def serve(request: Any) -> Any:
        if isinstance(request, Delay):
            raise ConnectionFailedError("out of time", may_have_run=False)
        return script.serve(request)

    flows = RedisFlows(RedisRouter(Fixed(HERE)), use_server_time=True)
    with pytest.raises(StoreUnavailableError, match="was changed by others"):
        drive(flows.apply("a", QUOTA, 0, 1), serve)


@pytest.mark.parametrize(
    ("met", "kind"),
    [
        ([looked(b"not ours")], ConfigInvalidError),
        ([looked(None), lost()], StoreUnavailableError),
        ([looked(None), [b"OK", b"QUEUED", Refusal("OOM full")]], StoreUnavailableError),
        ([[Refusal("OOM full")] * 4], StoreUnavailableError),
    ],
)
def test_a_transaction_that_fails_after_another_says_so(met: list[Any], kind: Any) -> None:
    """In a cluster each slot has its own, and the first was written."""
    script = Script([slots(HERE)], looked(None), committed(1), *met)
    with pytest.raises(kind, match="other keys of this call may have been charged") as caught:
        transact(script, ["a", "b"], Cluster([HERE]))
    assert "the request was not charged" not in str(caught.value)
    assert "nothing was charged" not in str(caught.value)
