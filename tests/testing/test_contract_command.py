"""`python -m incumbent.testing.contract`: whether any store keeps the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from incumbent.testing.contract.__main__ import main
from tests import tiers

pytestmark = pytest.mark.slow

_FEW = ("-k", "renewal_extends or closing_twice")
"""Two cases, on both sides."""


def _run(*arguments: str, folder: Path, store: str = "") -> tuple[int, str]:
    """Exit code and output, run in `folder`."""
    environ = {name: it for name, it in os.environ.items() if not name.startswith("PYTEST")}
    environ |= {"INCUMBENT_STORE": store} if store else {}
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.left(tiers.LONG)
def test_a_store_that_keeps_the_contract_is_told_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    code, said = _run(
        *("-m", "incumbent.testing.contract", url, "--", "-n", "2"), *_FEW, folder=tmp_path
    )
    assert code == 0, said
    assert "4 passed" in said
    assert said.splitlines()[-1] == f"kept: {url} keeps the contract", said


@pytest.mark.left(tiers.LONG)
def test_settings_of_a_project_that_is_here_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise SystemExit(7)\n")
    url = f"sqlite:///{tmp_path}/leases.db"
    code, said = _run(
        "-m", "incumbent.testing.contract", "--", *_FEW, "-n", "0", folder=tmp_path, store=url
    )
    assert code == 0, said


_BROKEN = """
import sys
from incumbent.model import Renewed
from incumbent.stores import memory, url
from incumbent.testing.contract.__main__ import main

memory.MemoryStore.renew = lambda self, renewals, until: [Renewed() for _ in renewals]
sys.exit(main(["memory:", "--", "-n", "0", "-k", "extends or creates"]))
"""


def test_a_store_that_breaks_it_is_told_which_cases_it_breaks(tmp_path: Path) -> None:
    code, said = _run("-c", _BROKEN, folder=tmp_path)
    assert code == 1, said
    assert said.splitlines()[-1].startswith("broken: memory: does not keep"), said
    assert "test_a_renewal_never_creates_a_lease" in said


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["redis://:hidden@127.0.0.1:1/0"],
            69,
            "cannot be reached: [Errno 111] Connection refused",
        ),
        (["nothing://known"], 64, "not the scheme of a known store"),
        (["memory:", "--ttl", "1ms"], 64, "ttl must be at least 100ms on this store"),
        (["memory:", "--ttl", "soon"], 64, "ttl"),
        (["memory:", "--no-such-option"], 64, "usage: python -m incumbent.testing.contract"),
        ([""], 64, "--store is empty"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_is(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    try:
        found = main(arguments)
    except SystemExit as end:
        found = int(end.code or 0)
    said = capsys.readouterr()
    assert (found, words in said.err, said.out) == (code, True, ""), said
    assert "hidden" not in said.err
    assert "Traceback" not in said.err


def test_a_selection_without_cases_is_wrong_usage(tmp_path: Path) -> None:
    code, said = _run(
        *("-m", "incumbent.testing.contract", "memory:", "--", "-n", "0", "-k", "no_such_case"),
        folder=tmp_path,
    )
    assert code == 64, said
    assert said.splitlines()[-1] == "incumbent: no case has such a name"
