"""`python -m penstock.cli`: the same as `penstock`."""

from __future__ import annotations

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
