"""The README for a package index: its relative links lead to Source of `project.urls`."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)([^)\s]+)")


def absolute(text, source):
    """The text with links to files, and pictures, below `source`."""
    return LINK.sub(
        lambda link: f"{link[1]}{link[2]}{source}/{'raw' if link[1] else 'blob'}/HEAD/{link[3]}",
        text,
    )


class PackageReadme(MetadataHookInterface):
    """Named in pyproject.toml."""

    def update(self, metadata):
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, metadata["urls"]["Source"]),
        }
