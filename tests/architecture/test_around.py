"""What stands around the code, for contributors and for CI, fits it: workflows, forms, editors."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its types are another package

from tests.release.installed import PYTHONS
from tests.support.servers import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DATA = [
    *sorted((ROOT / ".github").rglob("*.yml")),
    ROOT / ".pre-commit-config.yaml",
    ROOT / ".devcontainer" / "devcontainer.json",
]
SAID = [*DATA, ROOT / ".ci" / "run", ROOT / "CONTRIBUTING.md", ROOT / "CODE_OF_CONDUCT.md"]
SAID += [ROOT / ".github" / "pull_request_template.md", ROOT / ".editorconfig"]


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(path: Path) -> Any:
    return (json.loads if path.suffix == ".json" else yaml.safe_load)(path.read_text())


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in read(path)["jobs"].items():
            yield f"{path.stem}: {name}", job


def steps() -> Iterator[dict[str, Any]]:
    for _, job in jobs():
        yield from job.get("steps", ())


@pytest.mark.parametrize("path", DATA, ids=ids)
def test_a_file_of_data_can_be_read(path: Path) -> None:
    assert isinstance(read(path), dict)


def targets(text: str) -> set[str]:
    """What follows `make` where it is a command: after backticks, an `&&`, or at a line's start."""
    commands = re.findall(r"(?:^|`|&& |run: |\bstep )make((?: [\w./=*-]+)+)", text, re.MULTILINE)
    return {word for words in commands for word in words.split() if re.match(r"[a-z.][^=]*$", word)}


@pytest.mark.parametrize("path", SAID, ids=ids)
def test_what_make_is_asked_for_is_there(path: Path) -> None:
    for target in targets(path.read_text()):
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_target_that_is_not_there_would_be_seen() -> None:
    assert targets(
        "- run: make dist\n`make lint type`, make up, make PY=1 quick # x\nmake a b"
    ) == {
        *("dist", "lint", "type", "a", "b"),
    }
    done = subprocess.run(["make", "-n", "nothing"], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode != 0


@pytest.mark.parametrize("path", SAID, ids=ids)
def test_the_files_that_are_named_are_there(path: Path) -> None:
    named = re.findall(
        r"(?<![\w/.])(?:\./)?((?:\.ci|\.github|docs|scripts|tests)/[\w./-]*\w|[A-Z]{3,}\w*\.md)",
        path.read_text(),
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_pythons_are_the_ones_that_the_package_is_for() -> None:
    (matrix,) = [job["strategy"]["matrix"] for _, job in jobs() if "strategy" in job]
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert set(matrix["python"]) <= set(PYTHONS)
    assert f">={matrix['python'][0]}" == requires
    assert len(matrix["python"]) == 3


def test_what_has_to_pass_is_said_once_and_comes_before_a_release() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    commands = [line for step in steps() for line in step.get("run", "").splitlines()]
    ours = [line for line in commands if re.match(r"\.ci|make|.*\b(?:pytest|ruff|mypy)\b", line)]
    assert ours == [".ci/run", "make dist"]
    release = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert release["check"]["uses"] == "./.github/workflows/ci.yml"
    assert release["build"]["needs"] == "check"
    assert release["publish"]["needs"] == "build"


def test_only_what_publishes_has_a_right_and_only_that_one() -> None:
    assert {path.stem: read(path)["permissions"] for path in WORKFLOWS} == {
        path.stem: {"contents": "read"} for path in WORKFLOWS
    }
    assert {name: job["permissions"] for name, job in jobs() if "permissions" in job} == {
        "release: publish": {"id-token": "write"}
    }
    kept = [it for it in steps() if it.get("uses", "").startswith("actions/checkout@")]
    assert len(kept) == 2
    assert all(step["with"]["persist-credentials"] is False for step in kept)
    (upload,) = [step for step in steps() if "pypi-publish" in step.get("uses", "")]
    assert upload["with"] == {"attestations": True}


def test_no_job_runs_for_ever_or_beside_its_like() -> None:
    timed = {name: job["timeout-minutes"] for name, job in jobs() if "uses" not in job}
    assert timed["ci: run"] == 120
    assert max(timed.values()) == 120
    assert all(read(path)["concurrency"]["group"] for path in WORKFLOWS)


def test_actions_are_pinned_by_the_tag_of_a_version() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert len(used) > 4
    assert [it for it in used if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", it)] == []


@pytest.mark.parametrize("path", DATA, ids=ids)
def test_no_host_and_no_secret_is_named(path: Path) -> None:
    """Images and packages come from where the machine has them from."""
    text = path.read_text()
    assert re.findall(r"://|\b[\w-]+\.(?:org|io|com|net|dev)\b", text) == []
    assert re.findall(r"\bsecrets\b|password:|(?<!id-)token:", text) == []


def test_hooks_run_the_tools_of_the_environment() -> None:
    needed = (ROOT / "requirements" / "lint.txt").read_text().splitlines()
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert "rev" not in repository
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in repository["hooks"]}
    assert tools <= {re.split(r"\W", requirement)[0] for requirement in needed}


def test_files_end_and_are_indented_as_editors_are_told() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    kept = [ROOT / name for name in listed.stdout.split("\0") if name and "recorded/" not in name]
    texts = {path: path.read_bytes() for path in kept if path.suffix != ".png" and path.is_file()}
    assert [ids(path) for path, text in texts.items() if text and not text.endswith(b"\n")] == []
    assert [ids(path) for path, text in texts.items() if re.search(rb"[ \t\r]\n", text)] == []
    tabs = [path for path, text in texts.items() if re.search(rb"^\t", text, re.MULTILINE)]
    assert [ids(path) for path in tabs] == ["Makefile"]


@pytest.fixture
def problems(tmp_path: Path) -> Callable[[str], list[str]]:
    """What `scripts/publishable.py` says of a project that is ready to be published as 1.2.0."""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nversion = "1.2.0"\n[project.urls]\nSource = "https://host.test/incumbent"\n'
    )
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0, 2026-11-27\n")
    found = runpy.run_path(str(ROOT / "scripts" / "publishable.py"))["problems"]
    return lambda tag: list(found(tmp_path, tag))


def test_a_tag_of_another_version_is_not_published(problems: Callable[[str], list[str]]) -> None:
    assert problems("v1.2.0") == []
    (problem,) = problems("v1.2.1")
    assert "has to be v1.2.0" in problem


def test_a_version_without_a_section_in_the_change_log_is_not_published(
    problems: Callable[[str], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0, not yet released\n")
    (problem,) = problems("v1.2.0")
    assert "CHANGELOG.md" in problem


def test_a_change_that_the_change_log_lacks_is_not_forgotten(
    problems: Callable[[str], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "README.md").write_text("")
    assert problems("v1.2.0") == []
    (tmp_path / "changes" / "+waits.fixed.md").write_text("A wait ends.\n")
    (problem,) = problems("v1.2.0")
    assert "+waits.fixed.md" in problem


def test_an_address_that_is_an_example_is_not_published(
    problems: Callable[[str], list[str]], tmp_path: Path
) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace("host.test", "host.example"))
    (problem,) = problems("v1.2.0")
    assert "set the real address" in problem
