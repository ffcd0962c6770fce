"""`make test-odd`: runs `make test` on a machine that is unlike that of a developer.

As root, the run has a user of its own, who is not root. The tree is a copy without git in a folder
whose name has a space and a letter outside of ASCII. TMPDIR is long and has a space. Standard input
is closed, there is no terminal, SIGHUP is ignored as by `nohup`, and 1,024 files may be open. The
variables that libraries read (proxies, PG*, AWS_*, COLUMNS, SEED, TZ, LANG) have values that would
lead every one of them astray.

Packages are installed first, without the proxies, which do not answer.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.test_install import copy_of_the_source

USER = "penstock-odd"
FILES = 1_024
DEAD = "http://127.0.0.1:9"
VARIABLES = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), DEAD),
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "PGHOST": "nowhere.invalid",
    "PGPORT": "1",
    "PGUSER": "no-such-user",
    "PGDATABASE": "no-such-database",
    "AWS_PROFILE": "no-such-profile",
    "AWS_REGION": "nowhere-1",
    "AWS_ENDPOINT_URL": DEAD,
    "COLUMNS": "40",
    "SEED": "x",
    "TZ": "Pacific/Chatham",
    "LANG": "tr_TR.UTF-8",
}


def user() -> dict[str, Any]:
    """The arguments by which subprocess runs a command as another user, if this one is root."""
    if os.geteuid() != 0:
        return {}
    try:
        found = pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "--create-home", USER], check=True)
        found = pwd.getpwnam(USER)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def python_for_others() -> str:
    """An interpreter that another user may run: one in the home of this user may be closed."""
    candidates = [sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"]
    return next((each for each in candidates if Path.home() not in Path(each).parents), "python3")


def prepare() -> None:
    """Runs in the new process: as `nohup` does, and with few files."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


def run(words: list[str], tree: Path, variables: dict[str, str], options: dict[str, Any]) -> int:
    print(f"==> {' '.join(words)}", flush=True)
    # A pipe instead of the terminal, and an end of file on standard input.
    with subprocess.Popen(
        words,
        cwd=tree,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=prepare,
        start_new_session=True,
        **options,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    return process.returncode


def main() -> int:
    options = user()
    folder = Path(tempfile.mkdtemp(prefix="pen stöck "))
    tree, temporary = folder / "a tree", folder / ("a long name for a temporary folder " * 3)
    print(f"==> an odd machine in {folder}, as {USER if options else 'this user'}", flush=True)
    copy_of_the_source(tree)
    temporary.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    if options:
        variables |= {"HOME": str(folder), "USER": USER, "LOGNAME": USER}
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, options["user"], options["group"])
    folder.chmod(0o755)
    python = f"PYTHON={python_for_others()}"
    code = run(["make", "setup", python], tree, variables, options)
    if code == 0:
        odd = {**variables, **VARIABLES, "TMPDIR": str(temporary)}
        code = run(["make", "test", python], tree, odd, options)
    if code == 0:
        shutil.rmtree(folder)
    else:
        print(f"==> failed; the tree is in {folder}")
    return code


if __name__ == "__main__":
    sys.exit(main())
