"""Says what keeps a tag from being published, with exit code 1: `scripts/publishable.py v1.2.3`."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def problems(root: Path, tag: str) -> Iterator[str]:
    """What is to be done first, a sentence each."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version = project["version"]
    if tag != f"v{version}":
        yield f"the tag is {tag}, and pyproject.toml says {version}: the tag has to be v{version}"
    # Names under .example belong to nobody (RFC 2606).
    for name, url in project["urls"].items():
        if re.match(r"https://[^/]+\.example(/|$)", url):
            yield f"{name} in [project.urls] of pyproject.toml is {url}: set the real address"
    heading = rf"^## \[?{re.escape(version)}\b.*\d{{4}}-\d{{2}}-\d{{2}}"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        yield f"CHANGELOG.md has no section with a date for {version}"
    left = sorted(path.name for path in (root / "changes").glob("+*.md"))
    if left:
        yield f"changes/ has fragments that are in no release: {', '.join(left)}"


if __name__ == "__main__":
    found = list(problems(ROOT, *sys.argv[1:]))
    sys.exit("\n".join(found) if found else 0)
