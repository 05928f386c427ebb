"""The blocking port: with it a protocol is a coroutine that never suspends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from incumbent import clock
from incumbent.chance import draw_claim, draw_jitter
from incumbent.errors import Misuse, StoreError
from incumbent.model import PLAIN, Ask, GiveOutcome, Key, Parting, TakeOutcome
from incumbent.net.readers import ThreadWakeup
from incumbent.protocol.port import Debt
from incumbent.stores.base import NO_LIMITS, Answers, Give, Limits, Store, Take, Together
from incumbent.stores.inline import InlineAsyncStore
from incumbent.stores.plan import one_by_one


class ClientEnd:
    """Whether a client was closed, and the waits on it, which end then in Misuse."""

    # A wait is listed before it looks, and a close is noted before it looks: one of the two sees
    # the other. There is no lock that a signal handler could find taken.

    def __init__(self) -> None:
        self.closed = False
        self.waits: dict[object, Callable[[], object] | None] = {}
        """What ends each wait; None for one in the store, which ends when that is closed."""

    def close(self) -> None:
        self.closed = True
        for end in self.waits.copy().values():
            # The loop of a task that waits may be closed too.
            with suppress(RuntimeError):
                if end is not None:
                    end()

    def refuse(self, what: str = "") -> None:
        """Raise Misuse after a close: nobody would renew a lease."""
        if self.closed:
            raise Misuse(f"{what}the client that this came from was closed")

    @contextmanager
    def wait(self, end: Callable[[], object] | None) -> Iterator[None]:
        """A wait, which a close ends by calling `end` from any thread; see `waits`."""
        mark = object()
        self.waits[mark] = end
        try:
            self.refuse()
            yield
            self.refuse()
        finally:
            self.waits.pop(mark, None)


class Upkeep(Protocol):
    """A keeper, as far as a port needs it; see Port."""

    end: ClientEnd

    def owe(self, debt: Debt) -> None: ...

    def log_outage(
        self, key: Key, error: StoreError, waited: float = 0.0, timeout: float | None = None
    ) -> None: ...


class SyncPort(InlineAsyncStore):
    """A Port whose waits block the calling thread: its coroutines never suspend."""

    now = staticmethod(clock.now)
    jitter = staticmethod(draw_jitter)
    draw_claim = staticmethod(draw_claim)

    def __init__(self, store: Store, keeper: Upkeep) -> None:
        super().__init__(store)
        self.limits: Limits = getattr(store, "limits", NO_LIMITS)
        self.client_end = keeper.end
        self.owe = keeper.owe
        self.log_outage = keeper.log_outage

    # Each lease needs these two: directly, they take half the time.
    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return self.store.take(key, claim, ask, until)

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        return self.store.give(key, claim, token, until, parting=parting)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        with self.client_end.wait(None):
            self.store.wait_change(key, seen, until)

    async def take_all(self, takes: Sequence[Take], until: float) -> Answers[TakeOutcome]:
        """See Together; if the store cannot, one take after another up to the first refusal."""
        if isinstance(self.store, Together):
            return self.store.take_all(takes, until)
        return await one_by_one(lambda it: self.take(*it, until), takes, to_the_end=False)

    async def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]:
        if isinstance(self.store, Together):
            return self.store.give_all(gives, until)
        return await one_by_one(lambda it: self.give(*it, until), gives)

    async def sleep_until(self, instant: float) -> None:
        """See Port.sleep_until; signal handlers run during the sleep, and may end it by raising."""
        wakeup = ThreadWakeup()
        with self.client_end.wait(wakeup.wake):
            while clock.now() < instant and not self.client_end.closed:
                await wakeup.wait(instant)
