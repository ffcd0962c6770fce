"""`penstock store`: set up a store, and give back the space of what it has forgotten."""

from __future__ import annotations

import argparse

from ..core._validation import reject
from ..stores._opening import open_store
from ._modes import call_and_close
from ._settings import Settings, store_url

__all__ = ["SUMMARY", "configure", "run"]


SUMMARY = "set up or sweep a store"

_EPILOG = """\
examples:
  penstock store init postgresql://user@host/database
  penstock store init sqlite:////var/lib/limits.db
  penstock store sweep postgresql://user@host/database

`init` creates the table or the file if it is missing, and refuses one that it does not
understand; it may be repeated. `sweep` deletes what has long expired: for cron, never needed for
a right decision. Quote a URL that has a `&`, and keep passwords off the command line: put the URL
into PENSTOCK_STORE or a --store-file, or leave the password out of it and set PGPASSWORD.
"""


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
    """Do it, and say what was done."""
    store = open_store(_url(args))
    name = type(store).__name__
    if getattr(store, args.what, None) is None:
        why = "needs no set-up" if args.what == "init" else "gives space back by itself"
        print(f"nothing to do: {name} {why}")
        return 0
    result = call_and_close(store, getattr(store, args.what), getattr(store, f"a{args.what}"))
    print(f"ready: {store!r}" if args.what == "init" else f"dropped: {result}")
    return 0


def _url(args: argparse.Namespace) -> str:
    if args.url is not None and args.store_file is not None:
        reject("URL and --store-file both say the same; keep one of them")
    if args.url is not None:
        return str(args.url)
    args.settings.resolve(args)
    url = store_url(args)
    if url is None:
        reject("say which store: a URL, --store-file FILE or PENSTOCK_STORE")
    return url
