"""`python -m tools.wire.protos [--check]`: Python modules for the protos in the folder `wire/`.

For each `name.proto` it writes `name_pb2.py`, the messages; `name_pb2_grpc.py`, the calls; and
what a type checker reads about both. The compiler (of the package grpcio-tools) only parses; the
text is made here from the descriptors it returns. So the modules are the same whichever version
made them, run on any protobuf from 4.22 on, and keep to the pool of their own package.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

__all__ = ["derive", "drifted", "main", "write"]

SOURCES = Path("wire/proto")
MODULES = Path("src/penstock/wire/proto")

_HEAD = '"""{about}, from {name} by `python -m tools.wire.protos`. Not to be edited."""\n\n'
_EXEMPT = "# fmt: off\n# ruff: noqa\n"

_TYPES = {
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_ENUM: "int",
    FieldDescriptorProto.TYPE_INT64: "int",
    FieldDescriptorProto.TYPE_STRING: "str",
}


def derive(sources: Path = SOURCES) -> dict[str, str]:
    """The text of every module, by its file name."""
    modules = {}
    for proto in _compile(sources):
        stem = Path(proto.name).stem
        modules[f"{stem}_pb2.py"] = _messages(proto)
        modules[f"{stem}_pb2.pyi"] = _message_types(proto)
        modules[f"{stem}_pb2_grpc.py"] = _calls(proto)
        modules[f"{stem}_pb2_grpc.pyi"] = _call_types(proto)
    return modules


def drifted(sources: Path = SOURCES, modules: Path = MODULES) -> list[str]:
    """The modules that differ from what the protos say, and those that no proto asks for."""
    wanted = derive(sources)
    strangers = {path.name for path in modules.glob("*_pb2*.py*")} - wanted.keys()
    changed = {name for name, text in wanted.items() if not _holds(modules / name, text)}
    return sorted(changed | strangers)


def write(sources: Path = SOURCES, modules: Path = MODULES) -> list[str]:
    """Bring the modules up to date; returns what was changed."""
    wanted = derive(sources)
    changed = drifted(sources, modules)
    for name in changed:
        if name in wanted:
            (modules / name).write_bytes(wanted[name].encode())
        else:
            (modules / name).unlink()
    return changed


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _compile(sources: Path) -> Sequence[FileDescriptorProto]:
    if find_spec("grpc_tools") is None:
        raise ImportError("compiling protos needs grpcio-tools: pip install grpcio-tools")
    files = sorted(str(path.relative_to(sources)) for path in sources.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{sources}"]
        subprocess.run([*command, f"--descriptor_set_out={target}", *files], check=True)
        return FileDescriptorSet.FromString(target.read_bytes()).file


def _messages(proto: FileDescriptorProto) -> str:
    head = _HEAD.format(about="Messages", name=proto.name)
    lines = [
        "from google.protobuf.message_factory import GetMessageClass\n",
        "from . import POOL\n",
        "POOL.AddSerializedFile(",
        *(f"    {chunk!r}" for chunk in _chunks(proto.SerializeToString())),
        ")",
        f"DESCRIPTOR = POOL.FindFileByName({proto.name!r})\n",
        *(
            f"{message.name} = GetMessageClass(DESCRIPTOR.message_types_by_name[{message.name!r}])"
            for message in proto.message_type
        ),
        *(f"{value.name} = {value.number}" for enum in proto.enum_type for value in enum.value),
    ]
    return head + _EXEMPT + "\n".join(lines) + "\n"


def _chunks(serialized: bytes) -> Iterator[bytes]:
    for start in range(0, len(serialized), 48):
        yield serialized[start : start + 48]


def _message_types(proto: FileDescriptorProto) -> str:
    lines = [
        "from collections.abc import Iterable\n",
        "from google.protobuf.descriptor import FileDescriptor",
        "from google.protobuf.internal.containers import RepeatedCompositeFieldContainer",
        "from google.protobuf.internal.containers import RepeatedScalarFieldContainer",
        "from google.protobuf.message import Message\n",
        "DESCRIPTOR: FileDescriptor\n",
        *(f"{value.name}: int" for enum in proto.enum_type for value in enum.value),
    ]
    for message in proto.message_type:
        lines += [f"class {message.name}(Message):", *_members(message), ""]
    return _HEAD.format(about="Messages", name=proto.name) + _EXEMPT + "\n".join(lines)


def _members(message: DescriptorProto) -> Iterator[str]:
    for field in message.field:
        yield f"    {field.name}: {_read_type(field)}"
    given = "".join(f", {field.name}: {_given_type(field)} = ..." for field in message.field)
    yield f"    def __init__(self{', *' if given else ''}{given}) -> None: ..."


def _item_type(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        return field.type_name.rpartition(".")[2]
    return _TYPES[field.type]


def _read_type(field: FieldDescriptorProto) -> str:
    if field.label != FieldDescriptorProto.LABEL_REPEATED:
        return _item_type(field)
    composite = field.type == FieldDescriptorProto.TYPE_MESSAGE
    container = "Composite" if composite else "Scalar"
    return f"Repeated{container}FieldContainer[{_item_type(field)}]"


def _given_type(field: FieldDescriptorProto) -> str:
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"Iterable[{_item_type(field)}]"
    return f"{_item_type(field)} | None"


def _calls(proto: FileDescriptorProto) -> str:
    module = f"{Path(proto.name).stem}_pb2"
    lines = [f"from . import {module} as pb"]
    for service in proto.service:
        lines += [
            f"\n{_constant(service)} = {proto.package + '.' + service.name!r}",
            f"\n{_constant(service)}_METHODS = {{",
            *(
                f"    {method.name!r}: (pb.{_local(method.input_type)}, "
                f"pb.{_local(method.output_type)}),"
                for method in service.method
            ),
            "}\n",
            *_stub(service),
        ]
    return _HEAD.format(about="Calls", name=proto.name) + _EXEMPT + "\n".join(lines) + "\n"


def _stub(service: ServiceDescriptorProto) -> Iterator[str]:
    yield f"\nclass {service.name}Stub:"
    yield "    def __init__(self, channel):"
    yield f"        for name, (request, response) in {_constant(service)}_METHODS.items():"
    yield f"            path = f'/{{{_constant(service)}}}/{{name}}'"
    yield "            codec = request.SerializeToString, response.FromString"
    yield "            setattr(self, name, channel.unary_unary(path, *codec))\n"
    yield f"\nclass {service.name}AsyncStub({service.name}Stub):"
    yield "    pass"


def _call_types(proto: FileDescriptorProto) -> str:
    module = f"{Path(proto.name).stem}_pb2"
    lines = [
        "from typing import Final\n",
        "import grpc",
        "import grpc.aio",
        "from google.protobuf.message import Message\n",
        f"from . import {module} as pb",
    ]
    for service in proto.service:
        lines += [
            f"\n{_constant(service)}: Final = {proto.package + '.' + service.name!r}",
            f"{_constant(service)}_METHODS: dict[str, tuple[type[Message], type[Message]]]",
            *_stub_types(service, f"{service.name}Stub", "grpc"),
            *_stub_types(service, f"{service.name}AsyncStub", "grpc.aio"),
        ]
    return _HEAD.format(about="Calls", name=proto.name) + _EXEMPT + "\n".join(lines) + "\n"


def _stub_types(service: ServiceDescriptorProto, name: str, mode: str) -> Iterator[str]:
    yield f"\nclass {name}:"
    yield f"    def __init__(self, channel: {mode}.Channel) -> None: ..."
    for method in service.method:
        pair = f"pb.{_local(method.input_type)}, pb.{_local(method.output_type)}"
        yield f"    {method.name}: {mode}.UnaryUnaryMultiCallable[{pair}]"


def _constant(service: ServiceDescriptorProto) -> str:
    """RateLimiter to RATE_LIMITER."""
    name = service.name
    return "".join(f"_{c}" if c.isupper() and i else c.upper() for i, c in enumerate(name))


def _local(type_name: str) -> str:
    return type_name.rpartition(".")[2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wire.protos", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args(arguments)
    if not SOURCES.is_dir():
        parser.error(f"there is no {SOURCES} here; run this at the root of the source")
    names = drifted() if options.check else write()
    for name in names:
        print(f"{'drifted' if options.check else 'written'}: {MODULES / name}")
    return 1 if options.check and names else 0


if __name__ == "__main__":
    sys.exit(main())
