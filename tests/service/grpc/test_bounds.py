"""What the server does not let grow without end: sizes, calls at work, waiting, and closing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any, TypeVar

import grpc
import pytest

from penstock import ConfigInvalidError
from penstock.core._transform import Transform
from penstock.service._ports import shares
from penstock.service.grpc import open_grpc
from penstock.service.http._pages import exposition
from penstock.stores.redis import RedisStore
from penstock.wire.proto import rate_limiter_pb2 as pb
from tests.servers import Valkey, require
from tests.service.grpc.frames import Deaf
from tests.service.grpc.servers import CALL, Visit, code_of, run, status, visiting
from tests.service.worlds import FragileStore

R = TypeVar("R")

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
LATE = grpc.StatusCode.DEADLINE_EXCEEDED


class SlowStore(FragileStore):
    """One that waits at a gate before it acts, and counts who came and who was let through. The
    service itself, which looks for lost slots four times a second, is let through and not counted:
    on a slow machine it would come before the calls that a test waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = 0
        self.decided: list[Any] = []

    async def aapply(self, key: str, transform: Transform[R], now: int, cost: int) -> R:
        if "slots" in key.split(":"):
            return await super().aapply(key, transform, now, cost)
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        result = await super().aapply(key, transform, now, cost)
        self.decided.append(result)
        return result


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_message_beyond_the_bound_is_refused() -> None:
    """Before it is read into memory; the connection goes on."""

    async def scenario() -> None:
        async with visiting() as visit:
            huge = b"\x0a" + b"\xff\xff\xff\x02" + b"a" * (6 * 1024 * 1024)
            assert await code_of(visit.raw("Check")(huge)) is EXHAUSTED
            assert (await visit.check()).remaining == 2

    run(scenario())


def test_metadata_beyond_the_bound_is_refused() -> None:
    """A megabyte of headers does not reach the service."""

    async def scenario() -> None:
        async with visiting() as visit:
            heavy = (("x-heavy", "a" * 1_000_000),)
            assert await code_of(visit.check(metadata=heavy)) is not grpc.StatusCode.OK
            assert (await visit.check()).remaining == 2

    run(scenario())


def test_calls_beyond_the_bound_are_shed_at_once() -> None:
    """Health probes are not; those at work are answered all the same, and then there is room."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store, server={"max_concurrent": 4}) as visit:
            held = [asyncio.ensure_future(visit.check(key=str(n))) for n in range(4)]
            await until(lambda: store.waiting == 4)
            shed = await asyncio.gather(*(code_of(visit.check()) for _ in range(20)))
            assert set(shed) == {EXHAUSTED}
            probe = visit.channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await code_of(probe(b"")) is grpc.StatusCode.OK
            store.gate.set()
            assert all(answer.allowed for answer in await asyncio.gather(*held))
            assert (await visit.check(key="later")).allowed

    run(scenario())


WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("path", [WATCH, REFLECTION])
def test_streams_that_stay_open_take_no_place_of_a_call(path: str) -> None:
    """A stranger may hold all of theirs; one more is refused, and calls are answered on."""

    async def scenario() -> None:
        bounds = {"max_concurrent": 2, "max_streams": 3}
        async with visiting(server=bounds) as visit:
            streams = [visit.channel.stream_stream(path)() for _ in range(3)]
            for stream in streams:
                await stream.write(b"")
                await stream.read()
            beyond = visit.channel.stream_stream(path)()
            assert await code_of(beyond.read()) is EXHAUSTED
            for _ in range(2):
                assert (await visit.check()).allowed
            assert visit.service.snapshot().grpc_shed == 1
            streams[0].cancel()
            await asyncio.wait_for(until(lambda: visit.server._pools[2].taken < 3), 5)

    run(scenario())


@pytest.mark.parametrize("path", [f"{CALL}CheckMany", "/grpc.health.v1.Health/Check"])
def test_who_takes_no_replies_keeps_his_places_and_then_loses_the_connection(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Replies that nobody reads are bounded in number, and in the time that they are kept."""

    async def scenario() -> None:
        bounds = {"max_concurrent": 20, "taking_s": 1.0}
        async with visiting(server=bounds) as visit:
            pool = visit.server._pools[0 if "CheckMany" in path else 1]
            deaf = await Deaf.connect(visit.server.port)
            many = pb.CheckManyRequest(policy="api", keys=[str(n) for n in range(100)])
            message = many.SerializeToString() if "CheckMany" in path else b""
            for _ in range(10):
                deaf.call(path, message)
            await until(lambda: len(pool.answering) == 10)
            assert pool.taken == 10
            assert (await visit.check()).allowed
            await asyncio.wait_for(deaf.closed(), 10)
            await asyncio.wait_for(until(lambda: pool.taken == 0), 5)
            assert not pool.answering
            assert (await visit.check()).allowed

    run(scenario())
    assert "take no replies" in caplog.text


def test_the_replies_of_one_connection_are_bounded_before_they_are_made() -> None:
    """However many calls it opens, so many are looked at."""

    async def scenario() -> None:
        async with visiting(server={"taking_s": 1.0}) as visit:
            deaf = await Deaf.connect(visit.server.port)
            request = pb.CheckRequest(policy="api", key="a").SerializeToString()
            for _ in range(600):
                deaf.call(f"{CALL}Check", request)
            await asyncio.wait_for(deaf.closed(), 10)
            counted = visit.service.snapshot().policies["api"]
            assert 0 < counted["allowed"] + counted["denied"] <= 256

    run(scenario())


def test_a_probe_whose_message_never_comes_is_ended() -> None:
    """Like any other call."""

    async def scenario() -> None:
        async with visiting(server={"arrival_s": 0.2}) as visit:
            for path in ("/grpc.health.v1.Health/Check", WATCH):
                silent = visit.channel.stream_stream(path)()
                assert await code_of(silent.read()) is LATE

    run(scenario())


def test_connections_beyond_the_bound_are_closed() -> None:
    """Those that are there are served on."""

    async def scenario() -> None:
        async with visiting(server={"max_connections": 3}) as visit:
            assert (await visit.check()).allowed
            lines = [await Deaf.connect(visit.server.port) for _ in range(6)]
            ends = [asyncio.ensure_future(line.closed()) for line in lines]
            await asyncio.wait_for(until(lambda: sum(end.done() for end in ends) == 4), 5)
            assert (await visit.check()).allowed
            for line in lines:
                line.close()
            await asyncio.gather(*ends)

    run(scenario())


@pytest.mark.parametrize(
    ("files", "wanted", "shared"),
    [
        (20_736, (16_384, 4_096), (16_384, 4_096)),
        (1_024, (16_384, 4_096), (614, 153)),
        (400, (16_384, 4_096), (160, 40)),
        (400, (16_384, 0), (200, 0)),
        (3, (16_384, 4_096), (1, 1)),
    ],
)
def test_the_servers_share_the_files_of_the_process(
    files: int, wanted: tuple[int, int], shared: tuple[int, int]
) -> None:
    """Neither can use up what the other, and the store, need."""
    assert shares(wanted, files) == shared


def test_replies_are_counted_by_their_status() -> None:
    """Those of calls, of refusals at the server, and of methods that are not there."""

    async def scenario() -> None:
        async with visiting(server={"token": "correct-horse-battery-staple"}) as visit:
            bearer = (("authorization", "Bearer correct-horse-battery-staple"),)
            await visit.check(metadata=bearer)
            await code_of(visit.check(policy="nope", metadata=bearer))
            await code_of(visit.check())
            await code_of(visit.raw("Nonesuch")(b""))
            counted = visit.service.snapshot()
            assert counted.grpc_codes == {
                "OK": 1,
                "NOT_FOUND": 1,
                "UNAUTHENTICATED": 1,
                "UNIMPLEMENTED": 1,
            }
            text = exposition(counted, {}, {})
            assert 'penstock_grpc_responses_total{code="NOT_FOUND"} 1' in text
            assert "penstock_grpc_shed_total 0" in text

    run(scenario())


def test_a_call_whose_deadline_has_passed_spends_nothing() -> None:
    """The event loop is busy until it has; then the call is looked at, and refused."""

    async def scenario() -> None:
        async with visiting() as visit:
            with grpc.insecure_channel(f"127.0.0.1:{visit.server.port}") as channel:
                check = channel.unary_unary(CALL + "Check")
                request = visit.pb.CheckRequest(policy="api", key="a").SerializeToString()
                await asyncio.to_thread(check, request)
                late = asyncio.ensure_future(asyncio.to_thread(check, request, timeout=0.1))
                await asyncio.sleep(0)
                time.sleep(0.3)
                with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
                    await late
                await asyncio.sleep(0.05)
            assert (await visit.check()).remaining == 1

    run(scenario())


def test_the_deadline_is_looked_at_before_anything_is_spent() -> None:
    """One that has passed on the way to us is refused, and so is one that passes in our queue."""

    async def scenario() -> None:
        async with visiting() as visit:
            request = pb.CheckRequest(policy="api", key="a").SerializeToString()
            client = await Deaf.connect(visit.server.port, deaf=False)
            client.call(f"{CALL}Check", request, ("grpc-timeout", "0m"))
            counted = visit.service.snapshot
            await until(lambda: counted().grpc_codes == {"DEADLINE_EXCEEDED": 1})
            client.call(f"{CALL}Check", request, ("grpc-timeout", "20S"))
            await until(lambda: counted().grpc_codes == {"DEADLINE_EXCEEDED": 1, "OK": 1})
            client.close()
            assert (await visit.service.peek("api", "a")).remaining == 2

    run(scenario())


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_who_no_longer_waits_for_the_store_frees_it(how: str) -> None:
    """A deadline and a cancellation both reach the coroutine that waits, and nothing is spent."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store) as visit:
            request = visit.pb.CheckRequest(policy="api", key="a")
            call = visit.stub.Check(request, timeout=0.1 if how == "deadline" else None)
            await until(lambda: store.waiting == 1)
            if how == "cancel":
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            else:
                assert (await status(call))[0] is LATE
            await asyncio.wait_for(until(lambda: store.waiting == 0), 5)
            assert store.decided == []

    run(scenario())


def test_a_call_keeps_its_place_for_as_long_as_the_store_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also when its deadline has passed: what is asked of a server that hangs is bounded, whatever
    the deadlines. And a drain lets the server answer, so that no outage is told where there was
    none."""
    require("valkey")

    async def scenario(valkey: Valkey) -> None:
        store = RedisStore.from_url(valkey.url, timeout_ms=20_000, use_server_time=False)
        async with visiting(store=store, server={"max_concurrent": 4}) as visit:
            assert (await visit.check()).remaining == 2
            valkey.pause()
            late = [code_of(visit.check(key=str(n), timeout=1)) for n in range(4)]
            assert set(await asyncio.gather(*late)) == {LATE}
            assert await code_of(visit.check(timeout=5)) is EXHAUSTED
            drain = asyncio.ensure_future(visit.server.drain(20))
            await visit.channel.close()
            await until(lambda: not visit.server.open_connections)
            await asyncio.sleep(0.05)
            assert not drain.done()
            valkey.resume()
            await drain
            assert visit.service.snapshot().policies["api"]["allowed"] == 5

    with Valkey() as valkey:
        run(scenario(valkey))
    assert not caplog.records


def test_a_drain_answers_what_was_admitted_and_takes_no_more() -> None:
    """Calls at work when it begins get their answers; later ones learn that it is closing."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store) as visit:
            held = [asyncio.ensure_future(visit.check(key=str(n))) for n in range(30)]
            await until(lambda: store.waiting == 30)
            drain = asyncio.ensure_future(visit.server.drain(20))
            # A call that is sent before the client has read GOAWAY is admitted, and waits as well.
            while (code := await code_of(visit.check(timeout=0.5))) is LATE:
                pass
            assert code is grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(0.3)
            assert (await status(visit.check()))[0] is grpc.StatusCode.UNAVAILABLE
            assert not drain.done()
            store.gate.set()
            assert all(answer.allowed for answer in await asyncio.gather(*held))
            await asyncio.wait_for(drain, 5)

    run(scenario())


def test_a_drain_under_load_leaves_no_admitted_call_unanswered() -> None:
    """As many as the service let in have heard of it, whenever the drain begins."""

    async def scenario() -> None:
        for pause in (0.02, 0.05, 0.1):
            async with visiting() as visit:
                heard: Counter[str] = Counter()

                async def knock(visit: Visit = visit, heard: Counter[str] = heard) -> None:
                    number = 0
                    while True:
                        number += 1
                        try:
                            answer = await visit.check(key=str(number % 50))
                        except grpc.aio.AioRpcError as error:
                            heard[error.code().name] += 1
                            return
                        heard["allowed" if answer.allowed else "denied"] += 1

                knocks = asyncio.gather(*(knock() for _ in range(16)))
                await until(lambda heard=heard: heard)
                await asyncio.sleep(pause)
                await visit.server.drain(10)
                await asyncio.wait_for(knocks, 10)
                counted = visit.service.snapshot().policies["api"]
                assert heard["allowed"] == counted["allowed"] > 0
                assert heard["denied"] == counted["denied"]
                assert heard["UNAVAILABLE"] == 16

    run(scenario())


def test_a_drain_ends_when_its_time_is_up() -> None:
    """A store that never answers does not keep the process alive."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store) as visit:
            stuck = asyncio.ensure_future(code_of(visit.check()))
            await until(lambda: store.waiting == 1)
            await asyncio.wait_for(visit.server.drain(0.2), 5)
            assert await stuck is not grpc.StatusCode.OK

    run(scenario())


def test_a_port_that_is_taken_is_refused_and_not_shared() -> None:
    """Unless sharing was asked for: then two servers stand side by side."""

    async def scenario() -> None:
        async with visiting() as visit:
            with pytest.raises(ConfigInvalidError, match="in use"):
                await open_grpc(visit.service, port=visit.server.port)
        async with visiting(server={"reuse_port": True}) as visit:
            beside = await open_grpc(visit.service, port=visit.server.port, reuse_port=True)
            assert beside.port == visit.server.port
            await beside.drain(0)

    run(scenario())


def test_calls_are_timed() -> None:
    """One observation per answered call, under the server's name."""

    async def scenario() -> None:
        async with visiting() as visit:
            for _ in range(3):
                await visit.check()
            assert visit.service.snapshot().latency["grpc"].count == 3

    run(scenario())
