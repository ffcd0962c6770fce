"""JSON is read in one way only."""

from __future__ import annotations

import pytest

from penstock.service.http._answers import ProblemError
from penstock.service.http._head import decode


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b'{"a":1}x',
        b'{"a":1}{"a":1}',
        b"[1]",
        b"null",
        b'"a"',
        b'{"a":1,"a":2}',
        b'{"b":{"a":1,"a":2}}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":"\xff"}',
        b'{"a":"\n"}',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b'{"a":' + b"[" * 5_000,
        b'{"a":' + b"9" * 5_000 + b"}",
    ],
)
def test_what_is_not_plain_json_is_refused(body: bytes) -> None:
    """With the code that says so, whatever the decoder makes of it."""
    with pytest.raises(ProblemError) as caught:
        decode(body)
    assert caught.value.problem.code == "malformed_json"


@pytest.mark.parametrize("body", [b'{"a":1}', b' {"a":1}\r\n', b'{"a" : 1}\n'])
def test_spaces_are_of_no_account(body: bytes) -> None:
    """Around the object and inside it."""
    assert decode(body) == {"a": 1}
