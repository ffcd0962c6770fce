"""The services that every gRPC server is expected to have: health and reflection.

Both have calls without a time limit, and probes have no token. So these calls have places of their
own: strangers may take all of them without blocking checks. The calls end when the server drains,
so that they never delay it.

Their protos have few lines each and are written here, field by field: the packages that contain
them depend on another gRPC server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from ...wire.proto import POOL
from ...wire.proto.fleet_pb2_grpc import FLEET
from ...wire.proto.rate_limiter_pb2_grpc import CHARGES, RATE_LIMITER
from .._core import Service
from ._dispatch import Method, Streaming, Unary
from ._open_calls import SMALL_MESSAGE_BYTES, Places, StreamingCall, UnknownServiceError
from ._protocol import Status

__all__ = ["Health", "Reflection"]

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.{}.ServerReflection"
_VERSIONS = ("v1", "v1alpha")

_LOOK_EVERY_S = 1.0

_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}

# Messages: their fields as type, name and number, `*` for repeated ones, `|` for those of which
# there is one at most.
_HEALTH = {
    "HealthCheckRequest": ("string service 1",),
    "HealthCheckResponse": ("ServingStatus status 1",),
}
_SERVING_STATUS = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_REFLECTION = {
    "ServerReflectionRequest": (
        "string host 1",
        "|string file_by_filename 3",
        "|string file_containing_symbol 4",
        "|ExtensionRequest file_containing_extension 5",
        "|string all_extension_numbers_of_type 6",
        "|string list_services 7",
    ),
    "ExtensionRequest": ("string containing_type 1", "int32 extension_number 2"),
    "ServerReflectionResponse": (
        "string valid_host 1",
        "ServerReflectionRequest original_request 2",
        "|FileDescriptorResponse file_descriptor_response 4",
        "|ExtensionNumberResponse all_extension_numbers_response 5",
        "|ListServiceResponse list_services_response 6",
        "|ErrorResponse error_response 7",
    ),
    "FileDescriptorResponse": ("*bytes file_descriptor_proto 1",),
    "ExtensionNumberResponse": ("string base_type_name 1", "*int32 extension_number 2"),
    "ListServiceResponse": ("*ServiceResponse service 1",),
    "ServiceResponse": ("string name 1",),
    "ErrorResponse": ("int32 error_code 1", "string error_message 2"),
}


def _file(
    name: str,
    package: str,
    messages: Mapping[str, tuple[str, ...]],
    service: str,
    *methods: tuple[str, str, str, bool, bool],
) -> FileDescriptorProto:
    """A proto file. Methods: name, request, response, whether either is a stream."""
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        for text in fields:
            _add_field(message, text, f".{package}.")
    offered = file.service.add(name=service)
    for method, request, response, client, server in methods:
        offered.method.add(
            name=method,
            input_type=f".{package}.{request}",
            output_type=f".{package}.{response}",
            client_streaming=client,
            server_streaming=server,
        )
    return file


def _add_field(message: Any, text: str, prefix: str) -> None:
    kind, name, number = text.lstrip("*|").split()
    repeated = text.startswith("*")
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if kind in _TYPES:
        field.type = _TYPES[kind]
    elif kind == "ServingStatus":
        field.type = FieldDescriptorProto.TYPE_ENUM
        field.type_name = f"{prefix}{message.name}.{kind}"
        values = message.enum_type.add(name=kind)
        for value, value_name in enumerate(_SERVING_STATUS):
            values.value.add(name=value_name, number=value)
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = prefix + kind
    if text.startswith("|"):
        one_of = "message_request" if message.name.endswith("Request") else "message_response"
        if not message.oneof_decl:
            message.oneof_decl.add(name=one_of)
        field.oneof_index = 0


def _add_standard(pool: DescriptorPool) -> None:
    checks = ("HealthCheckRequest", "HealthCheckResponse")
    methods = (("Check", *checks, False, False), ("Watch", *checks, False, True))
    pool.Add(_file("grpc/health/v1/health.proto", "grpc.health.v1", _HEALTH, "Health", *methods))
    info = ("ServerReflectionRequest", "ServerReflectionResponse", True, True)
    for version in _VERSIONS:
        file = f"grpc/reflection/{version}/reflection.proto"
        package = f"grpc.reflection.{version}"
        method = ("ServerReflectionInfo", *info)
        pool.Add(_file(file, package, _REFLECTION, "ServerReflection", method))


def _message(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(name))


# Our messages are in a pool of their own; the standard ones are added to it.
_add_standard(POOL)
_HealthRequest = _message("grpc.health.v1.HealthCheckRequest")
_HealthResponse = _message("grpc.health.v1.HealthCheckResponse")


class Health:
    """`grpc.health.v1`, for the whole ("") and by name: serving while the service is ready, as by
    `/ready`, and the server does not drain.

    `probes` does not limit Check: if probes were refused when there are many, a healthy service
    could be restarted.
    """

    def __init__(
        self,
        service: Service,
        probes: Places,
        watches: Places,
        leaving: asyncio.Event,
        arrival_s: float,
    ) -> None:
        self._service = service
        self._look: asyncio.Future[bool] | None = None
        self._look_again_at = 0.0
        self._probes = probes
        self._watches = watches
        self._leaving = leaving
        self._arrival_s = arrival_s
        self._known = ("", RATE_LIMITER, CHARGES, FLEET)

    def calls(self) -> dict[str, Method]:
        """By the full name of the method."""
        check = Unary(_HealthRequest.FromString, self._check, self._probes)
        watch = Streaming(self._watch, self._watches)
        check.is_public = watch.is_public = True
        check.max_bytes = SMALL_MESSAGE_BYTES
        return {f"/{HEALTH}/Check": check, f"/{HEALTH}/Watch": watch}

    async def _check(self, request: Any) -> Any:
        if request.service not in self._known:
            raise UnknownServiceError("there is no such service here")
        return self._message(request.service, await self._service.decides())

    async def _watch(self, call: StreamingCall) -> None:
        name = _HealthRequest.FromString(await call.first(self._arrival_s)).service
        told = None
        while True:
            leaving = self._leaving.is_set()
            message = self._message(name, await self._was_ready())
            if message != told:
                call.write(message)
                told = message
            if leaving:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _LOOK_EVERY_S)

    async def _was_ready(self) -> bool:
        """Whether the service was ready a moment ago; one look at the store for all watchers."""
        now = asyncio.get_running_loop().time()
        if self._look is None or (self._look.done() and now >= self._look_again_at):
            self._look = asyncio.ensure_future(self._service.decides())
            self._look_again_at = now + _LOOK_EVERY_S
        # A watcher that leaves does not cancel it for the others.
        return await asyncio.shield(self._look)

    def _message(self, name: str, ready: bool) -> Any:
        if name not in self._known:
            return _HealthResponse(status=_HealthResponse.SERVICE_UNKNOWN)
        serving = ready and not self._leaving.is_set()
        return _HealthResponse(
            status=_HealthResponse.SERVING if serving else _HealthResponse.NOT_SERVING
        )


class Reflection:
    """Describes the services to clients that do not have the protos."""

    def __init__(self, places: Places, leaving: asyncio.Event) -> None:
        self._places = places
        self._leaving = leaving
        reflections = (REFLECTION.format(version) for version in _VERSIONS)
        self._services = sorted((RATE_LIMITER, CHARGES, FLEET, HEALTH, *reflections))

    def calls(self) -> dict[str, Method]:
        """By the full name of the method."""
        return {
            f"/{REFLECTION.format(version)}/ServerReflectionInfo": Streaming(
                _Conversation(self._services, version, self._leaving).serve, self._places
            )
            for version in _VERSIONS
        }


class _Conversation:
    """One version of the protocol; they differ in the names of their messages."""

    def __init__(self, services: list[str], version: str, leaving: asyncio.Event) -> None:
        self._services = services
        self._leaving = leaving
        package = f"grpc.reflection.{version}."
        self._request = _message(f"{package}ServerReflectionRequest")
        self._response = _message(f"{package}ServerReflectionResponse")

    async def serve(self, call: StreamingCall) -> None:
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            while (raw := await _next(call, leaving)) is not None:
                call.write(self._answer(raw))
        finally:
            leaving.cancel()

    def _answer(self, raw: bytes) -> Any:
        try:
            request = self._request.FromString(raw)
        except DecodeError:
            # A request that cannot be decoded is answered like an empty one.
            request = self._request()
        response = self._response(valid_host=request.host, original_request=request)
        asked = request.WhichOneof("message_request")
        if asked == "list_services":
            for name in self._services:
                response.list_services_response.service.add(name=name)
        elif asked is None:
            self._fail(response, Status.INVALID_ARGUMENT, "nothing is asked for")
        else:
            self._find(response, asked, getattr(request, asked))
        return response

    def _find(self, response: Any, asked: str, what: Any) -> None:
        try:
            if asked == "file_by_filename":
                self._show(response, POOL.FindFileByName(what))
            elif asked == "file_containing_symbol":
                self._show(response, _file_with(what))
            elif asked == "all_extension_numbers_of_type":
                POOL.FindMessageTypeByName(what)
                response.all_extension_numbers_response.base_type_name = what
            else:
                # No message here can be extended.
                raise KeyError(what)
        except KeyError:
            self._fail(response, Status.NOT_FOUND, "there is no such thing here")

    def _show(self, response: Any, file: Any) -> None:
        response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)

    def _fail(self, response: Any, status: Status, text: str) -> None:
        response.error_response.error_code = status
        response.error_response.error_message = text


def _file_with(symbol: str) -> Any:
    """The file that defines a symbol; methods are symbols, too."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        return POOL.FindMethodByName(symbol).containing_service.file


async def _next(call: StreamingCall, leaving: asyncio.Future[Any]) -> bytes | None:
    """The next request; None after the last one, or once the server drains."""
    coming = asyncio.ensure_future(call.read())
    try:
        await asyncio.wait((coming, leaving), return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        coming.cancel()
