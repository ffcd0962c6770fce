"""The store of a command: its URL, and sync calls to it. And `penstock store`, which sets up a
store, or deletes what has expired."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..core._errors import UnsupportedError
from ..core._files import read_regular
from ..core._store import Store
from ..core._validation import reject
from ..stores._opening import open_store
from ._settings import Settings

__all__ = ["SUMMARY", "add_store", "call_and_close", "configure", "run", "store_url"]


R = TypeVar("R")

SUMMARY = "set up or sweep a store"

_EPILOG = """\
examples:
  penstock store init postgresql://user@host/database
  penstock store init sqlite:////var/lib/limits.db
  penstock store sweep postgresql://user@host/database

`init` creates the table or the file if it is missing, and may be repeated; it rejects one of an
unknown format. `sweep` deletes what expired long ago, to free space: run it from cron. Decisions
never depend on it. Quote a URL that has a `&`, and keep passwords off the command line: put the URL
into PENSTOCK_STORE or a --store-file, or leave the password out of it and set PGPASSWORD.
"""

_LONGEST_STORE_FILE = 1 << 16


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("init", "sweep"), help="set it up, or give space back")
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="the store, as in the examples; else PENSTOCK_STORE"
    )
    settings = Settings(parser)
    settings.add("--store-file", metavar="FILE", help="the file that holds the store's URL")
    settings.exclude("store_file", variables=("store",))


def run(args: argparse.Namespace) -> int:
    """Set up or sweep the store, and print what was done."""
    store = open_store(_url(args))
    name = type(store).__name__
    if getattr(store, args.what, None) is None:
        why = "needs no set-up" if args.what == "init" else "frees space by itself"
        print(f"nothing to do: {name} {why}")
        return 0
    result = call_and_close(store, getattr(store, args.what), getattr(store, f"a{args.what}"))
    print(f"ready: {store!r}" if args.what == "init" else f"dropped: {result}")
    return 0


def _url(args: argparse.Namespace) -> str:
    if args.url is not None and args.store_file is not None:
        reject("URL and --store-file exclude each other; keep one of them")
    if args.url is not None:
        return str(args.url)
    args.settings.resolve(args)
    url = store_url(args)
    if url is None:
        reject("a store is needed: give a URL, --store-file FILE or PENSTOCK_STORE")
    return url


def add_store(settings: Settings, **options: Any) -> None:
    """`--store` and `--store-file`, of which one may be given."""
    settings.add("--store", metavar="URL", **options)
    settings.add("--store-file", metavar="FILE", help="the file that holds the store's URL")
    settings.exclude("store", "store_file")


def store_url(args: argparse.Namespace) -> str | None:
    """The URL of the store, from the flag, the file or the environment; None if not given."""
    if args.store_file is None:
        return None if args.store is None else str(args.store)
    try:
        url = read_regular(args.store_file, _LONGEST_STORE_FILE).decode().strip()
    except OSError as error:
        reject(f"the store file {args.store_file!r} cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        reject(f"the store file {args.store_file!r} is not a text in UTF-8")
    if len(url.split()) != 1:
        reject(f"the store file {args.store_file!r} must contain one URL, as redis://HOST:6379")
    return url


def call_and_close(store: Store, call: Callable[[], R], acall: Callable[[], Awaitable[R]]) -> R:
    """Use `call()`, or `await acall()` on a store that is async only; then close the store."""
    try:
        return call()
    except UnsupportedError:
        return asyncio.run(_await_and_close(store, acall))
    finally:
        store.close()


async def _await_and_close(store: Store, acall: Callable[[], Awaitable[R]]) -> R:
    try:
        return await acall()
    finally:
        await store.aclose()
