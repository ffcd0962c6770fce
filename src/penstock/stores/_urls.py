"""Splitting the URL of a store, which may name several hosts.

`urllib.parse.urlsplit` knows URLs of one host. Some versions reject `a:1,[::1]:2`, because text
stands before the bracket; others accept it. So only the parts around the hosts are left to it.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

__all__ = ["split_url"]


_URL = re.compile(r"(?P<scheme>[^:/?#]+)://(?P<netloc>[^/?#]*)(?P<rest>.*)", re.DOTALL)


def split_url(url: str) -> SplitResult:
    """The parts of a URL, on every version of Python. The hosts in `netloc` are not validated.
    Raises ValueError."""
    found = _URL.fullmatch(url)
    if found is None:
        return urlsplit(url)
    credentials = found["netloc"].rpartition("@")[0]
    if "[" in credentials or "]" in credentials:
        raise ValueError("a bracket in user or password has to be escaped")
    parts = urlsplit(f"{found['scheme']}://{found['rest']}")
    return parts._replace(netloc=found["netloc"])
