"""Signals end a wait for the lease, and are only noted while a command runs."""

from __future__ import annotations

import os
import signal

import pytest

from incumbent.net.dial import is_ready
from incumbent.supervise.signals import FORWARDED, Interrupted, Signals


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", FORWARDED)
def test_a_signal_ends_the_wait(signum: int) -> None:
    with Signals() as signals, pytest.raises(Interrupted) as interrupted, signals.interrupting():
        send(signum)
        signal.pause()
    assert interrupted.value.signum == signum


def test_a_second_signal_does_not_interrupt_the_clean_up() -> None:
    with Signals() as signals:
        with pytest.raises(Interrupted), signals.interrupting():
            try:
                send(signal.SIGTERM)
                signal.pause()
            finally:
                send(signal.SIGTERM)
        assert signals.take() == [signal.SIGTERM]


def test_a_signal_from_before_the_wait_ends_it_at_once() -> None:
    with Signals() as signals:
        send(signal.SIGTERM)
        with pytest.raises(Interrupted), signals.interrupting():
            pytest.fail("the wait began")


def test_a_signal_while_a_command_runs_is_noted_and_wakes_the_poll() -> None:
    with Signals() as signals:
        send(signal.SIGUSR1)
        assert is_ready(signals.fd, writing=False, seconds=1)
        assert signals.take() == [signal.SIGUSR1]
        assert not is_ready(signals.fd, writing=False, seconds=0)


def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            send(signal.SIGHUP)
            assert signals.take() == []
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_from_before_come_back() -> None:
    before = [signal.getsignal(signum) for signum in (*FORWARDED, signal.SIGCHLD)]
    with Signals() as signals:
        signals.watch_the_job()
        assert signal.getsignal(signal.SIGCHLD) != before[-1]
    assert [signal.getsignal(signum) for signum in (*FORWARDED, signal.SIGCHLD)] == before
