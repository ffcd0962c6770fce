"""Errors as `application/problem+json`, each with a `code` that programs may branch on.

A code is never renamed. The detail is for people, and may quote what the client sent: it is
escaped as JSON, and never logged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

__all__ = ["CODES", "Problem", "ProblemError"]

CODES: dict[str, tuple[int, str]] = {
    "malformed_request": (400, "The bytes are not a well-formed HTTP request."),
    "malformed_json": (400, "The body is not a JSON object in UTF-8."),
    "config_invalid": (400, "A field is missing, unknown, of the wrong type or out of range."),
    "unauthorized": (401, "The bearer token is missing or wrong."),
    "cross_site": (403, "A browser sent the request on behalf of another site."),
    "not_found": (404, "There is no such path."),
    "unknown_policy": (404, "There is no policy of that name."),
    "method_not_allowed": (405, "The path has other methods; `Allow` lists them."),
    "request_timeout": (408, "The request did not arrive in time."),
    "body_too_large": (413, "The body is longer than the path takes."),
    "expectation_failed": (417, "`Expect` asks for something other than 100-continue."),
    "unknown_host": (421, "`Host` is not a name under which this service is asked."),
    "head_too_large": (431, "The request line and headers are too long or too many."),
    "internal_error": (500, "A fault of the service; its log says more."),
    "not_implemented": (501, "The policy or the server does not have the operation."),
    "store_unavailable": (503, "The store did not answer, or is full: `reason` says which."),
    "overloaded": (503, "More is asked than can be answered soon; retry later."),
    "stopping": (503, "The service is being stopped."),
    "version_not_supported": (505, "The server speaks HTTP/1.1 and HTTP/1.0."),
}
"""Code to status and meaning: what the server may answer instead of a decision."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal. `headers` are further header lines, without their line ends; `reason` tells
    apart what has the same code."""

    code: str
    detail: str
    headers: tuple[str, ...] = ()
    reason: str = ""

    @property
    def status(self) -> int:
        return CODES[self.code][0]

    def body(self) -> bytes:
        document = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.reason:
            document["reason"] = self.reason
        return json.dumps(document).encode()


class ProblemError(Exception):
    """Carries a problem from where it is found to where it is answered."""

    def __init__(self, code: str, detail: str, headers: tuple[str, ...] = ()) -> None:
        super().__init__(code, detail, headers)
        self.problem: Problem = Problem(code, detail, headers)

    def __str__(self) -> str:
        return self.problem.detail

    @classmethod
    def of(cls, problem: Problem) -> ProblemError:
        return cls(problem.code, problem.detail, problem.headers)
