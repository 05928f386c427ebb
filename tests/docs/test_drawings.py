"""The drawings of the documentation: one style, one file for light and dark, and words for all."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.docs.blocks import PAGES, ROOT

SVG = "{http://www.w3.org/2000/svg}"
DRAWINGS = sorted((ROOT / "docs" / "assets").glob("*.svg"))


def style_of(drawing: Path) -> str:
    style = ET.parse(drawing).find(f"{SVG}style")
    assert style is not None
    return style.text or ""


def test_all_drawings_have_one_style_for_light_and_dark() -> None:
    (style,) = {style_of(drawing) for drawing in DRAWINGS}
    light, dark = re.findall(r"svg \{ (.*) \}", style)
    colours = [re.findall(r"(--\w+): (#\w+)", palette) for palette in (light, dark)]
    assert [name for name, _ in colours[0]] == [name for name, _ in colours[1]]
    assert set(re.findall(r"var\((--\w+)\)", style)) == dict(colours[0]).keys()


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_has_its_words_and_uses_the_style_alone(drawing: Path) -> None:
    root = ET.parse(drawing).getroot()
    assert root.get("role") == "img"
    for part in ("title", "desc"):
        said = root.find(f"{SVG}{part}")
        assert said is not None
        assert said.text
        assert said.get("id") in (root.get("aria-labelledby") or "").split()
    known = set(re.findall(r"\.(\w+) \{", style_of(drawing)))
    used = {name for node in root.iter() for name in node.get("class", "").split()}
    assert used <= known
    assert not any({"style", "fill", "stroke"} & node.attrib.keys() for node in root.iter())


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_is_on_a_page_with_words_in_its_place(drawing: Path) -> None:
    words = [
        found[1]
        for page in PAGES
        for found in re.finditer(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
        if (page.parent / found[2]).resolve() == drawing
    ]
    assert words
    assert min(map(len, words)) > 20
