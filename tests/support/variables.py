"""Environment variables of the machine that would change what a test sees.

Libraries under test read them: a proxy for HTTP, the host of PostgreSQL, credentials of AWS, the
width of a terminal. A test sets what it needs, so `tests/conftest.py` removes them before anything
is imported. `make`, pip and npm get the proxies back, as far as those answer.
"""

from __future__ import annotations

import os
import re
import socket
from urllib.parse import urlsplit

__all__ = ["figure", "proxies_that_answer", "remove_foreign"]

_FOREIGN = re.compile(
    r"(PG|AWS_|REDIS_|FLASK_|DJANGO_|QUART_|CELERY_|LITESTAR_|UVICORN_|OTEL_|CLOUDFLARE_|UPSTASH_)"
    r".*|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR.*|PYTHONWARNINGS|PYTHONOPTIMIZE|PYTHONSAFEPATH"
)
_PROXY = re.compile(r"(?i)(http|https|all|no|ftp|ws|wss)_proxy")
_proxies: dict[str, str] = {}


def remove_foreign() -> None:
    """Remove them from this process, and so from every process that a test starts. A locale that is
    not installed would keep Redis from starting."""
    os.environ["LC_ALL"] = "C.UTF-8"
    for name in list(os.environ):
        if _PROXY.fullmatch(name):
            _proxies[name] = os.environ.pop(name)
        elif _FOREIGN.fullmatch(name):
            del os.environ[name]


def proxies_that_answer() -> dict[str, str]:
    """The proxy variables of the machine, for commands that install packages."""
    return {name: value for name, value in _proxies.items() if _answers(name, value)}


def _answers(name: str, value: str) -> bool:
    if name.lower() == "no_proxy":
        return True
    try:
        address = urlsplit(value if "//" in value else f"//{value}")
        socket.create_connection((address.hostname or "", address.port or 80), 2).close()
    except (OSError, ValueError):
        return False
    return True


def figure(name: str, usual: int) -> int:
    """A figure of a fuzzer, such as SEED. The name is short, so another program may use it for
    a text: then the usual figure stands."""
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else usual
