"""Calls, from throttlekit/v1/fleet.proto by `python -m tools.wire.protos`. Not to be edited."""

# fmt: off
# ruff: noqa
from . import fleet_pb2 as pb

FLEET = 'throttlekit.v1.Fleet'

FLEET_METHODS = {
    'Reserve': (pb.ReserveRequest, pb.ReserveResponse),
}


class FleetStub:
    def __init__(self, channel):
        for name, (request, response) in FLEET_METHODS.items():
            path = f'/{FLEET}/{name}'
            codec = request.SerializeToString, response.FromString
            setattr(self, name, channel.unary_unary(path, *codec))


class FleetAsyncStub(FleetStub):
    pass
