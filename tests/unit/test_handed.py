"""What a program that nobody trusts left where its answer should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.handed import UnreadableFile, content_of, need_plain


def test_a_plain_file_is_read_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert content_of(tmp_path / "f", limit=5) == b"12345"
    with pytest.raises(UnreadableFile, match="larger than the limit of 4 bytes"):
        content_of(tmp_path / "f", limit=4)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with pytest.raises(UnreadableFile, match="no plain file"):
        content_of(tmp_path / "f", limit=5)
    with pytest.raises(UnreadableFile, match="no plain file"):
        need_plain(tmp_path / "f")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "f").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="symbolic links"):
        content_of(tmp_path / "f", limit=5)
    with pytest.raises(UnreadableFile):
        need_plain(tmp_path / "f")
