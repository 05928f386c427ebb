"""Instances in this process."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def instances_end_soon(looks_often: None) -> None:
    """Each test waits until the threads that it began have ended."""
