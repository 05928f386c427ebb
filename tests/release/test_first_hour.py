"""A new user's first hour, in order: install, a lock, errors, a leader in FastAPI, a test.

One environment into which nothing but the wheel and what the pages name is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.architecture.test_messages import entries, fits
from tests.cookbook.recipe import cooked
from tests.docs.blocks import ROOT, blocks_of
from tests.release.installed import run
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),
    pytest.mark.left("installs what a new user would"),
]

MEETS = """
import incumbent

def met(error):
    print(type(error).__name__, str(error).replace("\\n", " "), sep="|")

def tried(call):
    try:
        call()
    except incumbent.Error as error:
        met(error)

with incumbent.Client() as other, incumbent.Lock("order-7") as lease:
    tried(lambda: other.lock("order-7").acquire(timeout=0))
    tried(lambda: incumbent.Lock("order-7").acquire())
    tried(lambda: lease.check(need=60))
    lease.release()
    tried(lease.check)
tried(lambda: incumbent.Lock("order 7"))
tried(lambda: incumbent.Lock("order-7", ttl="soon"))
tried(lambda: incumbent.Lock("order-7", store="redis://127.0.0.1:1").acquire(timeout=0.2))
tried(lambda: incumbent.Lock("order-7", store="radis://localhost"))
tried(incumbent.current)
tried(lambda: incumbent.exclusive("order-{nope}")(lambda order: None))
"""


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of the new environment are."""
    folder = tmp_path_factory.mktemp("first-hour")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    binaries = folder / "venv" / "bin"
    install = (binaries / "python", "-m", "pip", "install", "--quiet")
    run(*install, "-c", ROOT / "constraints-cookbook.txt", f"{wheel}[redis]", "fastapi", "uvicorn")
    run(*install, "-c", ROOT / "constraints.txt", "pytest")
    return binaries


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INCUMBENT_STORE", f"sqlite://{tmp_path}/leases.db")
    return tmp_path


def test_the_first_lock_of_the_page_says_its_fence(binaries: Path, folder: Path) -> None:
    first = next(b for b in blocks_of(ROOT / "docs" / "start.md") if b.language == "python")
    assert "nobody else is here; " in run(binaries / "python", "-c", first.code, cwd=folder)


def test_the_first_job_runs_once_and_the_second_try_says_who_ran_it(
    binaries: Path, folder: Path
) -> None:
    job = (binaries / "incumbent", "run", "nightly", "--once-per", "12h", "--", "echo", "ran")
    assert run(*job, cwd=folder) == "ran\n"
    with pytest.raises(AssertionError, match="nightly"):
        run(*job, cwd=folder)
    assert "ok" in run(binaries / "incumbent", "history", "nightly", cwd=folder)


def test_each_error_that_is_met_has_its_page_and_its_entry(binaries: Path, folder: Path) -> None:
    lines = run(binaries / "python", "-c", MEETS, cwd=folder).splitlines()
    met = dict(line.split("|", 1) for line in lines)
    assert len(lines) == 10
    reference = (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert [name for name in met if f"::: incumbent.{name}\n" not in reference] == []
    texts = [line.partition("|")[2] for line in lines]
    known = entries()
    assert [text for text in texts if not any(fits(entry, text) for entry in known)] == []
    expected = {"AlreadyReleased", "ConfigError", "LeaseLost", "Misuse", "NotAcquired"}
    assert expected | {"StoreUnavailable"} == set(met) - {"AcquireTimeout"}


def test_a_leader_in_fastapi_leads_and_hands_over(
    binaries: Path, own_redis: RedisServer, tmp_path: Path
) -> None:
    store = f"{own_redis.url}?restart_wait=0"
    serve = ("uvicorn", "app:app", "--port", "PORT", "--log-level", "warning")
    with cooked("fastapi", tmp_path, binaries, INCUMBENT_STORE=store) as recipe:
        first = recipe.serve(*serve)
        eventually(lambda: first.ask("/leaderz")[0] == 200)
        second = recipe.serve(*serve)
        assert second.ask("/leaderz")[0] == 503
        first.terminate()
        eventually(lambda: second.ask("/leaderz")[0] == 200)


def test_a_test_of_ones_own_moves_the_clock(binaries: Path, folder: Path) -> None:
    for block in blocks_of(ROOT / "docs" / "testing.md"):
        if block.directive == "file":
            (folder / block.argument).write_text(block.code)
    assert "1 passed" in run(binaries / "python", "-m", "pytest", "-q", cwd=folder)
