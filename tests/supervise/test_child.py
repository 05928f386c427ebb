"""What a command that cannot be started is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from incumbent.supervise.child import CannotStart

DENIED = PermissionError(13, "Permission denied")


def test_a_folder_of_the_path_that_is_out_of_reach_means_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"/root/not-ours:{tmp_path}")
    assert CannotStart("job", DENIED).code == 127


def test_a_file_that_is_there_and_not_executable_is_126(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "job").touch(mode=0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert CannotStart("job", DENIED).code == 126
    assert CannotStart(str(tmp_path / "job"), DENIED).code == 126
