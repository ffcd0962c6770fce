"""`penstock serve` and `penstock check-config`: what they print, refuse and obey."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigInvalidError
from penstock.service._access import names_in, server_context
from penstock.service._logs import banner, shown_store
from penstock.service._options import ServeOptions, TlsFiles, is_loopback
from tests.servers.process import REPO, NotReady, environment, eventually
from tests.special import KINDS, replace

from .serving import PENSTOCK, Client, Penstock

TOKEN = "0123456789abcdef0123456789abcdef"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    env = environment(PYTHONPATH=str(REPO / "src"))
    return subprocess.run(
        [*PENSTOCK, *words], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["--workers", "2"], "--store redis://"),
        (["--host", "0.0.0.0"], "--token-file"),
        (["--host", "::"], "--open"),
        (["--host", "0.0.0.0", "--tls-cert", "c.pem", "--tls-key", "k.pem"], "--tls-ca"),
        (
            ["--open", "--token-file", "token"],
            "--open lets anyone in, which contradicts --token-file",
        ),
        (["--open", *(w for f in ("cert", "key", "ca") for w in (f"--tls-{f}", "f"))], "--tls-ca"),
        (["--allowed-hosts", "limits.example.com:8080"], "without a port"),
        (["--allowed-hosts", "a,,b"], "--allowed-hosts ''"),
        (["--no-http", "--no-grpc"], "leave nothing to serve"),
        (["--http-port", "0", "--grpc-port", "0"], "leave nothing to serve"),
        (["--tls-cert", "cert.pem"], "--tls-key"),
        (["--tls-ca", "ca.pem"], "--tls-cert"),
        (["--token-file", "no-such-file"], "no-such-file"),
        (["--config", "no-such-file.yaml"], "no-such-file.yaml"),
        (["--store", "carrier-pigeon://"], "memory://"),
        (["--http-port", "70000"], "--http-port"),
        (["--workers", "0"], "--workers"),
        (["--drain", "nan"], "--drain must be 0 to 3600 seconds"),
        (["--drain", "-5"], "--drain must be 0 to 3600 seconds"),
        (["--drain", "inf"], "--drain must be 0 to 3600 seconds"),
        (["--host", "nonesuch.invalid", "--open"], "--host 'nonesuch.invalid' is not"),
        (["--host", "192.0.2.1", "--open"], "--host 192.0.2.1 is not an address of this"),
        (["--host", "192.0.2.1", "--open", "--no-http"], "--host 192.0.2.1 is not"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_fix(flags: list[str], fix: str) -> None:
    """Exit code 2, one line on standard error, no traceback."""
    done = run("serve", *flags)
    assert done.returncode == 2
    assert fix in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "flag",
    ["--config", "--token-file", "--fleet-secret-file", "--tls-cert", "--tls-key", "--tls-ca"],
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, flag: str, kind: str) -> None:
    """Whatever it was named for: nobody waits for the other end of a FIFO."""
    path = tmp_path / "odd"
    told = replace(path, kind)
    flags = {"--tls-cert": "cert.pem", "--tls-key": "key.pem"} if "tls" in flag else {}
    for name in flags.values():
        (tmp_path / name).write_text("")
    files = {name: str(tmp_path / file) for name, file in flags.items()}
    given = [word for pair in {**files, flag: str(path)}.items() for word in pair]
    with pytest.raises(ConfigInvalidError, match=told) as caught:
        _read_all(ServeOptions(**_fields(given)))
    assert str(path) in str(caught.value)


def _fields(words: list[str]) -> dict[str, Any]:
    """Flags as the fields of ServeOptions."""
    names = (word.removeprefix("--").replace("-", "_") for word in words[::2])
    return dict(zip(names, words[1::2], strict=True))


def _read_all(options: ServeOptions) -> None:
    """What is read before a port is opened, and when it is."""
    options.check()
    options.token()
    options.fleet_secret()
    if options.tls is not None:
        server_context(options.tls)


def test_a_fifo_as_token_file_ends_the_start() -> None:
    """The whole of it, from the command line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "token"
        replace(path, "FIFO")
        done = run("serve", "--token-file", str(path))
        assert done.returncode == 2
        assert "it is a FIFO; a regular file is needed" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named() -> None:
    """So that the next thing to try is plain."""
    with Penstock() as server:
        done = run("serve", "--no-grpc", "--http-port", str(server.port))
        assert done.returncode == 2
        assert f"127.0.0.1:{server.port}" in done.stderr
        assert "--http-port" in done.stderr


def test_a_token_that_is_too_short_is_refused(tmp_path: Path) -> None:
    """And so is an empty file."""
    for text in ("", "short", "two words of sixteen letters"):
        path = tmp_path / "token"
        path.write_text(text)
        done = run("serve", "--no-grpc", "--token-file", str(path))
        assert done.returncode == 2
        assert "openssl rand" in done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("guarded", [False, True])
def test_the_line_that_is_printed_works(guarded: bool, tmp_path: Path) -> None:
    """Pasted into a shell as it is."""
    flags: list[str] = []
    if guarded:
        (tmp_path / "my token").write_text(TOKEN + "\n")
        flags = ["--token-file", str(tmp_path / "my token"), "--host", "0.0.0.0"]
    with Penstock(*flags) as server:
        said = eventually(lambda: _said(server, "try:"), within=20, what="the banner")
        assert "1 policy" in said
        assert "memory://" in said
        assert f"127.0.0.1:{server.port}" in said
        line = said.partition("try:")[2].splitlines()[0]
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["remaining"] == 9


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("slots", [False, True])
def test_the_line_that_is_printed_asks_a_policy_of_several_limits(
    slots: bool, tmp_path: Path
) -> None:
    """By attributes that it knows, all of its limits; where it has slots, by a reserve."""
    pytest.importorskip("yaml")
    config = tmp_path / "penstock.yaml"
    text = """
version: 1
limiters:
  chat:
    limits:
      user: {by: user, strategy: gcra, limit: 100, period: 1m}
      tokens: {by: user, cost: tokens, strategy: gcra, limit: 900, period: 1m}
      large: {strategy: gcra, limit: 50, period: 1m, when: {model: [large, huge]}}
    plans: {free: {}, pro: {user: {limit: 1000}}}
"""
    slot = "      flight: {by: user, strategy: slots, limit: 4}\n    plans:"
    config.write_text(text.replace("    plans:", slot) if slots else text)
    with Penstock("--config", str(config)) as server:
        said = eventually(lambda: _said(server, "try:"), within=20, what="the banner")
        line = said.partition("try:")[2].splitlines()[0]
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        assert answer["decision"]["allowed"]
        assert list(answer["limits"]) == ["user", "tokens", "large"] + ["flight"] * slots
        assert ("charge_id" in answer) is slots


def _said(server: Penstock, word: str) -> str:
    said = server.log_path.read_text()
    if word not in said:
        raise NotReady(said)
    return said


def test_logs_can_be_json(tmp_path: Path) -> None:
    """Every line of them, the banner included."""
    with Penstock("--log-format", "json") as server:
        eventually(lambda: _said(server, "serving"), within=20, what="the banner")
        process = server.process()
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        lines = [json.loads(line) for line in server.log_path.read_text().splitlines()]
    assert [line["level"] for line in lines] == ["info"] * len(lines)
    assert any(f"127.0.0.1:{server.port}" in text for text in lines[0]["serving"])
    assert lines[-1]["message"] == "stopped"


CONFIG = """
version: 1
limiters:
  api: {strategy: fixedWindow, limit: %d, window: 1h}
"""


def test_policies_are_read_again_when_told(tmp_path: Path) -> None:
    """SIGHUP serves the new file; a bad one is reported, and what was served is served on."""
    pytest.importorskip("yaml")
    config = tmp_path / "penstock.yaml"
    config.write_text(CONFIG % 5)
    with Penstock("--config", str(config), "--no-inline") as server:
        client = Client(server.port)
        asked = {"policy": "api", "key": "k"}
        assert client.post("/check", asked).json["limit"] == 5
        assert client.post("/check", {"key": "k", "limit": 1, "window_ms": 1}).status == 501
        assert client.get("/check/alice").json["code"] == "unknown_policy"
        config.write_text(CONFIG % 7)
        os.kill(server.pid, signal.SIGHUP)

        def changed() -> None:
            if client.post("/check", asked).json["limit"] != 7:
                raise NotReady("still the old one")

        eventually(changed, within=20, what="the reload")
        config.write_text("version: 1\nlimiters: {api: {strategy: magic}}\n")
        os.kill(server.pid, signal.SIGHUP)

        def reported() -> None:
            if client.get("/ready").json["reloaded"]:
                raise NotReady("not yet")

        eventually(reported, within=20, what="the report")
        ready = client.get("/ready")
        assert ready.status == 200
        assert "magic" in ready.json["reload_error"]
        assert client.post("/check", asked).json["limit"] == 7
        assert 'penstock_reloads_total{result="failed"} 1' in client.get("/metrics").body.decode()
        client.close()


def test_a_hangup_without_a_policy_file_is_ignored() -> None:
    """There is nothing to read again."""
    with Penstock() as server:
        os.kill(server.pid, signal.SIGHUP)
        client = Client(server.port)
        assert client.get("/health").status == 200
        client.close()


def test_check_config_says_what_a_file_means(tmp_path: Path) -> None:
    """0 and the policies, or 2 and what would be right."""
    pytest.importorskip("yaml")
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(CONFIG % 5)
    bad.write_text("version: 1\nlimiters: {api: {strategy: gcra, limit: -1, period: 1m}}\n")
    done = run("check-config", str(good))
    assert (done.returncode, done.stderr) == (0, "")
    assert "api: limiter, 5 an hour per key" in done.stdout
    done = run("check-config", str(bad))
    assert done.returncode == 2
    assert "api" in done.stderr
    assert str(bad) in done.stderr


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path, names: str = "IP:127.0.0.1") -> None:
    """An authority, a server's certificate and a client's, in PEM files."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, "req", "-x509", *key, *_files("ca"), "-subj", "/CN=test authority")
    for name, more in (("server", ["-addext", f"subjectAltName={names}"]), ("client", [])):
        signer = ["-CA", "ca.pem", "-CAkey", "ca.key"]
        openssl(folder, "req", "-x509", *key, *_files(name), *signer, "-subj", f"/CN={name}", *more)


def _files(name: str) -> list[str]:
    return ["-keyout", f"{name}.key", "-out", f"{name}.pem"]


class Guarded(Penstock):
    """`penstock serve` behind TLS, which a plain ping cannot pass."""

    def __init__(self, context: ssl.SSLContext, flags: Sequence[str], grpc: bool = False) -> None:
        super().__init__(*flags, grpc=grpc)
        self._context = context

    def ping(self) -> None:
        assert self.ask(self._context) == 200

    def ask(self, context: ssl.SSLContext) -> int:
        import http.client

        line = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=context)
        try:
            line.request("GET", "/check/alice")
            return line.getresponse().status
        finally:
            line.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_clients_can_be_asked_for_certificates(tmp_path: Path) -> None:
    """With one of the authority's they are served, without they are not."""
    make_certificates(tmp_path)
    knows = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    stranger = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    knows.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    tls = ["--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-ca", "ca.pem"]
    flags = [word if word.startswith("--") else str(tmp_path / word) for word in tls]
    with Guarded(knows, flags) as server:
        assert server.ask(knows) == 200
        with pytest.raises(OSError, match=r"(?i)certificate|reset|eof|closed"):
            server.ask(stranger)
        assert server.ask(knows) == 200
        assert "Traceback" not in server.log_path.read_text()


def files_in(folder: Path, *words: str) -> list[str]:
    """Flags, with their files in a folder."""
    return [word if word.startswith("--") else str(folder / word) for word in words]


TLS = ("--tls-cert", "server.pem", "--tls-key", "server.key")


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("curl")), reason="needs both")
@pytest.mark.parametrize("names", ["IP:127.0.0.1", "DNS:limits.example.com", "DNS:*.example.com"])
def test_the_line_that_is_printed_works_whatever_the_certificate_is_for(
    tmp_path: Path, names: str
) -> None:
    """And says which name clients have to use, where it is not the address itself."""
    make_certificates(tmp_path, names)
    trusts = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    trusts.check_hostname = False
    with Guarded(trusts, files_in(tmp_path, *TLS)) as server:
        said = eventually(lambda: _said(server, "try:"), within=20, what="the banner")
        line = said.partition("try:")[2].splitlines()[0]
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["allowed"]
    assert ("(the certificate is for" in said) == (names != "IP:127.0.0.1")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_what_has_to_be_put_into_the_printed_line_is_said(tmp_path: Path) -> None:
    """Where clients are asked for certificates, whose files are not known here."""
    make_certificates(tmp_path)
    cert, key, ca = (str(tmp_path / name) for name in ("server.pem", "server.key", "ca.pem"))
    options = ServeOptions(tls_cert=cert, tls_key=key, tls_ca=ca)
    line, note = banner(options, {})[-2:]
    assert line.startswith("try:  curl -sS --cacert")
    assert "--cert CLIENT.pem" in line
    assert "CLIENT.pem and CLIENT-KEY.pem" in note


def test_a_certificate_that_cannot_be_read_has_no_names(tmp_path: Path) -> None:
    """The servers say what is wrong with it; the banner need not."""
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    assert names_in(TlsFiles(str(junk), str(junk))) == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_what_strangers_send_to_the_grpc_port_adds_no_lines_to_the_log(tmp_path: Path) -> None:
    """The library's core would write its own, in its own form, for each failed handshake."""
    pytest.importorskip("grpc")
    make_certificates(tmp_path)
    trusts = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    files = ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
    with Guarded(trusts, [*files, "--log-format", "json"], grpc=True) as server:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.grpc_port), 5) as line:
                line.sendall(b"GET / HTTP/1.1\r\nEVIL\n\x1b[31m\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    line.recv(100)
        server.stop()
        lines = [json.loads(line) for line in server.log_path.read_text().splitlines()]
    assert {line["logger"] for line in lines} == {"penstock.serve"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize("way", ["--open", "--open and TLS", "client certificates"])
def test_beyond_this_machine_it_listens_where_it_is_said_who_may_ask(
    tmp_path: Path, way: str
) -> None:
    """Anyone, or those with a certificate."""
    make_certificates(tmp_path)
    knows = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    knows.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    flags = ["--host", "0.0.0.0"]
    if way.startswith("--open"):
        flags.append("--open")
    if way != "--open":
        flags += files_in(tmp_path, *TLS)
    if way == "client certificates":
        flags += files_in(tmp_path, "--tls-ca", "ca.pem")
    server = Penstock(*flags) if way == "--open" else Guarded(knows, flags)
    with server:
        log = server.log_path.read_text()
    assert "Traceback" not in log


def test_a_stores_password_is_not_shown() -> None:
    """The banner goes into logs."""
    assert shown_store("redis://user:secret@host:6379/0?x=y") == "redis://host:6379/0"


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "", "192.0.2.1")),
    ],
)
def test_loopback_is_told_from_the_network(host: str, own: bool) -> None:
    """An address that stands for all of them is the network."""
    assert is_loopback(host) is own


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_without_standard_streams_it_serves_and_stops_as_usual() -> None:
    """Whoever starts it may have closed them. The next files that are opened would take their
    numbers, and the event loop ends the process when one of those is closed."""
    with WithoutStreams() as server:
        process = server.process()
        clients = [Client(server.port) for _ in range(3)]
        assert [client.get("/check/alice").status for client in clients] == [200] * 3
        for client in clients:
            client.close()
        process.terminate()
        assert process.wait(20) == 0
        server.stop()


class WithoutStreams(Penstock):
    def command(self) -> list[str]:
        return ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *super().command()]
