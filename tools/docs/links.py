"""Whether every link of a site that was built leads somewhere: pages, files, pictures, anchors.

Links to the world outside are not followed.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["broken_links"]


class _Page(HTMLParser):
    """What a page points to, and where one can point to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in ("href", "src"):
                self.links.append(value)
            elif name == "srcset":
                self.links += [part.split()[0] for part in value.split(",") if part.strip()]


def broken_links(site: Path) -> list[str]:
    """`page: link` for each link that leads nowhere."""
    pages = {path.resolve(): _Page(path) for path in sorted(site.rglob("*.html"))}
    return [
        f"{path.relative_to(site.resolve())}: {link}"
        for path, page in pages.items()
        for link in dict.fromkeys(page.links)
        if not _leads_somewhere(link, path, pages)
    ]


def _leads_somewhere(link: str, path: Path, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not there.is_file():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or there not in pages or anchor in pages[there].anchors
