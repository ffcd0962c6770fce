"""Calls, from throttlekit/v1/fleet.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from . import fleet_pb2 as pb

FLEET: Final = 'throttlekit.v1.Fleet'
FLEET_METHODS: dict[str, tuple[type[Message], type[Message]]]

class FleetStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Reserve: grpc.UnaryUnaryMultiCallable[pb.ReserveRequest, pb.ReserveResponse]

class FleetAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Reserve: grpc.aio.UnaryUnaryMultiCallable[pb.ReserveRequest, pb.ReserveResponse]
