"""Coordinators that tooz makes by the entry point, in a namespace of the test, on a real store."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

from tooz.coordination import get_coordinator

from incumbent import Client
from incumbent.tooz_driver import Driver

ROOT = Path(__file__).parent.parent.parent
TTL = 3.0
"""Seconds: `lock_timeout` of all members, so that a crash is soon over."""


class World:
    """One store and one namespace. `start` makes members, which end with the world."""

    def __init__(self, store: str, namespace: str, ends: ExitStack) -> None:
        self.store, self.namespace, self._ends = store, namespace, ends
        more = "&" if "?" in store else "?"
        self.url = f"incumbent+{store}{more}namespace={namespace}&lock_timeout={TTL}"

    def start(self, member: bytes = b"one", url: str = "") -> Driver:
        made = cast("Driver", get_coordinator(url or self.url, member))
        made.start(start_heart=True)
        self._ends.callback(lambda: made.stop() if made.is_started else None)
        return made

    def client(self) -> Client:
        return self._ends.enter_context(Client(self.store, namespace=self.namespace))

    @contextmanager
    def process(self, member: str, what: str, name: str) -> Iterator[subprocess.Popen[str]]:
        """A member that has the lock, or leads; it is killed at the end."""
        command = [sys.executable, "-m", "tests.tooz_driver.member", self.url, member, what, name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
            try:
                assert running.stdout is not None
                assert running.stdout.readline() == "got it\n"
                yield running
            finally:
                running.kill()


@contextmanager
def lasting(least: float, most: float) -> Iterator[None]:
    """The body takes so many seconds."""
    began = time.monotonic()
    yield
    assert least <= time.monotonic() - began <= most
