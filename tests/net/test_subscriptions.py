"""Of those who wait in one process one reads for all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from incumbent.net.readers import BLOCKING
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.site import Packer
from incumbent.stores.redis.subscription import LineHub, LineWaiter


def test_who_relied_on_a_reader_that_was_interrupted_has_to_look() -> None:
    """A signal handler that waits for a lease, while the wait that it interrupts reads."""
    it = LineHub(Packer(Naming(None), "redis://here"), BLOCKING)
    wakeup: Any = SimpleNamespace(wake=lambda: None)
    listening, looking = (LineWaiter(wakeup, None, []) for _ in range(2))
    listening.listens = True
    it._waiters = {listening: None, looking: None}
    first = it._take_role("me")
    assert it._take_role("another") is None
    assert not listening.over
    assert it._take_role("me") is not first
    assert (listening.over, looking.over) == (True, False)


def test_connections_that_are_closed_while_a_waiter_takes_the_role_are_the_waiters() -> None:
    it = LineHub(Packer(Naming(None), "redis://here"), BLOCKING)

    class Contended(list[Any]):
        """The free role, which another thread takes as soon as somebody has seen it."""

        def __bool__(self) -> bool:
            self.clear()
            return True

    it._free = Contended(it._free)
    it.let_go()
    assert it._take_role("me") is it._role
