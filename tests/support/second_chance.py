"""`python -m tests.support.second_chance`: a test that failed in the crowd, once more, alone.

Thousands of tests share two cores with a dozen real servers, which are killed and stopped on
purpose. One missed deadline shall not hide the result of all other tests, so a single failure gets
a second run with the machine to itself. The test is named before and after that run: it has a cause
that has to be found. Two failures are no accident, and neither is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 1
CACHE = Path(".pytest_cache/v/cache/lastfailed")
LINE = "!" * 78


def main() -> int:
    failed = list(json.loads(CACHE.read_text())) if CACHE.is_file() else []
    if not 0 < len(failed) <= MOST:
        return 1
    print(f"==> failed in the crowd; once more, alone:\n    {failed[0]}", flush=True)
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "--verbose", *failed], check=False
    ).returncode
    if code == 0:
        said = "passed only with a second chance; find its cause"
        print(f"{LINE}\n{failed[0]}\n{said}\n{LINE}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
