"""`penstock check-config`: what it reads out, warns of and compares."""

from __future__ import annotations

from pathlib import Path

from tests.cli.shell import Run

USER = "user: {by: user, strategy: gcra, limit: 100, period: 1m, burst: 20}"


def test_check_config_reads_a_file_out(run: Run, tmp_path: Path) -> None:
    """Each policy, and below it each of its limits."""
    file = tmp_path / "p.yaml"
    file.write_text(
        "version: 1\nlimiters:\n"
        "  login: {strategy: slidingWindow, limit: 5, window: 15m, fail: closed}\n"
        f"  api:\n    fail: open\n    limits:\n      {USER}\n"
        "    plans: {pro: {user: {limit: 1000}}}\n"
    )
    assert run("check-config", str(file)) == (
        0,
        f"{file}: good, 2 policies\n"
        "  login: limiter, 5 in any 15 minutes per key, fail closed\n"
        "  api: limits, fail open\n"
        "    user: 100 a minute per user, 20 at once; pro: 1,000\n",
        "",
    )


def test_warnings_fail_only_where_that_is_asked_for(run: Run, tmp_path: Path) -> None:
    """They stand on standard error, apart from what was read out."""
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nlimiters: {a: {strategy: gcra, limit: 1, period: 1s, burst: 9}}\n")
    code, out, err = run("check-config", str(file))
    assert (code, out.splitlines()[0]) == (0, f"{file}: good, 1 policy")
    assert err.startswith(f"warning: {file}, line 2: limiters.a.burst: 9 at once take 9 seconds")
    assert run("check-config", "--strict", str(file)) == (1, out, err)
    file.write_text("version: 1\nlimiters: {a: {strategy: gcra, limit: 9, period: 1s}}\n")
    assert run("check-config", "--strict", str(file))[0] == 0
