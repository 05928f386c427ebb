"""The site of the documentation: whole, found by search, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_drawings import DRAWINGS
from tests.support.browser import chromium

pytestmark = [
    pytest.mark.left("needs MkDocs and a browser; `make docs` builds the site"),
    # The first test builds the site.
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parent.parent.parent
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?![^>]*\brel=["']?(?:canonical|next|prev)\b)[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(\s*["']?((?:https?:)?//[^"')\s]+)|@import\s+["']((?:https?:)?//[^"']+)""",
    re.IGNORECASE,
)
"""What a browser loads by itself. A link that somebody may follow is none of it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=ROOT,
        env=dict(os.environ) | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def foreign(text: str) -> list[str]:
    return [next(filter(None, found)) for found in LOADS.findall(text)]


def test_nothing_of_the_site_is_loaded_from_another_host(site: Path) -> None:
    files = [path for end in ("html", "css", "svg") for path in site.rglob(f"*.{end}")]
    assert len(files) > 25
    assert {str(path): found for path in files if (found := foreign(path.read_text()))} == {}


def test_the_search_for_foreign_loads_finds_them() -> None:
    text = '<script src="https://a/x.js"></script><link rel="stylesheet" href="//b/x.css">'
    assert foreign(text + "a { src: url(https://c/x.woff) }") == [
        *("https://a/x.js", "//b/x.css", "https://c/x.woff")
    ]
    assert foreign('<a href="https://d/"></a><link rel="canonical" href="https://e/">') == []


def test_the_reference_breaks_signatures_over_lines_and_gives_each_setting_its_bullet(
    site: Path,
) -> None:
    page = (site / "reference" / "locks.html").read_text()
    signature = re.search(r'class="doc-signature[^>]*>.*?</div>', page, re.DOTALL)
    assert signature
    assert len(signature[0].splitlines()) > 5
    (bullet,) = re.findall(r"<li><code>timeout</code>: seconds[^\n]*</li>", page)[:1]
    assert bullet.count(". ") == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("width", [390, 1360])
def test_every_page_fits_its_window_and_asks_no_other_host(
    site: Path, browser: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    wide = []
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(path.name)
    page.close()
    assert wide == []
    local = ("file:", "data:", "blob:", "about:")
    assert [url for url in asked if not url.startswith(local)] == []


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_no_word_of_a_drawing_leaves_it_or_covers_another(browser: Any, drawing: Path) -> None:
    page = browser.new_page()
    page.goto(drawing.as_uri())
    whole, *boxes = page.evaluate(
        """() => [document.documentElement, ...document.querySelectorAll("text")].map(node => {
          const box = node.getBoundingClientRect()
          return [box.left, box.top, box.right, box.bottom, node.textContent]
        })"""
    )
    page.close()
    assert len(boxes) > 5
    outside = [box for box in boxes if not covers(whole, box, within=True)]
    assert outside == []
    assert [(a[4], b[4]) for a, b in combinations(boxes, 2) if covers(a, b)] == []


def covers(one: list[float], other: list[float], *, within: bool = False) -> bool:
    """Whether two boxes (left, top, right, bottom) meet; `within`: one has all of the other."""
    left, top, right, bottom = one[:4]
    if within:
        return left < other[0] and top < other[1] and other[2] < right and other[3] < bottom
    return left < other[2] and other[0] < right and top < other[3] - 2 and other[1] + 2 < bottom


def test_a_drawing_follows_the_theme_that_the_reader_chose(site: Path, browser: Any) -> None:
    page = browser.new_page(color_scheme="light", viewport={"width": 1000, "height": 900})
    page.goto((site / "fencing.html").as_uri())
    drawn = page.locator("img[src$='.svg']")
    light = drawn.screenshot()
    page.evaluate("document.body.setAttribute('data-md-color-scheme', 'slate')")
    page.wait_for_timeout(500)
    dark = drawn.screenshot()
    page.close()
    assert light != dark


def test_the_search_works_from_the_disk(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("restart_wait", delay=10)
    page.wait_for_selector(".md-search-result__item")
    assert "Redis" in page.inner_text(".md-search-result__list")
    page.close()
