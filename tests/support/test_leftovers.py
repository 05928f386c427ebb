"""A test that fails in the middle is red alone, and one that leaves something behind is red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers
from tests.support.servers import ROOT

LEAVES = """
import gc, threading
import pytest
from incumbent import Lock
from tests.support import leftovers

leftovers.ENDS_WITHIN = 0.5
kept = []
both = pytest.mark.parametrize("passes", [False, True])

@both
def test_leaves_a_lease(passes):
    kept.append(Lock("kept", store="memory:left", timeout=1).acquire())
    dropped = Lock("dropped", store="memory:left", timeout=1).acquire()
    assert passes
    dropped.release()

@both
def test_leaves_a_thread(passes):
    threading.Thread(target=threading.Event().wait, args=(5,), name="incumbent-left").start()
    assert passes

def test_changes_a_server_and_fails(redis_server):
    redis_server.cli("CONFIG", "SET", "maxmemory", "1234")
    assert False

def test_comes_after_them(redis_server):
    gc.collect()
    for name in ("kept", "dropped"):
        Lock(name, store="memory:left", timeout=1).acquire().release()
    assert "maxmemory:0" in redis_server.cli("INFO", "memory")

def test_changes_a_server(redis_server):
    redis_server.cli("CONFIG", "SET", "maxmemory", "5678")
"""


@pytest.mark.left(tiers.NET)
@pytest.mark.server
def test_what_a_test_leaves_reaches_no_other_and_is_no_success(tmp_path: Path) -> None:
    file = tmp_path / "test_leaving.py"
    file.write_text(LEAVES)
    options = ("-c", "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider", "-q")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "3 failed, 4 passed, 3 errors in" in done.stdout, done.stdout + done.stderr
    assert "left behind: ['kept']" in done.stdout
    assert "left behind: ['incumbent-left']" in done.stdout
    assert "left by a test of this worker: ['maxmemory 5678']" in done.stdout
