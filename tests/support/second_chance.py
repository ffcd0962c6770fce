"""`python -m tests.support.second_chance`: the tests that failed last, once more, by themselves.

Thousands of tests share two cores with a dozen real servers, which are killed and stopped on
purpose; once in a while a deadline is missed that nothing is wrong with. One failure alone shall
not hide what the other tests say, so a few get a second run with the machine to themselves. It is
never silent: each is named, and whoever reads its name here should look for the cause. More than
a few are no accident, and none of them is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 3
CACHE = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    failed = list(json.loads(CACHE.read_text())) if CACHE.is_file() else []
    if not 0 < len(failed) <= MOST:
        return 1
    print(
        f"==> {len(failed)} failed in the crowd: once more, alone",
        *failed,
        sep="\n    ",
        flush=True,
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "--verbose", *failed], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
