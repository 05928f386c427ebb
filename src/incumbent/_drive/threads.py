"""Threads of the operating system, also where a library has replaced `threading` (gevent)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

__all__ = ["start_thread"]


def start_thread(work: Callable[[], None], name: str) -> None:
    """Start a daemon thread that no event loop of the application can starve."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        # A greenlet would wait for the very body whose lease it is to renew.
        monkey.get_original("_thread", "start_new_thread")(work, ())
        return
    threading.Thread(target=work, name=name, daemon=True).start()
