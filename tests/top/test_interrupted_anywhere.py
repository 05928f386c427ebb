"""Whatever instant a signal handler raises at, no lease is left held, nor is anything broken.

The exceptions are kept, as logs and debuggers do: their tracebacks keep the leases alive, so that
no finalizer gives them back.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import incumbent
from incumbent import clock, meters
from incumbent.interrupts import is_from_signal
from incumbent.net.wire import BlockingWire
from incumbent.runtime.threads import AlarmThread, notifier
from tests import tiers
from tests.support.instants import at_each_instant, past_crashes
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="the instants are those of CPython 3.11"
    ),
    # Of a coroutine that was interrupted between its making and its first step.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # What is raised in a finalizer, Python keeps for itself, and says so.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


TTL = 9
"""A lease that is still renewed outlives it."""


class Limit(Exception):
    """As Celery's soft time limit."""


def refuse() -> None:
    raise Limit("the handler's own")


def within(lock: Any) -> None:
    with lock:
        pass


def twice(lock: Any) -> None:
    with lock, lock:
        pass


def acquired(lock: Any) -> None:
    lock.acquire().release()


WAYS: dict[str, tuple[Callable[[incumbent.Client, str], Any], Callable[[Any], None]]] = {
    "with": (lambda client, name: client.lock(name, ttl=TTL), within),
    "reentrant": (lambda client, name: client.lock(name, ttl=TTL, reentrant=True), twice),
    "several": (
        lambda client, name: incumbent.MultiLock([name, f"{name}-too"], store=client, ttl=TTL),
        within,
    ),
    "semaphore": (lambda client, name: incumbent.Semaphore(name, 1, store=client, ttl=TTL), within),
}
IN_THE_OPEN: dict[str, Callable[[incumbent.Client, str], Any]] = {
    "lock": WAYS["with"][0],
    "several": WAYS["several"][0],
    "election": lambda client, name: Campaign(incumbent.Election(name, store=client, ttl=TTL)),
}


class Campaign:
    """Acquires as a lock does."""

    def __init__(self, election: incumbent.Election) -> None:
        self._election = election

    def acquire(self) -> Any:
        return self._election.campaign()


def left_held(client: incumbent.Client) -> list[str]:
    return [record.key.name for record in client.scan() if record.holdings]


@pytest.fixture(params=[False, True], ids=["", "counted"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting what happens, for metrics, adds instants."""
    monkeypatch.setattr(meters, "on", request.param)


@pytest.mark.left(tiers.MEET, "-with", "-semaphore", "counted-reentrant", "counted-several")
@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("way", WAYS)
@past_crashes
def test_a_body_that_ends_leaves_no_lease_behind(way: str, tmp_path: Path) -> None:
    make, use = WAYS[way]
    kept: list[Limit] = []
    with incumbent.Client(f"sqlite:///{tmp_path / 'leases.db'}") as client:
        use(make(client, "before"))
        locks = []

        def call(at: int) -> None:
            try:
                locks.append(make(client, f"name-{at}"))
                use(locks[-1])
            except Limit as limit:
                kept.append(limit)

        places = list(at_each_instant(call, refuse))
        assert len(places) > 60
        assert len(kept) >= len(places) - 1
        eventually(lambda: not left_held(client))


@pytest.mark.left(tiers.MEET, "-election", "counted-lock", "-several")
@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("what", IN_THE_OPEN)
@past_crashes
def test_who_was_not_told_of_a_lease_does_not_hold_it(what: str, tmp_path: Path) -> None:
    make = IN_THE_OPEN[what]
    kept: list[Limit] = []
    with incumbent.Client(f"sqlite:///{tmp_path / 'leases.db'}") as client:
        acquired(make(client, "before"))
        got: list[Any] = []

        def call(at: int) -> None:
            try:
                got.append(make(client, f"name-{at}").acquire())
            except Limit as limit:
                kept.append(limit)

        places = list(at_each_instant(call, refuse))
        assert len(kept) >= len(places) - 1 > 20
        for lease in got:
            lease.release()
        eventually(lambda: not left_held(client))


class PoppedThenInterrupted(set[bool]):
    """The signal comes while the entry is taken out."""

    def pop(self) -> bool:
        entry = super().pop()
        refuse()
        return entry


def test_a_thread_whose_start_was_interrupted_is_started_by_the_next_wake() -> None:
    acted: list[float] = []
    thread = AlarmThread("woken", lambda: float("inf"), lambda: acted.append(clock.now()))
    thread._absent = PoppedThenInterrupted(thread._absent)
    with pytest.raises(Limit):
        thread.wake()
    thread._absent = set(thread._absent)
    thread.wake()
    eventually(lambda: thread.alarm is not None)
    thread.wake()
    eventually(lambda: acted)
    thread.ends_when_idle = True
    thread.wake()


class TakenThenInterrupted(list[bool]):
    """The same of a list."""

    def pop(self, *_: Any) -> bool:
        entry = super().pop()
        refuse()
        return entry


def test_callbacks_go_on_after_the_start_of_their_thread_was_interrupted() -> None:
    notifier.reset()
    told: list[str] = []
    notifier._idle = TakenThenInterrupted(notifier._idle)
    with pytest.raises(Limit):
        notifier.call(lambda: told.append("first"))
    notifier._idle = list(notifier._idle)
    notifier.call(lambda: told.append("second"))
    eventually(lambda: told == ["first", "second"])


def test_a_request_that_was_sent_is_not_sent_again_for_a_handlers_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    raised = BlockingIOError(11, "the handler's own")

    def handle(*_: object) -> None:
        raise raised

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with theirs:
            wire = BlockingWire(ours)
            send = wire._send

            def sent_and_interrupted(data: bytes) -> int:
                sent = send(data)
                signal.raise_signal(signal.SIGUSR1)
                return sent

            monkeypatch.setattr(wire, "_send", sent_and_interrupted)
            with pytest.raises(BlockingIOError) as caught:
                wire.send(b"PING\r\n", clock.now() + 5)
            assert caught.value is raised
            assert is_from_signal(raised)
            theirs.setblocking(False)
            assert theirs.recv(100) == b"PING\r\n"
            wire.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with suppress(OSError):
        ours.close()
