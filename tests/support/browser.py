"""The browser of scripts/servers.sh. One that is missing fails, and is never skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.servers import SERVERS, find_server


@contextmanager
def chromium() -> Iterator[Any]:
    """A Chromium without a window, with fonts of its own."""
    from playwright.sync_api import sync_playwright

    fonts = SERVERS.parent / "fonts.conf"
    env: dict[str, Any] = dict(os.environ) | (
        {"FONTCONFIG_FILE": str(fonts)} if fonts.exists() else {}
    )
    with sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=str(find_server("chromium")), args=["--no-sandbox"], env=env
        )
        yield opened
        opened.close()
