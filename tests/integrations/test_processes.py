"""Apps behind servers of several processes, which share what they count in a store."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.servers import Valkey, require
from tests.servers.process import environment

REPO = Path(__file__).parent.parent.parent
APPS = "tests.integrations.apps.web_apps"

SERVERS = {
    "gunicorn": ["gunicorn", "--workers", "2", f"{APPS}:wsgi"],
    "gunicorn with uvicorn": [
        *["gunicorn", "--workers", "2", "--worker-class", "uvicorn.workers.UvicornWorker"],
        f"{APPS}:asgi",
    ],
    "hypercorn": ["hypercorn", "--workers", "2", f"{APPS}:asgi"],
}


@contextmanager
def running(words: list[str], store: str, log: Path) -> Iterator[str]:
    """The base URL of a server, once two of its processes have answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("wb") as file:
        number = listening.fileno()
        child = subprocess.Popen(
            [sys.executable, "-m", words[0], "--bind", f"fd://{number}", *words[1:]],
            cwd=REPO,
            env=environment(PYTHONPATH=f"{REPO / 'src'}:{REPO}", WEB_STORE=store),
            stdout=file,
            stderr=file,
            pass_fds=[number],
        )
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            seen: set[str] = set()
            deadline = time.monotonic() + 60
            while len(seen) < 2:
                assert child.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                with ThreadPoolExecutor(4) as pool:
                    answers = pool.map(lambda _: httpx.get(f"{url}/process", timeout=60), range(8))
                seen |= {answer.text for answer in answers}
            yield url
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(60)


@pytest.mark.parametrize("server", sorted(SERVERS))
def test_processes_of_a_server_admit_what_the_limit_says_and_no_more(
    server: str, tmp_path: Path
) -> None:
    """Asked at once, over connections of their own, so that all of them have to decide."""
    require("valkey")
    with (
        Valkey() as valkey,
        running(SERVERS[server], valkey.url, tmp_path / "server.log") as url,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda _: httpx.get(url, timeout=60), range(30)))
    assert Counter(answer.status_code for answer in answers) == {200: 10, 429: 20}
    assert all("ratelimit" in answer.headers for answer in answers)
