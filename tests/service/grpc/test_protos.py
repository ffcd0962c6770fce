"""The proto is the contract, and the modules are what the proto says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from penstock import Decision, Forecast
from penstock.wire import decision_message, decision_of, forecast_message, forecast_of
from penstock.wire.proto import rate_limiter_pb2 as pb
from tests.service.grpc.servers import existing
from tools.wire import protos

ROOT = Path(__file__).resolve().parents[3]


def shape(file: object) -> dict[str, object]:
    """Messages with their fields' names, numbers, types and labels, and calls with their types."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)  # type: ignore[attr-defined]
    messages: dict[str, object] = {
        message.name: (
            sorted((f.number, f.name, f.type, f.label, f.type_name) for f in message.field),
            [(r.start, r.end) for r in message.reserved_range],
        )
        for message in proto.message_type
    }
    calls = {
        f"{service.name}.{method.name}": (method.input_type, method.output_type)
        for service in proto.service
        for method in service.method
    }
    return {**messages, **calls}


def test_the_modules_hold_what_the_protos_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `python -m tools.wire.protos` when this fails."""
    monkeypatch.chdir(ROOT)
    assert protos.drifted() == []
    assert protos.main(["--check"]) == 0


def test_the_command_finds_a_drift_and_mends_it(tmp_path: Path) -> None:
    """A module that was edited is made again, and one that no proto asks for goes."""
    sources = ROOT / protos.SOURCES
    names = protos.write(sources, tmp_path)
    assert names == sorted(path.name for path in (ROOT / protos.MODULES).glob("*_pb2*.py*"))
    (tmp_path / "rate_limiter_pb2.py").write_text("edited\n")
    (tmp_path / "stray_pb2.py").write_text("")
    assert protos.drifted(sources, tmp_path) == ["rate_limiter_pb2.py", "stray_pb2.py"]
    protos.write(sources, tmp_path)
    assert protos.drifted(sources, tmp_path) == []


def test_every_name_number_and_type_is_the_contracts() -> None:
    """Clients that are out there rely on each of them. What we add has numbers from 16 up, and
    messages and a service of its own."""
    ours, theirs = shape(pb.DESCRIPTOR), shape(existing()[0].DESCRIPTOR)
    for name, described in theirs.items():
        held: Any = ours[name]
        if "." not in name:
            held = ([field for field in held[0] if field[0] < 16], held[1])
        assert held == described
    added = {name for name in ours if name.startswith("RateLimiter.")} - theirs.keys()
    assert added == set()
    assert pb.DESCRIPTOR.package == "throttlekit.v1"


def test_two_copies_of_the_package_live_in_one_process() -> None:
    """Ours is in a pool of its own, so whoever else loads the same names is not in the way."""
    theirs = existing()[0]
    request = theirs.CheckRequest(policy="p", key="k", cost=2)
    ours = pb.CheckRequest.FromString(request.SerializeToString())
    assert (ours.policy, ours.key, ours.cost) == ("p", "k", 2)
    assert type(ours) is not type(request)


def test_records_come_back_from_messages_as_they_went() -> None:
    """Up to the largest number that the wire carries."""
    for decision in (Decision(True, 10, 9, 1_700_000_000_000, 0), Decision(False, 1, 0, 2, 2**53)):
        sent = decision_message(decision).SerializeToString()
        assert decision_of(pb.Decision.FromString(sent)) == decision
    forecast = Forecast(3, 1_700_000_000_000, 2**53)
    assert forecast_of(forecast_message(forecast)) == forecast


def test_no_module_asks_for_the_version_that_made_it() -> None:
    """The usual modules refuse to load on an older library; these have no reason to."""
    for path in (ROOT / protos.MODULES).glob("*_pb2*.py"):
        assert not re.search(r"version|Default\(\)", path.read_text())
