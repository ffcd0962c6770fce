"""Reading files that somebody named."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from penstock.core._files import read_ascii, read_regular
from tests.special import KINDS, replace


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_a_fitting_size_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """Nobody waits for the other end of a FIFO, or for the end of a device."""
    path = tmp_path / "file"
    told = replace(path, kind)
    with pytest.raises(OSError, match=told):
        read_regular(path, 1_000)


def test_a_file_of_as_many_bytes_as_allowed_is_read(tmp_path: Path) -> None:
    """One more is too many."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_regular(path, 10) == b"x" * 10
    assert read_regular(str(path), 10) == b"x" * 10
    with pytest.raises(OSError, match="larger than 9 bytes"):
        read_regular(path, 9)


def test_a_file_whose_size_the_system_does_not_tell_is_read() -> None:
    """As those under /proc, which say that they are empty."""
    assert read_regular("/proc/self/status", 1 << 16).startswith(b"Name:")
    with pytest.raises(OSError, match="larger than 5 bytes"):
        read_regular("/proc/self/status", 5)


def test_a_fifo_that_takes_the_place_of_a_file_while_it_is_opened_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look found a file, the second finds what it has become."""
    path = tmp_path / "file"
    path.write_text("a file")
    really = os.open

    def late(name: object, flags: int) -> int:
        replace(path, "FIFO")
        return really(str(name), flags)

    monkeypatch.setattr("os.open", late)
    told: list[OSError] = []

    def read() -> None:
        try:
            read_regular(path, 10)
        except OSError as error:
            told.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(10)
    assert not reading.is_alive()
    assert "a FIFO" in str(told[0])


def test_a_text_of_plain_characters_is_nothing_else(tmp_path: Path) -> None:
    """And says where it is not."""
    path = tmp_path / "token"
    path.write_text("abcé", encoding="utf-8")
    with pytest.raises(OSError, match="it is not ASCII, at byte 3"):
        read_ascii(path, 100)
    path.write_text("abc")
    assert read_ascii(path, 100) == "abc"
