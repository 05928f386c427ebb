"""The template of a store of one's own: installed beside incumbent, it is found and it is whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import tiers

TEMPLATE = Path(__file__).resolve().parents[2] / "examples" / "store_template"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder on the path with what pip leaves there; building a wheel would need the network."""
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    site = tmp_path / "site"
    shutil.copytree(TEMPLATE / "src", site)
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    name, version = project["name"], project["version"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    entries = project["entry-points"]["incumbent.stores"]
    lines = [f"{scheme} = {target}\n" for scheme, target in entries.items()]
    (info / "entry_points.txt").write_text("".join(["[incumbent.stores]\n", *lines]))
    return site


BARE = """
from dataclasses import replace
from incumbent.stores.memory import MemoryEngine


class BareEngine(MemoryEngine):
    capabilities = replace(MemoryEngine.capabilities, fields=False, slots=False, notices=False)


def open_bare(url):
    return BareEngine(url)
"""


@pytest.fixture
def bare(installed: Path) -> Path:
    """A store that has locks and nothing beside them is installed, too."""
    (installed / "incumbent_bare.py").write_text(BARE)
    (entries,) = installed.glob("*.dist-info/entry_points.txt")
    entries.write_text(entries.read_text() + "bare = incumbent_bare:open_bare\n")
    return installed


def run(
    site: Path | None, *command: str, cwd: Path, within: float = 170.0
) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("INCUMBENT_")}
    path = {} if site is None else {"PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=within,
        cwd=cwd,
        env={**known, **path},
    )


def incumbent(
    site: Path | None, folder: Path, *words: str, store: str = ""
) -> subprocess.CompletedProcess[str]:
    store = store or f"directory://{folder}/leases"
    return run(site, "-m", "incumbent", "-s", store, *words, cwd=folder)


def test_an_installed_store_is_found_by_its_scheme(installed: Path, tmp_path: Path) -> None:
    done = incumbent(
        installed, tmp_path, "run", "job", "--", "sh", "-c", "echo $INCUMBENT_LEASE_NAME"
    )
    assert (done.returncode, done.stdout) == (0, "job\n"), done.stderr
    # The job's, and the one on which it was tried whether conditional writes hold.
    assert len(list((tmp_path / "leases").glob("*.json"))) == 2


def test_an_installed_store_excludes(installed: Path, tmp_path: Path) -> None:
    inner = f"{sys.executable} -m incumbent -s directory://{tmp_path}/leases run job -- true"
    done = incumbent(installed, tmp_path, "run", "job", "--", *inner.split())
    assert done.returncode == 75, done.stderr


def test_an_installed_store_over_registers_has_slots(installed: Path, tmp_path: Path) -> None:
    command = ["run", "job", "--once-per", "1h", "--", "sh", "-c", "echo ran >> ran"]
    assert [incumbent(installed, tmp_path, *command).returncode for _ in range(2)] == [0, 75]
    assert (tmp_path / "ran").read_text() == "ran\n"


@pytest.mark.left(tiers.FORMS, "cron*", "*--slot*", "break*")
@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("cron jobs.crontab", "slots and no fields"),
        ("run job --once-per 1h -- touch ran", "slots"),
        ("run job --slot s -- touch ran", "slots"),
        ("jobs", "fields"),
        ("trigger job", "fields"),
        ("pause --all", "fields and no notices"),
        ("unpause --all", "fields and no notices"),
        ("pause job", "notices"),
        ("unpause job", "notices"),
        ("break job", "notices"),
        ("resign job", "notices"),
    ],
)
def test_a_command_that_needs_more_of_a_store_says_what_to_use_instead(
    bare: Path, tmp_path: Path, words: str, lacks: str
) -> None:
    (tmp_path / "jobs.crontab").write_text("* * * * * touch ran\n")
    done = incumbent(bare, tmp_path, *words.split(), store="bare:here")
    assert done.returncode == 64, (done.stdout, done.stderr)
    assert f"this store has no {lacks}" in done.stderr
    assert "use sqlite:, redis:, etcd:, postgresql: or mysql:" in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "ran").exists()


def test_an_error_of_the_store_is_told_with_its_file_and_line(
    installed: Path, tmp_path: Path
) -> None:
    (package,) = installed.glob("*/__init__.py")
    package.write_text("def __getattr__(name):\n    return {}['of the store']\n")
    done = incumbent(installed, tmp_path, "status")
    assert done.returncode == 125
    assert f"an error in {package}, line 2: KeyError: 'of the store'" in done.stderr


def test_without_the_package_the_scheme_is_unknown(tmp_path: Path) -> None:
    done = incumbent(None, tmp_path, "run", "job", "--", "true")
    assert done.returncode == 64
    assert "incumbent.stores" in done.stderr


@pytest.mark.left(tiers.LONG)
@pytest.mark.timeout(900)
def test_the_template_keeps_the_contract_by_its_one_fixture(
    installed: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(TEMPLATE / "tests", copy)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(copy))
    done = run(installed, *words, cwd=tmp_path, within=800.0)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.rstrip().splitlines()[-1].split()[0])
    assert passed > 450, done.stdout
