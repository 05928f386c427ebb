"""Every code block of the documentation, as it stands and in the order of its page.

What a page writes into files comes first, then its Python as one program, then its shell as one
script. A block that is not run says why, in a comment before it.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # its types are another package

from incumbent.cron.load import parse_jobs
from tests.docs.blocks import PAGES, ROOT, Block, blocks_of, name_of
from tests.docs.running import STARTS, Folder
from tests.stores.postgresql.world import new_database
from tests.support.servers import free_port

LANGUAGES = {
    "console",
    "dockerfile",
    "ini",
    "json",
    "pycon",
    "python",
    "sh",
    "sql",
    "text",
    "toml",
    "yaml",
}
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN = ("python", "sh")
PORTS = ("127.0.0.1:8080", "127.0.0.1:8081", "0.0.0.0:8081")


def _runs(block: Block) -> bool:
    return block.language in RUN and block.directive not in ("not run", "file")


def _elsewhere(page: Path) -> bool:
    """The README has a test of its own."""
    return page.name == "README.md"


TRIED = [page for page in PAGES if not _elsewhere(page) and any(map(_runs, blocks_of(page)))]


def test_every_block_says_what_it_is() -> None:
    assert [block.id for block in BLOCKS if block.language not in LANGUAGES] == []


def test_a_block_that_is_not_run_says_why() -> None:
    known = ("", "not run", "file", "under")
    assert [block.id for block in BLOCKS if block.directive not in known] == []
    assert [block.id for block in BLOCKS if block.directive and len(block.argument) < 5] == []
    assert len([block for block in BLOCKS if block.directive == "not run"]) < 30


def test_no_fence_is_overlooked() -> None:
    for page in PAGES:
        fences = len(re.findall(r"^`{3,}", page.read_text(), re.MULTILINE))
        assert fences == 2 * len(blocks_of(page)), name_of(page)


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in ("json", "toml", "yaml")], ids=lambda b: b.id
)
def test_a_block_of_data_can_be_read(block: Block) -> None:
    read = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}[block.language]
    assert read(block.code)


@pytest.mark.parametrize("name", ["crontab", "jobs.toml"])
def test_the_job_files_of_the_page_have_no_problem(name: str) -> None:
    (block,) = [b for b in blocks_of(ROOT / "docs" / "cron.md") if b.argument == name]
    loaded = parse_jobs(block.code, name)
    assert loaded.specs
    assert loaded.problems == ()


@pytest.fixture
def folder(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Folder:
    text = page.read_text()
    addresses = {"/tmp/": f"{tmp_path}/"}
    addresses |= {port: f"{port.partition(':')[0]}:{free_port()}" for port in PORTS}
    if "redis://localhost:6379" in text:
        addresses["redis://localhost:6379"] = request.getfixturevalue("redis_server").url
    if "etcd://e1,e2,e3" in text:
        addresses["e1,e2,e3"] = request.getfixturevalue("etcd_server").endpoint
    if "postgresql://admin@host/database" in text:
        server = request.getfixturevalue("postgres_server")
        addresses["postgresql://admin@host/database"] = server.url_of(new_database(server))
    if "mysql://admin@host/database" in text:
        maria = request.getfixturevalue("maria_server")
        addresses["mysql://admin@host/database"] = maria.url_of(maria.new_database())
    return Folder(tmp_path / "checkout", addresses | STARTS)


@pytest.mark.left("starts what the other pages start", "docs/index.md", "docs/sqlite.md")
@pytest.mark.parametrize("page", TRIED, ids=name_of)
def test_the_blocks_of_a_page_run_in_order(page: Path, folder: Folder) -> None:
    blocks = blocks_of(page)
    for block in blocks:
        if block.directive == "file":
            folder.write(block)
    plain = [block for block in blocks if not block.directive]
    if program := [block for block in plain if block.language == "python"]:
        folder.python(program)
    for block in blocks:
        if block.directive == "under":
            folder.under(block)
    if script := [block for block in plain if block.language == "sh"]:
        folder.shell(script)
