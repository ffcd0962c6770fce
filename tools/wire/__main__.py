"""`python -m penstock.wire [--check] [folder]`: derive the files of the wire, or compare them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .files import PROTOCOL, drifted, write

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wire", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("wire"))
    options = parser.parse_args(arguments)
    if not (options.folder / PROTOCOL).is_file():
        parser.error(f"{options.folder} holds no {PROTOCOL}; run this at the root of the source")
    if options.check:
        names = drifted(options.folder)
        for name in names:
            print(f"drifted: {options.folder / name}")
        return 1 if names else 0
    for name in write(options.folder):
        print(f"written: {options.folder / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
