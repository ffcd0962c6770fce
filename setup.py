"""Builds the optional native accelerator; everything else is in pyproject.toml.

A machine without a compiler, or an interpreter that the extension does not fit, gets the package
without it: the interpreted path makes the same decisions.
"""

import os
import platform
import sys
from glob import glob

from setuptools import Extension, setup


def extensions() -> list[Extension]:
    if platform.python_implementation() != "CPython" or sys.maxsize < 2**32:
        return []
    if os.environ.get("PENSTOCK_NO_NATIVE"):
        return []
    from Cython.Build import cythonize

    msvc = sys.platform == "win32"
    # Decisions must match the oracle to the bit: a fused multiply-add would round once, not twice.
    exact = ["/fp:precise"] if msvc else ["-O3", "-ffp-contract=off", "-fno-fast-math"]
    native = Extension(
        "penstock.accel._native",
        ["src/penstock/accel/_native.pyx"],
        depends=sorted(glob("src/penstock/accel/*.pxi")),
        extra_compile_args=exact,
        optional=True,
    )
    built = cythonize([native], language_level=3)
    for extension in built:
        # Lost on the way through cythonize: without it, a missing compiler would be an error.
        extension.optional = True
    return built


setup(ext_modules=extensions())
