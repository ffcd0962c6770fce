"""How Sphinx builds the site: `make docs`. The root of the repository is its source folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# The interpreted classes have signatures to show; the compiled ones do not.
os.environ["PENSTOCK_PURE"] = "1"

from penstock import __version__  # noqa: E402

project = "Penstock"
author = "The Penstock developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "tools.docs.api", "tools.docs.pages"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "bench/README.md",
    "proofs/README.md",
    "wire/WIRE-PROTOCOL.md",
]
exclude_patterns = [".*", "build", "src", "tests"]

myst_heading_anchors = 4
highlight_language = "none"

# Docstrings put code in single backticks.
default_role = "name"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Penstock {release}"
html_copy_source = False
html_extra_path = ["site"]
