"""`incumbent demo` shows what it promises in time, and leaves nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from incumbent import clock
from tests import tiers
from tests.e2e.test_demo import ESCAPE, processes_in, start_demo
from tests.support.pace import took
from tests.support.waiting import eventually

pytestmark = pytest.mark.timing(tiers.PROCESSES)

AT_MOST = 80.0
"""Seconds: some fifteen where nothing else runs."""


@pytest.mark.left(tiers.LONG)
def test_it_shows_every_scene_in_time_and_leaves_nothing() -> None:
    # Not tmp_path, whose name may be too long for a unix socket in it.
    with tempfile.TemporaryDirectory(prefix="t") as made:
        folder = Path(made)
        began = clock.now()
        demo = start_demo(folder)
        said, _ = demo.communicate(timeout=110)
        seconds = took(began)
        assert demo.returncode == 0, said
        for words in (
            "is killed, its whole tree",
            "is frozen\n",
            "refused by the device",
            "nobody leads until it is back",
            "the store is back",
            "is asked to leave (TERM)",
            "0 s of two at once, terms grew, the late write was refused",
            "plain loop: who wrote when",
            "What next:",
        ):
            assert words in said, said
        assert ESCAPE not in said
        assert seconds < AT_MOST
        # What waited to become a command ends with its supervisor, a moment after it.
        eventually(lambda: processes_in(folder) == [])
        assert list(folder.iterdir()) == []
