"""A page of the cookbook without a test would be a promise only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.cookbook.recipe import PAGES
from tests.docs.blocks import ROOT, Block, blocks_of

RECIPES = [page for page in sorted(PAGES.glob("*.md")) if page.name != "index.md"]
FILES = [
    block
    for page in RECIPES
    for block in blocks_of(page)
    if block.directive == "file" and block.language == "python"
]


def test_each_recipe_has_a_test_that_names_its_page() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("*/test_*.py"))
    tests = tests.replace(Path(__file__).read_text(), "")
    assert [page.name for page in RECIPES if f'"{page.stem}"' not in tests] == []


def test_the_cookbook_lists_each_recipe() -> None:
    index = (PAGES / "index.md").read_text()
    assert [page.name for page in RECIPES if f"]({page.name})" not in index] == []


def test_what_a_recipe_installs_can_be_had_before_a_release() -> None:
    way = "PIP_FIND_LINKS"
    assert way in (PAGES / "index.md").read_text()
    texts = {page.name: page.read_text() for page in RECIPES}
    assert [
        name for name, text in texts.items() if ("pip install 'inc" in text) > (way in text)
    ] == []


@pytest.mark.parametrize("block", FILES, ids=lambda block: block.id)
def test_a_recipe_uses_what_it_imports(block: Block) -> None:
    tree = ast.parse(block.code)
    bound = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert bound - used - {"*"} == set()
