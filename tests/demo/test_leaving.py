"""The demo is asked to end while it starts a process, or waits."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from incumbent.demo.scenes import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Stage() as stage:
        yield stage
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_process_is_started_ends_the_demo_at_its_next_wait(
    stage: Stage, signum: int
) -> None:
    signal.raise_signal(signum)
    process = stage.start("one", ["sleep", "60"])
    with pytest.raises(SystemExit) as ended:
        stage.sleep(60)
    assert ended.value.code == 128 + signum
    stage.__exit__()
    assert process.returncode == -signal.SIGKILL
    assert not stage.folder.exists()


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with Stage():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
