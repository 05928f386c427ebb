"""Threads and locks of the operating system, also where gevent has replaced those of Python.

A greenlet that renews a lease could not run while the body of that lease blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def unpatched(module: str, name: str) -> Any:
    """`module.name` of Python itself, if gevent has replaced it."""
    # Not imported here: without gevent there is nothing to undo.
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return getattr(import_module(module), name)
    return monkey.get_original(module, name)


def start_thread(work: Callable[[], None], name: str) -> None:
    """Start a daemon thread that no event loop of the application can starve."""
    if "gevent.monkey" in sys.modules:
        start_bare_thread(work)
        return
    import_module("threading").Thread(target=work, name=name, daemon=True).start()


def start_bare_thread(work: Callable[[], None]) -> None:
    """Start a thread without a name and without the locks of `threading`: for finalizers, which may
    run while their own thread holds such a lock.
    """
    unpatched("_thread", "start_new_thread")(work, ())
