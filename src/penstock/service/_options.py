"""The options of `penstock serve`, and their validation. Every error says how to fix it."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config import DEFAULT_FILE, PolicyFile, load_policy_file
from ..config._loading import import_modules
from ..core._files import read_ascii
from ..core._validation import reject, require_choice, require_int
from ..stores.rest._store import token_variable

__all__ = ["ServeOptions", "TlsFiles"]


LOG_FORMATS = ("text", "json")
_SHORTEST_TOKEN = 16
_LONGEST_TOKEN_FILE = 1 << 16
_LONGEST_DRAIN_S = 3_600
_TOKEN = re.compile(r"[!-~]+")
_HOST_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. With a `ca`, clients must present a certificate signed by it."""

    cert: str
    key: str
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `penstock serve`. A port of 0 turns that server off."""

    config: str | None = None
    imports: tuple[str, ...] = ()
    store: str = "memory://"
    host: str = "127.0.0.1"
    http_port: int = 8080
    grpc_port: int = 50051
    fail: str = "open"
    workers: int = 1
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    token_file: str | None = None
    log_format: str = "text"
    inline: bool = True
    open: bool = False
    allowed_hosts: tuple[str, ...] = ()
    legacy_headers: bool = False
    drain_s: float = 10.0
    fleet_secret_file: str | None = None
    token_variable: str | None = None
    fleet_secret_variable: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """Setting to the variable or file that it came from, for the banner."""

    @property
    def asks_token(self) -> bool:
        """Whether clients have to present a token."""
        return self.token_file is not None or self.token_variable is not None

    @property
    def tls(self) -> TlsFiles | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)

    def check(self) -> PolicyFile:
        """Validate everything before a port is opened. Returns the policies."""
        require_choice("--log-format", self.log_format, LOG_FORMATS)
        require_int("--workers", self.workers, high=1_024)
        for name, port in (("--http-port", self.http_port), ("--grpc-port", self.grpc_port)):
            require_int(name, port, low=0, high=65_535)
        if not 0 <= self.drain_s <= _LONGEST_DRAIN_S:  # false for NaN, too
            reject(f"--drain must be 0 to {_LONGEST_DRAIN_S} seconds, not {self.drain_s:g}")
        if not self.http_port and not self.grpc_port:
            reject("--no-http and --no-grpc leave nothing to serve; remove one of them")
        self._check_tls()
        self._check_exposure()
        self._check_token()
        self._check_hosts()
        import_modules(self.imports)
        file = DEFAULT_FILE if self.config is None else load_policy_file(self.config)
        self.check_policies(file)
        return file

    def token(self) -> str | None:
        """The token that clients have to present, if there is one."""
        return _secret("token", self.token_file, self.token_variable)

    def fleet_secret(self) -> str | None:
        """The secret of the fleet, if there is one."""
        return _secret("fleet secret", self.fleet_secret_file, self.fleet_secret_variable)

    def _check_tls(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            reject("--tls-cert and --tls-key must be given together")
        if self.tls_ca is not None and self.tls_cert is None:
            reject("--tls-ca needs --tls-cert and --tls-key as well")

    def _check_exposure(self) -> None:
        asked = [flag for flag, is_asked in self._asks().items() if is_asked]
        if self.open and asked:
            reject(f"--open lets anyone in, which contradicts {asked[0]}: remove one of them")
        if not self.open and not asked and not is_loopback(self.host):
            reject(
                f"--host {self.host} is reachable from the network, where anyone could use up the "
                "limits of others: restrict access with --token-file or --tls-ca, or allow it to "
                "anyone with --open"
            )

    def _asks(self) -> dict[str, bool]:
        token = self.token_variable or "--token-file"
        return {token: self.asks_token, "--tls-ca": self.tls_ca is not None}

    def _check_token(self) -> None:
        if self.token_variable is not None and self.token_variable == token_variable(self.store):
            reject(
                f"{self.token_variable} would be the token of both the service and its store: name "
                "another variable for the store with ?token_env=, or use --token-file"
            )

    def _check_hosts(self) -> None:
        for name in self.allowed_hosts:
            if name != "*" and not _HOST_NAME.fullmatch(name) and not _is_address(name):
                reject(
                    f"--allowed-hosts {name!r} must be a host name such as limits.example.com, "
                    "*.example.com for all names below it, an address, or * for any host; without "
                    "a port"
                )

    def must_know_host(self) -> bool:
        """Whether the Host of HTTP requests is checked, which protects a service on this machine
        from web pages of other sites. With a token there is no need, since such a page does not
        have it; on a network the names of the service are not known."""
        if self.allowed_hosts:
            return "*" not in self.allowed_hosts
        return not self.asks_token and is_loopback(self.host)

    def check_policies(self, file: PolicyFile) -> None:
        """Reject policies that several workers cannot serve, at the start and on a reload."""
        if self.workers == 1:
            return
        if self.store.partition("://")[0].lower() == "memory":
            reject(
                f"{self.workers} workers on memory:// would each have separate counts; use a "
                "shared store, such as --store redis://HOST:6379, or --workers 1"
            )


def _secret(what: str, file: str | None, variable: str | None) -> str | None:
    """A secret from its file or environment variable; None if neither is given."""
    if file is not None:
        return _token_in(f"{what} file", file)
    if variable is None:
        return None
    return _one_token(f"the variable {variable}", os.environ.get(variable, ""))


def _token_in(kind: str, file: str) -> str:
    try:
        text = read_ascii(file, _LONGEST_TOKEN_FILE)
    except OSError as error:
        reject(f"the {kind} {file!r} cannot be read: {error.strerror or error}")
    return _one_token(f"the {kind} {file!r}", text)


def _one_token(place: str, text: str) -> str:
    token = text.strip()
    if len(token) < _SHORTEST_TOKEN or not _TOKEN.fullmatch(token):
        reject(
            f"{place} must contain one token of at least {_SHORTEST_TOKEN} printable ASCII "
            "characters, for example from `openssl rand -hex 32`"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is a loopback address."""
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_PASSIVE)
    except OSError as error:
        reject(f"--host {host!r} is not an address of this machine: {error}")
    addresses = [str(address[4][0]).partition("%")[0] for address in found]
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
