"""What the service tells about itself, and to whom."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser

import pytest

from penstock import ManualClock, StoreUnavailableError, fixed_window
from penstock.config import PolicySpec, parse_policies
from penstock.service.http._answers import CODES
from penstock.service.http._openapi import openapi
from tests.service.worlds import NOW, FragileStore, policies

from .serving import Client, InProcessServer

TOKEN = "correct horse battery staple".replace(" ", "-")


@pytest.fixture
def client() -> Iterator[Client]:
    with InProcessServer() as server:
        client = Client(server.port)
        yield client
        client.close()


def test_it_is_alive_and_ready(client: Client) -> None:
    """Two questions, two paths."""
    assert client.get("/health").json == {"status": "alive"}
    ready = client.get("/ready")
    assert (ready.status, ready.json["ready"], ready.json["policies"]) == (200, True, 1)


@pytest.mark.parametrize(
    ("fail", "own", "inline", "ready"),
    [
        ("open", None, True, 200),
        ("closed", None, True, 200),
        ("open", "error", True, 503),
        ("error", None, False, 503),
        ("error", "open", False, 200),
        ("error", "open", True, 200),
    ],
)
def test_while_the_store_is_away_readiness_follows_the_fail_modes(
    fail: str, own: str | None, inline: bool, ready: int
) -> None:
    """Ready if some policy decides without it; the strict question is about the store. Alive all
    the same, and ready again by itself."""
    store = FragileStore()
    spec = PolicySpec("api", fixed_window(3, 60_000), fail=own)
    with InProcessServer(store=store, policies=[spec], fail=fail, inline=inline) as server:
        client = Client(server.port)
        store.error = StoreUnavailableError("gone")
        for path, status in (("/ready", ready), ("/ready?store=1", 503)):
            reply = client.get(path)
            assert (reply.status, reply.json["ready"]) == (status, status == 200)
            assert reply.json["store_reachable"] is False
        assert client.get("/health").status == 200
        store.error = None
        assert client.get("/ready").status == client.get("/ready?store=1").status == 200
        for wrong in (
            "/ready?verbose=0",
            "/ready?store=1&",
            "/ready?store=0",
            "/ready?stores=1",
            "/health?store=1",
        ):
            assert client.get(wrong).status == 400
        client.close()


def test_one_policy_that_answers_with_an_error_leaves_the_service_ready() -> None:
    """Its state is shown with the states of the others, and in the metrics."""
    store, clock = FragileStore(), ManualClock(NOW)
    specs = [
        PolicySpec("api", fixed_window(3, 60_000)),
        PolicySpec("strict", fixed_window(3, 60_000), fail="closed"),
        PolicySpec("honest", fixed_window(3, 60_000), fail="error"),
        PolicySpec("unused", fixed_window(3, 60_000), fail="error"),
    ]
    with InProcessServer(store=store, policies=specs, clock=clock) as server:
        client = Client(server.port)

        def degraded() -> list[str]:
            lines = client.get("/metrics").body.decode().splitlines()
            return [line for line in lines if line.startswith("penstock_policy_degraded{")]

        names = [spec.name for spec in specs]
        assert client.get("/ready?verbose=1").json["states"] == dict.fromkeys(names, "ok")
        assert "states" not in client.get("/ready").json
        assert degraded() == []
        store.error = StoreUnavailableError("gone")
        for name in names[:3]:
            client.post("/v1/check", {"policy": name, "key": "k"})
        states = {"api": "open", "strict": "closed", "honest": "error", "unused": "error"}
        for path, status in (("/ready?verbose=1", 200), ("/ready?store=1&verbose=1", 503)):
            reply = client.get(path)
            assert (reply.status, reply.json["states"]) == (status, states)
        assert degraded() == [
            f'penstock_policy_degraded{{policy="{name}",mode="{states[name]}"}} 1'
            for name in names[:3]
        ]
        store.error = None
        clock.advance(10_000)
        assert client.get("/ready?verbose=1").json["states"] == dict.fromkeys(names, "ok")
        assert [line[-1] for line in degraded()] == ["0", "0", "0"]
        client.close()


def test_the_states_of_policies_are_shown_with_the_token_only() -> None:
    with InProcessServer(token="secret") as server:
        client = Client(server.port)
        assert "states" not in client.get("/ready?verbose=1").json
        shown = client.get("/ready?verbose=1", Authorization="Bearer secret").json
        assert shown["states"] == {"default": "ok"}
        client.close()


def test_a_full_store_is_told_apart() -> None:
    """By `/ready`, by `/metrics` and by the refusal of a policy that fails with an error."""
    store = FragileStore()
    with InProcessServer(store=store, policies=[*policies().policies.values()]) as server:
        client = Client(server.port)
        body = {"policy": "honest", "key": "k"}
        for reason in ("away", "full", "full"):
            store.error = StoreUnavailableError(f"it is {reason}", reason=reason)
            refused = client.post("/check", body)
            assert (refused.status, refused.json["code"]) == (503, "store_unavailable")
            assert refused.json["reason"] == reason
        ready = client.get("/ready")
        assert (ready.status, ready.json["store_reachable"]) == (200, True)
        assert client.get("/ready?store=1").status == 503
        assert ready.json["store_full"] is True
        lines = client.get("/metrics").body.decode().splitlines()
        assert 'penstock_store_errors_total{policy="honest",reason="away"} 1' in lines
        assert 'penstock_store_errors_total{policy="honest",reason="full"} 2' in lines
        store.error = None
        ready = client.get("/ready")
        assert (ready.status, ready.json["store_full"]) == (200, False)
        client.close()


def test_what_a_store_in_memory_holds_is_measured(client: Client) -> None:
    """Keys, bytes, evictions and refusals, of named policies and of inline ones."""
    client.get("/check/somebody")
    lines = client.get("/metrics").body.decode().splitlines()
    for store, keys in (("policies", 1), ("inline", 0)):
        assert f'penstock_store_keys{{store="{store}"}} {keys}' in lines
        assert f'penstock_store_evictions_total{{store="{store}"}} 0' in lines
        assert f'penstock_store_refusals_total{{store="{store}"}} 0' in lines
    assert any(line.startswith('penstock_store_bytes{store="policies"} ') for line in lines)


def test_metrics_are_totals_without_keys(client: Client) -> None:
    """Counts per policy and outcome; no key turns up, whatever it is called."""
    for _ in range(12):
        client.get("/check/very-secret-client")
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    assert 'penstock_decisions_total{policy="default",outcome="allowed"} 10' in lines
    assert 'penstock_decisions_total{policy="default",outcome="denied"} 2' in lines
    assert 'penstock_http_responses_total{status="429"} 2' in lines
    assert "penstock_http_connections 1" in lines
    assert 'penstock_request_seconds_count{server="http"} 12' in lines
    assert "secret" not in reply.body.decode()
    names = [line.partition("{")[0].partition(" ")[0] for line in lines if line[0] != "#"]
    described = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    parts = ("_bucket", "_sum", "_count")
    for name in names:
        stem = next((name.removesuffix(p) for p in parts if name.endswith(p)), name)
        assert stem in described or name in described, name


def test_the_description_is_served_and_shown(client: Client) -> None:
    """The page fetches nothing: it has no script, image, style or link elsewhere."""
    assert client.get("/openapi.json").json == openapi()
    page = client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    outside: list[str] = []

    class Look(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            outside.extend(v or "" for k, v in attrs if k in ("src", "href") and v[:1] not in "/#")
            assert tag not in ("script", "link", "img", "iframe")

    Look().feed(page.body.decode())
    assert outside == []
    text = page.body.decode()
    for path, methods in openapi()["paths"].items():
        for operation in methods.values():
            assert f'<h3 id="{operation["operationId"]}">' in text
            assert f'<a href="#{operation["operationId"]}">' in text
        assert f" {path}<" in text
    fields_of_check = text.partition(" /check</code></h3>")[2].partition("<h3")[0]
    assert "<code>window_ms</code><td>integer from 1 to " in fields_of_check
    assert "$ref" not in fields_of_check
    assert "<code>default</code><td>limiter<td>10 a minute per key<td>fail open" in text
    assert all(f"<code>{code}</code>" in text for code in CODES)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


EVERY_KIND = """
version: 1
limiters:
  plain: {strategy: gcra, limit: 100, period: 1m}
  model: {tokenBudget: {budget: 1000, window: 1h}}
  jobs: {concurrency: {minLimit: 1, maxLimit: 9}}
  several:
    limits:
      user: {by: user, strategy: gcra, limit: 100, period: 1m}
      tokens: {by: user, cost: tokens, strategy: tokenBucket, capacity: 500, refillPerSec: 8}
    plans: {pro: {user: {limit: 1000}}}
  held:
    limits:
      slots: {by: key, strategy: slots, limit: 3, ttl: 10s}
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(("without", "token"), [("", "a-token-of-operators"), ("plain", None)])
def test_every_line_of_the_page_works_where_it_was_asked(without: str, token: str | None) -> None:
    """Pasted into a shell, as it is: with a policy that is served, what another call answers with,
    and the token, where the service has one; without, what operators do is said to be refused."""
    served = parse_policies(EVERY_KIND).policies
    specs = [spec for name, spec in served.items() if name != without]
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    with InProcessServer(policies=specs, token=token) as server:
        client = Client(server.port)
        text = unescape(client.get("/docs", **bearer).body.decode())
        client.close()
        blocks = re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)
        calls = sum(len(methods) for methods in openapi()["paths"].values())
        assert len(blocks) == calls + (1 if without else 6), "by key, by attributes, with slots"
        # None of them says that it was refused; a page tells the word itself.
        said = "".join(f"{{\n{block}\n}} | head -c 300; echo; echo ----\n" for block in blocks)
        environment = {**os.environ, "TOKEN": token or ""}
        done = subprocess.run(
            ["sh", "-c", said], capture_output=True, text=True, env=environment, timeout=60
        )
    answers = done.stdout.split("----\n")[:-1]
    assert len(answers) == len(blocks)
    for block, answer in zip(blocks, answers, strict=True):
        refused = '"code": "unauthorized"' in answer
        assert refused == (token is None and ("/v1/pause" in block or "/v1/reset" in block)), block
        told = '"code": "' in answer and not refused
        assert told == ("/check/alice" in block), (block, answer)
    assert ("start it with --token-file" in text) == (token is None)
    assert '"held":true' in done.stdout
    assert '"settled":true' in done.stdout
    assert "$(" in "".join(blocks)


def test_a_browser_that_asks_for_nothing_is_led_to_the_page(client: Client) -> None:
    """As is anybody else: what a client accepts is not looked at."""
    led = client.get("/", Accept="text/html,application/xhtml+xml")
    assert (led.status, led.headers["location"]) == (303, "/docs")
    assert client.get("/").headers["location"] == "/docs"
    assert client.post("/", {}).status == 405


def test_a_host_cannot_bring_anything_into_the_page(client: Client) -> None:
    """Whatever it is, it is text."""
    page = client.ask("GET", "/docs", None, {"Host": "a'\"><script>b"})
    assert b"<script" not in page.body


def test_head_is_get_without_a_body(client: Client) -> None:
    """The next reply on the connection is not disturbed."""
    reply = client.ask("HEAD", "/health")
    assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "18")
    assert client.get("/health").status == 200


def test_with_a_token_only_probes_go_without() -> None:
    """Missing, wrong, of another scheme: 401, and nothing is decided."""
    with InProcessServer(token=TOKEN) as server:
        client = Client(server.port)
        for value in (None, "Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x", "é"):
            headers = {} if value is None else {"Authorization": value}
            for path in ("/check/a", "/metrics", "/openapi.json", "/docs", "/nope"):
                reply = client.ask("GET", path, None, headers)
                assert (reply.status, reply.json["code"]) == (401, "unauthorized")
                assert reply.headers["www-authenticate"].startswith("Bearer")
        assert client.get("/health").status == 200
        ready = client.get("/ready")
        assert (ready.status, "store_error" in ready.json) == (200, False)
        good = client.get("/check/a", Authorization=f"bearer {TOKEN}")
        assert (good.status, good.json["remaining"]) == (200, 9)
        client.close()


def test_pages_of_other_sites_may_not_ask(client: Client) -> None:
    """A browser says on whose behalf it asks; its own user may look at the pages."""
    site = {"Sec-Fetch-Site": "cross-site"}
    assert client.ask("GET", "/check/a", None, site).json["code"] == "cross_site"
    assert client.ask("GET", "/docs", None, site).status == 200
    assert client.ask("GET", "/check/a", None, {"Sec-Fetch-Site": "same-origin"}).status == 200
