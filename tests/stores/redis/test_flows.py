"""What is repeated and what is not, decided without a network."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ConfigInvalidError, Decision, StoreUnavailableError, gcra
from penstock.core._flow import drive
from penstock.core._transform import checking, forecasting
from penstock.stores._sheet import ConnectionFailedError
from penstock.stores.record import pack
from penstock.stores.redis._flows import MAX_KEYS, MAX_WATCHED_KEYS, RedisFlows
from penstock.stores.redis._requests import Address, CloseIdle, Delay, Exchange, Parallel, Refusal
from penstock.stores.redis._routing import RedisRouter
from penstock.stores.redis._topology import Cluster, Fixed, Sentinels, Topology, slot_of
from tests.support.helpers import NOW, Quota

HERE, THERE = Address("here", 1), Address("there", 2)
YES = [1, 10, 9, 1_000, 0]
GRANTED = Decision(True, 10, 9, 1_000, 0)
DENIED = Decision(False, 10, 0, 1_000, 7)
CHECK = checking(gcra(10, 1_000))
QUOTA = checking(Quota(2))
SERVER_TIME = [b"%d" % (NOW // 1_000), b"0"]


class Script:
    """A server that answers by a list, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Address | None, str]] = []
        self.exchanges: list[Exchange] = []
        self.pauses = 0
        self.paused_ms: list[float] = []
        self.discarded: list[Address] = []

    def serve(self, request: Any) -> Any:
        if isinstance(request, Delay):
            self.pauses += 1
            self.paused_ms.append(request.ms)
            return None
        if isinstance(request, CloseIdle):
            self.discarded.append(request.where)
            return None
        if isinstance(request, Parallel):
            return [self._settled(exchange) for exchange in request.exchanges]
        return self._answer(request)

    def _settled(self, exchange: Exchange) -> Any:
        try:
            return self._answer(exchange)
        except ConnectionFailedError as error:
            return error

    def _answer(self, exchange: Exchange) -> Any:
        self.exchanges.append(exchange)
        self.asked.append(
            (exchange.where, " ".join(command[0].decode() for command in exchange.commands))
        )
        answer = self.answers.pop(0)
        if isinstance(answer, ConnectionFailedError):
            raise answer
        return answer


def check(script: Script, topology: Topology | None = None) -> Any:
    flows = RedisFlows(RedisRouter(topology or Fixed(HERE)), use_server_time=True)
    return drive(flows.apply("k", CHECK, 0, 1), script.serve)


def check_many(script: Script, keys: list[str], topology: Topology | None = None) -> Any:
    flows = RedisFlows(RedisRouter(topology or Fixed(HERE)), use_server_time=True)
    return drive(flows.apply_many(keys, CHECK, 0, 1), script.serve)


def slots(*owners: Address) -> list[Any]:
    """A CLUSTER SLOTS reply that shares the slots out evenly."""
    size = 16_384 // len(owners)
    edges = [size * place for place in range(len(owners))] + [16_384]
    return [
        [edges[place], edges[place + 1] - 1, [owner.host.encode(), owner.port, b"id"]]
        for place, owner in enumerate(owners)
    ]


def lost() -> ConnectionFailedError:
    return ConnectionFailedError("lost", may_have_run=True, again=True)


def refused() -> ConnectionFailedError:
    return ConnectionFailedError("refused", may_have_run=False, again=True)


def test_a_check_is_one_request() -> None:
    """EVALSHA, and nothing else."""
    script = Script([YES])
    assert check(script) == GRANTED
    assert script.asked == [(HERE, "EVALSHA")]


def test_a_script_that_the_server_lacks_is_sent_as_text() -> None:
    """NOSCRIPT is answered with EVAL, once."""
    script = Script([Refusal("NOSCRIPT No matching script.")], [YES])
    assert check(script) == GRANTED
    assert script.asked == [(HERE, "EVALSHA"), (HERE, "EVAL")]


def test_a_lost_reply_is_never_asked_for_again() -> None:
    """The server may have counted the request."""
    script = Script(lost())
    with pytest.raises(StoreUnavailableError, match="may have been charged"):
        check(script)
    assert len(script.asked) == 1


def test_a_lost_reply_to_a_question_that_consumes_nothing_is_asked_for_again() -> None:
    """A forecast can be repeated at no cost."""
    flows = RedisFlows(RedisRouter(Fixed(HERE)), use_server_time=True)
    transform = forecasting(gcra(10, 1_000))
    script = Script(lost(), [None, [b"1700000000", b"0"]])
    assert drive(flows.apply("k", transform, 0, 1), script.serve).spendable_now == 10


def test_a_refused_connection_is_tried_again_a_few_times() -> None:
    """Nothing was sent, so nothing can have been counted."""
    script = Script(refused(), refused(), [YES])
    assert check(script) == GRANTED
    assert script.pauses == 2


def test_a_server_that_stays_away_is_given_up_on() -> None:
    """With a typed error that says the request was not charged."""
    script = Script(*[refused()] * 20)
    with pytest.raises(StoreUnavailableError, match="was not charged"):
        check(script)
    assert len(script.asked) < 10


@pytest.mark.parametrize("code", ["LOADING", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "READONLY"])
def test_a_passing_refusal_is_waited_out(code: str) -> None:
    """The server said that it did not run the request, and that this may change."""
    script = Script([Refusal(f"{code} wait")], [YES])
    assert check(script) == GRANTED
    assert script.pauses == 1


def test_a_passing_refusal_is_waited_out_as_long_as_the_deadline_allows() -> None:
    """Not only for a few attempts: a large data set takes its time to load."""
    script = Script(*[[Refusal("LOADING wait")]] * 50, [YES])
    assert check(script) == GRANTED
    assert script.pauses == 50


def test_a_login_that_is_missing_is_not_waited_for() -> None:
    """Time does not cure it."""
    with pytest.raises(StoreUnavailableError, match="NOAUTH"):
        check(Script(*[[Refusal("NOAUTH Authentication required.")]] * 20))


def test_a_demoted_master_is_dropped() -> None:
    """After READONLY the connections to that server are of no use."""
    script = Script([Refusal("READONLY You can't write against a read only replica.")], [YES])
    check(script)
    assert script.discarded == [HERE]


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "OOM command not allowed when used memory > 'maxmemory'. script: f, on @user_script:9.",
        "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: "
        "-OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "ERR DB capacity quota exceeded",
    ],
)
def test_a_server_without_room_is_told_at_once_and_apart(text: str) -> None:
    """It does not go away in milliseconds, and somebody has to make room."""
    with pytest.raises(StoreUnavailableError, match="not charged") as caught:
        check(Script([Refusal(text)]))
    assert caught.value.reason == "full"


def test_a_refusal_that_does_not_pass_is_reported_at_once() -> None:
    """Whatever it is about."""
    with pytest.raises(StoreUnavailableError, match="not charged") as caught:
        check(Script([Refusal("MISCONF Redis is configured to save RDB snapshots")]))
    assert caught.value.reason == "away"


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "WRONGTYPE Operation against a key holding the wrong kind of value script: f, on @x:1.",
        "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: "
        "-WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR user_script:9: attempt to compare nil with number script: f, on @user_script:9.",
        "ERR WRONGTYPE not the state of a gcra script: 2f04411f, on @user_script:9.",
        "WRONGTYPE not the state of a gcra script: on @user_script:9.",
        "ERR Error running script (call to f_1): @user_script:9: WRONGTYPE not the state of a gcra",
    ],
)
def test_a_key_of_somebody_else_is_a_mistake_of_the_caller(text: str) -> None:
    """And the message says to give each limiter a prefix."""
    with pytest.raises(ConfigInvalidError, match="prefix") as caught:
        check(Script([Refusal(text)]))
    if "not the state" in text:
        assert "(WRONGTYPE not the state of a gcra)" in str(caught.value)


def test_a_cluster_node_behind_a_plain_client_is_a_mistake_of_the_caller() -> None:
    """MOVED means nothing to a store that was told of one server."""
    with pytest.raises(ConfigInvalidError, match=r"redis\+cluster://"):
        check(Script([Refusal("MOVED 1 there:2")]))


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


def late() -> ConnectionFailedError:
    return ConnectionFailedError("late", may_have_run=True)


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
    script = Script(late(), late(), late())
    with pytest.raises(ConnectionFailedError):
        drive(sentinels.find(), script.serve)
    assert [where for where, _ in script.asked] == [b, c, a]
    script = Script(named, master)
    drive(sentinels.find(), script.serve)
    assert script.asked[0][0] == c


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


def test_an_instant_of_zero_is_refused() -> None:
    """On the wire it would mean the server's clock."""
    flows = RedisFlows(RedisRouter(Fixed(HERE)), use_server_time=False)
    with pytest.raises(ConfigInvalidError, match="0 means the server's clock"):
        flows.apply("k", CHECK, 0, 1)


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
