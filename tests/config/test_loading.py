"""Policy files on disk."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigInvalidError, UnsupportedError
from penstock.config import load_policy_file

GOOD = "version: 1\nlimiters: {api: {strategy: gcra, limit: 3, period: 1m}}\n"


def test_a_file_is_read_and_knows_where_it_is_from(tmp_path: Path) -> None:
    """A byte order mark does no harm."""
    path = tmp_path / "penstock.yaml"
    path.write_text(GOOD, encoding="utf-8-sig")
    file = load_policy_file(path)
    assert file.source == str(path)
    assert file.policies["api"].limit == 3


def test_the_digest_tells_one_text_from_another(tmp_path: Path) -> None:
    """Equal policies, different texts."""
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(GOOD)
    two.write_text(GOOD + "# a comment\n")
    first, second = load_policy_file(one), load_policy_file(str(two))
    assert first.digest != second.digest
    assert first.policies["api"].limit == second.policies["api"].limit


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"\xff\xfe", "is not UTF-8, at byte 0"),
        (b"#" * (17 << 20), "is larger than"),
        (b"\x00", "is not valid YAML"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, raw: bytes, told: str) -> None:
    """With the file's name."""
    path = tmp_path / "penstock.yaml"
    path.write_bytes(raw)
    with pytest.raises(ConfigInvalidError, match=told) as caught:
        load_policy_file(path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_told_apart(tmp_path: Path) -> None:
    """Missing, or a folder."""
    with pytest.raises(ConfigInvalidError, match="cannot be read: No such file"):
        load_policy_file(tmp_path / "none.yaml")
    with pytest.raises(ConfigInvalidError, match="cannot be read"):
        load_policy_file(tmp_path)


def test_without_a_yaml_library_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And JSON is read all the same."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    path = tmp_path / "penstock.yaml"
    path.write_text(GOOD)
    with pytest.raises(UnsupportedError, match="which the extra 'server' brings"):
        load_policy_file(path)
    path = tmp_path / "penstock.json"
    path.write_text(
        '{"version": 1, "limiters": {"a": {"tokenBudget": {"budget": 1, "window": "1s"}}}}'
    )
    assert load_policy_file(path).policies["a"].kind == "budget"
