"""Upstash's REST API in front of a real server: JSON commands in, JSON replies out."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import redis


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has given up is no news."""


class RestBridge:
    """`url` takes a command as a JSON list, `url/pipeline` a list of them."""

    def __init__(self, host: str, port: int) -> None:
        self.delay_s = 0.0
        self.requests: list[list[Any]] = []
        self._client = redis.Redis(host=host, port=port, protocol=2)
        bridge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = json.dumps(bridge.answer(body, self.path.endswith("/pipeline"))).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, body: list[Any], is_pipeline: bool) -> Any:
        self.requests.append(body)
        replies = [self._run(command) for command in (body if is_pipeline else [body])]
        time.sleep(self.delay_s)
        return replies if is_pipeline else replies[0]

    def _run(self, command: list[Any]) -> dict[str, Any]:
        connection = self._client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            return {"result": _encoded(connection.read_response())}
        except redis.exceptions.NoScriptError as error:
            # The client takes the code off the text.
            return {"error": f"NOSCRIPT {error}"}
        except redis.ResponseError as error:
            return {"error": str(error)}
        finally:
            self._client.connection_pool.release(connection)

    def __enter__(self) -> RestBridge:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()


def _encoded(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return base64.b64encode(reply).decode()
    if isinstance(reply, list):
        return [_encoded(part) for part in reply]
    return reply
