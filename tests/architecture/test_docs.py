"""What the documents say of the code is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_table_of_transitions_is_the_machines_own() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import sys; sys.path.insert(0, 'scripts'); import lease_table as it;"
                "sys.stdout.write(it.page_with_table(it.PAGE.read_text()))"
            ),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert page == made, "run scripts/lease_table.py"


def test_every_file_that_a_page_links_to_exists() -> None:
    missing = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert missing == []


def test_every_test_that_a_page_names_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests += "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    missing = [
        f"{page.name}: {name}"
        for page in PAGES
        for name in re.findall(r"`(test_\w+)`", page.read_text())
        if f"def {name}(" not in tests
    ]
    assert missing == []
