"""Fleet.Reserve: what it hands out, to whom, and what it answers in trouble."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from penstock import ConfigInvalidError, ManualClock, MemoryStore
from penstock.service.grpc._server import _is_local
from penstock.wire.proto import fleet_pb2 as pb
from penstock.wire.proto.fleet_pb2_grpc import FleetStub
from penstock.wire.proto.rate_limiter_pb2 import CheckRequest
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub
from tests.leasing.server import START, InProcessServer, opened
from tests.service.worlds import AWAY, FragileStore

SECRET = "a-secret-of-the-fleet"
MINUTE = 60_000


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with opened() as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    """Each test in a window of its own."""
    if "server" in request.fixturenames:
        running = request.getfixturevalue("server")
        running.clock.set(running.clock.now() // MINUTE * MINUTE + 2 * MINUTE)


def reserve(
    server: InProcessServer, policy: str = "api", domain: str = "", **fields: Any
) -> pb.Lease:
    metadata = fields.pop("metadata", None)
    caller = pb.Caller(domain=domain, client_id="test")
    request = pb.ReserveRequest(policy=policy, caller=caller, **fields)
    with grpc.insecure_channel(server.target) as channel:
        return FleetStub(channel).Reserve(request, timeout=10, metadata=metadata).lease


def status(server: InProcessServer, **fields: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as failed:
        reserve(server, **fields)
    code: grpc.StatusCode = failed.value.code()  # type: ignore[attr-defined]
    return code


def test_a_lease_says_how_much_and_for_how_long(server: InProcessServer) -> None:
    """The absolute end of the window, and how long that is from the service's now."""
    start = server.clock.now()
    server.clock.advance(10_000)
    lease = reserve(server, wants=20)
    assert lease == pb.Lease(
        capacity=20, expiry_ms=start + MINUTE, refresh_interval_ms=50_000, limit=100
    )


def test_no_more_than_the_batch_is_handed_out_and_what_is_left_is(server: InProcessServer) -> None:
    """A refusal says when it is worth asking again."""
    assert [reserve(server, wants=80).capacity for _ in range(2)] == [50, 50]
    refused = reserve(server, wants=1)
    assert (refused.capacity, refused.retry_after_ms, refused.limit) == (0, MINUTE, 100)
    assert reserve(server, "short", wants=9).capacity == 9
    for wanted in (9, 9, 9, 9):
        last = reserve(server, "short", wants=wanted)
    assert last.capacity == 4


def test_wanting_nothing_means_one_and_no_domain_the_policys_own(server: InProcessServer) -> None:
    """Zero was left out."""
    assert reserve(server).capacity == 1
    assert reserve(server, domain="api", wants=50).capacity == 50
    assert reserve(server, wants=50).capacity == 49
    assert reserve(server, domain="other", wants=50).capacity == 50


def test_leases_and_checks_share_one_budget(server: InProcessServer) -> None:
    """What is handed out is gone for those who check the same key."""
    assert reserve(server, domain="shared", wants=50).capacity == 50
    with grpc.insecure_channel(server.target) as channel:
        request = CheckRequest(policy="api", key="shared", cost=51)
        assert not RateLimiterStub(channel).Check(request).decision.allowed
        request.cost = 50
        assert RateLimiterStub(channel).Check(request).decision.allowed


def test_credits_of_a_sliding_window_last_for_its_length(server: InProcessServer) -> None:
    """They are counted for as long."""
    reserve(server, "sliding", wants=1)
    server.clock.advance(59_999)
    lease = reserve(server, "sliding", wants=5)
    assert lease.refresh_interval_ms == MINUTE
    assert lease.expiry_ms == server.clock.now() + MINUTE


def test_a_token_budget_is_leased_as_a_debit(server: InProcessServer) -> None:
    """On its own axis; the lease that crosses the budget is granted in full."""
    taken = [reserve(server, "tokens", wants=180, axis=3).capacity for _ in range(7)]
    assert taken == [180] * 6 + [0]
    assert status(server, policy="tokens", axis=1) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"policy": "nowhere"}, grpc.StatusCode.NOT_FOUND),
        ({"policy": "plain"}, grpc.StatusCode.UNIMPLEMENTED),
        ({"axis": pb.AXIS_CONCURRENCY}, grpc.StatusCode.UNIMPLEMENTED),
        ({"axis": pb.AXIS_TOKEN_BUDGET}, grpc.StatusCode.UNIMPLEMENTED),
        ({"axis": 77}, grpc.StatusCode.UNIMPLEMENTED),
        ({"wants": -1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"has": -1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"used": -1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"domain": "x" * 5_000}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_be_leased_is_refused(
    server: InProcessServer, fields: dict[str, Any], code: grpc.StatusCode
) -> None:
    """By the statuses of the other calls."""
    assert status(server, **fields) is code


@pytest.mark.parametrize(
    ("metadata", "good"),
    [
        (None, False),
        ([("x-fleet-secret", SECRET)], True),
        ([("authorization", f"Bearer {SECRET}")], True),
        ([("authorization", f"bearer {SECRET}")], True),
        ([("x-fleet-secret", SECRET + "x")], False),
        ([("x-fleet-secret", "")], False),
        ([("authorization", SECRET)], False),
        ([("authorization", f"Basic {SECRET}")], False),
        ([("authorization", "Bearer wrong"), ("x-fleet-secret", SECRET)], True),
    ],
)
def test_with_a_secret_those_are_served_who_present_it(metadata: Any, good: bool) -> None:
    """Also on this machine: a secret that is set is asked for."""
    with opened(fleet_secret=SECRET) as server:
        if good:
            assert reserve(server, wants=3, metadata=metadata).capacity == 3
        else:
            assert status(server, metadata=metadata) is grpc.StatusCode.UNAUTHENTICATED
            assert reserve(server, metadata=[("x-fleet-secret", SECRET)], wants=50).capacity == 50


def test_the_servers_token_is_a_secret_too() -> None:
    """Without one of the fleet's own; with both, each is presented."""
    bearer = ("authorization", "Bearer the-token-of-the-server")
    with opened(token="the-token-of-the-server") as server:
        assert status(server) is grpc.StatusCode.UNAUTHENTICATED
        assert reserve(server, metadata=[bearer]).capacity == 1
    with opened(token="the-token-of-the-server", fleet_secret=SECRET) as server:
        assert status(server, metadata=[bearer]) is grpc.StatusCode.UNAUTHENTICATED
        assert reserve(server, metadata=[bearer, ("x-fleet-secret", SECRET)]).capacity == 1


def test_an_empty_secret_is_refused() -> None:
    """It would let in everybody."""
    with pytest.raises(ConfigInvalidError, match="secret"), opened(fleet_secret=" "):
        pass


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_a_peer_is_told_from_one_elsewhere(host: str, local: bool) -> None:
    """As the system writes addresses."""
    assert _is_local(host) is local


def test_without_a_secret_a_caller_from_the_network_is_refused() -> None:
    """Over this machine's other address, where it has one."""
    try:
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        probe.connect(("192.0.2.1", 9))
        address = probe.getsockname()[0]
        probe.close()
    except OSError:
        pytest.skip("this machine has no other address")
    if address.startswith("127."):
        pytest.skip("this machine has no other address")
    with opened(host="0.0.0.0") as server:
        assert reserve(server).capacity == 1
        with grpc.insecure_channel(f"{address}:{server.port}") as channel:
            with pytest.raises(grpc.RpcError) as failed:
                FleetStub(channel).Reserve(pb.ReserveRequest(policy="api"), timeout=10)
            assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]


def test_an_outage_is_answered_by_the_policys_fail_mode() -> None:
    """All that is wanted for a second, nothing, or UNAVAILABLE."""
    store, clock = FragileStore(), ManualClock(START)
    with opened(store, clock) as server:
        store.error = AWAY
        lease = reserve(server, wants=20)
        assert (lease.capacity, lease.refresh_interval_ms) == (20, 1_000)
        lease = reserve(server, "closed", wants=20)
        assert (lease.capacity, lease.retry_after_ms) == (0, 1_000)
        assert status(server, policy="honest") is grpc.StatusCode.UNAVAILABLE
        store.error = None
        assert reserve(server, "honest", wants=20).capacity == 20


def test_every_name_and_number_is_the_contracts() -> None:
    """Clients that are out there rely on each of them."""
    fields = {
        name: {field.name: field.number for field in message.fields}
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    }
    assert fields == {
        "Caller": {"domain": 1, "client_id": 2, "region": 3, "priority": 4},
        "ReserveRequest": {
            "policy": 1,
            "caller": 2,
            "wants": 3,
            "has": 4,
            "used": 5,
            "axis": 6,
        },
        "Lease": {
            "capacity": 1,
            "expiry_ms": 2,
            "refresh_interval_ms": 3,
            "safe_capacity": 4,
            "retry_after_ms": 5,
            "limit": 6,
            # Added here, behind the tags that the published contract may still use.
            "degraded": 16,
        },
        "ReserveResponse": {"lease": 1},
    }
    axis = pb.DESCRIPTOR.enum_types_by_name["Axis"]
    assert {value.name: value.number for value in axis.values} == {
        "AXIS_UNSPECIFIED": 0,
        "AXIS_RATE": 1,
        "AXIS_CONCURRENCY": 2,
        "AXIS_TOKEN_BUDGET": 3,
    }
    assert list(pb.DESCRIPTOR.services_by_name) == ["Fleet"]


def test_bytes_that_are_no_message_are_an_invalid_argument(server: InProcessServer) -> None:
    """As for the other calls."""
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary("/throttlekit.v1.Fleet/Reserve")
        with pytest.raises(grpc.RpcError) as failed:
            call(b"\xff\xff\xff", timeout=10)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_memory_is_a_store_as_good_as_any() -> None:
    """A single service hands out from its own process."""
    with opened(MemoryStore()) as server:
        assert reserve(server, wants=7).capacity == 7
