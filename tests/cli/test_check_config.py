"""`penstock check-config`: what it reads out, warns of and compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.config._schema import policy_schema
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


OLD = """\
version: 1
limiters:
  plain: {strategy: fixedWindow, limit: 100, window: 1m}
  model: {tokenBudget: {budget: 1000, window: 1h}}
  jobs: {concurrency: {minLimit: 1, maxLimit: 9}}
  api:
    limits:
      user: {by: user, strategy: gcra, limit: 100, period: 1m}
      tokens: {by: user, cost: tokens, strategy: tokenBucket, capacity: 500, refillPerSec: 8}
"""


@pytest.mark.parametrize(
    ("was", "now", "lines"),
    [
        ("limit: 100, window", "limit: 100, window", []),
        (
            "limit: 100, window",
            "limit: 200, window",
            ["kept, with other figures: plain: was 100 a minute per key; is 200 a minute per key"],
        ),
        (
            "window: 1m",
            "window: 1h",
            [
                "lost: plain: counts of fixed_window(window_ms=60000, anchor='epoch') cannot be "
                "read as fixed_window(window_ms=3600000, anchor='epoch')"
            ],
        ),
        ("plain:", "other:", ["lost: plain: the policy is removed"]),
        (
            "version: 1\n",
            "version: 1\ndefaults: {prefix: shop}\n",
            ["lost: all counts: the prefix was 'penstock' and is 'shop'"],
        ),
        ("      user:", "      person:", ["lost: api.user: is removed"]),
        (
            "by: user, cost",
            "by: tenant, cost",
            [
                "lost: api.tokens: was counted per user, in tokens and is counted per tenant, in "
                "tokens"
            ],
        ),
        (
            "cost: tokens, ",
            "",
            [
                "lost: api.tokens: was counted per user, in tokens and is counted per user, in "
                "requests"
            ],
        ),
        (
            "period: 1m}",
            "period: 1m, shadow: true}",
            [
                "kept, with other figures: api.user: was 100 a minute per user; is a shadow of "
                "100 a minute per user"
            ],
        ),
        (
            "{tokenBudget: {budget: 1000, window: 1h}}",
            "{strategy: gcra, limit: 1, period: 1h}",
            ["lost: model.tokenBudget: is removed"],
        ),
        (
            "maxLimit: 9",
            "maxLimit: 10",
            [
                "kept, with other figures: jobs.concurrency: was 1 to 9 in flight; is 1 to 10 in "
                "flight; slots in flight stay counted, and a ceiling that was inferred is inferred "
                "anew"
            ],
        ),
        (
            "maxLimit: 9",
            "maxLimit: 9, perKey: true",
            ["lost: jobs.concurrency: perKey is another one; slots in flight are not counted"],
        ),
    ],
)
def test_against_another_file_it_tells_which_counts_are_lost(
    run: Run, tmp_path: Path, was: str, now: str, lines: list[str]
) -> None:
    """By prefix, name, key, unit and the form of the states; --strict ends with 1 for them."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    new.write_text(OLD.replace(was, now, 1))
    code, out, _ = run("check-config", "--strict", "--against", str(old), str(new))
    told = out[out.index(f"against {old}: ") :].splitlines()
    lost = any(line.startswith("lost") for line in lines)
    assert told[0].endswith("counts will be lost" if lost else "all counts are kept")
    assert [line.strip() for line in told[1:]] == lines
    assert code == (1 if lost else 0)
    assert run("check-config", "--against", str(old), str(new))[0] == 0


def test_an_old_file_that_is_bad_is_told_as_any_other(run: Run, tmp_path: Path) -> None:
    """With its own name."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("version: 2\n")
    new.write_text(OLD)
    code, _, err = run("check-config", "--against", str(old), str(new))
    assert code == 2
    assert f"{old}, line 1: version: must be 1" in err


def test_the_schema_is_printed_instead(run: Run) -> None:
    """For an editor; and either it or a file is wanted."""
    code, out, err = run("check-config", "--schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == policy_schema()
    for words in ((), ("--schema", "p.yaml")):
        code, _, err = run("check-config", *words)
        assert code == 2
        assert "give either FILE, a policy file, or --schema" in err
