"""How blocking code runs a coroutine: in one step, for what it awaits blocks and never suspends."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(protocol: Coroutine[Any, Any, T]) -> T:
    """Drive a protocol to its end; its port blocks instead of suspending."""
    try:
        protocol.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    protocol.close()
    raise RuntimeError("a blocking protocol suspended: its port must not await anything")
