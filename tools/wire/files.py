"""Every file that is derived, by its path in the folder `wire/`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from penstock.core._lua import MARGIN_MS, MAX_MARGIN_MS, REPLY

from .lease_vectors import lease_vectors
from .manifest import manifest, published, script_file
from .vectors import golden_vectors

__all__ = ["PROTOCOL", "derive", "drifted", "write"]

PROTOCOL = "WIRE-PROTOCOL.md"

_BLOCK = re.compile(r"(<!-- derived: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def derive(folder: Path) -> dict[str, str]:
    """The text of every derived file. The protocol's prose is read from `folder`, its tables are
    filled in."""
    scripts = {
        script_file(script): script.source
        for source in published()
        for script in (source.check, source.read)
    }
    prose = (folder / PROTOCOL).read_text(encoding="utf-8")
    return {
        **scripts,
        "manifest.json": _json(manifest()),
        "vectors/golden-vectors.json": _json(golden_vectors()),
        "vectors/golden-vectors-leases.json": _json(lease_vectors()),
        PROTOCOL: _BLOCK.sub(lambda block: block[1] + _table(block[2]) + block[3], prose),
    }


def drifted(folder: Path) -> list[str]:
    """The files that differ from what the strategies say, and scripts that nothing derives."""
    wanted = derive(folder)
    strangers = {f"scripts/{path.name}" for path in (folder / "scripts").glob("*")}
    changed = {name for name, text in wanted.items() if not _holds(folder / name, text)}
    return sorted(changed | (strangers - wanted.keys()))


def write(folder: Path) -> list[str]:
    """Bring the folder up to date; returns what was changed."""
    changed = drifted(folder)
    wanted = derive(folder)
    for name in changed:
        path = folder / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wanted[name].encode())
        else:
            path.unlink()
    return changed


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _table(name: str) -> str:
    rows = {"scripts": _script_rows, "state": _state_rows, "facts": _fact_rows}[name]()
    width = len(rows[0])
    lines = [rows[0], ["---"] * width, *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _script_rows() -> list[list[str]]:
    rows = [["script", "strategy", "ARGV", "reply"]]
    for source in published():
        argv, reply = ", ".join(source.argv), ", ".join(REPLY)
        rows.append([f"`{source.check.name}`", source.strategy, argv, reply])
        rows.append([f"`{source.read.name}`", source.strategy, "none", source.raw])
    return rows


def _state_rows() -> list[list[str]]:
    return [["strategy", "state"], *([f"`{each.name}`", each.state] for each in published())]


def _fact_rows() -> list[list[str]]:
    facts = manifest()
    return [
        ["fact", "value"],
        ["contract version", facts["contractVersion"]],
        ["frozen", "yes" if facts["frozen"] else "no"],
        ["reply", ", ".join(facts["replyTuple"])],
        ["`now` is", f"ARGV[{facts['nowArgv']}]"],
        ["MARGIN_MS", str(MARGIN_MS)],
        ["MAX_MARGIN_MS", str(MAX_MARGIN_MS)],
    ]
