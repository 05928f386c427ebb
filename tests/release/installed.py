"""Builds the packages, and environments in which nothing but them is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")
"""What the package is for, and the free-threaded builds; each is tried where the machine has it."""


def run(*command: str | Path, cwd: Path = ROOT, within: float = 1500) -> str:
    """What it wrote; a code other than 0 is a failure that shows it."""
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def find_python(version: str) -> str | None:
    """The program of that version: this one, on the path, or pyenv's."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted(home.glob(f"versions/{version.rstrip('t')}.*/bin/python{version}"))
    programs = [*map(str, kept), shutil.which(f"python{version}")]
    return next((program for program in programs if program and _starts(program)), None)


def _starts(program: str) -> bool:
    """pyenv has a stand-in on the path for each version, which may refuse."""
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel in it, and the tests beside it without the sources."""

    folder: Path
    program: Path

    @classmethod
    def made(
        cls,
        folder: Path,
        python: str,
        *requirements: str | Path,
        pins: Path = ROOT / "constraints.txt",
    ) -> Environment:
        run(python, "-m", "venv", folder / "venv")
        program = folder / "venv" / "bin" / "python"
        run(program, "-m", "pip", "install", "--quiet", "-c", pins, *requirements)
        tests = folder / "beside"
        tests.mkdir()
        shutil.copytree(
            ROOT / "tests", tests / "tests", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(ROOT / "pyproject.toml", tests)
        for shared in (".servers", "scripts", "examples", "docs", "README.md"):
            (tests / shared).symlink_to(ROOT / shared)
        return cls(tests, program)

    def test(self, *words: str) -> str:
        """Runs pytest; its last line."""
        where = run(
            self.program, "-c", "import incumbent; print(incumbent.__file__)", cwd=self.folder
        )
        assert "site-packages" in where
        wrote = run(
            *(self.program, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"),
            *("-p", "no:cacheprovider", *words),
            cwd=self.folder,
        )
        return wrote.strip().splitlines()[-1]
