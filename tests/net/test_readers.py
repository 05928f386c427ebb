"""Of those who wait in one process one reads for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from incumbent.net.readers import ReaderRole


@dataclass(eq=False)
class Waiter:
    listens: bool
    over: bool = False
    wakeup: Any = field(default_factory=lambda: SimpleNamespace(wake=lambda: None))


def test_who_relied_on_a_reader_that_was_interrupted_has_to_look() -> None:
    """A signal handler that waits for a lease, while the wait that it interrupts reads."""
    it: ReaderRole[Any, Any] = ReaderRole(lambda: SimpleNamespace(reader=None))
    listening, looking = Waiter(listens=True), Waiter(listens=False)
    it._waiters = {listening: None, looking: None}
    first = it._take_role("me")
    assert it._take_role("another") is None
    assert not listening.over
    assert it._take_role("me") is not first
    assert (listening.over, looking.over) == (True, False)
