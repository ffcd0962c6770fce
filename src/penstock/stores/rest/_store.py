"""RestStore: a CasStore whose requests become HTTP calls.

An event loop has a handful of calls under way at once. Requests that come while all of them are
out wait, and the next call takes along as many as its backend allows: so a crowd on many keys
costs a few calls per round trip, and a lone request goes at once.

`RecordServerStore` speaks to the small servers that ship with Penstock. Their protocol is of
records, compared and swapped:

    POST <base URL>    Authorization: Bearer <token>
    {"namespace": "default", "operations": [
        {"op": "read", "key": k},
        {"op": "swap", "key": k, "expected": stamp or null, "version": v, "record": r,
         "keep_ms": n},
        {"op": "drop", "key": k},
        {"op": "drop", "key": k, "expected": stamp},
        {"op": "read_all", "keys": [k, ...]},
        {"op": "all", "operations": [a swap, a drop, {"op": "check", "key": k, "expected": s}]}]}

    {"answers": [
        {"found": {"record": r, "version": v, "stamp": s} or null},
        {"done": true, "stamp": s},
        {"done": false, "found": ...},
        {"error": "what went wrong"},
        {"found": [..., ...]},
        {"done": true, "stamp": s} or {"done": false}]}

Operations may be done in any order. The last two are for servers that write several keys at once:
all of their parts are done, if each key holds what was expected, or none. A server knows records
and versions, and no rate limiting; so it needs no new release when a strategy is added.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakKeyDictionary

from ..._queueing import Batch, LateError, QueuedCall
from ..._queueing.tasks import Pump, Reply
from ...core._loops import running_loop
from ...core._store import from_its_url
from ..cas import (
    AnyRequest,
    CasStore,
    Check,
    Conflict,
    ConnectionFailedError,
    Drop,
    Held,
    Read,
    ReadAll,
    SwapAll,
)
from ..cas._requests import fit, require_name
from ._client import HttpCall, RestClient, RestReply, read_url, refused

__all__ = ["TOKEN_ENV", "RecordServerStore", "RequestBatcher", "RestStore", "token_variable"]


Send = Callable[[Sequence[AnyRequest], float], Awaitable[list[Any]]]


class _Asked(QueuedCall):
    """A request, and its answer: also an exception, which is then the answer of the request."""

    __slots__ = ("answer", "is_heard", "request")

    def __init__(self, request: AnyRequest, deadline: float) -> None:
        super().__init__(deadline)
        self.request = request
        self.answer: Any = None
        self.is_heard = False

    def is_answered(self) -> bool:
        return self.is_heard

    def fail(self, error: BaseException) -> None:
        self.hear(error)

    def hear(self, answer: Any) -> None:
        self.answer = answer
        self.is_heard = True
        self.in_flight = False


class RequestBatcher:
    """Belongs to one loop. `send` answers up to `most_requests` together."""

    def __init__(self, send: Send, most_calls: int, most_requests: int) -> None:
        self._send = send
        self._most_requests = most_requests
        self._pump: Pump[_Asked] = Pump(
            self._serve, _failed, most_calls=most_requests, most_batches=most_calls
        )

    @property
    def pending(self) -> int:
        """How many requests wait to be sent."""
        return self._pump.pending

    async def ask(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        """For each request its answer, or the exception it met."""
        asked = [_Asked(request, deadline) for request in requests]
        replies = [self._pump.submit(one) for one in asked]
        self._pump.look()
        try:
            for one, reply in zip(asked, replies, strict=True):
                await _wait(one, reply)
        finally:
            for one in asked:
                if not one.done:
                    self._pump.withdraw(one)
        return [one.answer for one in asked]

    async def _serve(self, batch: Batch[_Asked]) -> None:
        asked = batch.take(self._most_requests)
        for one in asked:
            one.in_flight = True
        asked = [one for one in asked if not one.has_left]
        if asked:
            deadline = max(one.deadline for one in asked)
            answers = await self._send([one.request for one in asked], deadline)
            for one, answer in zip(asked, answers, strict=True):
                one.hear(answer)


async def _wait(asked: _Asked, reply: Reply) -> None:
    try:
        await reply.wait()
    except LateError as late:
        asked.hear(_late(late))


def _late(late: LateError) -> ConnectionFailedError:
    text = "no reply in time" if late.in_doubt else "too many requests ahead"
    return ConnectionFailedError(text, may_have_run=late.in_doubt)


def _failed(asked: _Asked, error: BaseException | None) -> BaseException:
    if isinstance(error, Exception):
        return error
    return ConnectionFailedError("interrupted", may_have_run=asked.in_flight)


class RestStore(CasStore):
    """A backend behind HTTP says how its requests are written and its replies are read."""

    most_calls: ClassVar[int] = 4
    """How many HTTP calls a loop has in flight at once."""

    most_requests: ClassVar[int] = 32
    """Requests that go in one HTTP call."""

    def __init__(self, base_url: str, token: str, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self._client = RestClient(base_url, token, self.timeout_ms)
        self._batchers: WeakKeyDictionary[Any, RequestBatcher] = WeakKeyDictionary()

    @abstractmethod
    def _calls(self, requests: Sequence[Any]) -> list[HttpCall]:
        """The HTTP calls for the requests: one for each, or one for all."""

    @abstractmethod
    def _answers(self, requests: Sequence[Any], replies: Sequence[RestReply]) -> list[Any]:
        """The answer to each request from the replies to those calls, exceptions included."""

    def serve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        return self._heard(requests, self._client.send(self._calls(requests), deadline))

    async def aserve(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        loop = running_loop()
        batcher = self._batchers.get(loop)
        if batcher is None:
            batcher = RequestBatcher(self._asend, self.most_calls, self.most_requests)
            self._batchers[loop] = batcher
        return await batcher.ask(requests, deadline)

    async def _asend(self, requests: Sequence[AnyRequest], deadline: float) -> list[Any]:
        return self._heard(requests, await self._client.asend(self._calls(requests), deadline))

    def close(self) -> None:
        self._client.close()

    async def aclose(self) -> None:
        await self._client.aclose()

    def _prepare(self) -> None:
        self._client.prepare()

    async def _aprepare(self) -> None:
        await self._client.aprepare()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._client.after_fork()

    def _heard(self, requests: Sequence[AnyRequest], replies: list[Any]) -> list[Any]:
        """Calls that failed fail their request, or all requests if one call was for all."""
        if len(replies) == len(requests):
            pairs = zip(requests, replies, strict=True)
            return [self._read([one], reply)[0] for one, reply in pairs]
        [reply] = replies
        return self._read(requests, reply)

    def _read(self, requests: Sequence[AnyRequest], reply: Any) -> list[Any]:
        """The answers in one reply. A reply of another form is an outage: a proxy, or a broken
        server, may have sent it."""
        if isinstance(reply, BaseException):
            return [reply] * len(requests)
        try:
            answers = self._answers(requests, [reply])
            if len(answers) == len(requests) and all(map(_is_well_formed, answers)):
                return answers
        except _MALFORMED:
            pass
        text = f"{self._client.base_url} sent a malformed reply: {reply.text[:200]!r}"
        return [ConnectionFailedError(text, may_have_run=True)] * len(requests)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} at {self._client.base_url}, timeout_ms={self.timeout_ms}>"


_MALFORMED = (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)


def _is_well_formed(answer: Any) -> bool:
    """Whether the records in an answer are texts."""
    if isinstance(answer, Held):
        return all(isinstance(part, str) for part in answer)
    if isinstance(answer, Conflict):
        return answer.found is None or _is_well_formed(answer.found)
    return all(map(_is_well_formed, answer)) if isinstance(answer, list) else True


TOKEN_ENV = "PENSTOCK_TOKEN"


def token_variable(url: str) -> str | None:
    """The variable from which the store behind `url` takes a token; None if it takes none, or one
    that only its own kind of store uses."""
    parts = urlsplit(url)
    is_record_server = parts.scheme.rpartition("+")[2] in ("http", "https")
    return dict(parse_qsl(parts.query)).get("token_env", TOKEN_ENV if is_record_server else None)


class RecordServerStore(RestStore):
    """A store on one of those servers. `namespace` keeps programs apart that share a server."""

    max_key_bytes: ClassVar[int]

    def __init__(
        self, base_url: str, *, token: str, namespace: str = "default", timeout_ms: int = 1_000
    ) -> None:
        super().__init__(base_url, token, timeout_ms)
        self.namespace: str = require_name("namespace", namespace, r"[A-Za-z0-9_.-]{1,64}")

    @classmethod
    @from_its_url
    def from_url(cls, url: str, **options: Any) -> Any:
        """`<scheme>+https://host/path`, with `?token_env=`, `namespace=`, `timeout_ms=`."""
        settings = read_url(url, TOKEN_ENV, options, "namespace")
        scheme = url.partition("://")[0].rpartition("+")[2].lower()
        return cls(f"{scheme}://{settings.place}", **settings.options)

    def _calls(self, requests: Sequence[AnyRequest]) -> list[HttpCall]:
        operations = [self._operation(request) for request in requests]
        return [HttpCall("POST", "", {"namespace": self.namespace, "operations": operations})]

    def _answers(self, requests: Sequence[AnyRequest], replies: Sequence[RestReply]) -> list[Any]:
        where, reply = self._client.base_url, replies[0]
        body = reply.json()
        if reply.status != 200 or not isinstance(body, dict):
            said = body.get("error", "") if isinstance(body, dict) else "not a record server"
            return [refused(reply.status, str(said), where)] * len(requests)
        answers = body.get("answers", ())
        if len(answers) != len(requests):
            raise ValueError("one answer per operation")
        return [
            _answer(request, one, where) for request, one in zip(requests, answers, strict=True)
        ]

    def _operation(self, request: AnyRequest | Check) -> dict[str, Any]:
        if isinstance(request, ReadAll):
            keys = [fit(key, self.max_key_bytes) for key in request.keys]
            return {"op": "read_all", "keys": keys}
        if isinstance(request, SwapAll):
            return {"op": "all", "operations": list(map(self._operation, request.writes))}
        key = fit(request.key, self.max_key_bytes)
        if isinstance(request, Read):
            return {"op": "read", "key": key}
        if isinstance(request, Drop):
            drop = {"op": "drop", "key": key}
            return (
                drop if request.expected is None else {**drop, "expected": request.expected.stamp}
            )
        expected = request.expected and request.expected.stamp
        if isinstance(request, Check):
            return {"op": "check", "key": key, "expected": expected}
        return {
            "op": "swap",
            "key": key,
            "expected": expected,
            "version": request.version,
            "record": request.record,
            "keep_ms": request.keep_ms,
        }


def _answer(request: AnyRequest, answer: dict[str, Any], where: str) -> Any:
    if "error" in answer:
        return ConnectionFailedError(f"{where}: {answer['error']}", may_have_run=True, again=True)
    if answer.get("done"):
        return answer.get("stamp", "")
    if isinstance(request, ReadAll):
        return [found and Held(**found) for found in answer["found"]]
    if isinstance(request, SwapAll):
        return Conflict()
    found = answer["found"] and Held(**answer["found"])
    return found if isinstance(request, Read) else Conflict(found, known=True)
