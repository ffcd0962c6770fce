"""Who may ask, under which name, and on whose behalf."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.service.http._head import Hosts, is_cross_site

from .serving import Client, InProcessServer, Penstock, Reply, talk

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def server() -> Iterator[Penstock]:
    """As it is started without any flag: on this machine, without a token."""
    with Penstock() as server:
        yield server


def asked(port: int, path: str = "/check/a", **headers: str) -> Reply:
    client = Client(port)
    try:
        return client.get(path, **{name.replace("_", "-"): v for name, v in headers.items()})
    finally:
        client.close()


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8080", "localhost.", "127.0.0.1", "127.1.2.3:1", "[::1]:8080"]
)
def test_it_is_asked_under_the_names_of_its_machine(server: Penstock, host: str) -> None:
    """On whatever port: that may be another one in front of a tunnel."""
    assert asked(server.port, Host=host).status in (200, 429)


@pytest.mark.parametrize("path", ["/check/a", "/metrics", "/ready", "/docs", "/nope"])
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1"]
)
def test_a_site_that_points_to_this_machine_is_refused(
    server: Penstock, path: str, host: str
) -> None:
    """Its pages ask on their own behalf, so only the name tells."""
    reply = asked(server.port, path, Host=host, Sec_Fetch_Site="same-origin")
    assert (reply.status, reply.json["code"]) == (421, "unknown_host")


def test_an_old_client_need_not_say_which_host_it_means(server: Penstock) -> None:
    """No browser leaves it out."""
    assert talk(server.port, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_more_names_can_be_allowed() -> None:
    """One by one, or all under a domain."""
    with Penstock("--allowed-hosts", "limits.internal, *.example.com") as server:
        for host in ("limits.internal:8080", "a.example.com", "a.b.EXAMPLE.com", "localhost"):
            assert asked(server.port, Host=host).status in (200, 429), host
        for host in ("internal", "example.com", "evilexample.com", "other.internal"):
            assert asked(server.port, Host=host).status == 421, host


@pytest.mark.parametrize("allowed", [("--allowed-hosts", "*"), ("token",)])
def test_any_name_will_do_where_it_is_said_so_or_a_token_is_asked_for(
    allowed: tuple[str, ...], tmp_path: Path
) -> None:
    """No page of another site knows the token."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    flags = ("--token-file", str(token)) if allowed == ("token",) else allowed
    with Penstock(*flags) as server:
        headers = {"Host": "proxy.example", "Authorization": f"Bearer {TOKEN}"}
        site = {"Sec-Fetch-Site": "cross-site", "Origin": "http://site.example"}
        assert asked(server.port, **headers).status == 200
        if allowed == ("token",):
            assert asked(server.port, **headers, **site).status == 200


def test_names_that_are_given_are_asked_for_whatever_else_is() -> None:
    """Though there is a token."""
    with InProcessServer(token=TOKEN, hosts=["limits.internal"]) as server:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert asked(server.port, Host="limits.internal", **headers).status == 200
        assert asked(server.port, Host="other.internal", **headers).status == 421


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "http://a:1", "host": "a:1"}, False),
        ({"origin": "http://A:1", "host": "a:1"}, False),
        ({"origin": "https://a", "host": "a"}, False),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-origin, cross-site"}, True),
        ({"origin": "http://evil.example", "host": "localhost:8080"}, True),
        ({"origin": "http://localhost:3000", "host": "localhost:8080"}, True),
        ({"origin": "null", "host": "localhost"}, True),
        ({"origin": "", "host": ""}, True),
        ({"origin": "file://localhost", "host": "localhost"}, True),
        ({"origin": "http://localhost, http://localhost", "host": "localhost"}, True),
    ],
)
def test_a_browser_says_for_whom_it_asks(headers: dict[str, str], foreign: bool) -> None:
    """In two ways, of which a page over plain HTTP may have one only."""
    assert is_cross_site(headers) is foreign


def test_a_page_of_another_site_is_refused_by_its_origin_alone(server: Penstock) -> None:
    """Browsers leave Sec-Fetch-Site out over plain HTTP; nothing is decided."""
    client = Client(server.port)
    before = client.post("/check", {"key": "o", "limit": 9, "window_ms": 60_000}).json["remaining"]
    for origin in ("http://evil.example", "null", f"http://localhost:{server.port + 1}"):
        asked = {"key": "o", "limit": 9, "window_ms": 60_000}
        refused = client.post("/check", asked, Origin=origin)
        assert (refused.status, refused.json["code"]) == (403, "cross_site")
    own = f"http://127.0.0.1:{server.port}"
    after = client.post("/check", {"key": "o", "limit": 9, "window_ms": 60_000}, Origin=own)
    assert after.json["remaining"] == before - 1
    client.close()


@pytest.mark.parametrize(
    "value",
    [
        *(
            f"Bearer \xa0{TOKEN}",
            f"Bearer {TOKEN}\xa0",
            f"\xa0Bearer {TOKEN}",
            f"Bearer\xa0{TOKEN}",
        ),
        *(f"Bearer\t{TOKEN}", f"Bearer {TOKEN} x", f"Bearer {TOKEN},", f"Bearer  \x1f{TOKEN}"),
        *(f"Bearer\x85 {TOKEN}", "Bearer", "Bearer ", TOKEN, f"Bearer{TOKEN}", f"Basic {TOKEN}"),
    ],
)
def test_a_token_is_itself_and_nothing_around_it(value: str) -> None:
    """What looks like a space is none."""
    with InProcessServer(token=TOKEN) as server:
        head = f"GET /check/a HTTP/1.1\r\nHost: a\r\nAuthorization: {value}\r\n"
        raw = f"{head}Connection: close\r\n\r\n".encode("latin-1")
        status = talk(server.port, raw)[9:12]
        assert status == (b"400" if "\x1f" in value else b"401")


def test_spaces_before_a_token_are_what_the_header_allows() -> None:
    """One or more, and any case of the scheme."""
    with InProcessServer(token=TOKEN) as server:
        for value in (f"Bearer {TOKEN}", f"bearer   {TOKEN}", f"BEARER {TOKEN}  "):
            assert asked(server.port, Authorization=value).status == 200


def test_an_unauthorized_request_is_not_waited_for() -> None:
    """Its body would change nothing; the connection ends with the refusal."""
    with InProcessServer(token=TOKEN) as server:
        head = b"POST /v1/check-many HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), 10) as line:
            line.sendall(head + b"x" * 100)
            reply = line.recv(65_536)
        assert reply.startswith(b"HTTP/1.1 401 ")
        assert b"Connection: close" in reply


def test_names_are_compared_as_names() -> None:
    """Not as patterns, and addresses as addresses."""
    hosts = Hosts(["Limits.Internal", "[fd00::1]", "*.example.com"])
    for host in ("limits.internal", "LIMITS.INTERNAL.:80", "[fd00::1]:80", "x.example.com"):
        assert hosts.accept(host), host
    for host in ("limitsXinternal", "[fd00::2]", "example.com", ".example.org", "[::2]"):
        assert not hosts.accept(host), host
