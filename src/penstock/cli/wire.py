"""`penstock wire`: the files that other programs rely on, derived or compared."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.validation import reject
from ..wire.files import PROTOCOL, drifted, write

__all__ = ["SUMMARY", "configure", "run"]

SUMMARY = "derive the files of the wire, or compare them"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "`check` ends with 1 when a file has drifted."
    parser.add_argument("what", choices=("generate", "check"), help="write the files, or compare")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("wire"), help="where (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Name each file that was written, or that has drifted."""
    if not (args.folder / PROTOCOL).is_file():
        reject(f"{args.folder} holds no {PROTOCOL}; run this at the root of the source")
    if args.what == "generate":
        for name in write(args.folder):
            print(f"written: {args.folder / name}")
        return 0
    names = drifted(args.folder)
    for name in names:
        print(f"drifted: {args.folder / name}")
    return 1 if names else 0
