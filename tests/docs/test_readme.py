"""The README, block after block, as somebody follows it on a new machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.running import STARTS, Folder
from tests.support.servers import RedisServer, free_port

BLOCKS = [block for block in blocks_of(ROOT / "README.md") if block.directive != "not run"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def folder(tmp_path: Path, own_redis: RedisServer) -> Folder:
    port = free_port()
    return Folder(
        tmp_path / "checkout",
        {"redis://localhost:6379": own_redis.url, "127.0.0.1:8000": f"127.0.0.1:{port}"}
        | {"http.server --bind 127.0.0.1 8000": f"http.server --bind 127.0.0.1 {port}"}
        | STARTS,
        port,
    )


@pytest.mark.left("starts the fleet of the README, and waits for a Redis that has just started")
def test_the_shell_of_the_readme_runs_from_top_to_bottom(folder: Folder) -> None:
    said = folder.shell([block for block in BLOCKS if block.language == "sh"])
    assert said.count("README.md 200") == 2, "once with SQLite, once with Redis"
    extras = re.findall(r"\[(.*)\]", (folder.path / "pip.asked").read_text())
    named = {extra for group in extras for extra in group.split(",")}
    assert named == {"redis", "cron"} <= PROJECT["optional-dependencies"].keys()


def test_the_python_of_the_readme_runs_from_top_to_bottom(folder: Folder) -> None:
    said = folder.python([block for block in BLOCKS if block.language == "python"])
    assert "shipped 4711 done" in said
    assert "leading, term" in said


def test_the_site_begins_with_the_first_screen_of_the_readme() -> None:
    readme, _, _ = (ROOT / "README.md").read_text().partition("\n## Try it\n")
    index, _, _ = (ROOT / "docs" / "index.md").read_text().partition("\n## Where to go on\n")
    assert index == readme.replace("](docs/", "](")
