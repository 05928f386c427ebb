"""The published failure of Redlock, and what refuses the late write.

Kleppmann, "How to do distributed locking" (2016): a holder that is paused between its look at the
lease and its write, and a master whose clock jumps. No lease can prevent either; the token can.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from incumbent import Lock
from incumbent.errors import StoreError
from incumbent.model import Ask, Granted, Renewed
from tests.quorum.fenced import FencedFile
from tests.quorum.walls import ShiftedServer
from tests.stores.quorum.world import Members, Party, party
from tests.support.needs import needs
from tests.support.servers import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

TTL = 3.0
NAME = "fenced"


class Holder:
    """A process of tests.quorum.fenced."""

    def __init__(self, url: str, path: Path) -> None:
        command = [sys.executable, "-m", "tests.quorum.fenced", url, NAME, str(TTL), str(path)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, text=True)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def holder(url: str, path: Path) -> Iterator[Holder]:
    one = Holder(url, path)
    try:
        yield one
    finally:
        one.close()


def test_a_holder_that_was_paused_before_its_write_is_refused_by_the_fence(tmp_path: Path) -> None:
    fenced = FencedFile(tmp_path / "fenced")
    with Members(3) as members, holder(members.url(), tmp_path / "fenced") as paused:
        first = paused.hear()["token"]
        assert paused.hear()["looked"]
        paused.process.send_signal(signal.SIGSTOP)
        with Lock(NAME, store=members.url(), ttl=TTL).acquire(timeout=40) as lease:
            assert lease.fencing_token > first
            assert fenced.write(lease.fencing_token, "of the next holder")
            paused.process.send_signal(signal.SIGCONT)
            paused.go_on()
            assert paused.hear() == {"taken": False, "valid": False}
        assert fenced.texts == ["of the next holder"]


def heard_of_it(one: Party, first: Granted) -> bool:
    """Whether a renewal says that it is over; it may take until all have answered."""
    with suppress(StoreError):
        return not isinstance(one.renew(first, 20.0), Renewed)
    return False


@needs(shutil.which("cc") is not None, "a C compiler: the clock is a preloaded library")
def test_a_clock_that_jumps_gives_two_holders_and_the_fence_refuses_the_first(
    tmp_path: Path,
) -> None:
    """The third master did not hear of the first holder, and the clock of another one jumps."""
    fenced = FencedFile(tmp_path / "fenced")
    with ExitStack() as stack:
        servers = [ShiftedServer() for _ in range(3)]
        makers = iter(servers)
        members = stack.enter_context(Members(3, lambda: next(makers)))
        one, other = (stack.enter_context(party(members.url("restart_wait=0"))) for _ in range(2))
        other.key, ask = one.key, Ask(20.0, "host")
        one.give(one.take(ask))
        members.all[2].begin("refusing")
        first = one.take(ask)
        members.all[2].end()
        servers[0].set_wall(40.0)
        second = other.take(ask)
        # Both could prove it now, as the documentation says: one vote was worth nothing.
        assert second.token > first.token
        assert fenced.write(second.token, "second")
        assert not fenced.write(first.token, "the late write")
        # And the first hears of it with its next renewal.
        eventually(lambda: heard_of_it(one, first))
        assert fenced.texts == ["second"]
