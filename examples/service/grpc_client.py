"""The gRPC server from Python, with the stubs that Penstock brings; `wire/proto` has the source for
every other language. Start the service first, then run this:

    penstock serve --config examples/service/penstock.yaml
    python examples/service/grpc_client.py 127.0.0.1:50051
"""

from __future__ import annotations

import sys

import grpc

from penstock.wire.proto import rate_limiter_pb2 as messages
from penstock.wire.proto.rate_limiter_pb2_grpc import RateLimiterStub


def main(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        service = RateLimiterStub(channel)
        check(service)
        debit(service)
        work(service)


def check(service: RateLimiterStub) -> None:
    """A burst of 25 against a policy that lets 20 through at once."""
    request = messages.CheckRequest(policy="api", key="alice")
    decisions = [service.Check(request, timeout=1).decision for _ in range(25)]
    denied = [decision for decision in decisions if not decision.allowed]
    print(f"check: {len(decisions) - len(denied)} allowed, {len(denied)} denied")
    print(f"check: the first denied one may try again in {denied[0].retry_after_ms} ms")


def debit(service: RateLimiterStub) -> None:
    """Tokens are counted once it is known how many there were."""
    request = messages.DebitRequest(policy="model", key="team-red", tokens=1_200)
    decision = service.Debit(request, timeout=1).decision
    print(f"debit: {decision.remaining} of {decision.limit} tokens left")


def work(service: RateLimiterStub) -> None:
    """A slot is held while something runs, and given back with word of how it went."""
    admitted = service.Admit(messages.AdmitRequest(policy="jobs", key="worker-1"), timeout=1)
    if not admitted.decision.allowed:
        print(f"admit: no slot, for {admitted.binding_axis}")
        return
    beat = service.Heartbeat(messages.HeartbeatRequest(lease_ids=[admitted.lease_id]), timeout=1)
    print(f"admit: a slot, alive: {list(beat.live_ids) == [admitted.lease_id]}")
    service.Release(messages.ReleaseRequest(lease_id=admitted.lease_id), timeout=1)


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
    except grpc.RpcError as error:
        sys.exit(f"the service answered {error.code().name}: {error.details()}")
