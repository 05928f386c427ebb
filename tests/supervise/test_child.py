"""What a command that cannot be started is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incumbent.supervise.child import CannotStart, Child
from incumbent.supervise.guarding import GuardFault

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


def test_a_script_whose_interpreter_is_missing_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    job.write_text("#!/no/such/python -u\n")
    job.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in ("job", str(job)):
        error = CannotStart(command, FileNotFoundError(2, "No such file or directory"))
        assert str(error) == f"{command}: its interpreter /no/such/python -u is not found"
        assert error.code == 126
    missing = CannotStart("jobb", FileNotFoundError(2, "No such file or directory"))
    assert (str(missing), missing.code) == ("jobb: not found", 127)


@pytest.mark.parametrize(
    ("fault", "told"), [(DENIED, CannotStart), (GuardFault("it is gone"), GuardFault)]
)
def test_what_could_not_be_started_leaves_the_terminal_to_us(
    fault: Exception, told: type[Exception]
) -> None:
    done: list[str] = []

    def become(*_: object) -> None:
        raise fault

    guard = SimpleNamespace(channel=None, secret="")
    close = lambda: done.append("ended")  # noqa: E731
    ready = SimpleNamespace(guard=guard, namespace=-1, pid=0, term=1, become=become, close=close)
    terminal = SimpleNamespace(take_back=lambda: done.append("terminal"))
    with pytest.raises(told):
        Child(["job"], {}, cast("Any", terminal), cast("Any", ready))
    assert done == ["ended", "terminal"]
