"""Changes of the product that are none: what they change makes no difference to anybody."""

from __future__ import annotations

from tests.mutants.change import Change

_WHY: dict[tuple[str, str], str] = {}
"""Why, by file and change."""


def why(change: Change) -> str:
    """Empty where the change should be noticed."""
    return _WHY.get((change.file, change.text.partition(": ")[2]), "")
