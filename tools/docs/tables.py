"""What the docs have that follows from the code: `python -m tools.docs.tables` writes it.

A table stands between `<!-- derived: NAME -->` and `<!-- end -->`. The schema of policy files is a
file of its own, published with the site. A test holds that both are up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock import strategies as _built_in  # noqa: F401 - registers them
from penstock.config._schema import schema_text
from penstock.core._register import registered
from penstock.core._strategy import Parameter
from penstock.core._validation import MAX_SAFE

__all__ = ["PAGES", "SCHEMA", "derived"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "policies.md",)
SCHEMA = ROOT / "docs" / "site" / "penstock.schema.json"

_BLOCK = re.compile(r"(<!-- derived: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def derived(text: str) -> str:
    """A page with its tables as they should be."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{_table(block[2])}\n{block[3]}", text)


def _table(name: str) -> str:
    head, *rows = _TABLES[name]()
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _strategies() -> Iterator[list[str]]:
    yield ["`strategy`", "takes", "which is", "default"]
    for cls in registered():
        named = f"`{cls.wire_name}`"
        for parameter in cls.parameters:
            yield [named, f"`{_key(parameter)}`", _meaning(parameter), _default(parameter)]
            named = ""


def _key(parameter: Parameter) -> str:
    """As the page spells it: spans without their unit, which they may have too."""
    name = parameter.wire_name
    return name.removesuffix("Ms") if parameter.kind == "span" else name


def _meaning(parameter: Parameter) -> str:
    if parameter.kind == "choice":
        return f"{parameter.doc}: {' or '.join(f'`{choice}`' for choice in parameter.choices)}"
    if parameter.kind == "count" and parameter.high < MAX_SAFE:
        return f"{parameter.doc}, at most {parameter.high:,}"
    return parameter.doc


def _default(parameter: Parameter) -> str:
    if parameter.is_required:
        return "required"
    return "" if parameter.default is None else f"`{parameter.default}`"


_TABLES: dict[str, Callable[[], Iterator[list[str]]]] = {"strategies": _strategies}


def main() -> int:
    """Bring the pages up to date."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (wanted := derived(text)) != text:
            page.write_text(wanted, encoding="utf-8")
            print(f"written: {page.relative_to(ROOT)}")
    if not SCHEMA.is_file() or SCHEMA.read_text(encoding="utf-8") != schema_text():
        SCHEMA.write_text(schema_text(), encoding="utf-8")
        print(f"written: {SCHEMA.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
