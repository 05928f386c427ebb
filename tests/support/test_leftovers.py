"""A test that fails in the middle is red alone, and one that leaves something behind is red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LEAVES = """
import gc, threading
from incumbent import Lock
from tests.support import leftovers

leftovers.ENDS_WITHIN = 0.5
kept = []

def test_leaves_a_lease():
    kept.append(Lock("kept", store="memory:left").acquire())
    dropped = Lock("dropped", store="memory:left").acquire()
    assert {passes}
    dropped.release()

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, args=(5,), name="incumbent-left").start()
    assert {passes}

def test_changes_a_server_of_others(redis_server):
    redis_server.cli("CONFIG", "SET", "maxmemory", "12345678")
    assert {passes}

def test_comes_after_them(redis_server):
    gc.collect()
    for name in ("kept", "dropped"):
        Lock(name, store="memory:left", timeout=1).acquire().release()
    assert {passes} or "maxmemory:0" in redis_server.cli("INFO", "memory")
"""


def outcome(tmp_path: Path, *, passes: bool) -> str:
    file = tmp_path / "test_two.py"
    file.write_text(LEAVES.format(passes=passes))
    options = ("-c", "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider", "-q")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.server
def test_what_a_failed_test_leaves_reaches_no_other(tmp_path: Path) -> None:
    said = outcome(tmp_path, passes=False)
    assert "3 failed, 1 passed in" in said, said


@pytest.mark.server
def test_a_test_that_leaves_something_is_not_green(tmp_path: Path) -> None:
    said = outcome(tmp_path, passes=True)
    assert "4 passed, 3 errors in" in said, said
    assert "left behind: ['kept']" in said
    assert "left behind: ['incumbent-left']" in said
    assert "left by a test of this worker: ['maxmemory 12345678']" in said
