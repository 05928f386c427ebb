"""The wheel and the source package: what is in them, and that they work by themselves."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import tiers
from tests.release.installed import PYTHONS, ROOT, Environment, find_python, run

# It installs what a newcomer would, and runs thousands of tests.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.left(tiers.LONG)]

NEEDED = ROOT / "requirements" / "test.txt"
WITHOUT_SERVERS = "not slow and not server and not full and not timing and not crowd"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    # The builder of the package makes it without a tool more (PEP 517).
    run(sys.executable, "-m", "venv", folder / "venv")
    program = folder / "venv" / "bin" / "python"
    run(program, "-m", "pip", "install", "--quiet", "hatchling")
    build = "import sys, hatchling.build as b; b.build_sdist(sys.argv[1])"
    run(program, "-c", build, folder)
    return next(folder.glob("*.tar.gz"))


def kept_files(*places: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *places], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.split("\0")) - {""}


def test_the_wheel_holds_each_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in kept_files("src")}


def test_the_source_package_holds_what_its_tests_need(sources: Path) -> None:
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    places = (
        *("src", "tests", "examples", "deploy", "docs", "scripts", "Makefile", "README.md"),
        *(".ci", ".devcontainer", ".github", ".editorconfig", ".pre-commit-config.yaml"),
    )
    assert kept_files(*places) - names == set()


def test_from_the_source_package_comes_the_same_wheel(
    sources: Path, wheel: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, sources)
    again = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as two:
        assert {entry.filename: entry.CRC for entry in one.infolist()} == {
            entry.filename: entry.CRC for entry in two.infolist()
        }


def test_the_core_needs_nothing_beside_it(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    program = tmp_path / "venv" / "bin" / "python"
    # By its name, as the cookbook does before a release (PIP_FIND_LINKS).
    links = ("--no-index", "--find-links", wheel.parent)
    run(program, "-m", "pip", "install", "--quiet", *links, "incumbent")
    listed = run(program, "-m", "pip", "list", "--format=freeze").splitlines()
    assert {line.partition("==")[0] for line in listed} <= {"incumbent", "pip", "setuptools"}
    store = f"sqlite://{tmp_path}/leases.db"
    command = tmp_path / "venv" / "bin" / "incumbent"
    assert run(command, "-s", store, "run", "job", "--", "echo", "ran") == "ran\n"


@pytest.mark.parametrize("version", [version for version in PYTHONS if find_python(version)])
def test_the_suite_passes_against_the_wheel(version: str, wheel: Path, tmp_path: Path) -> None:
    python = find_python(version)
    assert python is not None
    environment = Environment.made(tmp_path, python, f"{wheel}[all]", "-r", NEEDED)
    passed = environment.test(
        *("-m", WITHOUT_SERVERS, "tests/contract", "tests/protocol", "tests/stores", "tests/top"),
        *("tests/cron", "tests/net", "tests/serve", "tests/page", "tests/fencing"),
    )
    assert "failed" not in passed


def test_the_oldest_clients_that_are_claimed_work(wheel: Path, tmp_path: Path) -> None:
    pins = tmp_path / "oldest.txt"
    oldest = {
        "redis": "6.0.0",
        "hiredis": "3.0.0",
        "PyMySQL": "1.2.1",
        "psycopg": "3.2.2",
        "psycopg-binary": "3.2.2",
    }
    newest = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.partition("==")[0].strip() not in oldest
    ]
    pins.write_text("\n".join([*newest, *(f"{name}=={at}" for name, at in oldest.items())]))
    environment = Environment.made(
        tmp_path, sys.executable, f"{wheel}[all]", "-r", NEEDED, pins=pins
    )
    passed = environment.test(
        *("-m", "not full and not timing and not crowd"),
        *("tests/contract/test_redis.py", "tests/contract/test_postgresql.py"),
        "tests/contract/test_mysql.py",
        *("tests/stores/redis/test_own_clients.py", "tests/stores/redis/test_clients.py"),
        *("tests/stores/postgresql/test_server.py", "tests/stores/postgresql/test_token.py"),
    )
    assert "failed" not in passed
