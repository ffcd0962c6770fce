"""`SEED=7 python -m tests.model`: tries scenarios from a seed on, and explains what they break.

WORLD is a kind of world, STORE a store, TWIN a second store that has to agree, COUNT how many seeds
are tried. Each law is explained once, by the first scenario that breaks it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter

from .drawing import DRAWN
from .trying import broken_by, explain


def main() -> int:
    asked = os.environ.get
    kinds = [asked("WORLD", "")] if asked("WORLD") else list(DRAWN)
    store, twin, first = asked("STORE", "memory"), asked("TWIN", ""), int(asked("SEED", "0"))
    count = int(asked("COUNT", "1" if asked("SEED") else "300"))
    found: Counter[str] = Counter()
    for kind in kinds:
        began = time.monotonic()
        for seed in range(first, first + count):
            broken = broken_by(DRAWN[kind](seed, store), twin)
            if broken is not None:
                law = f"{kind}: {broken.law}"
                found[law] += 1
                if found[law] == 1:
                    print(f"== {law}\n{explain(kind, store, seed, broken, twin)}\n", flush=True)
        print(f"{kind}: {count} scenarios in {time.monotonic() - began:.1f} s", flush=True)
    for law, times in found.most_common():
        print(f"{times:5d}  {law}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
