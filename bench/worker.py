"""One contender in a process of its own: `python -m bench.worker SCENARIO CONTENDER`.

It says hello when it is ready, then measures once for every line it reads, and ends with its
input. A process each keeps the contenders' background threads, caches and allocators apart, and
is what lets both paths of Penstock take part in one run.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import penstock

from .contenders import CONTENDERS
from .scenarios import find

__all__: list[str] = []


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main(scenario: str, contender: str) -> None:
    try:
        probe = find(scenario).prepare(CONTENDERS[contender])
        probe()
    except ModuleNotFoundError as error:
        _say({"error": f"{error.name} is not installed"})
        return
    _say({"accelerated": penstock.accelerated})
    for _ in sys.stdin:
        sample = probe()
        _say({"call_ns": sample.call_ns, "base_ns": sample.base_ns})


if __name__ == "__main__":
    main(*sys.argv[1:])
