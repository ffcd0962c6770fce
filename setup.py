"""Builds the optional extensions: the native accelerator, and the compiled HTTP/2 and gRPC.

Everything else is in pyproject.toml. A machine without a compiler, or an interpreter that they do
not fit, gets the package without them: the interpreted paths make the same decisions.
"""

import os
import platform
import sys

from setuptools import Extension, setup

_NATIVE = (
    "checks",
    "counts",
    "gate",
    "heads",
    "kernels",
    "order",
    "records",
    "redis",
    "replies",
    "runs",
    "table",
)
_HTTP2 = ("fields", "hpack", "http2")


def _extension(name: str, parts: list[str], flags: list[str]) -> Extension:
    folder = "src/penstock/accel"
    return Extension(
        f"penstock.accel.{name}",
        [f"{folder}/{name}.pyx"],
        depends=[f"{folder}/{part}" for part in parts],
        extra_compile_args=flags,
        optional=True,
    )


def extensions() -> list[Extension]:
    if platform.python_implementation() != "CPython" or sys.maxsize < 2**32:
        return []
    if os.environ.get("PENSTOCK_NO_NATIVE"):
        return []
    from Cython.Build import cythonize

    msvc = sys.platform == "win32"
    # Decisions must match the oracle to the bit: a fused multiply-add would round once, not twice.
    # And without what a debugger would need, which takes a compiler a quarter of its time.
    exact = ["/fp:precise"] if msvc else ["-O3", "-g0", "-ffp-contract=off", "-fno-fast-math"]
    fast = [] if msvc else ["-O2", "-g0"]
    built = cythonize(
        [
            _extension("_native", ["_native.pxd", *(f"{part}.pxi" for part in _NATIVE)], exact),
            _extension("_http2", ["_http2.pxd", *(f"{part}.pxi" for part in _HTTP2)], fast),
            _extension("_grpc", ["_native.pxd", "_http2.pxd"], fast),
        ],
        language_level=3,
        # What was translated once, in whichever copy of the sources, is found there again.
        cache=os.environ.get("CYTHON_CACHE_DIR", False),
    )
    for extension in built:
        # Lost on the way through cythonize: without it, a missing compiler would be an error.
        extension.optional = True
    return built


# Side by side: each takes a compiler some ten seconds or more.
setup(ext_modules=extensions(), options={"build_ext": {"parallel": 2}})
