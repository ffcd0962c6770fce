"""Pages that are written for GitHub, made ready for the site.

The order of the pages is that of the lists in the index: each section of it becomes a part of the
navigation. Pictures for light and dark screens, which are HTML on GitHub, become images that the
theme switches, so that they are found and copied like any other.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["navigation", "setup", "with_images"]

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)#\s]+)\.md\)", re.MULTILINE)
_PICTURE = re.compile(
    r"<picture>\s*<source [^>]*srcset=\"(?P<dark>[^\"]+)\"[^>]*>\s*"
    r"<img alt=\"(?P<alt>[^\"]*)\"\s+src=\"(?P<light>[^\"]+)\"[^>]*>\s*</picture>"
)


def navigation(index: str, generated: dict[str, str]) -> str:
    """A toctree for each section of the index that lists pages; `generated` ones come last."""
    parts = _SECTION.split(index)
    trees = []
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        entries = _ENTRY.findall(text)
        if title in generated:
            entries.append(generated[title])
        if entries:
            lines = "\n".join(f"{entry}" for entry in entries)
            trees.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n")
    return "\n".join(trees)


def with_images(text: str) -> str:
    """Each `<picture>` as two images, of which the theme shows the one that fits."""

    def images(found: re.Match[str]) -> str:
        alt = " ".join(found["alt"].split())
        return "\n".join(
            f"```{{image}} {found[shade]}\n:alt: {alt}\n:class: only-{shade}\n```"
            for shade in ("light", "dark")
        )

    return _PICTURE.sub(images, text)


def _prepare(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = with_images(source[0])
    if name == app.config.root_doc:
        api: dict[str, Any] = {"Reference": "api/index"}
        source[0] += "\n" + navigation(source[0], api)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
