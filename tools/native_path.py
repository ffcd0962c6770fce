"""`python -m tools.native_path`: print whether the native path is on and, if it is off, why."""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
from pathlib import Path

from penstock import accelerated


def why_off() -> str:
    """The first condition of the native path that this machine does not meet, and the remedy."""
    if os.environ.get("PENSTOCK_PURE"):
        return "PENSTOCK_PURE is set"
    if os.environ.get("PENSTOCK_NO_NATIVE"):
        return "it was not built, because PENSTOCK_NO_NATIVE is set"
    if platform.python_implementation() != "CPython":
        return f"it needs CPython, and this is {platform.python_implementation()}"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return (
            f"no C compiler: {compiler!r} is not on the PATH. Install one, then: make clean serve"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return f"no headers of Python: {header} is missing; install them, then: make clean serve"
    return "the build failed; pip install --verbose --editable . shows the compiler's messages"


def main() -> None:
    if accelerated:
        print("    native path: on")
    else:
        print(f"    native path: off ({why_off()})")
        print("    checks are interpreted: the same decisions, at a lower speed")


if __name__ == "__main__":
    main()
