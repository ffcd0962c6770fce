"""h2spec, which breaks every rule of HTTP/2 and HPACK once, against the port with all protocols.

`make test-foreign` builds it.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.service.http.serving import Penstock
from tests.service.http.test_serve import Guarded, make_certificates
from tools import foreign

from .test_clients import ready

ACCEPTED = {
    # The port speaks HTTP/1.1 as well, and without TLS goes by what a connection begins with: what
    # is not HTTP/2 is read as that, and told in it what is wrong before the connection ends. h2spec
    # wants a connection to end with nothing said, or with a frame.
    "Sends invalid connection preface",
}
"""What is done otherwise, on purpose."""


def failures(port: int, report: Path, *options: str) -> set[str]:
    """The cases that h2spec calls failed, of all it has."""
    words = [str(ready(foreign.H2SPEC)), "-h", "127.0.0.1", "-p", str(port), "-P", "/health"]
    # A long wait costs time only where an answer stays away.
    words += ["--strict", "-o", "20", "-j", str(report), *options]
    subprocess.run(words, stdout=subprocess.DEVNULL, timeout=280, check=False)
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    assert len(cases) > 140
    assert not [case for case in cases if case.find("skipped") is not None]
    failed = [case for case in cases if list(case)]
    return {case.get("classname", "") for case in failed}


def test_the_port_keeps_the_rules_of_http_2(tmp_path: Path) -> None:
    ready(foreign.H2SPEC)
    with Penstock() as server:
        assert failures(server.port, tmp_path / "report.xml") == ACCEPTED


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_and_keeps_them_behind_tls(tmp_path: Path) -> None:
    """All of them: there the client has said beforehand that it speaks HTTP/2."""
    ready(foreign.H2SPEC)
    make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    with Guarded(context, [f"--tls-cert={cert}", f"--tls-key={key}"]) as server:
        assert failures(server.port, tmp_path / "report.xml", "-t", "-k") == set()
