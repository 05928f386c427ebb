"""`replace_file`: the old data or the new, and never an older holder's."""

from __future__ import annotations

from pathlib import Path

import pytest

from incumbent import LeaseLost, StoreError
from incumbent.fencing import Token, replace_file


def test_a_smaller_token_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    replace_file(Token("report", 7), path, b"seven")
    replace_file(Token("report", 7), path, b"seven again")
    with pytest.raises(LeaseLost, match=r"token 6 may not write .* token 7 was here"):
        replace_file(Token("report", 6), path, b"six")
    assert path.read_bytes() == b"seven again"
    assert {entry.name for entry in tmp_path.iterdir()} == {"report.csv", "report.csv.token"}


def test_the_rights_of_the_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    path.write_bytes(b"")
    path.chmod(0o640)
    replace_file(Token("report", 1), path, b"new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_an_aborted_write_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".report.csv.new").write_bytes(b"half")
    replace_file(Token("report", 1), tmp_path / "report.csv", b"new")
    assert (tmp_path / "report.csv").read_bytes() == b"new"


def test_a_write_that_fails_leaves_the_old_data_and_refuses_no_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.csv"
    replace_file(Token("report", 1), path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="space"):
        replace_file(Token("report", 2), path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    with pytest.raises(LeaseLost):
        replace_file(Token("report", 1), path, b"late")


@pytest.mark.parametrize("torn", [b"12", b"x" * 20, b"0" * 21])
def test_a_file_of_tokens_that_cannot_be_read_stops_all_writes(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "report.csv.token").write_bytes(torn)
    with pytest.raises(StoreError, match="20 digits"):
        replace_file(Token("report", 9), tmp_path / "report.csv", b"new")
    assert not (tmp_path / "report.csv").exists()


def test_a_link_and_its_file_are_one_resource(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to("real")
    replace_file(Token("report", 7), link, b"seven")
    assert link.is_symlink()
    with pytest.raises(LeaseLost, match="token 7 was here"):
        replace_file(Token("report", 6), real, b"six")
    assert real.read_bytes() == b"seven"
