"""What is owed to one store: the release of claims that ended here and may still stand there."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from math import inf

from incumbent import clock
from incumbent.durations import backoff_delay
from incumbent.protocol.chance import draw_jitter
from incumbent.protocol.port import Debt, Port, run
from incumbent.protocol.release import settle
from incumbent.unpatched import original

_log = logging.getLogger("incumbent")

_SETTLE_TIMEOUT = 1.0


@dataclass(slots=True)
class _Owed:
    debt: Debt
    tries: int = 0
    due: float = 0.0


class Debts:
    """Releases that are owed. Any thread, and `__del__`, may add; they are paid one at a time."""

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()
        self._paying: threading.Lock = original("_thread", "allocate_lock")()

    def add(self, debt: Debt) -> None:
        """It is due at once. Never blocks."""
        self._owed.append(_Owed(debt))

    def first(self) -> float:
        """The instant at which the next is due."""
        # A copy in one step: another thread may add meanwhile.
        return min((owed.due for owed in list(self._owed)), default=inf)

    def pay(self, port: Port, renewals_due: float) -> None:
        """Pay what is due, until the next renewals are due, which matter more.

        It takes a second at most, for a lease that is taken meanwhile needs renewals too.
        """
        if not self._owed:
            return
        renewals_due = min(renewals_due, clock.now() + _SETTLE_TIMEOUT)
        with self._paying:
            for _ in range(len(self._owed)):
                self._pay_one(port, self._owed.popleft(), renewals_due)

    def _pay_one(self, port: Port, owed: _Owed, renewals_due: float) -> None:
        now = clock.now()
        if owed.due > now or now >= renewals_due:
            self._owed.append(owed)
        elif not _settle(port, owed.debt, min(_SETTLE_TIMEOUT, renewals_due - now)):
            owed.tries += 1
            owed.due = clock.now() + backoff_delay(owed.tries, draw_jitter(), cap=2.0)
            self._owed.append(owed)

    def drain(self, port: Port, timeout: float) -> None:
        """Pay everything, due or not, for at most `timeout` seconds."""
        until = clock.now() + timeout
        # What another thread is paying is not in the list: an exit now would cut it short.
        if not self._paying.acquire(timeout=timeout):
            return
        try:
            while self._owed and clock.now() < until:
                _settle(port, self._owed.popleft().debt, until - clock.now())
        finally:
            self._paying.release()


def _settle(port: Port, debt: Debt, timeout: float) -> bool:
    try:
        return run(settle(port, debt, timeout))
    except Exception:  # noqa: BLE001 - an exit or the thread must not end for it
        _log.exception("%s: a dead claim could not be given back; its ttl ends it", debt.key)
        return True
