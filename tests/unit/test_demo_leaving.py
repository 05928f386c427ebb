"""The demo is asked to leave while it starts a process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from incumbent.demo.leaving import Leaving


@pytest.fixture
def leaving() -> Iterator[Leaving]:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    leaving = Leaving()
    leaving.listen()
    yield leaving
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize(
    ("signum", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_ends_the_demo_at_once(
    leaving: Leaving, signum: int, raised: type[BaseException]
) -> None:
    with pytest.raises(raised):
        signal.raise_signal(signum)


@pytest.mark.parametrize(
    ("signum", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_while_a_process_is_started_ends_the_demo_after_it(
    leaving: Leaving, signum: int, raised: type[BaseException]
) -> None:
    started = False
    with pytest.raises(raised), leaving.later():
        signal.raise_signal(signum)
        started = True
    assert started


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        Leaving().listen()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
