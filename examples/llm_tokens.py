"""Call a language model from several processes without being refused.

The provider is played by a server of this program. It speaks the shapes of OpenAI and of Anthropic,
whole answers and streams, and enforces limits of its own: requests, tokens, calls in flight. The
workers are processes that share limits a little below those, in a file or in Redis. They take an
estimate for each call, stream the answer and settle by the usage that it reports.

Some calls are refused on purpose, with a time to wait. All workers keep it, and the one that was
refused tries again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from penstock import gcra, token_bucket
from penstock.integrations.language_models import ModelLimits


class Bucket:
    """How the provider counts: so much at once, and so much more every second."""

    def __init__(self, capacity: float, per_sec: float) -> None:
        self.level = self.capacity = capacity
        self._per_sec = per_sec
        self._at = time.monotonic()

    def take(self, cost: float) -> bool:
        now = time.monotonic()
        self.level = min(self.capacity, self.level + (now - self._at) * self._per_sec)
        self._at = now
        if self.level < cost:
            return False
        self.level -= cost
        return True


class Provider(ThreadingHTTPServer):
    """Refuses what is above its limits, and what it was told to refuse, and counts both."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ModelHandler)
        self.lock = threading.Lock()
        self.requests = Bucket(60, 240)
        self.tokens = Bucket(30_000, 110_000)
        self.in_flight = 0
        self.counts: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.order: list[str] = []

    def admit(self, estimate: int, inject: str, worker: str) -> str:
        """Why a call is refused, or nothing."""
        with self.lock:
            if inject and inject not in self.refused:
                self.refused.add(inject)
                return "injected"
            if self.in_flight >= 24:
                return "too many in flight"
            if not self.requests.take(1):
                return "too many requests"
            if not self.tokens.take(estimate):
                return "too many tokens"
            self.in_flight += 1
            self.order.append(worker)
            return ""

    def end(self, unused: int) -> None:
        with self.lock:
            self.in_flight -= 1
            self.tokens.level += unused


class ModelHandler(BaseHTTPRequestHandler):
    """`/v1/chat/completions` as OpenAI has it, `/v1/messages` as Anthropic has it."""

    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = len(body["messages"][0]["content"]) // 4
        estimate = prompt + body["max_tokens"]
        why = self.server.admit(
            estimate, self.headers.get("X-Inject", ""), self.headers["X-Worker"]
        )
        self.server.counts[why or "answered"] += 1
        if why:
            self.send_response(429)
            self.send_header("retry-after-ms", "100")
            self.end_headers()
            return
        answer = random.randint(1, body["max_tokens"])
        self.send_response(200)
        self.end_headers()
        dialect = anthropic if self.path == "/v1/messages" else openai
        try:
            for piece in dialect(body.get("stream", False), prompt, answer):
                time.sleep(0.002)
                self.wfile.write(piece.encode())
        finally:
            self.server.end(estimate - prompt - answer)

    def log_message(self, *_words: object) -> None:
        """Quiet."""


def openai(streams: bool, prompt: int, answer: int) -> Iterator[str]:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }
    if not streams:
        yield json.dumps({"choices": [{"message": {"content": "lorem"}}], "usage": usage})
        return
    for _ in range(3):
        yield event({"choices": [{"delta": {"content": "lorem "}}], "usage": None})
    yield event({"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def anthropic(streams: bool, prompt: int, answer: int) -> Iterator[str]:
    if not streams:
        usage = {"input_tokens": prompt, "output_tokens": answer}
        yield json.dumps({"content": [{"type": "text", "text": "lorem"}], "usage": usage})
        return
    started = {"usage": {"input_tokens": prompt, "output_tokens": 1}}
    yield event({"type": "message_start", "message": started})
    for _ in range(3):
        yield event({"type": "content_block_delta", "delta": {"text": "lorem "}})
    yield event({"type": "message_delta", "usage": {"output_tokens": answer}})
    yield event({"type": "message_stop"})


def event(told: dict[str, Any]) -> str:
    return f"data: {json.dumps(told)}\n\n"


class Worker:
    """Makes its share of the calls, a few of them at a time."""

    def __init__(self, name: str, url: str, store: str, calls: int) -> None:
        self.model = ModelLimits(
            requests=gcra(200, 1_000, burst=20),
            tokens=token_bucket(capacity=8_000, refill_per_sec=100_000),
            in_flight=16,
            store=store,
            prefix="{provider}",
        )
        self.name = name
        self.url = url
        self.calls = calls
        self.used = 0
        self.slowest_s = 0.0

    def run(self) -> None:
        numbers = iter(range(self.calls))
        threads = [threading.Thread(target=self.work, args=(numbers,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.model.close()

    def work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            # One call of each worker is refused on purpose, and made again.
            inject = f"{self.name}-{number}" if number == 5 else ""
            while not self.call(number, inject):
                pass

    def call(self, number: int, inject: str) -> bool:
        """Whether the provider answered it."""
        path = "/v1/messages" if number % 2 else "/v1/chat/completions"
        prompt, max_tokens = "word " * random.randint(5, 50), random.choice((50, 200, 800))
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "stream": number % 4 < 2,
            "stream_options": {"include_usage": True},
        }
        headers = {"X-Worker": self.name, "X-Inject": inject}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        began = time.monotonic()
        try:
            with self.model.call(prompt, max_tokens) as call:
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                with urllib.request.urlopen(request, timeout=30) as response:
                    if body["stream"]:
                        for _ in call.stream(events(response)):
                            pass
                    else:
                        call.used(json.load(response))
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        self.used += call.usage.tokens or 0
        return True


def events(lines: Any) -> Iterator[Any]:
    """The events of a stream, as parsed JSON."""
    for line in lines:
        text = line.decode().removeprefix("data: ").strip()
        if text and text != "[DONE]":
            yield json.loads(text)


def work(options: argparse.Namespace) -> None:
    worker = Worker(options.worker, options.url, options.store, options.calls)
    print("ready", flush=True)
    sys.stdin.readline()
    worker.run()
    report = {"worker": worker.name, "used": worker.used, "slowest_s": worker.slowest_s}
    print(json.dumps(report), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--calls", type=int, default=20, help="of each process")
    parser.add_argument("--store", help="a URL; a file in a temporary folder by default")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        provide(options, options.store or f"sqlite:///{Path(folder) / 'limits.db'}")


def provide(options: argparse.Namespace, store: str) -> None:
    provider = Provider()
    serving = threading.Thread(target=provider.serve_forever, args=(0.05,))
    serving.start()
    try:
        began = time.monotonic()
        reports = run_workers(options, store, f"http://127.0.0.1:{provider.server_port}")
        tell(provider, reports, time.monotonic() - began)
    finally:
        provider.shutdown()
        serving.join()
        provider.server_close()


def run_workers(options: argparse.Namespace, store: str, url: str) -> list[dict[str, Any]]:
    """Start the processes, let them go at once, and hear what they have to tell."""
    words = [sys.executable, __file__, "--store", store, "--url", url]
    words += ["--calls", str(options.calls)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [
        subprocess.Popen([*words, "--worker", f"w{number}"], **pipes)
        for number in range(options.processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [json.loads(worker.communicate()[0]) for worker in workers]


def tell(provider: Provider, reports: list[dict[str, Any]], took_s: float) -> None:
    half = Counter(provider.order[: len(provider.order) // 2])
    slowest = max(report["slowest_s"] for report in reports)
    counts = provider.counts
    by_limits = counts.total() - counts["answered"] - counts["injected"]
    print(f"{len(reports)} processes, {took_s:.1f} s, longest wait {slowest:.1f} s")
    print(f"tokens used: {sum(report['used'] for report in reports)}")
    print(f"of the first half, each had at least {min(half[r['worker']] for r in reports)}")
    print(
        f"{counts['answered']} answered, {counts['injected']} refused on purpose, "
        f"{by_limits} refused by limits"
    )


if __name__ == "__main__":
    main()
