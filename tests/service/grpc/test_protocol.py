"""The protocol around the calls: compression, other requests, floods of frames, and farewells."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import httpx

from penstock.service.grpc._standard import POOL
from penstock.service.http import HttpServer
from penstock.wire.proto import rate_limiter_pb2 as pb
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterAsyncStub
from tests.service.grpc.frames import Deaf, frame
from tests.service.grpc.servers import CALL, code_of, run, visiting
from tests.service.grpc.test_bounds import SlowStore, until

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0, 1, 4, 6, 7


async def frames_of(client: Deaf) -> list[tuple[int, bytes]]:
    """All that the server sends until it ends the connection; pings are not answered."""
    found = []
    try:
        while True:
            head = await client.reader.readexactly(9)
            payload = await client.reader.readexactly(int.from_bytes(head[:3], "big"))
            found.append((head[3], payload))
    except (asyncio.IncompleteReadError, ConnectionError):
        client.close()
    return found


def test_compressed_messages_are_understood_and_long_replies_compressed() -> None:
    """For clients that compress; a compression that is not known is told from those that are."""

    async def scenario() -> None:
        async with visiting() as visit:
            keys = [f"key {number:04}" for number in range(200)]
            request = pb.CheckManyRequest(policy="api", keys=keys)
            many = await visit.stub.CheckMany(request, compression=grpc.Compression.Gzip)
            assert len(many.decisions) == 200
            assert all(decision.remaining == 2 for decision in many.decisions)
            one = await visit.check(key="one", compression=grpc.Compression.Gzip)
            assert one.remaining == 2
            unknown = visit.check(key="one", compression=grpc.Compression.Deflate)
            assert await code_of(unknown) is grpc.StatusCode.UNIMPLEMENTED
            assert (await visit.check(key="one")).remaining == 1

    run(scenario())


def test_what_is_no_call_is_told_so() -> None:
    """A browser, or a client of the HTTP API that has the wrong port."""

    async def scenario() -> None:
        async with visiting() as visit:
            base = f"http://127.0.0.1:{visit.server.port}"
            speaks = {"http1": False, "http2": True}
            async with httpx.AsyncClient(**speaks, base_url=base, timeout=30) as client:
                for path in ("/", f"{CALL}Check"):
                    reply = await client.post(path, json={})
                    assert (reply.status_code, reply.text[:21]) == (415, "this port speaks gRPC")
            assert (await visit.check()).remaining == 2

    run(scenario())


def test_reflection_is_there_in_its_new_version_too() -> None:
    """Services, files by name and by symbol, and what is not there."""

    async def scenario() -> None:
        async with visiting() as visit:
            name = "grpc.reflection.v1.ServerReflection"
            request, response = (_message(f"{name}{part}") for part in ("Request", "Response"))
            questions = [
                request(list_services=""),
                request(file_by_filename="throttlekit/v1/rate_limiter.proto"),
                request(file_containing_symbol="grpc.health.v1.Health.Check"),
                request(file_containing_symbol="nope"),
                request(all_extension_numbers_of_type="throttlekit.v1.Decision"),
            ]
            call = visit.channel.stream_stream(
                f"/{name}/ServerReflectionInfo", request.SerializeToString, response.FromString
            )
            answers = [answer async for answer in call(iter(questions))]
            services = {each.name for each in answers[0].list_services_response.service}
            assert {"throttlekit.v1.RateLimiter", "throttlekit.v1.Charges", name} <= services
            assert answers[1].file_descriptor_response.file_descriptor_proto
            assert answers[2].file_descriptor_response.file_descriptor_proto
            assert answers[3].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
            numbers = answers[4].all_extension_numbers_response
            assert numbers.base_type_name == "throttlekit.v1.Decision"
            assert [answer.original_request for answer in answers] == questions

    run(scenario())


def _message(name: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(POOL.FindMessageTypeByName(name))


def test_a_client_that_pings_without_end_is_told_to_calm_down() -> None:
    """In the words that libraries of gRPC know; others are served on."""

    async def scenario() -> None:
        async with visiting() as visit:
            client = await Deaf.connect(visit.server.port, deaf=False)
            client.writer.write(frame(_PING, 0, 0, b"12345678") * 1_500)
            found = await asyncio.wait_for(frames_of(client), 20)
            kind, payload = found[-1]
            assert (kind, payload[8:]) == (_GOAWAY, b"too_many_pings")
            assert (await visit.check()).allowed

    run(scenario())


def test_a_drain_says_goodbye_and_answers_what_is_at_work() -> None:
    """First that there is no next request, then which was the last one; in between its answer."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store) as visit:
            client = await Deaf.connect(visit.server.port, deaf=False)
            client.call(f"{CALL}Check", pb.CheckRequest(policy="api", key="a").SerializeToString())
            await until(lambda: store.waiting == 1)
            reading = asyncio.ensure_future(frames_of(client))
            drain = asyncio.ensure_future(visit.server.drain(20))
            await asyncio.sleep(0.05)
            store.gate.set()
            found = await asyncio.wait_for(reading, 20)
            await drain
            farewells = [payload for kind, payload in found if kind == _GOAWAY]
            assert farewells == [b"\x7f\xff\xff\xff\0\0\0\0", b"\0\0\0\1\0\0\0\0"]
            assert [kind for kind, _ in found].count(_DATA) == 1

    run(scenario())


def test_a_call_that_crosses_the_farewell_is_answered() -> None:
    """Its client could not know, and no library would repeat it."""

    async def scenario() -> None:
        async with visiting() as visit:
            client = await Deaf.connect(visit.server.port, deaf=False)
            await until(lambda: visit.server.open_connections == 1)
            drain = asyncio.ensure_future(visit.server.drain(20))
            client.call(f"{CALL}Check", pb.CheckRequest(policy="api", key="a").SerializeToString())
            found = await asyncio.wait_for(frames_of(client), 20)
            await drain
            kinds = [kind for kind, _ in found]
            assert kinds.index(_GOAWAY) < kinds.index(_DATA)
            assert visit.service.snapshot().policies["api"]["allowed"] == 1

    run(scenario())


def test_what_is_too_large_is_told_not_to_be_repeated() -> None:
    """As a status of gRPC, also where the type of the content is beyond what was read."""

    async def scenario() -> None:
        async with visiting() as visit:
            base = f"http://127.0.0.1:{visit.server.port}"
            speaks = {"http1": False, "http2": True}
            call = {"te": "trailers", "content-type": "application/grpc"}
            async with httpx.AsyncClient(**speaks, base_url=base, timeout=30) as client:
                for headers, body in (
                    ({"a": "v" * 20_000, **call}, bytes(5)),
                    (call, b"\0\x7f\0\0\0"),
                    ({**call, "content-length": str(2**30)}, bytes(5)),
                ):
                    reply = await client.post(f"{CALL}Check", headers=headers, content=body)
                    assert reply.status_code == 200
                    assert reply.headers["grpc-status"] == "8"
                    assert reply.headers["grpc-retry-pushback-ms"] == "-1"
            assert (await visit.check()).remaining == 2

    run(scenario())


def test_a_connection_that_is_cut_cancels_its_calls() -> None:
    """Nothing is spent for those whom no answer reaches."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store) as visit:
            client = await Deaf.connect(visit.server.port, deaf=False)
            request = pb.CheckRequest(policy="api", key="a").SerializeToString()
            for _ in range(5):
                client.call(f"{CALL}Check", request)
            await until(lambda: store.waiting == 5)
            client.writer.transport.abort()
            await asyncio.wait_for(until(lambda: store.waiting == 0), 10)
            assert store.decided == []
            assert visit.server._pools[0].taken == 0

    run(scenario())


def test_a_flood_of_messages_on_one_stream_waits_at_the_client() -> None:
    """The server takes the next ones when it has answered those before; calls go on meanwhile."""

    async def scenario() -> None:
        async with visiting() as visit:
            name = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            answered = 0
            stream = visit.channel.stream_stream(name)(iter([b"\x3a\0"] * 3_000))
            async for _ in stream:
                answered += 1
                if answered % 500 == 0:
                    assert (await visit.check(key=str(answered))).allowed
            assert answered == 3_000
            large = visit.channel.stream_stream(name)(iter([b"\x3a\xff\x7f" + b"a" * 20_000]))
            assert await code_of(large.read()) is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(scenario())


def test_a_drain_waits_for_calls_of_the_other_port() -> None:
    """Those that came in beside HTTP are at work here, too."""

    async def scenario() -> None:
        store = SlowStore()
        async with visiting(store=store) as visit:
            http = HttpServer(visit.service, grpc=visit.server.calls)
            port = await http.start("127.0.0.1", 0)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                request = pb.CheckRequest(policy="api", key="a")
                call = asyncio.ensure_future(RateLimiterAsyncStub(channel).Check(request))
                await until(lambda: store.waiting == 1)
                drain = asyncio.ensure_future(visit.server.drain(20))
                await asyncio.sleep(0.1)
                store.gate.set()
                assert (await call).decision.allowed
                await drain
            await http.stop()

    run(scenario())
