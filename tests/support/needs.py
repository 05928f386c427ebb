"""What a test needs of the machine. Where CI runs, what is missing fails; it is never skipped."""

from __future__ import annotations

import os

import pytest

__all__ = ["needs"]


def needs(have: bool, reason: str) -> pytest.MarkDecorator:
    """Skip a test, with the reason shown, on a developer's machine that cannot run it."""
    return pytest.mark.skipif(not have and not os.environ.get("CI"), reason=reason)
