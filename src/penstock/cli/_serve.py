"""`penstock serve`: the service, over HTTP and gRPC."""

from __future__ import annotations

import argparse

from ..core._errors import ConfigInvalidError
from ..service._options import LOG_FORMATS, ServeOptions
from ..service._supervisor import serve
from ._settings import Settings, add_import, imports_of
from ._store import add_store, store_url

__all__ = ["SUMMARY", "configure", "run"]


SUMMARY = "serve limits over HTTP and gRPC"

_EPILOG = """\
examples:
  penstock serve                                    10 per minute and client, in memory
  penstock serve --config penstock.yaml --store redis://localhost:6379
  penstock serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --token-file token
  penstock serve --config penstock.yaml --import shop.limits
  PENSTOCK_STORE=redis://:secret@HOST:6379 penstock serve --config penstock.yaml

Each flag that takes a value can be given as an environment variable instead: PENSTOCK_HTTP_PORT for
--http-port. Keep secrets off the command line: use PENSTOCK_STORE or --store-file, PENSTOCK_TOKEN
or --token-file, PENSTOCK_FLEET_SECRET or --fleet-secret-file.

SIGTERM stops the service after it has answered open requests, a second SIGTERM at once. SIGHUP
reloads the policy file and the certificates; a policy file that changes is reloaded by itself.

Exit codes: 0 stopped by a signal, 1 an operational failure, 2 invalid options or policies.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    preset = ServeOptions()
    settings = Settings(parser)
    add = settings.add
    add("--config", metavar="FILE", help="the policy file; without it one policy, `default`")
    add_store(
        settings,
        default=preset.store,
        help="the store of the counts, such as redis://HOST:6379 (%(default)s)",
    )
    add_import(settings)
    add("--host", default=preset.host, help="the address to listen on (%(default)s)")
    add(
        "--http-port",
        type=int,
        metavar="PORT",
        default=preset.http_port,
        help="the port of the HTTP server; 0 turns it off (%(default)s)",
    )
    add(
        "--grpc-port",
        type=int,
        metavar="PORT",
        default=preset.grpc_port,
        help="the port of the gRPC server; 0 turns it off (%(default)s)",
    )
    add("--no-http", action="store_true", help="turn the HTTP server off")
    add("--no-grpc", action="store_true", help="turn the gRPC server off")
    add(
        "--fail",
        choices=("open", "closed"),
        default=preset.fail,
        help="the fail mode of policies that have none, for when the store is away (%(default)s)",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        default=preset.workers,
        help="number of processes; several need a shared store (%(default)s)",
    )
    _configure_safety(settings)
    add(
        "--log-format",
        choices=LOG_FORMATS,
        default=preset.log_format,
        help="the format of the log on standard error (%(default)s)",
    )
    add("--legacy-headers", action="store_true", help="always send X-RateLimit-* as well")


def _configure_safety(settings: Settings) -> None:
    add = settings.add
    add("--tls-cert", metavar="FILE", help="serve with TLS: the certificate chain, in PEM format")
    add("--tls-key", metavar="FILE", help="the key of the certificate")
    add("--tls-ca", metavar="FILE", help="require client certificates signed by this authority")
    add("--token-file", metavar="FILE", help="require the bearer token in this file")
    add(
        "--fleet-secret-file",
        metavar="FILE",
        help="lease credits to clients that present the secret in this file",
    )
    settings.exclude("token_file", variables=("token",))
    settings.exclude("fleet_secret_file", variables=("fleet_secret",))
    add("--no-inline", action="store_true", help="reject requests that contain their own limit")
    add(
        "--open",
        action="store_true",
        help="allow access to anyone who can connect, from the network too",
    )
    add(
        "--allowed-hosts",
        metavar="NAMES",
        type=lambda names: tuple(name.strip() for name in names.split(",")),
        default=(),
        help="answer HTTP requests for these host names only, separated by commas; the default on "
        "a loopback address without a token is its own names",
    )
    add(
        "--drain",
        type=float,
        metavar="SECONDS",
        default=ServeOptions().drain_s,
        help="how long to keep answering after a signal to stop, 0 to 3600 (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings: Settings = args.settings
    settings.refuse_near_misses()
    settings.resolve(args)
    try:
        return serve(_options(args, settings))
    except ConfigInvalidError as error:
        raise settings.explained(error) from error


def _options(args: argparse.Namespace, settings: Settings) -> ServeOptions:
    return ServeOptions(
        config=args.config,
        imports=imports_of(args),
        store=str(store_url(args)),
        host=args.host,
        http_port=0 if args.no_http else args.http_port,
        grpc_port=0 if args.no_grpc else args.grpc_port,
        fail=args.fail,
        workers=args.workers,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_ca=args.tls_ca,
        token_file=args.token_file,
        log_format=args.log_format,
        inline=not args.no_inline,
        open=args.open,
        allowed_hosts=args.allowed_hosts,
        legacy_headers=args.legacy_headers,
        drain_s=args.drain,
        fleet_secret_file=args.fleet_secret_file,
        token_variable=settings.sources.get("token"),
        fleet_secret_variable=settings.sources.get("fleet_secret"),
        sources=_sources(args, settings),
    )


def _sources(args: argparse.Namespace, settings: Settings) -> dict[str, str]:
    """For the banner: which settings came from which variable or file."""
    sources = dict(settings.sources)
    for dest in ("store_file", "token_file", "fleet_secret_file"):
        if getattr(args, dest) is not None:
            sources.pop(dest, None)
            sources[dest.removesuffix("_file")] = getattr(args, dest)
    return sources
