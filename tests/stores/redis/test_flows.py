"""What is repeated and what is not, decided without a network."""

from __future__ import annotations

import pytest

from penstock import ConfigInvalidError, StoreUnavailableError, gcra
from penstock.core._flow import drive
from penstock.core._transform import forecasting
from penstock.stores.redis._flows import RedisFlows
from penstock.stores.redis._requests import Refusal
from penstock.stores.redis._routing import RedisRouter
from penstock.stores.redis._topology import Fixed

from .scripted import CHECK, GRANTED, HERE, YES, Script, check, lost, refused


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


def test_an_instant_of_zero_is_refused() -> None:
    """On the wire it would mean the server's clock."""
    flows = RedisFlows(RedisRouter(Fixed(HERE)), use_server_time=False)
    with pytest.raises(ConfigInvalidError, match="0 means the server's clock"):
        flows.apply("k", CHECK, 0, 1)


@pytest.mark.parametrize("refusals", range(6))
def test_a_server_that_restarted_empty_is_sent_the_script_whatever_came_before(
    refusals: int,
) -> None:
    """Connections were refused until it was up again, up to the last attempt."""
    no_script = [Refusal("NOSCRIPT No matching script.")]
    script = Script(*[refused()] * refusals, no_script, [YES])
    assert check(script) == GRANTED
    assert [asked for _, asked in script.asked[-2:]] == ["EVALSHA", "EVAL"]
